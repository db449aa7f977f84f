"""The page of results: every built-in study that has runs, its verdict, its tables, why, and how to repeat it.

Knows tables and Markdown. The page follows from the records alone and has no date in it: written twice, it is the same.
"""

from __future__ import annotations

import math
import shlex
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from aol.engine.settings import Value
from aol.study import notes
from aol.study.correlations import NOT_JUDGED
from aol.study.formats import markdown_sheet, markdown_text
from aol.study.reasons import best_on_test, reasons, told_of
from aol.study.records import Store
from aol.study.sheets import NONE, sheets
from aol.study.spec import Cell, Study, builtin_names, load
from aol.study.table import Table, make_table, recorded_table
from aol.study.verdict import FAILS, HOLDS, OPEN, Verdict, points, span

PAPER = "What of the paper *Age of Learning* holds here, what does not, and why we think so. "
HEAD = """# Results

{what}This page is written by
`aol study page` from the records in `{folder}`; every figure, verdict and reason follows from them.

How to read it: accuracies are in percent and gains in points. Settings are chosen on validation, never on test, and
never on the run that is judged, unless there is one seed only. *Holds*, *does not hold* and *not enough runs* follow a
fixed rule. [How the figures are made](statistics.md) explains all of it. The columns:

{legend}
"""
CELLS = (
    "A cell is one combination of what a table varies: data, imbalance, loss and the like. A verdict is on cells with "
    "three or more seeds."
)
BEST = (
    "Best on test: the gain of the best epoch of the best setting, both chosen on test, as the paper seems to read its "
    "runs; in brackets what the best of as many plain runs, read so, has above their mean. Both are optimistic."
)
NOTHING = (
    "There are no records of these studies yet. `aol study run NAME --out {folder}` makes them; `aol study list` has "
    "the names.\n"
)


def page(folder: Path, studies: Sequence[Study] | None = None, *, called: Mapping[str, str] | None = None) -> str:
    """Return the page for all records of a folder; by default of the built-in studies.

    `called` has the words for studies that go by others than their names on the command line: the paths of their files.
    """
    store = Store(folder)
    chosen = [load(name) for name in builtin_names(smoke=False)] if studies is None else list(studies)
    records = {record.settings: record for record in store}
    tables = []
    for study in chosen if store.ids() else []:
        table = recorded_table(study, store, records)
        tables += [table] if table.records or table.damaged else []
    names = {study.baseline for study in chosen}
    base = names.pop() if len(names) == 1 else "the baseline"
    named = {line.method for table in tables if table.study.name in builtin_names() for line in table.lines}
    words = [notes.methods(named)] if named & notes.METHODS.keys() else []
    words += [notes.GAIN.format(base=base), notes.PAPER, notes.OPTIMISTIC.format(base=base)]
    what = PAPER if any(study.paper for study in chosen) else ""
    head = HEAD.format(what=what, folder=folder.as_posix(), legend=_listed([*words, notes.CORRELATIONS]))
    if not tables:
        return f"{head}\n{NOTHING.format(folder=folder.as_posix())}"
    seeds = {study.name: study.seeds for study in chosen}
    larger = {table.study.name: _larger(table, tables, seeds) for table in tables}
    shown = [table for table in tables if has_figures(table) and not larger[table.study.name]]
    sections = []
    for place, table in enumerate(shown):
        same = next((each for each in shown[:place] if set(each.records) == set(table.records)), None)
        sections.append(_section(table, folder, called or {}, same))
    return "\n".join([head, _summary(tables, larger), *sections])


def _larger(table: Table, tables: Sequence[Table], seeds: Mapping[str, tuple[int, ...]]) -> Table | None:
    """Return a table that has all the runs of this one, and more of them: one section is enough for both.

    With the same runs it is the one whose plan has these seeds, where this one's plan has not.
    """
    own, planned = set(table.records), table.study.seeds == seeds[table.study.name]
    for other in tables:
        theirs, home = set(other.records), other.study.seeds == seeds[other.study.name]
        if has_figures(other) and (own < theirs or (own == theirs and home and not planned)):
            return other
    return None


def has_figures(table: Table) -> bool:
    """Return whether there is anything to show: a whole seed of a method that is compared, or a correlation."""
    return bool(table.correlations) or any(line.differences for line in table.lines)


def _summary(tables: Sequence[Table], within: Mapping[str, Table | None]) -> str:
    heads = ("table", "verdict", "gain", "in the paper", "best on test", "runs")
    rows = [f"| {' | '.join(heads)} |", "| --- | --- | ---: | ---: | ---: | ---: |"]
    for table in tables:
        larger = within[table.study.name]
        if larger and not has_figures(table) and not table.damaged:
            continue  # its baseline is also that of the other table; nothing was run for it
        name = _linked(table) if has_figures(table) and not larger else markdown_text(table.study.name)
        name += f", part of {_linked(larger)}" if larger else ""
        runs = f"{len(table.records)} of {table.runs_planned}"
        runs += f", {len(table.damaged)} damaged" if table.damaged else ""
        rows.append(f"| {' | '.join((name, *_in_short(table), runs))} |")
    best = [BEST] if any(table.study.paper and not table.correlations for table in tables) else []
    return "\n".join([*rows, "", " ".join([CELLS, *best])]) + "\n"


