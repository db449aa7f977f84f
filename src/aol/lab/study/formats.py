"""The results of a study as text for a terminal, Markdown, LaTeX, CSV or JSON, and the sentences under its tables.

Sentences are in `templates/notes.j2` and `templates/legend.j2`. LaTeX needs booktabs only: characters beyond ASCII are
written as commands.
"""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterator
from itertools import zip_longest

import pandas as pd
from jinja2 import Environment, PackageLoader, StrictUndefined

from aol._values import spreadsheet_text
from aol.lab.study.comparisons import StudyResults
from aol.lab.study.correlations import NOT_JUDGED, described
from aol.lab.study.spec import cell_name, plural
from aol.lab.study.tables import NONE, TextTable, rival_rows, rows, tables
from aol.lab.study.verdict import FAILS, HOLDS, OPEN, points
from aol.records.metrics import figure_text

FORMATS = ("table", "markdown", "csv", "latex", "json")
PARTS = ("verdicts", "runs", "method", "legend", "hardware")  # of the sentences
ENVIRONMENT = Environment(
    loader=PackageLoader("aol.lab.study"), trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined
)
STYLES = {FAILS: "red", OPEN: "yellow", HOLDS: "green"}  # by the word of a verdict
_TEX_ROWS = 40  # of one float
_TEX = {
    "\\": r"$\backslash$", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\~{}", "^": r"\^{}", "<": r"$<$", ">": r"$>$", "|": r"$|$",
    "±": r"$\pm$", "−": r"$-$", "–": r"--", "ρ": r"$\rho$", "β": r"$\beta$", "γ": r"$\gamma$", "²": r"$^2$",
    "×": r"$\times$", "·": r"$\cdot$", "…": r"\ldots{}", "√": r"$\surd$", '"': "''",
}  # fmt: skip


def render(results: StudyResults, kind: str, *, optimistic: bool = False, width: int = 80) -> str:
    """Return the results in one of the `FORMATS`."""
    if kind == "table":
        return "".join(f"{line}\n" for _, line in styled_lines(results, optimistic=optimistic, width=width))
    if kind in ("csv", "json"):
        return (_csv if kind == "csv" else _json)(results, optimistic)
    found = tables(results, optimistic=optimistic)
    return ENVIRONMENT.get_template(f"show.{kind}.j2").render(
        name=results.study.name,
        tables=found if kind == "markdown" else [part for table in found for part in _pages(table)],
        verdicts=notes(results, "verdicts"),
        notes=notes(results, *PARTS[1:], optimistic=optimistic),
    )


def notes(results: StudyResults, *parts: str, optimistic: bool = False) -> list[str]:
    """Return the sentences of some of the `PARTS`, by default of all; the verdicts come first."""
    macros = ENVIRONMENT.get_template("notes.j2").make_module({"results": results, "optimistic": optimistic})
    text = "".join(getattr(macros, part)() for part in parts or PARTS)
    return [" ".join(each.split()) for each in re.split("^- ", text, flags=re.MULTILINE) if each.strip()]


def _by_cell(table: TextTable) -> Iterator[tuple[str, list[list[str]]]]:
    """Yield the rows of a table cell by cell, in their order."""
    for name, section in table.frame.groupby(level=0, sort=False):
        yield str(name), section.to_numpy().tolist()


# A terminal


def styled_lines(results: StudyResults, *, optimistic: bool, width: int) -> list[tuple[str, str]]:
    """Return the lines for a terminal, each with its style: heads and cells bold, verdicts in colour."""
    found: list[tuple[str, str]] = []
    for table in tables(results, optimistic=optimistic):
        found += [*_text(table, width), ("", "")]
    for part in PARTS:
        for each in notes(results, part, optimistic=optimistic):
            style = next((style for word, style in STYLES.items() if word in each and part == "verdicts"), "")
            found += [(style, line) for line in textwrap.wrap(each, width)]
    return found


