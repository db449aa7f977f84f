"""The page of results: every built-in study that has runs, with its verdict, a chart, its tables, and how to repeat it.

The text is in `templates/results.md.j2`. The page follows from the runs only and has no date in it: written twice, it
is the same.
"""

from __future__ import annotations

import math
import shlex
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from aol._files import write_atomically
from aol.engine.settings import Value
from aol.runs.store import Store
from aol.study import tables
from aol.study.comparisons import StudyResults, finished_runs, study_results
from aol.study.correlations import NOT_JUDGED
from aol.study.formats import markdown_table, markdown_text
from aol.study.spec import Cell, Study, builtin_names, load
from aol.study.tables import NONE, TextTable, best_on_test, gain_text
from aol.study.verdict import OPEN, Verdict, points


@dataclass(frozen=True)
class Page:
    """The text of the page, and its charts by file name."""

    text: str
    charts: dict[str, bytes]


@dataclass(frozen=True)
class Section:
    """What the template shows of one study."""

    name: str
    title: str
    verdicts: list[str]
    same: str | None
    chart: str | None
    chart_title: str
    tables: list[TextTable]
    notes: list[str]
    hardware: str
    builtin: bool
    commands: list[str] = field(default_factory=list)


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
    chosen = [load(name) for name in builtin_names(smoke=False)] if studies is None else list(studies)
    frame = finished_runs(store)
    every = [study_results(study, store, frame) for study in chosen] if store.ids() else []
    every = [each for each in every if len(each.frame) or each.damaged]
    seeds = {study.name: study.seeds for study in chosen}
    larger = {each.study.name: _larger(each, every, seeds) for each in every}
    shown = [each for each in every if each.has_figures and not larger[each.study.name]]
    drawn = {f"results-{each.study.name}.svg": _chart(each) for each in shown} if charts else {}
    sections = []
    for place, each in enumerate(shown):
        same = next((other for other in shown[:place] if set(other.frame.index) == set(each.frame.index)), None)
        sections.append(_section(each, folder, called or {}, same, charts))
    text = _template().render(
        paper=any(study.paper for study in chosen),
        folder=folder.as_posix(),
        summary=_summary(every, larger),
        legend=_legend(every, chosen),
        sections=sections,
    )
    return Page(text, drawn)


def write_page(page: Page, path: Path) -> None:
    """Write the page, and its charts beside it."""
    for name, content in page.charts.items():
        write_atomically(path.parent / name, content)
    write_atomically(path, page.text.encode())


def _template() -> Template:
    environment = Environment(
        loader=PackageLoader("aol.study"),
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
        autoescape=False,
    )
    environment.filters |= {"md": markdown_text, "table": markdown_table}
    return environment.get_template("results.md.j2")


def _chart(results: StudyResults) -> bytes:
    from aol.study.draw import gain_chart

    return gain_chart(results)


def _legend(every: Sequence[StudyResults], chosen: Sequence[Study]) -> list[str]:
    names = {study.baseline for study in chosen}
    base = names.pop() if len(names) == 1 else "the baseline"
    builtin = builtin_names()
    named = {each.method for results in every if results.study.name in builtin for each in results.comparisons}
    words = [tables.method_legend(named)] if named & tables.METHODS.keys() else []
    words += [tables.GAIN_LEGEND.format(base=base), tables.PAPER_LEGEND, tables.METHOD_LEGEND]
    return [*words, tables.OPTIMISTIC_LEGEND.format(base=base), tables.CORRELATION_LEGEND]


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


# The summary


def _summary(every: Sequence[StudyResults], larger: Mapping[str, StudyResults | None]) -> list[dict[str, str | bool]]:
    """Return a row for each study."""
    rows: list[dict[str, str | bool]] = []
    for each in every:
        within = larger[each.study.name]
        if within and not each.has_figures and not each.damaged:
            continue  # its baseline is also that of the other study; nothing was trained for it
        verdict, gain, paper, best = _in_short(each)
        runs = f"{len(each.frame)} of {each.runs_planned}"
        runs += f", {len(each.damaged)} damaged" if each.damaged else ""
        row = {
            "name": each.study.name,
            "part_of": within.study.name if within else "",
            "verdict": verdict,
            "gain": gain,
        }
        rows.append({**row, "paper": paper, "best": best, "runs": runs, "linked": each.has_figures and not within})
    return rows


def _in_short(results: StudyResults) -> tuple[str, str, str, str]:
    """Return the verdict in a word, the gain, the paper's gain, and the gain of the best on test."""
    if not results.has_figures:
        why = next((each.problem for each in results.comparisons if each.problem), "no seed is complete")
        return f"{OPEN}: {why}", NONE, NONE, NONE
    if results.correlations:
        word, cells = results.correlation_verdict[0], (len(results.correlations), len(results.study.cells_list()))
        return word + ("" if word == NOT_JUDGED else _of_cells(*cells)), NONE, NONE, NONE
    words, gains, papers, best = [], [], [], []
    read = results.with_figure("best") if results.study.paper else None
    for each in results.verdicts:
        name, paper = each.claim.method, each.claim.paper_gain
        word = each.word + (_of_cells(each.claim.cells, each.claim.cells_planned) if each.claim.gain else "")
        words.append(f"{name}: {word}" if len(results.verdicts) > 1 else word)
        gains += [f"{name} {text}" for text in [_gain_of(results, each)] if text]
        papers += [] if paper is None else [points(paper)]
        found = best_on_test(read, name) if read else None
        if found:
            tried = "" if found.tried_gain is None else f" ({points(found.tried_gain)})"
            best.append(f"{points(found.gain)}{tried}")
    return "; ".join(words), "; ".join(gains) or NONE, "; ".join(papers) or NONE, "; ".join(best) or NONE


def _of_cells(cells: int, planned: int) -> str:
    return f" ({cells} of {planned} cells judged)" if cells < planned else ""


def _gain_of(results: StudyResults, verdict: Verdict) -> str:
    """Return a gain with its interval; without a verdict, the mean of what is there, without one."""
    if verdict.claim.gain is not None:
        return gain_text(verdict.claim.gain)
    own = [each for each in results.of(verdict.claim.method) if each.gain is not None]
    if not own:
        return ""
    most = max(len(each.seeds) for each in own)
    mean = statistics.fmean(each.gain.mean for each in own if each.gain is not None)
    return f"{points(mean)}, {most} seed{'s' * (most > 1)}"


# Sections


def _section(
    results: StudyResults, folder: Path, called: Mapping[str, str], same: StudyResults | None, charts: bool
) -> Section:
    study = results.study
    first, *rest = tables.tables(results, optimistic=True)
    return Section(
        name=study.name,
        title=study.title,
        verdicts=tables.verdict_lines(results),
        same=same.study.name if same else None,
        chart=f"results-{study.name}.svg" if charts else None,
        chart_title=f"{study.name}: {'correlations' if results.correlations else 'gains'} with intervals",
        tables=[first, *tables.checks(results), *rest],
        notes=[*tables.run_lines(results), *tables.method_lines(results, optimistic=True)],
        hardware=tables.hardware(results),
        builtin=study.name in builtin_names(),
        commands=_commands(results, folder, called),
    )


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
