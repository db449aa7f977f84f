"""What a table says that has fewer seeds than a verdict needs: descriptions, called so, and the luck of its plain runs.

Knows tables, no formats. Every sentence is arithmetic on the runs.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from aol.study.lines import Line, all_gains, baseline_pool
from aol.study.table import Table
from aol.study.verdict import points


def few_seeds(table: Table, method: str, run: Sequence[Line]) -> str:
    """Say what runs with fewer seeds than a verdict needs come to: a description, and called one."""
    cells, most = [line.cell for line in run], max(len(line.seeds) for line in run)
    gains = gains_of(run)
    above = sum(gain > 0 for gain in gains)
    chosen = ", its setting chosen on validation," if any(line.settings > 1 for line in run) else ""
    text = f"No verdict, with {'one seed' if most == 1 else f'{most} seeds'}: {method}{chosen} gains"
    text += f" {points(statistics.fmean(gains))} points over {table.study.baseline}"
    if len(run) > 1:
        text += f", mean over {len(run)} cells ({points(min(gains))} to {points(max(gains))}; above zero in {above})"
    papers = [line.paper_gain for line in run]
    known = [gain for gain in papers if gain is not None]
    text += f"; the paper has {points(statistics.fmean(known))}" if known and len(known) == len(papers) else ""
    others = []
    for other in dict.fromkeys(line.method for line in table.lines):
        theirs = [line for line in table.lines if line.method == other and line.cell in cells and line.differences]
        if other != method and len(theirs) == len(run):
            others.append(f"{other} {points(statistics.fmean(gains_of(theirs)))}")
    text += f". Others there: {', '.join(others)}." if others else "."
    return text + _beside_all(table, run)


def _beside_all(table: Table, run: Sequence[Line]) -> str:
    """Say how a method stands beside all runs of the baseline: that of the one seed may be a lucky or unlucky one."""
    pools = [baseline_pool(table.study, table.records, table.figure, line.cell) for line in run]
    if any(len(pool) <= len(line.seeds) for pool, line in zip(pools, run, strict=True)):
        return ""
    apart = [statistics.fmean(line.values) - statistics.fmean(pool) for pool, line in zip(pools, run, strict=True)]
    most = up_to(max(map(len, pools)))
    mean = points(statistics.fmean(apart))
    return f" Beside the mean of all runs of {table.study.baseline} ({most}) {run[0].method} has {mean}."


def all_settings(table: Table, run: Sequence[Line]) -> str | None:
    """Say what all settings come to: where many of them stand beside one plain run, a choice hides that run's luck."""
    study, name = table.study, run[0].method
    found = [all_gains(study, table.records, table.figure, line.cell, study.method(name)) for line in run]
    if max(line.settings for line in run) == 1:
        return None
    each = ", ".join(f"{sum(gain > 0 for gain in gains)} of {len(gains)}" for gains in found)
    mean = points(statistics.fmean(statistics.fmean(gains) for gains in found))
    cells = ", cell by cell" if len(run) > 1 else ""
    return (
        f"Nothing chosen, all settings of {name} gain {mean} on average; {each} are above {study.baseline}{cells}. "
        "They share their seed's one run of it, and its luck."
    )


def gains_of(lines: Sequence[Line]) -> list[float]:
    """Return the mean gain of each line that has one."""
    return [line.gain.mean for line in lines if line.gain is not None]


def up_to(seeds: int) -> str:
    """Return in words how many seeds a cell has at most.

    >>> up_to(1), up_to(13)
    ('one seed', 'up to 13 seeds a cell')
    """
    return "one seed" if seeds == 1 else f"up to {seeds} seeds a cell"