def _linked(table: Table) -> str:
    return f"[{markdown_text(table.study.name)}](#{table.study.name})"


def _in_short(table: Table) -> tuple[str, str, str, str]:
    """Return the verdict in a word, the gain, the paper's gain, and the gain of the best on test."""
    if not has_figures(table):
        problem = next((line.problem for line in table.lines if line.problem), "no seed is whole")
        return f"{OPEN}: {markdown_text(problem)}", NONE, NONE, NONE
    if table.correlations:
        word, cells = table.correlation_verdict[0], (len(table.correlations), len(table.study.cells_list()))
        return word + ("" if word == NOT_JUDGED else _of_cells(*cells)), NONE, NONE, NONE
    words, gains, papers, best = [], [], [], []
    read = make_table(table.study, table.records, figure="best") if table.study.paper else None
    for each in table.verdicts:
        name, paper = markdown_text(each.claim.method), each.claim.paper_gain
        word = each.word + (_of_cells(each.claim.cells, each.claim.cells_planned) if each.claim.gain else "")
        words.append(f"{name}: {word}" if len(table.verdicts) > 1 else word)
        gains += [f"{name} {text}" for text in [_gain_of(table, each)] if text]
        papers += [] if paper is None else [points(paper)]
        found = best_on_test(read, each.claim.method) if read else None
        if found:
            tried = "" if found.tried_gain is None else f" ({points(found.tried_gain)})"
            best.append(f"{points(found.gain)}{tried}")
    return "; ".join(words), "; ".join(gains) or NONE, "; ".join(papers) or NONE, "; ".join(best) or NONE


def _of_cells(cells: int, planned: int) -> str:
    return f" ({cells} of {planned} cells judged)" if cells < planned else ""


def _gain_of(table: Table, verdict: Verdict) -> str:
    """Return a gain with its interval; where there is no verdict, that of the seeds that are there, without one."""
    gain = verdict.claim.gain
    if gain is not None:
        return f"{points(gain.mean)}{span(gain)}"
    run = [line for line in told_of(table, verdict.claim.method) if line.gain is not None]
    if not run:
        return ""
    most = max(len(line.seeds) for line in run)
    mean = statistics.fmean(line.gain.mean for line in run if line.gain is not None)
    return f"{points(mean)}, {'one seed' if most == 1 else f'{most} seeds'}"


def _section(table: Table, folder: Path, called: Mapping[str, str], same: Table | None) -> str:
    study = table.study
    others = [make_table(study, table.records, figure=each) for each in study.figures if each != table.figure]
    first, *more = notes.verdicts(table)
    blocks = [f"## {markdown_text(study.name)}", f"{markdown_text(study.title)}.", f"**{markdown_text(first)}**"]
    blocks += [f"The runs are those of {_linked(same)}."] if same else []
    blocks += [_listed(more)] if more else []
    beside = " ".join(notes.rivals(table))
    why = [*reasons(table, others), *([beside] if beside else []), *notes.pooled(table)]
    if why:
        words = [table.correlation_verdict[0]] if table.correlations else [each.word for each in table.verdicts]
        told = HOLDS in words or FAILS in words
        blocks.append(f"{'Why we think so' if told else 'What the runs say so far'}:\n\n{_listed(why)}")
    gains, *rest = sheets(table, optimistic=True)
    blocks += [markdown_sheet(gains, title=False), *(markdown_sheet(sheet) for sheet in rest if sheet.sections)]
    how = [*notes.missing(table), *notes.by_figure([table, *others]), *notes.specifics(table, optimistic=True)]
    blocks.append(_listed(how))
    blocks.append(f"Run on: {markdown_text(notes.hardware(table))} To repeat it, where the data are:")
    name, out = called.get(study.name, study.name), ["--out", folder.as_posix()]
    cells = [cell for cell in study.cells_list() if any(line.runs for line in table.lines if line.cell == cell)]
    command = shlex.join([name, *_part(study, cells), *out])
    # The blocks of all other pages of ours are tested.
    mark = "<!-- not run: trains for hours on a GPU -->\n" if study.name in builtin_names() else ""
    then = [f"aol study show {command}" + ("" if table.correlations else " --optimistic")]
    then += [f"aol study draw {command} --write {study.name}.png"] if "age" in study.keep else []
    runs = [f"aol study run {shlex.join([name, *_part(study, own), *out])}" for own in _blocks(study, cells)]
    blocks.append("\n".join([f"{mark}```sh", *runs, *then, "```"]))
    return "\n\n".join(blocks) + "\n"


def _part(study: Study, cells: Sequence[Cell]) -> list[str]:
    """Return the words that mean cells and seeds, where those are not all or not the study's own."""
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
    """Return cells in groups that a command can name: all that its values make together, and no other."""
    if len(cells) == math.prod(len(_values(study, cells, name)) for name in study.cells):
        return [list(cells)]
    split = next(name for name in study.cells if len(_values(study, cells, name)) > 1)
    found = []
    for value in _values(study, cells, split):
        found += _blocks(study, [cell for cell in cells if cell[split] == value])
    return found


def _listed(sentences: Sequence[str]) -> str:
    return "\n".join(f"- {markdown_text(each)}" for each in sentences)
