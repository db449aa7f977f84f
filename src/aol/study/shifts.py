"""Where on a shifting stream a gain is made: at the first step after the head moved, or at those that follow.

Weights from ages or errors are one step old. At such a first step they are still those of the tail before.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from aol.engine.settings import FROM_ANSWERS, Settings
from aol.study.figures import Reading, by_epoch
from aol.study.lines import Line, baseline_run, chosen_runs
from aol.study.records import Record
from aol.study.spec import Cell
from aol.study.table import Table
from aol.study.verdict import LEAST_SEEDS, points


@dataclass(frozen=True)
class Shifts:
    """Gains in the second half of a stream, at first steps of a period and at the others, by cell (its place) and seed.

    `late`: the weights come from the step before, from ages or errors, not from counts.
    """

    period: int
    late: bool
    pairs: Mapping[tuple[int, int], tuple[float, float]]

    @property
    def first(self) -> float:
        """The mean gain at the first steps."""
        return statistics.fmean(first for first, _ in self.pairs.values())

    @property
    def rest(self) -> float:
        """The mean gain at all other steps."""
        return statistics.fmean(rest for _, rest in self.pairs.values())

    @property
    def lower(self) -> int:
        """How many runs gain less at the first steps than at the others."""
        return sum(first < rest for first, rest in self.pairs.values())

    @property
    def by_cell(self) -> list[tuple[float, float]]:
        """Both gains in each cell, means over its seeds."""
        found = []
        for cell in dict.fromkeys(cell for cell, _ in self.pairs):
            own = [pair for (place, _), pair in self.pairs.items() if place == cell]
            found.append((statistics.fmean(first for first, _ in own), statistics.fmean(rest for _, rest in own)))
        return found


def moves(run: Settings) -> bool:
    """Return whether a run is on a stream whose head moves before it ends, and stays for some steps in between."""
    return run.scenario == "stream" and run.stream == "shifting" and 1 < run.period < run.epochs


def by_place(run: Settings, gains: Reading) -> Reading:
    """Return the mean gain by place in the period, counted from one, over the second half of the stream.

    >>> by_place(Settings(scenario="stream", period=2, epochs=6), {3: 9.0, 4: 1.0, 5: 2.0, 6: 3.0})
    {1: 2.0, 2: 2.0}
    """
    found = _at_places(run, gains)
    return {place: statistics.fmean(found[place]) for place in sorted(found)}


def _at_places(run: Settings, gains: Reading) -> dict[int, list[float]]:
    found: dict[int, list[float]] = {}
    for step in sorted(gains):
        if step > run.epochs // 2:
            found.setdefault((step - 1) % run.period + 1, []).append(gains[step])
    return found


def paired(table: Table, cell: Cell, record: Record) -> Reading:
    """Return what a run has above the baseline with its seed, at every step that both were read at."""
    mine = by_epoch(record)
    theirs = by_epoch(table.records[baseline_run(table.study, cell, record.settings.seed)])
    return {step: mine[step] - theirs[step] for step in sorted(mine.keys() & theirs.keys())}


def gains_after_shifts(table: Table, method: str, cells: Sequence[Cell]) -> Shifts | None:
    """Return a method's gains by place in the period, its settings chosen on validation; None without such places."""
    study, kinds = table.study, set()
    pairs: dict[tuple[int, int], tuple[float, float]] = {}
    for place, cell in enumerate(cells):
        for run in chosen_runs(study, table.records, cell, study.method(method)):
            found = _at_places(run, paired(table, cell, table.records[run])) if moves(run) else {}
            first, rest = found.pop(1, []), [gain for each in found.values() for gain in each]
            if not first or not rest:
                return None
            pairs[place, run.seed] = statistics.fmean(first), statistics.fmean(rest)
            kinds.add((run.period, run.weighting in FROM_ANSWERS))
    return Shifts(*kinds.pop(), pairs) if len(kinds) == 1 else None


def after_shifts(table: Table, method: str, own: Sequence[Line]) -> str | None:
    """Say what a method gains right after the head moved and what later, in the cells of its lines; others beside it.

    That the weights are late follows from the order of a step. That it is the cause does not, and is not said.
    """
    cells, base = [line.cell for line in own], table.study.baseline
    found = gains_after_shifts(table, method, cells)
    if found is None:
        return None
    text = f"At the first step after the head moved, one in {found.period}, {method} has {points(found.first)} points "
    text += f"over {base}{_among([first for first, _ in found.by_cell])}; at the other steps {points(found.rest)}"
    text += f"{_among([rest for _, rest in found.by_cell])}. That is over the second half of the stream"
    runs = len(found.pairs)
    text += f"; the first is lower in {found.lower} of {runs} runs." if runs > 1 else ", in one run."
    others = []
    for other in table.study.methods:
        theirs = gains_after_shifts(table, other.name, cells) if other.name not in (method, base) else None
        if theirs and theirs.pairs.keys() == found.pairs.keys():
            others.append(f"{other.name} {points(theirs.first)} and {points(theirs.rest)}")
    text += f" Others there: {'; '.join(others)}." if others else ""
    if found.late and found.lower == runs >= LEAST_SEEDS:
        text += f" A possible cause, not tested here: {method} weighs at that step by what the tail before it left."
    return text


def _among(gains: Sequence[float]) -> str:
    return f" ({points(min(gains))} to {points(max(gains))} by cell)" if len(gains) > 1 else ""
