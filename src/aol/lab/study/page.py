"""The page of results: every study that has runs, with its verdict, a chart, its tables, and how to repeat it.

The text is in `templates/results.md.j2`. It begins with a row for each claim: what was tested, the gain here beside the
paper's in the same cells, and the two statements. The page follows from the runs only: written twice, it is the same.
"""

from __future__ import annotations

import contextlib
import math
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, TypeAlias

import pandas as pd

from aol.lab.settings import Value, WrongSettingsError, word
from aol.lab.study.draw import Estimate, draw_forest, estimate_of, gain_figure
from aol.lab.study.paper import TABLES, cells_of
from aol.lab.study.results import StudyResults, finished_runs, rows_of, study_results
from aol.lab.study.spec import Study, builtin_names, cell_name, load, path_of
from aol.lab.study.stats import FEW, Claim
from aol.lab.study.tables import NONE, TEMPLATES, gain_text, percent, points, signed, tables
from aol.records.metrics import zero_threshold_share
from aol.records.store import Store
from aol.report.figures import style

MOST_CELLS = 12  # with more, the gains of a study are one table with a row for each cell
MOST_ROWS = 6  # cells with a row each in the summary, where some gain and others lose
MOST_ZEROS = 0.25  # share of steps whose threshold was 0, above which a study hardly tests age


# A row: a table of the paper, what was tested of it, its gain in the same cells, ours, and the statements.
Line: TypeAlias = dict[str, Any]
_UNKNOWN: Line = {
    **dict.fromkeys(("study", "estimate")), **dict.fromkeys(("tested", "paper", "here", "seeds"), NONE),
    "word": "no runs", "size": "",
}  # fmt: skip


def results_page(
    folder: Path, called: Mapping[str, Study] | None = None, *, charts: bool = False
) -> tuple[str, dict[str, bytes]]:
    """Return the page for all runs of a folder, of some studies by their names in commands; and charts by file name.

    By default these are the built-in ones and those in `FOLDER/studies`, or beside FOLDER where it has no such folder.
    `charts` draws them, which needs matplotlib.
    """
    near = folder / "studies" if (folder / "studies").is_dir() else folder.parent / "studies"
    documented = called is None  # in a checkout: names of studies, and links to their docs
    if called is None:
        called = {name: load(name) for name in [*builtin_names(), *sorted(map(str, near.glob("*.toml")))]}
    names = [study.name for study in called.values()]
    if twice := [name for name in names if names.count(name) > 1]:
        raise WrongSettingsError(f"Two studies are called {twice[0]!r}: they need different names on one page.")
    store = Store(folder)
    runs = finished_runs(store)
    by_name = {name: study_results(study, store, runs) for name, study in called.items()} if len(runs) else {}
    by_name = {name: own for name, own in by_name.items() if own.correlations or own.gains["gain"].notna().any()}
    # A study whose runs are all in another one is not shown; of two with the same runs, the last one is.
    ids = [set(own.runs.index) for own in by_name.values()]
    own_runs = [not (any(own < other for other in ids) or own in ids[place + 1 :]) for place, own in enumerate(ids)]
    shown = {name: own for (name, own), is_shown in zip(by_name.items(), own_runs, strict=True) if is_shown}
    paper = any(own.study.paper for own in shown.values())
    lines = summary(list(shown.values())) if paper else []
    text = TEMPLATES.get_template("results.md.j2").render(
        shown=shown,
        paper=paper,
        lines=lines,
        folder=folder.as_posix(),
        charts=charts,
        chosen=any(own.gains["k"].notna().any() for own in shown.values() if not own.correlations),
        cells=MOST_CELLS,
        documented=documented,
        tables=_tables,
        zeros=_zero_thresholds,
        is_committed_first=_is_committed_first,
        words=lambda name: shlex.join([name, "--out", folder.as_posix()]),
    )
    return text, _charts(list(shown.values()), lines) if charts else {}


def _charts(shown: Sequence[StudyResults], lines: Sequence[Line]) -> dict[str, bytes]:
    figures = {own.study.name: gain_figure(own) for own in shown}
    blocks: dict[str, list[Estimate]] = {}
    for line in lines:
        if line["estimate"]:
            blocks.setdefault(line["table"], []).append(line["estimate"])
    if blocks:
        axis = "gain of weights from ages (points)"
        figures["summary"] = draw_forest(list(blocks.items()), axis, "paper's gain", long=True)
    return {f"results-{name}.svg": style.rendered(figure, "svg", text=True) for name, figure in figures.items()}


def _zero_thresholds(results: StudyResults) -> dict[str, float]:
    """Return by cell the share of steps in which no class grew older, as the median was 0; empty where it is small."""
    shares: dict[str, float] = {}
    for own in results.verdicts:
        for place in own.cells:
            share = fmean(zero_threshold_share(run) for run in results.chosen_runs(place, own.method))
            shares |= {} if math.isnan(share) else {cell_name(results.study.cells_list()[place]): share}
    return shares if max(shares.values(), default=0.0) > MOST_ZEROS else {}


def _is_committed_first(name: str, results: StudyResults) -> bool:
    """Return whether git shows that a study was committed before its runs: their commits hold its file as it is."""
    path, commits = path_of(name), {run.versions.get("commit") for run in results.runs.runs.values()}
    if path is None or not commits or None in commits:
        return False
    for commit in commits:
        words = ["git", "-C", str(path.parent), "cat-file", "blob", f"{commit}:./{path.name}"]
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            if subprocess.run(words, capture_output=True, timeout=10, check=True).stdout == path.read_bytes():
                continue
        return False
    return True


