"""Where on a shifting stream a gain is made: at the first step after the head moved, or at the steps that follow.

Weights from ages or errors come from the step before. At the first step they are those of the previous tail.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from aol.engine.settings import FROM_ANSWERS, Settings
from aol.runs.figures import test_accuracy_by_epoch
from aol.runs.record import Run
from aol.study.comparisons import StudyResults, baseline_run, chosen_runs, run_id
from aol.study.spec import Cell

Reading = dict[int, float]  # by epoch, counted from one


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


def settings(run: Run) -> Settings:
    """Return the settings of a run of the engine."""
    return Settings(**run.settings)  # type: ignore[arg-type]


def paired(results: StudyResults, cell: Cell, run: Run) -> Reading:
    """Return a run's test accuracy minus that of the baseline with the same seed, at every step that both have."""
    mine = test_accuracy_by_epoch(run)
    base = baseline_run(results.study, cell, settings(run).seed)
    theirs = test_accuracy_by_epoch(results.frame.runs[run_id(base)])
    return {step: mine[step] - theirs[step] for step in sorted(mine.keys() & theirs.keys())}


def gains_after_shifts(results: StudyResults, method: str, cells: Sequence[Cell]) -> Shifts | None:
    """Return a method's gains at first and at other steps, its settings chosen on validation; None without such."""
    kinds: set[tuple[int, bool]] = set()
    pairs: dict[tuple[int, int], tuple[float, float]] = {}
    for place, cell in enumerate(cells):
        for each in chosen_runs(results, cell, method):
            run = settings(each)
            found = _at_places(run, paired(results, cell, each)) if moves(run) else {}
            first, rest = found.pop(1, []), [gain for steps in found.values() for gain in steps]
            if not first or not rest:
                return None
            pairs[place, run.seed] = statistics.fmean(first), statistics.fmean(rest)
            kinds.add((run.period, run.weighting in FROM_ANSWERS))
    return Shifts(*kinds.pop(), pairs) if len(kinds) == 1 else None
