"""The page of results: every built-in study that has runs, its verdict, its tables, why, and how to repeat it.

Knows tables and Markdown. The page follows from the records alone and has no date in it: written twice, it is the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from aol.study import notes
from aol.study.correlations import judge_correlations
from aol.study.formats import markdown_sheet, markdown_text
from aol.study.reasons import reasons
from aol.study.records import Store
from aol.study.sheets import NONE, sheets
from aol.study.spec import Study, builtin_names, load
from aol.study.table import Table, make_table, read_records
from aol.study.verdict import OPEN, points, span

HEAD = """# Results

What of the paper *Age of Learning* holds here, what does not, and why we think so. This page is written by
`aol study page` from the records in `{folder}`; every figure, verdict and reason follows from them.

How to read it: accuracies are in percent and gains in points. Settings are chosen on validation, never on test, and
never on the run that is judged. *Holds*, *does not hold* and *not enough runs* follow a fixed rule.
[How the figures are made](statistics.md) explains all of it. The columns:

{legend}
"""
NOTHING = "There are no records yet. `aol study run NAME --out {folder}` makes them; `aol study list` has the names.\n"


def page(folder: Path, studies: Sequence[Study] | None = None) -> str:
    """Return the page for all records of a folder; by default of the built-in studies."""
    store = Store(folder)
    chosen = [load(name) for name in builtin_names(smoke=False)] if studies is None else list(studies)
    tables = []
    for study in chosen:
        records, damaged = read_records(study, store)
        if records or damaged:
            tables.append(make_table(study, records, damaged=damaged))
    words = [notes.GAIN.format(base="the baseline"), notes.PAPER, notes.OPTIMISTIC.format(base="the baseline")]
    head = HEAD.format(folder=folder.as_posix(), legend=_listed([*words, notes.CORRELATIONS]))
    if not tables:
        return f"{head}\n{NOTHING.format(folder=folder.as_posix())}"
    shown = [table for table in tables if has_figures(table)]
    parts = [head, _summary(tables), *(_section(table, folder) for table in shown)]
    return "\n".join(parts)


def has_figures(table: Table) -> bool:
    """Return whether there is anything to show: a whole seed of a method that is compared, or a correlation."""
    return bool(table.correlations) or any(line.differences for line in table.lines)


def _summary(tables: Sequence[Table]) -> str:
    rows = ["| table | verdict | gain of aol | in the paper | runs |", "| --- | --- | ---: | ---: | ---: |"]
    for table in tables:
        name = f"[{table.study.name}](#{table.study.name})" if has_figures(table) else table.study.name
        word, gain, paper = _in_short(table)
        rows.append(f"| {name} | {word} | {gain} | {paper} | {len(table.records)} of {table.runs_planned} |")
    return "\n".join(rows) + "\n"


def _in_short(table: Table) -> tuple[str, str, str]:
    """Return the verdict in a word, the gain and the paper's gain."""
    if not has_figures(table):
        return f"{OPEN}: no seed is whole", NONE, NONE
    if table.correlations:
        return judge_correlations(table.correlation_list)[0], NONE, NONE
    first = table.verdicts[0]
    gain, paper = first.claim.gain, first.claim.paper_gain
    told = NONE if gain is None else f"{points(gain.mean)}{span(gain)}"
    return first.word, told, NONE if paper is None else points(paper)


def _section(table: Table, folder: Path) -> str:
    study = table.study
    others = [make_table(study, table.records, figure=each) for each in study.figures if each != table.figure]
    first, *more = notes.verdicts(table)
    blocks = [f"## {study.name}", f"{markdown_text(study.title)}.", f"**{markdown_text(first)}**"]
    blocks += [_listed(more)] if more else []
    why = [*reasons(table, others), *notes.rivals(table)]
    if why:
        told = any(verdict.word != OPEN for verdict in table.verdicts)
        blocks.append(f"{'Why we think so' if told else 'What the runs say so far'}:\n\n{_listed(why)}")
    gains, *rest = sheets(table, optimistic=True)
    blocks += [markdown_sheet(gains, title=False), *(markdown_sheet(sheet) for sheet in rest if sheet.sections)]
    how = [*notes.missing(table), *notes.by_figure([table, *others]), *notes.specifics(table, optimistic=True)]
    blocks.append(_listed(how))
    blocks.append(f"Run on: {markdown_text(notes.hardware(table))} To repeat it, where the data are:")
    place = folder.as_posix()
    blocks.append(f"```sh\naol study run {study.name} --out {place}\naol study show {study.name} --out {place}\n```")
    return "\n\n".join(blocks) + "\n"


def _listed(sentences: Sequence[str]) -> str:
    return "\n".join(f"- {markdown_text(each)}" for each in sentences)
