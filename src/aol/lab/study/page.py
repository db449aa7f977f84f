"""The page of results: every built-in study that has runs, with its verdict, a chart, its tables, and how to repeat it.

The text is in `templates/results.md.j2`. It begins with a summary: for each table of the paper its claim, the figure
here, and the verdict. The page follows from the runs only and has no date in it: written twice, it is the same.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean

from aol.lab.settings import Value, WrongSettingsError, word
from aol.lab.study.comparisons import StudyResults, chosen_runs, finished_runs, study_results
from aol.lab.study.correlations import signed
from aol.lab.study.draw import estimate_of, gain_figure
from aol.lab.study.formats import ENVIRONMENT, notes
from aol.lab.study.paper import TABLES
from aol.lab.study.spec import Cell, Study, builtin_names, cell_name, load, plural
from aol.lab.study.tables import best_on_test, checks, gain_over_baseline_best, step_deviations, tables
from aol.lab.study.verdict import OPEN, Claim, points, span
from aol.records.metrics import zero_threshold_share
from aol.records.store import Store
from aol.report.figures import style
from aol.report.figures.forest import Estimate, draw_forest


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
    names = [study.name for study in chosen]
    if twice := [name for name in names if names.count(name) > 1]:
        raise WrongSettingsError(f"Two studies are called {twice[0]!r}: they need different names on one page.")
    frame = finished_runs(store)
    every = [study_results(study, store, frame) for study in chosen] if store.ids() else []
    every = [each for each in every if len(each.frame) or each.damaged]
    seeds = {study.name: study.seeds for study in chosen}
    larger = {each.study.name: _containing(each, every, seeds) for each in every}
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
                "commands": _commands(each, folder, called or {}, seeds[each.study.name]),
            }
        )
    lines = summary([each for each in every if not larger[each.study.name]]) if any(s.paper for s in chosen) else []
    bases = {study.baseline for study in chosen}
    text = ENVIRONMENT.get_template("results.md.j2").render(
        paper=any(study.paper for study in chosen),
        chosen=any(len(method.variants()) > 1 for study in chosen for method in study.methods),
        summary=lines,
        folder=folder.as_posix(),
        every=every,
        larger=larger,
        sections=sections,
        base=bases.pop() if len(bases) == 1 else "the baseline",
        builtin=builtin_names(),
        charts=charts,
        gain_of=_gain_of,
        best_on_test=best_on_test,
    )
    return Page(text, _charts(shown, lines) if charts else {})


def _charts(shown: Sequence[StudyResults], lines: Sequence[SummaryLine]) -> dict[str, bytes]:
    figures = {each.study.name: gain_figure(each) for each in shown}
    blocks: dict[str, list[Estimate]] = {}
    for each in lines:
        if each.estimate is not None:
            blocks.setdefault(each.table, []).append(each.estimate)
    if blocks:
        figures["summary"] = draw_forest(list(blocks.items()), "gain of weights from ages (points)", "paper's gain")
    return {f"results-{name}.svg": style.rendered(figure, "svg", text=True) for name, figure in figures.items()}


def _containing(
    results: StudyResults, every: Sequence[StudyResults], seeds: Mapping[str, tuple[int, ...]]
) -> StudyResults | None:
    """Return results with all the runs of these and more: one section is enough for both.

    With the same runs it is the study whose plan has these seeds, if the plan of this one has not.
    """
    own, planned = set(results.frame.index), results.study.seeds == seeds[results.study.name]
    for other in every:
        theirs, home = set(other.frame.index), other.study.seeds == seeds[other.study.name]
        if own and other.has_figures and (own < theirs or (own == theirs and home and not planned)):
            return other
    return None


def _gain_of(results: StudyResults, verdict: Claim) -> str:
    """Return a gain with its interval; without a verdict, the mean of what is there, without one."""
    if verdict.gain is not None:
        return f"{points(verdict.gain.mean)}{span(verdict.gain)}"
    own = [(each.gain.mean, len(each.seeds)) for each in results.of(verdict.method) if each.gain is not None]
    if not own:
        return ""
    most = max(seeds for _, seeds in own)
    return f"{points(fmean(gain for gain, _ in own))}, {plural(most, 'seed')}"


def _commands(results: StudyResults, folder: Path, called: Mapping[str, str], planned: tuple[int, ...]) -> list[str]:
    """Return the commands that train and show these results; `planned` are the seeds that the study names."""
    study = results.study
    name, more = called.get(study.name, study.name), ["--out", folder.as_posix()]
    if study.seeds != planned:
        more = ["--seeds", ",".join(map(str, study.seeds)), *more]
    cells = [cell for cell in study.cells_list() if any(e.runs for e in results.comparisons if e.cell == cell)]
    words = shlex.join([name, *_part(study, cells), *more])
    found = [f"aol study run {shlex.join([name, *_part(study, own), *more])}" for own in _blocks(study, cells)]
    found.append(f"aol study show {words}" + ("" if results.correlations else " --optimistic"))
    return found + ([f"aol study draw {words} --write {study.name}.png"] if "age" in study.keep else [])


def _part(study: Study, cells: Sequence[Cell]) -> list[str]:
    """Return the flags that select these cells."""
    words = []
    for name, values in study.cells.items():
        own = _values(study, cells, name)
        if len(own) < len(values):
            words += ["--only", f"{name}={','.join(map(word, own))}"]
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


# The summary


@dataclass(frozen=True)
class SummaryLine:
    """One row: the paper's table and claim, the figure here, from how many seeds and cells, and the verdict.

    `estimate` is the gain for a chart, None where there is no interval. `zero_threshold` has by cell the share of steps
    in which no class grew older, because the median accuracy was 0; empty where that is not recorded. The last two are
    those of `tables`.
    """

    table: str
    study: str | None = None
    claim: str = ""
    here: str = ""
    data: str = ""
    verdict: str = "no runs"
    estimate: Estimate | None = None
    zero_threshold: dict[str, float] = field(default_factory=dict)
    gain_over_baseline_best: dict[str, list[float]] = field(default_factory=dict)
    step_deviations: tuple[float, float] | None = None


def summary(every: Sequence[StudyResults]) -> list[SummaryLine]:
    """Return the rows for all tables of the paper, in its order.

    A table is shown by all studies of it that have a verdict, else by the first that has any figure.
    """
    lines = []
    for name, table in TABLES.items():
        own = [each for each in every if each.study.paper == name and each.has_figures]
        judged = [each for each in own if each.correlations or any(verdict.gain for verdict in each.verdicts)]
        judged.sort(key=lambda each: -max([len(verdict.seeds) for verdict in each.verdicts], default=0))
        found: list[SummaryLine] = []
        for each in judged or own[:1]:
            if each.correlations:
                found.append(_correlation_line(table, each))
            else:
                found += [_gain_line(table, each, verdict) for verdict in each.verdicts]
        lines += found or [SummaryLine(table)]
    return lines


def _gain_line(table: str, results: StudyResults, claim: Claim) -> SummaryLine:
    name = results.study.name
    own = results.of(claim.method)
    paper = "" if claim.paper_gain is None else points(claim.paper_gain)
    if claim.gain is None:
        seeds = max((len(each.seeds) for each in own), default=0)
        here = points(fmean(each.gain.mean for each in own if each.gain)) if own else ""
        return SummaryLine(table, name, paper, here, _data(seeds, len(own)), OPEN)
    shares = {}
    for each in own:
        runs = chosen_runs(results, each.cell, claim.method).values()
        shares[cell_name(each.cell)] = fmean(zero_threshold_share(run) for run in runs)
    return SummaryLine(
        table,
        name,
        paper,
        f"{points(claim.gain.mean)}{span(claim.gain)}",
        _data(claim.gain.seeds, claim.cells),
        claim.word,
        estimate_of(name, claim.gain, paper=claim.paper_gain),
        {cell: share for cell, share in shares.items() if not math.isnan(share)},
        gain_over_baseline_best(results, claim.method),
        step_deviations(results, claim.method),
    )


def _correlation_line(table: str, results: StudyResults) -> SummaryLine:
    """Return the row of correlations: that of age and test accuracy, by cell."""
    known = [each for _, found in results.correlations for each in found if each.signal == "accuracy_test"]
    paper = ", ".join(f"r {signed(each.paper)}" for each in known if each.paper is not None)
    here = ", ".join(f"r {signed(each.r)} ({signed(each.low)} to {signed(each.high)})" for each in known)
    data = _data(max(each.seeds for each in known), len(known))
    return SummaryLine(table, results.study.name, paper, here, data, results.correlation_verdict[0])


def _data(seeds: int, cells: int) -> str:
    return f"{plural(seeds, 'seed')}, {plural(cells, 'cell')}"
