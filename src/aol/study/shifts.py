"""Where on a shifting stream a gain is made: at the first step after the head moved, or at those that follow.

Weights from ages or errors are one step old. At such a first step they are still those of the tail before.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from aol.engine.settings import Settings
from aol.study.figures import Reading, by_epoch
from aol.study.lines import Line, baseline_run, chosen_runs
from aol.study.records import Record
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


def moves(run: Settings) -> bool:
    """Return whether a run is on a stream whose head moves, and stays for some steps in between."""
    return run.scenario == "stream" and run.stream == "shifting" and run.period > 1


def by_place(run: Settings, gains: Reading) -> Reading:
    """Return the mean gain by place in the period, counted from one, over the second half of the stream.

    >>> by_place(Settings(scenario="stream", period=2, epochs=6), {3: 9.0, 4: 1.0, 5: 2.0, 6: 3.0})
    {1: 2.0, 2: 2.0}
    """
    found: dict[int, list[float]] = {}
    for step in sorted(gains):
        if step > run.epochs // 2:
            found.setdefault((step - 1) % run.period + 1, []).append(gains[step])
    return {place: statistics.fmean(found[place]) for place in sorted(found)}


def paired(table: Table, cell: Cell, record: Record) -> Reading:
    """Return what a run has above the baseline with its seed, at every step that both were read at."""
    mine = by_epoch(record)
    theirs = by_epoch(table.records[baseline_run(table.study, cell, record.settings.seed)])
    return {step: mine[step] - theirs[step] for step in sorted(mine.keys() & theirs.keys())}


def gains_after_shifts(table: Table, method: str, cells: Sequence[Cell]) -> Shifts | None:
    """Return a method's gains by place in the period, its settings chosen on validation; None without such places."""
    study, pairs, kinds = table.study, [], set()
    for cell in cells:
        for run in chosen_runs(study, table.records, cell, study.method(method)):
            places = by_place(run, paired(table, cell, table.records[run])) if moves(run) else {}
            first = places.pop(1, None)
            if first is None or not places:
                return None
            pairs.append((first, statistics.fmean(places.values())))
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
