"""A table as text for a terminal, Markdown, LaTeX, CSV or JSON.

Knows sheets and notes; decides nothing. LaTeX needs booktabs alone: what is not ASCII is written as commands.
"""

from __future__ import annotations

import csv
import io
import json
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import replace

from aol.engine.results import Json
from aol.study import notes
from aol.study.rows import as_rows
from aol.study.sheets import Sheet, sheets
from aol.study.table import Table
from aol.study.verdict import FAILS, HOLDS, OPEN

TEX_ROWS = 40
# By the word of a verdict.
STYLES = {FAILS: "red", OPEN: "yellow", HOLDS: "green"}
_TEX = {
    "\\": r"$\backslash$", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\~{}", "^": r"\^{}", "<": r"$<$", ">": r"$>$", "|": r"$|$",
    "±": r"$\pm$", "−": r"$-$", "–": r"--", "ρ": r"$\rho$", "β": r"$\beta$", "γ": r"$\gamma$", "²": r"$^2$",
    "×": r"$\times$", "·": r"$\cdot$", "…": r"\ldots{}", "√": r"$\surd$", '"': "''",
}  # fmt: skip


def sentences(table: Table, *, optimistic: bool) -> list[str]:
    """Return all that is said under a table, the verdicts first."""
    found = [*notes.verdicts(table), *notes.rivals(table), *notes.pooled(table), *notes.missing(table)]
    found += notes.specifics(table, optimistic=optimistic) + notes.legend(table, optimistic=optimistic)
    return [*found, line] if (line := notes.hardware(table)) else found


def as_text(table: Table, *, optimistic: bool = False, width: int = 80) -> str:
    """Return a table for a terminal, `width` characters wide where that is possible."""
    return "\n".join(line for _, line in styled_lines(table, optimistic=optimistic, width=width)) + "\n"


def styled_lines(table: Table, *, optimistic: bool, width: int) -> list[tuple[str, str]]:
    """Return the lines of a table for a terminal, each with its style: heads and cells bold, verdicts in colour."""
    found: list[tuple[str, str]] = []
    for sheet in sheets(table, optimistic=optimistic):
        found += [*_text(sheet, width), ("", "")]
    judged = notes.verdicts(table)
    for each in sentences(table, optimistic=optimistic):
        style = next((style for word, style in STYLES.items() if word in each), "") if each in judged else ""
        found += [(style, line) for line in textwrap.wrap(each, width)]
    return found


def _text(sheet: Sheet, width: int) -> list[tuple[str, str]]:
    rows = [row for _, section in sheet.sections for row in section]
    sizes = [max(len(row[place]) for row in (sheet.head, *rows)) for place in range(len(sheet.head))]
    gap = 2 if sum(sizes) + 2 * (len(sizes) - 1) <= width else 1
    room = width - sum(sizes[1:]) - gap * (len(sizes) - 1)
    sizes[0] = max(10, min(sizes[0], room))

    def lines(row: tuple[str, ...]) -> list[str]:
        first, *more = textwrap.wrap(row[0], sizes[0]) or [""]
        numbers = [text.rjust(size) for text, size in zip(row[1:], sizes[1:], strict=True)]
        return [(" " * gap).join([first.ljust(sizes[0]), *numbers]).rstrip(), *more]

    found = [("bold", line) for line in (*textwrap.wrap(sheet.title, width), "", *lines(sheet.head))]
    found.append(("", "─" * (sum(sizes) + gap * (len(sizes) - 1))))
    for place, (name, section) in enumerate(sheet.sections):
        found += [("", "")] if place else []
        found += [("bold", line) for line in textwrap.wrap(name, width)]
        found += [("", line) for row in section for line in lines(row)]
    return found


def as_markdown(table: Table, *, optimistic: bool = False) -> str:
    """Return a table as Markdown, with what is said under it as a list."""
    blocks = [markdown_sheet(sheet) for sheet in sheets(table, optimistic=optimistic)]
    said = "\n".join(f"- {markdown_text(each)}" for each in sentences(table, optimistic=optimistic))
    return "\n\n".join([*blocks, said]) + "\n"


def markdown_text(text: str) -> str:
    r"""Return text in which nothing is taken for Markdown.

    >>> markdown_text("a|b <c> *d* tail_mean ~5")
    'a\\|b &lt;c> \\*d\\* tail_mean \\~5'
    """
    for sign in ("\\", "|", "*", "`", "[", "~", "$"):
        text = text.replace(sign, f"\\{sign}")
    return text.replace("<", "&lt;")


def markdown_sheet(sheet: Sheet, *, title: bool = True) -> str:
    """Return a sheet as Markdown; the name of a cell stands in its first row."""
    named = any(name for name, _ in sheet.sections)
    head = (("cell",) if named else ()) + sheet.head
    found = ["| " + " | ".join(markdown_text(each) for each in head) + " |"]
    found.append("| " + " | ".join(["---"] * (2 if named else 1) + ["---:"] * (len(sheet.head) - 1)) + " |")
    for name, section in sheet.sections:
        for place, row in enumerate(section):
            cells = ((name if place == 0 else "",) if named else ()) + row
            found.append("| " + " | ".join(markdown_text(each) for each in cells) + " |")
    return (f"**{markdown_text(sheet.title)}**\n\n" if title else "") + "\n".join(found)


