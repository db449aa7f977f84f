"""What stands in a table, as text: columns, sections and rows, the same for every format that it is written in.

Knows tables, no formats. Accuracies are in percent and differences in points; the minus sign is a real one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from aol.study.lines import Line
from aol.study.spec import Cell
from aol.study.table import Table, make_table
from aol.study.tries import BestOfTries
from aol.study.verdict import p_text, points

NONE = "–"
SIGNAL_NAMES = {
    "accuracy_test": "accuracy, test",
    "loss_train": "loss, training",
    "margin_train": "margin, training",
    "loss_test": "loss, test",
    "margin_test": "margin, test",
}
# Words that say by themselves what they are the value of.
PLAIN = ("data", "loss", "mechanism", "stream", "weighting")


@dataclass(frozen=True)
class Sheet:
    """Rows in sections, under one head. The first column is text, the others are numbers."""

    title: str
    head: tuple[str, ...]
    sections: tuple[tuple[str, tuple[tuple[str, ...], ...]], ...]


def cell_name(cell: Cell | Sequence[tuple[str, object]]) -> str:
    """Return what a cell, or a group of them, is called.

    >>> cell_name({"data": "cifar10", "imbalance": 200, "fraction": 0.05})
    'cifar10, imbalance 200, fraction 0.05'
    """
    words = []
    for name, value in dict(cell).items():
        text = f"{value:g}" if isinstance(value, float) else "none" if value is None else str(value)
        words.append(text if name in PLAIN and isinstance(value, str) else f"{name.replace('_', ' ')} {text}")
    return ", ".join(words)


def percent(value: float | None, digits: int = 2) -> str:
    """Return an accuracy in percent; a dash for none."""
    return NONE if value is None else f"{100.0 * value:.{digits}f}"


def between(ends: tuple[float, float] | None) -> str:
    """Return an interval of differences, in points."""
    return "" if ends is None else f" ({points(ends[0])}, {points(ends[1])})"


def sheets(table: Table, *, optimistic: bool = False) -> list[Sheet]:
    """Return the sheets of a table: correlations where nothing is compared, else gains; and the optimistic one."""
    if table.correlations:
        return [_correlations(table)]
    found = [_gains(table)]
    if not optimistic:
        return found
    best = table if table.figure == "best" else make_table(table.study, table.records, figure="best")
    return [*found, _optimistic(table), *([_as_published(best)] if table.study.paper else [])]


def _sections(
    table: Table, rows: Sequence[tuple[Line, tuple[str, ...]]]
) -> tuple[tuple[str, tuple[tuple[str, ...], ...]], ...]:
    found = []
    for cell in table.study.cells_list():
        own = tuple(row for line, row in rows if line.cell == cell)
        if own:
            found.append((cell_name(cell), own))
    return tuple(found)


def _gains(table: Table) -> Sheet:
    """Return the gains, of cells that have runs; of all where none has, for the paper's figures."""
    pairs = list(zip(table.lines, table.p_values, strict=True))
    run = [pair for pair in pairs if any(line.runs for line in table.lines if line.cell == pair[0].cell)]
    rows = [(line, _gain_row(line, p, table.study.baseline)) for line, p in run or pairs]
    head = ("method", "n", "accuracy", "gain (95 %)", "p", "paper")
    return Sheet(table.study.title, head, _sections(table, rows))


def _gain_row(line: Line, p: float | None, baseline: str) -> tuple[str, ...]:
    name = f"{line.method} {line.setting}".strip() + (" *" if len(set(line.choices)) > 1 else "")
    paper = percent(line.paper.accuracy) if line.paper else NONE
    if line.paper_gain is not None:
        paper += f" {points(line.paper_gain)}"
    seeds = str(len(line.seeds)) if len(line.seeds) == line.planned else f"{len(line.seeds)}/{line.planned}"
    if not line.seeds:
        return (name, seeds, f"{line.runs}/{line.runs_planned} runs", NONE, NONE, paper)
    accuracy = percent(line.mean) + (f" ±{percent(line.spread)}" if line.spread is not None else "")
    gain = line.gain
    if gain is None:
        return (name, seeds, accuracy, "baseline" if line.method == baseline else NONE, NONE, paper)
    return (name, seeds, accuracy, points(gain.mean) + between(gain.interval), NONE if p is None else p_text(p), paper)


def _optimistic(table: Table) -> Sheet:
    """Return the best of each grid on test beside the best of as many baseline runs."""
    rows = []
    for line in table.lines:
        found = line.optimistic
        if found is None:
            continue
        alone = len(line.seeds) == 1  # whose own luck would count as the method's
        row = (
            f"{line.method}: {found.tries} tries",
            percent(found.mean),
            _tried(found.baseline),
            NONE if alone else points(found.left) + between(found.interval),
            NONE if alone or found.reached is None else f"{found.reached:.0%}",
            NONE if found.within is None else points(found.within) + between(found.within_interval),
        )
        rows.append((line, row))
    base = table.study.baseline
    head = ("OPTIMISTIC", "best", base, "left, other seeds", "luck", "left, same seed")
    return Sheet("Optimistic: the setting is the best on test", head, _sections(table, rows))


def _as_published(table: Table) -> Sheet:
    """Return the best of each grid on test, by the figure of a table, beside the paper's figure and gain."""
    rows = []
    for line in table.lines:
        found, theirs = line.optimistic, line.paper
        if theirs is None or line.mean is None:
            continue
        paper = (percent(theirs.accuracy), NONE if line.paper_gain is None else points(line.paper_gain))
        if found is not None:
            numbers = (percent(found.mean), points(found.gain), *paper, _tried(found.baseline))
            rows.append((line, (f"{line.method}: {found.tries} tries", *numbers)))
        elif line.method == table.study.baseline:
            rows.append((line, (line.method, percent(line.mean), NONE, *paper, NONE)))
    head = ("OPTIMISTIC", "best", "gain", "paper", "its gain", f"{table.study.baseline}, as many tries")
    title = "As the paper seems to read its runs: the best epoch of the best setting, both chosen on test"
    return Sheet(title, head, _sections(table, rows))


def _tried(baseline: BestOfTries) -> str:
    """Return the best of so many baseline runs, marked where there are fewer of them; a dash where there is one."""
    return ("~" if baseline.extrapolated else "") + percent(baseline.mean) if baseline.known else NONE


def _correlations(table: Table) -> Sheet:
    sections = []
    for cell, found in table.correlations:
        rows = []
        for each in found:
            ends = f"{_r(each.r)} ({_r(each.low)}, {_r(each.high)})"
            theirs = NONE if each.paper is None else _r(each.paper)
            counts = (str(each.classes), str(each.seeds))
            rows.append((SIGNAL_NAMES[each.signal], *counts, ends, p_text(each.p_corrected), theirs))
        sections.append((cell_name(cell), tuple(rows)))
    return Sheet(table.study.title, ("class age against", "classes", "n", "r (95 %)", "p", "paper"), tuple(sections))


def _r(value: float) -> str:
    return f"{value:+.3f}".replace("-", "−")
