"""The tables of a study: frames of numbers for CSV and JSON, frames of text for people, and the notes below them.

Accuracies are in percent and differences in points; only the last bits of binary sums are rounded away. In tables of
text the minus sign is a real one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from statistics import fmean
from typing import Any, TypeAlias

import pandas as pd
from jinja2 import Environment, PackageLoader, StrictUndefined

from aol.lab.study.results import StudyResults, rows_of
from aol.lab.study.spec import cell_name
from aol.lab.study.stats import NOT_SHOWN, Claim
from aol.records.metrics import figure_text, measure_text
from aol.stats import MOST_SEEDS, Gain

FORMATS = ("table", "markdown", "csv", "json")
NONE, HALF = "–", "half the paper's?"
TEMPLATES = Environment(
    loader=PackageLoader("aol.lab.study"), trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined
)

Records: TypeAlias = list[dict[str, Any]]

# Numbers


def _gains(results: StudyResults) -> Records:
    """Return a row for each cell and method: counts, percent and points, None for what is not known."""
    cells, rows = results.study.cells_list(), []
    for row in rows_of(results.gains):
        numbers = {"accuracy": row.mean, "spread": row.spread, **_interval(row.gain), "best_of_k": row.best}
        numbers |= {"baseline_best_of_k": row.best_of_k, "paper": row.paper and row.paper.accuracy}
        numbers |= {"paper_gain": row.paper_gain}
        rows.append(
            {"study": results.study.name, "figure": results.figure, **cells[row.cell], "method": row.method}
            | {"setting": row.setting, "settings": row.settings, "choices": "; ".join(row.choices)}
            | {"seeds": "; ".join(map(str, row.seeds)), "n": len(row.seeds), "planned": row.planned}
            | {"runs": row.runs, "runs_planned": row.runs_planned, "failed": row.failed}
            | {name: _hundred(value) for name, value in numbers.items()}
            | {"k": _known(row.k), "p": row.gain.p if row.gain and row.gain.seeds > 1 else None}
            | {"p_corrected": _known(row.p)}
        )
    return rows


def _verdicts(claims: Iterable[Claim]) -> Records:
    """Return a row for each claim: its verdict, gain and interval in points, corrected p, seeds and cells."""
    return [
        {"method": c.method, "over": c.over, "verdict": c.word, "p": c.p, "size": c.size, "p_size": c.p_size}
        | {"n": len(c.seeds), "cells": len(c.cells), "cells_planned": c.cells_planned}
        | {name: _hundred(v) for name, v in {**_interval(c.gain), "paper_gain": c.paper_gain}.items()}
        for c in claims
    ]


def _correlations(results: StudyResults) -> Records:
    """Return a row for each correlation."""
    rows = [{"study": results.study.name, **cell, **vars(r)} for cell, own in results.correlations for r in own]
    return [{"paper_r" if name == "paper" else name: value for name, value in row.items()} for row in rows]


def _interval(gain: Gain | None) -> dict[str, float | None]:
    low, high = (gain and gain.interval) or (None, None)
    return {"gain": gain.mean if gain else None, "low": low, "high": high}


def _known(value: float | None) -> float | None:
    return None if value is None or value != value else value


def _hundred(value: float | None) -> float | None:
    return None if _known(value) is None else round(100.0 * value, 8)  # type: ignore[operator]


# Text


def points(value: float) -> str:
    """Return a difference of accuracies in points, with its sign."""
    text = f"{100.0 * value:+.2f}"
    return text.replace("-", "−") if float(text) != 0.0 else "0.00"


def gain_text(gain: Gain | None, between: str = ", ") -> str:
    """Return a gain in points with its interval, if it has one; a dash for none."""
    if gain is None:
        return NONE
    ends = gain.interval
    return points(gain.mean) + (f" ({points(ends[0])}{between}{points(ends[1])})" if ends else "")


def p_text(p: float | None) -> str:
    """Return a p-value with three significant digits; a dash for none."""
    return NONE if p is None or p != p else "<0.001" if p < 0.001 else f"{p:.3g}"


def percent(value: float | None) -> str:
    """Return an accuracy in percent; a dash for none."""
    return NONE if _known(value) is None else f"{100.0 * value:.2f}"  # type: ignore[operator]


def signed(value: float | None) -> str:
    """Return a correlation with its sign and three digits; a dash for none."""
    return NONE if value is None else f"{value:+.3f}".replace("-", "−")


def signal_name(signal: str) -> str:
    """Return the name of a signal in a table."""
    return signal.replace("_", ", ").replace("train", "training")


def tables(results: StudyResults) -> dict[str, pd.DataFrame]:
    """Return the tables of a study by title, frames of text; columns and tables without any text are left out."""
    if results.correlations:
        made = {results.study.title: _correlation_rows(results)}
    else:
        made = {results.study.title: _gain_rows(results), "Mean of cells": _verdict_rows(results)}
        made["Methods, mean of cells"] = _method_rows(results)
    frames = {title: pd.DataFrame(rows, dtype="object").fillna(NONE) for title, rows in made.items() if rows}
    return {title: own.loc[:, ~own.isin(["", NONE]).all()] for title, own in frames.items()}


Rows = list[dict[str, str]]


def _gain_rows(results: StudyResults) -> Rows:
    """Return the gains in cells that have runs; in all cells where none has, for the paper's figures."""
    gains, cells, base = results.gains, results.study.cells_list(), results.study.baseline
    begun = gains[gains["cell"].isin(gains["cell"][gains["runs"] > 0])]
    rows = []
    for row in rows_of(begun if len(begun) else gains):
        accuracy = f"{row.runs}/{row.runs_planned} runs"
        if row.seeds:
            accuracy = percent(row.mean) + (f" ±{percent(row.spread)}" if row.spread == row.spread else "")
        paper = percent(row.paper.accuracy) if row.paper else NONE
        best = f"{percent(row.best)} ({percent(row.best_of_k)})" if row.k == row.k else NONE
        rows.append(
            {
                "cell": cell_name(cells[row.cell]),
                "method": f"{row.method} {row.setting}".strip() + " *" * (len(set(row.choices)) > 1),
                "n": f"{len(row.seeds)}" + (f"/{row.planned}" if len(row.seeds) != row.planned else ""),
                measure_text(results.figure): accuracy,
                "gain (95 %)": "baseline" if row.seeds and row.method == base else gain_text(row.gain),
                "p": p_text(row.p),
                f"best of k ({base})": best,
                "paper": paper + (f" {points(row.paper_gain)}" if row.paper_gain == row.paper_gain else ""),
            }
        )
    return rows


