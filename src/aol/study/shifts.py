"""Where on a shifting stream a gain is made: at the first step after the head moved, or at those that follow.

Weights from ages or errors are one step old. At such a first step they are still those of the tail before.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from aol.study.figures import by_epoch
from aol.study.lines import Line, baseline_run, chosen_runs
from aol.study.spec import Cell
from aol.study.table import Table
from aol.study.verdict import points


@dataclass(frozen=True)
class Shifts:
    """Gains in the second half of a stream: at first steps of a period and at the others; one pair a cell and seed.

    `late`: the weights come from the step before, from ages or errors, not from counts.
    """

    period: int
    late: bool
    pairs: tuple[tuple[float, float], ...]

    @property
    def first(self) -> float:
        """The mean gain at the first steps."""
        return statistics.fmean(first for first, _ in self.pairs)

    @property
    def rest(self) -> float:
        """The mean gain at all other steps."""
        return statistics.fmean(rest for _, rest in self.pairs)


def gains_after_shifts(table: Table, method: str, cells: Sequence[Cell]) -> Shifts | None:
    """Return a method's gains by place in the period, its settings chosen on validation; None without such places."""
    study, pairs, kinds = table.study, [], set()
    for cell in cells:
        for run in chosen_runs(study, table.records, cell, study.method(method)):
            if run.scenario != "stream" or run.stream != "shifting" or run.period < 2:
                return None
            mine = by_epoch(table.records[run])
            theirs = by_epoch(table.records[baseline_run(study, cell, run.seed)])
            late = [epoch for epoch in mine.keys() & theirs.keys() if epoch > run.epochs // 2]
            parts: dict[bool, list[float]] = {True: [], False: []}
            for epoch in late:
                parts[(epoch - 1) % run.period == 0].append(mine[epoch] - theirs[epoch])
            if not all(parts.values()):
                return None
            pairs.append((statistics.fmean(parts[True]), statistics.fmean(parts[False])))
            kinds.add((run.period, run.weighting in ("aol", "cb+aol", "error")))
    return Shifts(*kinds.pop(), tuple(pairs)) if len(kinds) == 1 else None


def after_shifts(table: Table, own: Sequence[Line]) -> str | None:
    """Say what a method gains right after the head moved and what later, and the others beside it."""
    (method,), cells = {line.method for line in own}, [line.cell for line in own]
    found = gains_after_shifts(table, method, cells)
    if found is None:
        return None
    lower = sum(first < rest for first, rest in found.pairs)
    base = table.study.baseline
    others = []
    for other in table.study.methods:
        theirs = gains_after_shifts(table, other.name, cells) if other.name not in (method, base) else None
        if theirs and len(theirs.pairs) == len(found.pairs):
            others.append(f"{other.name} {points(theirs.first)} and {points(theirs.rest)}")
    text = (
        f"At the first step after the head moved, one in {found.period}, {method} has {points(found.first)} points "
        f"over {base}; at the other steps {points(found.rest)} (second half of the stream; lower at the first in "
        f"{lower} of {len(found.pairs)} runs)."
    )
    text += f" There {'; '.join(others)}." if others else ""
    if found.late and lower == len(found.pairs):
        text += f" What {method} weighs by at that step comes from the tail before it."
    return text