def _tables(results: StudyResults) -> dict[str, pd.DataFrame]:
    """Return the tables of a study as the page shows them: many cells as one row each, with gains in points alone."""
    frames, study, gains = tables(results), results.study, results.gains
    if not results.correlations and gains["cell"][gains["runs"] > 0].nunique() > MOST_CELLS:
        rows: dict[int, dict[str, str]] = {}
        for row in rows_of(gains):
            text = percent(row.mean) if row.method == study.baseline else points(row.gain.mean) if row.gain else NONE
            rows.setdefault(row.cell, {"cell": cell_name(study.cells_list()[row.cell])})[row.method] = text
        frames[study.title] = pd.DataFrame(rows.values())
    return frames


# The summary


def summary(shown: Sequence[StudyResults]) -> list[Line]:
    """Return the rows for all tables of the paper: those of all studies with a verdict, else of the first study."""
    lines = []
    for name, (title, _) in TABLES.items():
        own = [results for results in shown if results.study.paper == name]
        judged = [results for results in own if results.correlations or any(claim.gain for claim in results.verdicts)]
        judged.sort(key=lambda results: -max([len(claim.seeds) for claim in results.verdicts], default=0))
        rows = [line for results in judged or own[:1] for line in _lines(results)]
        for line in rows or [{"cells": 0}]:
            lines.append(_UNKNOWN | {"table": title} | line)
            lines[-1]["cells"] = f"{line['cells']} of {cells_of(name)}"
    return lines


def _lines(results: StudyResults) -> list[Line]:
    """Return a row for each claim; one for each of up to 6 cells where some gain and others lose."""
    study, lines = results.study, []
    if results.correlations:
        cells = study.cells_list()
        known = [(cell, r) for cell, own in results.correlations for r in own if r.signal == "accuracy_test"]
        papers = ", ".join(f"r {signed(r.paper)}" for _, r in known if r.paper is not None)
        here = ", ".join(f"r {signed(r.r)} ({signed(r.low)} to {signed(r.high)})" for _, r in known)
        tested = _tested(results, study.baseline, [cells.index(cell) for cell, _ in known])
        missing = [cell_name(cell) for cell in cells if cell not in [own for own, _ in known]]
        tested += f"; not run: {', '.join(missing)}" if missing else ""
        word, _, size = results.correlation_verdict.partition("; ")
        seeds = str(max((r.seeds for _, r in known), default=0))
        line: Line = {
            "study": study.name,
            "cells": len(known),
            "tested": tested,
            "paper": papers or NONE,
            "here": here or NONE,
        }
        return [line | {"seeds": seeds, "word": word, "size": size}]
    last = results.by_figure("last") if results.figure == "second_half_mean" else None
    for whole in results.verdicts:
        places = results.of(whole.method)["cell"]
        split = results.mixed(whole.method) and len(places) <= MOST_ROWS
        parts: list[Any] = [[place] for place in places] if split else [None]
        asked = [(whole.method, None, part) for part in parts]
        judged = results.claims(asked) if split else [whole]
        at_the_end = last.claims(asked) if last else [None] * len(asked)
        lines += [_line(results, own, end) for own, end in zip(judged, at_the_end, strict=True)]
    return lines


def _line(results: StudyResults, own: Claim, end: Claim | None) -> Line:
    """Return the row of a claim; `end` is the same claim at the last step of a stream."""
    rows = results.of(own.method)
    places = list(own.cells or rows["cell"])
    tested, paper = _tested(results, own.method, places), NONE if own.paper_gain is None else points(own.paper_gain)
    line: Line = {"study": results.study.name, "cells": len(places), "tested": tested, "paper": paper}
    if own.gain is None:
        here = points(fmean(gain.mean for gain in rows["gain"])) if len(rows) else NONE
        return line | {"here": here, "seeds": str(max(map(len, rows["seeds"]), default=0)), "word": FEW}
    if len(places) == 1:
        published = rows["paper"][rows["cell"] == places[0]].item()
        line["paper"] = paper + (f" ({published.setting})" if published and published.setting else "")
    here = gain_text(own.gain, " to ") + (f"<br>last step {gain_text(end.gain, ' to ')}" if end and end.gain else "")
    verdict = own.word + (results.mixed(own.method) if len(places) > 1 else "")
    line |= {"here": here, "seeds": str(own.gain.seeds), "word": verdict, "size": own.size}
    return line | {"estimate": estimate_of(tested, own.gain, paper=own.paper_gain)}


def _tested(results: StudyResults, method: str, places: Sequence[int]) -> str:
    """Return what was tested: the method's setting, and the cells."""
    study, own = results.study, results.study.method(method)
    runs = [study.runs(study.cells_list()[place], own)[0] for place in places]
    cells = [{axis: getattr(run, axis) for axis in TABLES[study.paper or ""][1]} for run in runs]
    values = {axis: list(dict.fromkeys(cell[axis] for cell in cells)) for axis in TABLES[study.paper or ""][1]}
    names = ", ".join(cell_name({axis: own[0]}) + _more(own[1:]) for axis, own in values.items())
    if math.prod(map(len, values.values())) != len(cells):
        names = "; ".join(map(cell_name, cells)) if len(cells) <= MOST_ROWS else f"{len(cells)} cells of {names}"
    if results.correlations:
        return names
    chosen = not runs or len(own.variants()) > 1
    setting = f"{method}, {' and '.join(own.grid)} chosen on validation" if chosen else runs[0].method
    return f"{setting}: {names}"


def _more(values: Sequence[Value]) -> str:
    """Return the further values of an axis; of many, the last."""
    return f" to {word(values[-1])}" if len(values) > 3 else "".join(f"/{word(value)}" for value in values)
