"""The results of a study as text for a terminal, Markdown, LaTeX, CSV or JSON.

LaTeX needs booktabs only: characters beyond ASCII are written as commands.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable, Iterator, Mapping

import pandas as pd

from aol.study.comparisons import StudyResults
from aol.study.tables import TextTable, rival_rows, rows, sentences, tables, verdict_lines
from aol.study.verdict import FAILS, HOLDS, OPEN

FORMATS = ("table", "markdown", "csv", "latex", "json")
ENDINGS = {".txt": "table", ".md": "markdown", ".csv": "csv", ".tex": "latex", ".json": "json"}
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
        lines = styled_lines(results, optimistic=optimistic, width=width)
        return "\n".join(line for _, line in lines) + "\n"
    writers: Mapping[str, Callable[..., str]] = {
        "markdown": as_markdown, "csv": as_csv, "latex": as_latex, "json": as_json,
    }  # fmt: skip
    return writers[kind](results, optimistic=optimistic)


def _by_cell(table: TextTable) -> Iterator[tuple[str, list[list[str]]]]:
    """Yield the rows of a table cell by cell, in their order."""
    for name in dict.fromkeys(table.frame.index):
        yield str(name), table.frame[table.frame.index == name].to_numpy().tolist()


# A terminal


def styled_lines(results: StudyResults, *, optimistic: bool, width: int) -> list[tuple[str, str]]:
    """Return the lines for a terminal, each with its style: heads and cells bold, verdicts in colour."""
    found: list[tuple[str, str]] = []
    for table in tables(results, optimistic=optimistic):
        found += [*_text(table, width), ("", "")]
    verdicts = verdict_lines(results)
    for each in sentences(results, optimistic=optimistic):
        style = next((style for word, style in STYLES.items() if word in each), "") if each in verdicts else ""
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
        parts = [textwrap.wrap(text, size) or [""] for text, size in zip(row, sizes, strict=True)]
        tall = max(map(len, parts))
        padded = [part + [""] * (tall - len(part)) for part in parts]
        joined = [[part[0].ljust(sizes[0]), *(t.rjust(s) for t, s in zip(part[1:], sizes[1:], strict=True))]
                  for part in zip(*padded, strict=True)]  # fmt: skip
        return [(" " * gap).join(each).rstrip() for each in joined]

    found = [("bold", line) for line in (*textwrap.wrap(table.title, width), "", *lines(head))]
    found.append(("", "─" * (sum(sizes) + gap * (len(sizes) - 1))))
    for place, (name, section) in enumerate(_by_cell(table)):
        found += [("", "")] if place else []
        found += [("bold", line) for line in textwrap.wrap(name, width)]
        found += [("", line) for row in section for line in lines(row)]
    return found


# Markdown


def as_markdown(results: StudyResults, *, optimistic: bool = False) -> str:
    """Return the results as Markdown, with the sentences under the tables as a list."""
    blocks = [
        f"**{markdown_text(each.title)}**\n\n{markdown_table(each)}" for each in tables(results, optimistic=optimistic)
    ]
    said = "\n".join(f"- {markdown_text(each)}" for each in sentences(results, optimistic=optimistic))
    return "\n\n".join([*blocks, said]) + "\n"


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
    head = (["cell"] if table.named else []) + list(table.frame.columns)
    found = [head, ["---"] * (2 if table.named else 1) + ["---:"] * (len(table.frame.columns) - 1)]
    for name, section in _by_cell(table):
        for place, row in enumerate(section):
            found.append(([name if place == 0 else ""] if table.named else []) + row)
    escaped = [[markdown_text(each) for each in row] for row in found]
    return "\n".join(f"| {' | '.join(row)} |" for row in escaped)


# LaTeX


def tex_text(text: str) -> str:
    r"""Return text as LaTeX, in ASCII; an unknown character becomes a question mark.

    >>> tex_text("aol ρ=0.5 & 5 % −1")
    'aol $\\rho$=0.5 \\& 5 \\% $-$1'
    """
    return "".join(_TEX.get(sign, sign if sign.isascii() and sign.isprintable() else "?") for sign in text)


def tex_label(text: str) -> str:
    """Return text as a label: letters, digits and dashes.

    >>> tex_label("my_study #2")
    'my-study--2'
    """
    return "".join(sign if sign.isascii() and sign.isalnum() else "-" for sign in text)


def as_latex(results: StudyResults, *, optimistic: bool = False) -> str:
    """Return the results as LaTeX, for a document with booktabs; as many floats as fit on pages."""
    verdicts = verdict_lines(results)
    said = [each for each in sentences(results, optimistic=optimistic) if each not in verdicts]
    parts = [part for table in tables(results, optimistic=optimistic) for part in _pages(table)]
    floats = []
    for place, part in enumerate(parts):
        more = f" {' '.join(verdicts)}" if place == 0 else ""
        under = " ".join(said) if place == len(parts) - 1 else ""
        label = results.study.name if place == 0 else f"{results.study.name}-{place + 1}"
        floats.append(_latex(part, f"{part.title}.{more}", label, under))
    return "% needs \\usepackage{booktabs}\n" + "\n".join(floats)


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


def _latex(table: TextTable, caption: str, label: str, under: str) -> str:
    head = list(table.frame.columns)
    columns = "l" + "r" * (len(head) - 1)
    found = [r"\begin{table}", r"\centering", rf"\caption{{{tex_text(caption)}}}", rf"\label{{tab:{tex_label(label)}}}"]
    found += [r"\smallskip", rf"\begin{{tabular}}{{{columns}}}", r"\toprule", _latex_row(head)]
    for name, section in _by_cell(table):
        found.append(r"\midrule")
        if name:
            found.append(rf"\multicolumn{{{len(head)}}}{{l}}{{\textit{{{tex_text(name)}}}}} \\")
        found += [_latex_row(row) for row in section]
    found += [r"\bottomrule", r"\end{tabular}"]
    found += [r"\par\smallskip", rf"{{\footnotesize {tex_text(under)}\par}}"] if under else []
    return "\n".join([*found, r"\end{table}"]) + "\n"


def _latex_row(row: list[str]) -> str:
    # An opening bracket after \\ would be read as a length; the first cell is therefore in braces.
    return "{" + tex_text(row[0]) + "} & " + " & ".join(tex_text(each) for each in row[1:]) + r" \\"


# Numbers


def as_csv(results: StudyResults, *, optimistic: bool = False) -> str:
    """Return the rows as CSV: percent and points, nothing rounded away."""
    found = rows(results, optimistic=optimistic)
    frame = pd.DataFrame(found, columns=list(found[0]) if found else ["study"], dtype="object")
    return str(frame.to_csv(index=False, lineterminator="\n"))


def as_json(results: StudyResults, *, optimistic: bool = False) -> str:
    """Return the results as one JSON object: the rows of the CSV, the verdicts, and the sentences."""
    verdicts: list[dict[str, object]] = [
        {"method": each.claim.method, "verdict": each.word, "sentence": each.sentence} for each in results.verdicts
    ]
    if results.correlations:
        word, sentence = results.correlation_verdict
        verdicts = [{"method": results.study.baseline, "verdict": word, "sentence": sentence}]
    content: dict[str, object] = {
        "study": results.study.name,
        "title": results.study.title,
        "figure": results.figure,
        "runs": len(results.frame),
        "runs_planned": results.runs_planned,
        "damaged": [{"file": name, "reason": reason} for name, reason in results.damaged],
        "verdicts": verdicts,
        "rivals": rival_rows(results),
        "rows": rows(results, optimistic=optimistic),
        "notes": sentences(results, optimistic=optimistic),
    }
    return json.dumps(content, ensure_ascii=False, indent=1, allow_nan=False) + "\n"