def _text(table: TextTable, width: int) -> list[tuple[str, str]]:
    """Return a table as lines; a long first column and long heads are wrapped."""
    head, body = list(table.frame.columns), table.frame.to_numpy().tolist()
    sizes = [max((len(row[place]) for row in body), default=0) for place in range(len(head))]
    sizes = [max(size, -(-len(name) // 2), *map(len, name.split())) for size, name in zip(sizes, head, strict=True)]
    gap = 2 if sum(sizes) + 2 * (len(sizes) - 1) <= width else 1
    room = width - sum(sizes[1:]) - gap * (len(sizes) - 1)
    sizes[0] = max(10, min(sizes[0], room))

    def lines(row: list[str]) -> list[str]:
        parts = [textwrap.wrap(text, size) for text, size in zip(row, sizes, strict=True)]
        joined = [[text.ljust(sizes[0]) if place == 0 else text.rjust(sizes[place]) for place, text in enumerate(line)]
                  for line in zip_longest(*parts, fillvalue="")]  # fmt: skip
        return [(" " * gap).join(each).rstrip() for each in joined]

    found = [("bold", line) for line in (*textwrap.wrap(table.title, width), "", *lines(head))]
    found.append(("", "─" * (sum(sizes) + gap * (len(sizes) - 1))))
    for place, (name, section) in enumerate(_by_cell(table)):
        found += [("", "")] if place else []
        found += [("bold", line) for line in textwrap.wrap(name, width)]
        found += [("", line) for row in section for line in lines(row)]
    return found


# Markdown and LaTeX


def markdown_text(text: str) -> str:
    r"""Return text in which nothing is read as Markdown.

    >>> markdown_text("a|b <c> *d* tail_mean ~5")
    'a\\|b &lt;c> \\*d\\* tail_mean \\~5'
    """
    for sign in ("\\", "|", "*", "`", "[", "~", "$"):
        text = text.replace(sign, f"\\{sign}")
    return text.replace("<", "&lt;")


def markdown_table(table: TextTable) -> str:
    """Return a table as Markdown; the name of a cell is in its first row. The first column is text."""
    frame = table.frame
    if any(frame.index):
        frame = frame.reset_index()
        frame["cell"] = frame["cell"].where(~frame["cell"].duplicated(), "")
    lines = [list(frame.columns), ["---"] * (frame.shape[1] - table.frame.shape[1] + 1), *frame.to_numpy().tolist()]
    lines[1] += ["---:"] * (frame.shape[1] - len(lines[1]))
    return "\n".join(f"| {' | '.join(map(markdown_text, line))} |" for line in lines)


def tex_text(text: str) -> str:
    r"""Return text as LaTeX, in ASCII; an unknown character becomes a question mark.

    >>> tex_text("aol ρ=0.5 & 5 % −1")
    'aol $\\rho$=0.5 \\& 5 \\% $-$1'
    """
    return "".join(_TEX.get(sign, sign if sign.isascii() and sign.isprintable() else "?") for sign in text)


def _pages(table: TextTable) -> list[TextTable]:
    """Return a table in parts with no more rows than fit on a page; cells are not split."""
    parts: list[list[str]] = [[]]
    room = _TEX_ROWS
    for name, section in _by_cell(table):
        if parts[-1] and len(section) + 1 > room:
            parts.append([])
            room = _TEX_ROWS
        parts[-1].append(name)
        room -= len(section) + 1
    return [TextTable(table.title, table.frame[table.frame.index.isin(part)]) for part in parts]


def anchor(text: str) -> str:
    """Return the anchor of a study on the page, as that of a heading on GitHub.

    >>> anchor("My study|2")
    'my-study2'
    """
    return re.sub(r"[^\w -]", "", text.lower()).replace(" ", "-")


ENVIRONMENT.filters |= {
    "anchor": anchor,
    "by_cell": _by_cell,
    "cell_name": cell_name,
    "described": described,
    "label": lambda text: re.sub("[^0-9A-Za-z]", "-", text),
    "line": lambda text: " ".join(text.split()),
    "md": markdown_text,
    "points": points,
    "plural": plural,
    "table": markdown_table,
    "tex": tex_text,
}
ENVIRONMENT.globals |= {"figure_text": figure_text, "NONE": NONE, "NOT_JUDGED": NOT_JUDGED, "OPEN": OPEN}


# Numbers


def _csv(results: StudyResults, optimistic: bool) -> str:
    """Return the rows as CSV: percent and points, nothing rounded away."""
    frame = pd.DataFrame(rows(results, optimistic=optimistic), dtype="object")
    frame = frame.map(lambda each: spreadsheet_text(each) if isinstance(each, str) else each)
    return str(frame.to_csv(index=False, lineterminator="\n"))


def _json(results: StudyResults, optimistic: bool) -> str:
    """Return the results as one JSON object: the rows of the CSV, the verdicts, and the sentences."""
    verdicts = [(each.method, each.word, each.sentence) for each in results.verdicts]
    if results.correlations:
        verdicts = [(results.study.baseline, *results.correlation_verdict)]
    content: dict[str, object] = {
        "study": results.study.name,
        "title": results.study.title,
        "figure": results.figure,
        "runs": len(results.frame),
        "runs_planned": results.runs_planned,
        "damaged": [{"file": name, "reason": reason} for name, reason in results.damaged],
        "verdicts": [dict(zip(("method", "verdict", "sentence"), each, strict=True)) for each in verdicts],
        "rivals": rival_rows(results),
        "rows": rows(results, optimistic=optimistic),
        "notes": notes(results, optimistic=optimistic),
    }
    return json.dumps(content, ensure_ascii=False, indent=1, allow_nan=False) + "\n"
