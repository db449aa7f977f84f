"""The page of results: every built-in study that has runs, with its verdict, a chart, its tables, and how to repeat it.

The text is in `templates/results.md.j2`. The page follows from the runs only and has no date in it: written twice, it
is the same.
"""

from __future__ import annotations

import math
import shlex
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from aol.engine.settings import Value
from aol.plots.forest import Estimate
from aol.runs.metrics import figure_text
from aol.runs.store import Store
from aol.study.comparisons import StudyResults, finished_runs, study_results
from aol.study.formats import template
from aol.study.notes import notes
from aol.study.spec import Cell, Study, builtin_names, load
from aol.study.summary import SummaryLine, summary
from aol.study.tables import NONE, best_on_test, checks, tables
from aol.study.verdict import OPEN, Verdict, points, span


@dataclass(frozen=True)
class Page:
    """The text of the page, and its charts by file name."""

    text: str
    charts: dict[str, bytes]


def results_page(
    folder: Path,
    studies: Sequence[Study] | None = None,
    *,
    called: Mapping[str, str] | None = None,
    charts: bool = False,
) -> Page:
    """Return the page for all runs of a folder; by default of the built-in studies.

    `called` has the names on the command line of studies that are in files. `charts` draws them, which needs
    matplotlib.
    """
    store = Store(folder)
    chosen = [load(name) for name in builtin_names()] if studies is None else list(studies)
    frame = finished_runs(store)
    every = [study_results(study, store, frame) for study in chosen] if store.ids() else []
    every = [each for each in every if len(each.frame) or each.damaged]
    seeds = {study.name: study.seeds for study in chosen}
    larger = {each.study.name: _larger(each, every, seeds) for each in every}
    shown = [each for each in every if each.has_figures and not larger[each.study.name]]
    sections: list[dict[str, object]] = []
    for place, each in enumerate(shown):
        same = next((other for other in shown[:place] if set(other.frame.index) == set(each.frame.index)), None)
        first, *rest = tables(each, optimistic=True)
        sections.append(
            {
                "results": each,
                "same": same and same.study.name,
                "verdicts": notes(each, "verdicts"),
                "tables": [first, *checks(each), *rest],
                "notes": notes(each, "runs", "method", optimistic=True),
                "hardware": notes(each, "hardware")[0],
                "commands": _commands(each, folder, called or {}),
            }
        )
    lines = summary([each for each in every if not larger[each.study.name]]) if any(s.paper for s in chosen) else []
    bases = {study.baseline for study in chosen}
    text = template("results.md.j2").render(
        paper=any(study.paper for study in chosen),
        chosen=any(len(method.variants()) > 1 for study in chosen for method in study.methods),
        summary=lines,
        figure_text=figure_text,
        folder=folder.as_posix(),
        every=every,
        larger=larger,
        sections=sections,
        base=bases.pop() if len(bases) == 1 else "the baseline",
        builtin=builtin_names(),
        charts=charts,
        gain_of=_gain_of,
        best_on_test=best_on_test,
        OPEN=OPEN,
        NONE=NONE,
    )
    return Page(text, _charts(shown, lines) if charts else {})


def _charts(shown: Sequence[StudyResults], lines: Sequence[SummaryLine]) -> dict[str, bytes]:
    from aol.plots import style
    from aol.plots.forest import draw_forest
    from aol.study.draw import gain_chart

    drawn = {f"results-{each.study.name}.svg": gain_chart(each) for each in shown}
    blocks: dict[str, list[Estimate]] = {}
    for each in lines:
        if each.estimate is not None:
            blocks.setdefault(each.table, []).append(each.estimate)
    if blocks:
        figure = draw_forest(list(blocks.items()), "gain of weights from ages (points)", "paper's gain")
        drawn["results-summary.svg"] = style.rendered(figure, "svg", text=True)
    return drawn


def _larger(
    results: StudyResults, every: Sequence[StudyResults], seeds: Mapping[str, tuple[int, ...]]
) -> StudyResults | None:
    """Return results with all the runs of these and more: one section is enough for both.

    With the same runs it is the study whose plan has these seeds, if the plan of this one has not.
    """
    own, planned = set(results.frame.index), results.study.seeds == seeds[results.study.name]
    for other in every:
        theirs, home = set(other.frame.index), other.study.seeds == seeds[other.study.name]
        if other.has_figures and (own < theirs or (own == theirs and home and not planned)):
            return other
    return None


def _gain_of(results: StudyResults, verdict: Verdict) -> str:
    """Return a gain with its interval; without a verdict, the mean of what is there, without one."""
    if verdict.claim.gain is not None:
        return f"{points(verdict.claim.gain.mean)}{span(verdict.claim.gain)}"
    own = [(each.gain.mean, len(each.seeds)) for each in results.of(verdict.claim.method) if each.gain is not None]
    if not own:
        return ""
    most = max(seeds for _, seeds in own)
    return f"{points(statistics.fmean(gain for gain, _ in own))}, {most} seed{'s' * (most > 1)}"


def _commands(results: StudyResults, folder: Path, called: Mapping[str, str]) -> list[str]:
    """Return the commands that train and show these results."""
    study = results.study
    name, out = called.get(study.name, study.name), ["--out", folder.as_posix()]
    cells = [cell for cell in study.cells_list() if any(e.runs for e in results.comparisons if e.cell == cell)]
    words = shlex.join([name, *_part(study, cells), *out])
    found = [f"aol study run {shlex.join([name, *_part(study, own), *out])}" for own in _blocks(study, cells)]
    found.append(f"aol study show {words}" + ("" if results.correlations else " --optimistic"))
    return found + ([f"aol study draw {words} --write {study.name}.png"] if "age" in study.keep else [])


def _part(study: Study, cells: Sequence[Cell]) -> list[str]:
    """Return the flags for cells and seeds, where those are not all or not the study's own."""
    words = []
    for name, values in study.cells.items():
        own = _values(study, cells, name)
        if len(own) < len(values):
            words += ["--only", f"{name}={','.join('none' if each is None else str(each) for each in own)}"]
    if study.name in builtin_names() and study.seeds != load(study.name).seeds:
        words += ["--seeds", ",".join(str(seed) for seed in study.seeds)]
    return words


def _values(study: Study, cells: Sequence[Cell], name: str) -> list[Value]:
    return [value for value in study.cells[name] if any(cell[name] == value for cell in cells)]


def _blocks(study: Study, cells: Sequence[Cell]) -> list[list[Cell]]:
    """Return cells in blocks that one command can name: all combinations of their values, and no others."""
    if len(cells) == math.prod(len(_values(study, cells, name)) for name in study.cells):
        return [list(cells)]
    split = next(name for name in study.cells if len(_values(study, cells, name)) > 1)
    found = []
    for value in _values(study, cells, split):
        found += _blocks(study, [cell for cell in cells if cell[split] == value])
    return found