def _verdict_rows(results: StudyResults) -> Rows:
    """Return a row for each judged method; the figures of the study besides the one that is shown are columns."""
    loss, rows = results.study.largest_loss, []
    others = [(name, results.by_figure(name)) for name in results.study.figures if name != results.figure]
    for place, own in enumerate(results.verdicts):
        needed = own.gain.seeds_needed() if own.gain and own.word == NOT_SHOWN else 0
        rows.append(
            {"method": own.method, "gain (95 %)": gain_text(own.gain)}
            | {"is there a gain?": own.word + results.mixed(own.method), "p": p_text(own.p)}
            | {"paper's gain": NONE if own.paper_gain is None else points(own.paper_gain)}
            | {HALF if loss is None else f"than {loss:.2f}": own.size, "p (size)": p_text(own.p_size)}
            | {"seeds": str(len(own.seeds)), "cells with 3 seeds": f"{len(own.cells)} of {own.cells_planned}"}
            | {"seeds for 80 % power": f">{MOST_SEEDS}" if needed is None else f"{needed or NONE}"}
        )
        for name, other in others if own.gain else ():
            if (claim := other.verdicts[place]).gain:
                optimistic = " (optimistic)" if name.endswith("best") else ""
                rows[-1][name + optimistic] = f"{gain_text(claim.gain)} {claim.word}"
    return rows


def _method_rows(results: StudyResults) -> Rows:
    """Return each method's mean gain, and the difference to judged methods, in judged cells."""
    gains, claims = results.gains, [own.method for own in results.verdicts]
    cells, rows = (results.of(claims[0])["cell"].tolist() if claims else []), []
    against = {(own.method, own.over): own for own in results.rivals}
    for method in results.study.methods:
        own = gains["gain"][(gains["method"] == method.name) & gains["cell"].isin(cells)]
        if len(own) and own.notna().all():
            mean = results.means.get(method.name)
            row = {"method": method.name}
            row["gain"] = gain_text(mean) if mean else points(fmean(gain.mean for gain in own))
            for name in claims:
                rival = against.get((name, method.name))
                row[f"{name} minus it (95 %)"] = gain_text(rival.gain if rival else None)
                row[f"p ({name})"] = p_text(rival.p if rival else None)
            rows.append(row)
    return rows if len(rows) > 1 else []


