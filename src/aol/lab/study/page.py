"""The page of results: every study that has runs, with its verdict, a chart, its tables, and how to repeat it.

The text is in `templates/results.md.j2`. It begins with a summary: for each table of the paper its claim, the figure
here, and the verdict. The page follows from the runs only and has no date in it: written twice, it is the same.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from aol.lab.settings import WrongSettingsError
from aol.lab.study.draw import estimate_of, gain_figure
from aol.lab.study.paper import TABLES
from aol.lab.study.results import StudyResults, best_on_test, finished_runs, study_results
from aol.lab.study.spec import Study, builtin_names, cell_name, load, plural
from aol.lab.study.tables import (
    NONE,
    TEMPLATES,
    correlation_verdict,
    gain_text,
    notes,
    points,
    signed,
    tables,
)
from aol.records.metrics import zero_threshold_share
from aol.records.store import Store
from aol.report.figures import style
from aol.report.figures.forest import Estimate, draw_forest

MOST_ZEROS = 0.25  # share of steps whose threshold was 0, above which a study hardly tests age


@dataclass(frozen=True)
class Page:
    """The text of the page, and its charts by file name."""

    text: str
    charts: dict[str, bytes]


def results_page(folder: Path, called: Mapping[str, Study] | None = None, *, charts: bool = False) -> Page:
    """Return the page for all runs of a folder, of some studies by what they are called on the command line.

    By default these are the built-in ones and those in `FOLDER/studies`. `charts` draws them, which needs matplotlib.
    """
    if called is None:
        names = [*builtin_names(), *sorted(map(str, (folder / "studies").glob("*.toml")))]
        called = {name: load(name) for name in names}
    names = [study.name for study in called.values()]
    if twice := [name for name in names if names.count(name) > 1]:
        raise WrongSettingsError(f"Two studies are called {twice[0]!r}: they need different names on one page.")
    store = Store(folder)
    frame = finished_runs(store)
    every = {name: study_results(study, store, frame) for name, study in called.items()} if len(frame) else {}
    every = {name: own for name, own in every.items() if own.has_figures and not _is_part(own, list(every.values()))}
    lines = summary(list(every.values()))
    paper = any(study.paper for study in called.values())
    sections = [
        {
            "study": own.study,
            "row": _row(own, paper=paper),
            "tables": tables(own),
            "notes": notes(own),
            "commands": _commands(name, own, called[name], folder),
        }
        for name, own in every.items()
    ]
    text = TEMPLATES.get_template("results.md.j2").render(
        paper=paper,
        lines=lines if paper else [],
        folder=folder.as_posix(),
        sections=sections,
        charts=charts,
        documented=all(name in builtin_names() or Path(name).parent == folder / "studies" for name in called),
    )
    return Page(text, _charts(list(every.values()), lines) if charts else {})


def _is_part(results: StudyResults, every: Sequence[StudyResults]) -> bool:
    """Return whether all runs of a study are in another one, whose section is enough for both."""
    own = set(results.runs.index)
    others = [set(other.runs.index) for other in every if other is not results and other.has_figures]
    return any(own < other for other in others)


def _charts(every: Sequence[StudyResults], lines: Sequence[SummaryLine]) -> dict[str, bytes]:
    figures = {own.study.name: gain_figure(own) for own in every}
    blocks: dict[str, list[Estimate]] = {}
    for line in lines:
        if line.estimate is not None:
            blocks.setdefault(line.table, []).append(line.estimate)
    if blocks:
        figures["summary"] = draw_forest(list(blocks.items()), "gain of weights from ages (points)", "paper's gain")
    return {f"results-{name}.svg": style.rendered(figure, "svg", text=True) for name, figure in figures.items()}


def _row(results: StudyResults, *, paper: bool) -> list[str]:
    """Return a study in short: verdicts, gains, the paper's gains and the best on test, and how many runs it has."""
    judged, gains, papers, best = results.verdicts, [], [], []
    parts = [
        f" ({own.cells} of {own.cells_planned} cells)" if 0 < own.cells < own.cells_planned else "" for own in judged
    ]
    words = [own.word + part for own, part in zip(judged, parts, strict=True)]
    for own in judged:
        rows = results.of(own.method)
        if own.gain is not None:
            gains.append(f"{own.method} {gain_text(own.gain, ' to ')}")
        elif len(rows):
            mean = points(fmean(gain.mean for gain in rows["gain"]))
            gains.append(f"{own.method} {mean}, {plural(max(map(len, rows['seeds'])), 'seed')}")
        papers += [] if own.paper_gain is None else [points(own.paper_gain)]
        if results.study.paper and (on_test := best_on_test(results, own.method)):
            tried = f" ({points(on_test['baseline'])})" if "baseline" in on_test else ""
            best.append(points(on_test["gain"]) + tried)
    if len(set(words)) > 1:
        words = [f"{own.method}: {word}" for own, word in zip(judged, words, strict=True)]
    verdict = correlation_verdict(results) if results.correlations else "; ".join(dict.fromkeys(words))
    numbers = [gains, papers, best] if paper else [gains]
    runs = f"{len(results.runs)} of {results.values['run'].nunique()}"
    return [verdict, *("; ".join(part) or NONE for part in numbers), runs]