def tex_text(text: str) -> str:
    r"""Return text as LaTeX, in ASCII; a sign that is not known becomes a question mark.

    >>> tex_text("aol ρ=0.5 & 5 % −1")
    'aol $\\rho$=0.5 \\& 5 \\% $-$1'
    """
    return "".join(_TEX.get(sign, sign if sign.isascii() and sign.isprintable() else "?") for sign in text)


def as_latex(table: Table, *, optimistic: bool = False) -> str:
    """Return a table as LaTeX, for a document that has booktabs; as many floats as it takes to fit on pages."""
    said = sentences(table, optimistic=optimistic)
    judged = notes.verdicts(table)
    parts = [part for sheet in sheets(table, optimistic=optimistic) for part in _pages(sheet)]
    floats = []
    for place, part in enumerate(parts):
        more = f" {' '.join(judged)}" if place == 0 else ""
        under = " ".join(each for each in said if each not in judged) if place == len(parts) - 1 else ""
        label = table.study.name if place == 0 else f"{table.study.name}-{place + 1}"
        floats.append(_latex(part, f"{part.title}.{more}", label, under))
    return "% needs \\usepackage{booktabs}\n" + "\n".join(floats)


def _pages(sheet: Sheet) -> list[Sheet]:
    """Return a sheet in parts of no more rows than a page has room for."""
    parts: list[list[tuple[str, tuple[tuple[str, ...], ...]]]] = [[]]
    for section in sheet.sections:
        if parts[-1] and sum(len(rows) + 1 for _, rows in (*parts[-1], section)) > TEX_ROWS:
            parts.append([])
        parts[-1].append(section)
    return [replace(sheet, sections=tuple(part)) for part in parts]


def _latex(sheet: Sheet, caption: str, label: str, under: str) -> str:
    columns = "l" + "r" * (len(sheet.head) - 1)
    found = [r"\begin{table}", r"\centering", rf"\caption{{{tex_text(caption)}}}", rf"\label{{tab:{tex_label(label)}}}"]
    found += [r"\smallskip", rf"\begin{{tabular}}{{{columns}}}", r"\toprule", _latex_row(sheet.head)]
    for title, section in sheet.sections:
        found.append(r"\midrule")
        if title:
            found.append(rf"\multicolumn{{{len(sheet.head)}}}{{l}}{{\textit{{{tex_text(title)}}}}} \\")
        found += [_latex_row(row) for row in section]
    found += [r"\bottomrule", r"\end{tabular}"]
    found += [r"\par\smallskip", rf"{{\footnotesize {tex_text(under)}\par}}"] if under else []
    return "\n".join([*found, r"\end{table}"]) + "\n"


def tex_label(text: str) -> str:
    """Return text of which a label can be made: letters, digits and dashes.

    >>> tex_label("my_study #2")
    'my-study--2'
    """
    return "".join(sign if sign.isascii() and sign.isalnum() else "-" for sign in text)


def _latex_row(row: tuple[str, ...]) -> str:
    # An opening bracket after \\ would be read as a length; the first cell is therefore never bare.
    return "{" + tex_text(row[0]) + "} & " + " & ".join(tex_text(each) for each in row[1:]) + r" \\"


def as_csv(table: Table, *, optimistic: bool = False) -> str:
    """Return a table as CSV, a row a line, with numbers as they are: percent and points, nothing rounded away."""
    rows = as_rows(table, optimistic=optimistic)
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]) if rows else ["study"], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def as_json(table: Table, *, optimistic: bool = False) -> str:
    """Return a table as one JSON object: the rows of the CSV, the verdicts, and what is said under it."""
    judged: list[Json] = [{"method": v.claim.method, "verdict": v.word, "sentence": v.sentence} for v in table.verdicts]
    if table.correlations:
        word, sentence = table.correlation_verdict
        judged = [{"method": table.study.baseline, "verdict": word, "sentence": sentence}]
    content: dict[str, Json] = {
        "study": table.study.name,
        "title": table.study.title,
        "figure": table.figure,
        "runs": len(table.records),
        "runs_planned": table.runs_planned,
        "damaged": [{"file": name, "reason": reason} for name, reason in table.damaged],
        "verdicts": judged,
        "rows": [dict(row) for row in as_rows(table, optimistic=optimistic)],
        "notes": list(sentences(table, optimistic=optimistic)),
    }
    return json.dumps(content, ensure_ascii=False, indent=1, allow_nan=False) + "\n"


FORMATS: Mapping[str, Callable[..., str]] = {
    "table": as_text,
    "markdown": as_markdown,
    "csv": as_csv,
    "latex": as_latex,
    "json": as_json,
}