def _correlation_rows(results: StudyResults) -> Rows:
    return [
        {"cell": cell_name(cell), "class age and": signal_name(r.signal), "classes": str(r.classes), "n": str(r.seeds)}
        | {"r (95 %)": f"{signed(r.r)} ({signed(r.low)}, {signed(r.high)})", "p": p_text(r.p_corrected)}
        | {"paper": signed(r.paper)}
        for cell, own in results.correlations
        for r in own
    ]


# Formats


def render(results: StudyResults, kind: str) -> str:
    """Return the results in one of the `FORMATS`."""
    if kind == "csv":
        frame = pd.DataFrame(_correlations(results) or _gains(results))
        return str(frame.to_csv(index=False, lineterminator="\n"))
    if kind == "json":
        return json.dumps(as_dict(results), ensure_ascii=False, indent=1, allow_nan=False) + "\n"
    write = markdown if kind == "markdown" else plain
    parts = [f"{title}\n\n{write(own)}\n\n" for title, own in tables(results).items()]
    return "".join([*parts, *(f"- {md(line) if kind == 'markdown' else line}\n" for line in notes(results))])


def as_dict(results: StudyResults) -> dict[str, object]:
    """Return the results as one object for JSON: numbers only, None for what is not known."""
    word = {"method": results.study.baseline, "verdict": results.correlation_verdict}
    return {
        "study": results.study.name,
        "title": results.study.title,
        "figure": results.figure,
        "runs": len(results.runs),
        "runs_planned": results.values["run"].nunique(),
        "damaged": [{"run": name, "reason": reason} for name, reason in results.damaged],
        "verdicts": [word] if results.correlations else _verdicts(results.verdicts),
        "rivals": _verdicts(own for own in results.rivals if own.gain),
        "gains": _gains(results),
        "correlations": _correlations(results),
    }


def notes(results: StudyResults, *, brief: bool = False) -> list[str]:
    """Return the sentences under the tables, from `templates/notes.j2`; `brief`: without what columns mean."""
    text = TEMPLATES.get_template("notes.j2").render(results=results, brief=brief)
    return [" ".join(line.split()) for line in re.split("^- ", text, flags=re.MULTILINE) if line.strip()]


def _lines(frame: pd.DataFrame) -> list[list[str]]:
    """Return the head and the rows; the name of a cell is in its first row only."""
    if "cell" in frame:
        frame = frame.assign(cell=frame["cell"].where(~frame["cell"].duplicated(), ""))
    return [list(frame.columns), *frame.to_numpy().tolist()]


def markdown(frame: pd.DataFrame) -> str:
    """Return a table as Markdown; columns of words are aligned left, those of numbers right."""
    head, *body = _lines(frame)
    rule = ["---" if name in _WORDS else "---:" for name in head]
    escaped = [[md(text) for text in line] for line in (head, *body)]
    return "\n".join(f"| {' | '.join(line)} |" for line in (escaped[0], rule, *escaped[1:]))


_WORDS = ("cell", "method", "class age and", "is there a gain?", HALF)


def md(text: str) -> str:
    r"""Return text in which nothing is read as Markdown.

    >>> md("a|b <c> *d* tail_mean ~5")
    'a\\|b &lt;c> \\*d\\* tail_mean \\~5'
    """
    return re.sub(r"([\\|*`\[~$])", r"\\\1", text).replace("<", "&lt;")


def plain(frame: pd.DataFrame) -> str:
    """Return a table as plain text for a terminal."""
    lines = _lines(frame)
    sizes = [max(map(len, column)) for column in zip(*lines, strict=True)]
    kinds = [str.ljust if name in _WORDS else str.rjust for name in lines[0]]
    rows = [[put(text, size) for put, text, size in zip(kinds, line, sizes, strict=True)] for line in lines]
    return "\n".join("  ".join(row).rstrip() for row in rows)


def anchor(text: str) -> str:
    """Return the anchor of a study on the page, as that of a heading on GitHub."""
    return re.sub(r"[^\w -]", "", text.lower()).replace(" ", "-")


TEMPLATES.filters |= {own.__name__: own for own in (anchor, gain_text, markdown, md, notes, points)}
TEMPLATES.globals |= {"figure_text": figure_text, "measure_text": measure_text}
