"""Where on a shifting stream a gain is made: at the first step after the head moved, or at the steps that follow.

Weights from ages or errors come from the step before. At the first step they are those of the previous tail.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from aol.lab.settings import FROM_ANSWERS, Settings
from aol.lab.study.comparisons import StudyResults, baseline_run, chosen_runs
from aol.lab.study.spec import Cell, settings_from
from aol.records.metrics import accuracy_by_epoch
from aol.records.record import Run

Reading = dict[int, float]  # by epoch, counted from one


@dataclass(frozen=True)
class Shifts:
    """Gains in the second half of a stream, a row a cell (its place) and seed.

    The columns are the mean gain at the first steps of a period (`first`) and at the others (`rest`). `late`: the
    weights come from the step before, from ages or errors, not from counts.
    """

    period: int
    late: bool
    gains: pd.DataFrame


def moves(run: Settings) -> bool:
    """Return whether a run is on a stream whose head moves before it ends, and stays for some steps in between."""
    return run.scenario == "stream" and run.stream == "shifting" and 1 < run.period < run.epochs


def by_place(run: Settings, gains: Reading) -> Reading:
    """Return the mean gain by place in the period, counted from one, over the second half of the stream.

    >>> by_place(Settings(scenario="stream", period=2, epochs=6), {3: 9.0, 4: 1.0, 5: 2.0, 6: 3.0})
    {1: 2.0, 2: 2.0}
    """
    found = _second_half(run, gains)
    return {place: float(found[found.index == place].mean()) for place in sorted(set(found.index))}


def _second_half(run: Settings, gains: Reading) -> pd.Series[float]:
    """Return the gains in the second half of a stream; the index has their places in the period."""
    steps = [step for step in sorted(gains) if step > run.epochs // 2]
    return pd.Series([gains[step] for step in steps], [(step - 1) % run.period + 1 for step in steps], dtype=float)


def settings(run: Run) -> Settings:
    """Return the settings of a run of the engine."""
    return settings_from(**run.settings)


def paired(results: StudyResults, cell: Cell, seed: int, run: Run) -> Reading:
    """Return a run's test accuracy minus that of the baseline with the same seed, at every step that both have."""
    mine = accuracy_by_epoch(run)
    theirs = accuracy_by_epoch(results.runs[baseline_run(results.study, cell, seed).run_id])
    return {step: mine[step] - theirs[step] for step in sorted(mine.keys() & theirs.keys())}


def gains_after_shifts(results: StudyResults, method: str, cells: Sequence[Cell]) -> Shifts | None:
    """Return a method's gains at first and at other steps, its settings chosen on validation; None without such."""
    kinds: set[tuple[int, bool]] = set()
    pairs = {}
    for place, cell in enumerate(cells):
        for seed, each in chosen_runs(results, cell, method).items():
            run = settings(each)
            if not moves(run):
                return None
            found = _second_half(run, paired(results, cell, seed, each))
            pairs[place, seed] = (found[found.index == 1].mean(), found[found.index > 1].mean())
            kinds.add((run.period, run.weighting in FROM_ANSWERS))
    gains = pd.DataFrame.from_dict(pairs, orient="index", columns=["first", "rest"])
    if len(kinds) != 1 or gains.isna().to_numpy().any():
        return None
    gains.index = pd.MultiIndex.from_tuples(pairs, names=["cell", "seed"])
    return Shifts(*kinds.pop(), gains)