def _commands(name: str, results: StudyResults, planned: Study, folder: Path) -> list[str]:
    """Return the commands that train and show these results."""
    seeds = ["--seeds", ",".join(map(str, results.study.seeds))] if results.study.seeds != planned.seeds else []
    words = shlex.join([name, *seeds, "--out", folder.as_posix()])
    draw = [f"aol study draw {words} --write {planned.name}.png"] if "age" in planned.keep else []
    return [f"aol study run {words}", f"aol study show {words}", *draw]


# The summary


@dataclass(frozen=True)
class SummaryLine:
    """One row: the paper's table and claim, the figure here, from how many seeds and cells, and the verdict.

    `estimate` is the gain for a chart, None where there is no interval. `zero_threshold` has by cell the share of steps
    in which no class grew older, because the median accuracy was 0, where that share is large.
    """

    table: str
    study: str | None = None
    claim: str = NONE
    here: str = NONE
    data: str = NONE
    verdict: str = "no runs"
    estimate: Estimate | None = None
    zero_threshold: Mapping[str, float] | None = None


def summary(every: Sequence[StudyResults]) -> list[SummaryLine]:
    """Return the rows for all tables of the paper, in its order.

    A table is shown by all studies of it that have a verdict, else by the first that has any figure.
    """
    lines: list[SummaryLine] = []
    for name, table in TABLES.items():
        own = [results for results in every if results.study.paper == name]
        judged = [results for results in own if results.correlations or any(claim.gain for claim in results.verdicts)]
        judged.sort(key=lambda results: -max([len(claim.seeds) for claim in results.verdicts], default=0))
        rows = [line for results in judged or own[:1] for line in _lines(table, results)]
        lines += rows or [SummaryLine(table)]
    return lines


def _lines(table: str, results: StudyResults) -> list[SummaryLine]:
    name, lines = results.study.name, []
    if results.correlations:  # that of age and test accuracy, by cell
        known = [r for _, own in results.correlations for r in own if r.signal == "accuracy_test"]
        paper = ", ".join(f"r {signed(r.paper)}" for r in known if r.paper is not None)
        here = ", ".join(f"r {signed(r.r)} ({signed(r.low)} to {signed(r.high)})" for r in known)
        data = f"{plural(max(r.seeds for r in known), 'seed')}, {plural(len(known), 'cell')}"
        return [SummaryLine(table, name, paper or NONE, here, data, correlation_verdict(results))]
    for claim in results.verdicts:
        rows, paper = results.of(claim.method), NONE if claim.paper_gain is None else points(claim.paper_gain)
        if claim.gain is None:
            here = points(fmean(gain.mean for gain in rows["gain"])) if len(rows) else NONE
            data = f"{plural(max(map(len, rows['seeds']), default=0), 'seed')}, {plural(len(rows), 'cell')}"
            lines.append(SummaryLine(table, name, paper, here, data, claim.word))
            continue
        cells = results.study.cells_list()
        shares: dict[str, float] = {}
        for place in rows["cell"]:
            share = fmean(zero_threshold_share(run) for run in results.chosen_runs(place, claim.method))
            shares |= {} if math.isnan(share) else {cell_name(cells[place]): share}
        here, data = gain_text(claim.gain, " to "), f"{plural(claim.gain.seeds, 'seed')}, {plural(claim.cells, 'cell')}"
        row = estimate_of(name, claim.gain, paper=claim.paper_gain)
        zeros = shares if max(shares.values(), default=0.0) > MOST_ZEROS else None
        lines.append(SummaryLine(table, name, paper, here, data, claim.word, row, zeros))
    return lines
