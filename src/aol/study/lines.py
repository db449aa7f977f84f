"""The lines of a table: what each method gains in each cell, from whatever records are there.

A seed counts for a method when every run of its grid, and the baseline's, is there: half a grid is never shown as a
whole one. The setting of each seed is chosen on the validation figures of the other seeds.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from aol.engine.settings import Settings
from aol.study import figures
from aol.study.intervals import Gain, paired_gain
from aol.study.published import Published, published, published_gains
from aol.study.records import Record
from aol.study.selection import Figures, best_on_test, choose, choose_without_each
from aol.study.spec import Cell, Method, Study, Variant
from aol.study.tries import (
    BestOfTries,
    best_of_tries,
    chance_of_reaching,
    gain_over_luck,
    gain_over_tries,
    luck_of_runs,
)

Records = Mapping[Settings, Record]
LETTERS = {"rho": "ρ", "beta": "β", "power": "p", "gamma": "γ"}


@dataclass(frozen=True)
class Optimistic:
    """The best of a grid on test, one a seed, beside the best of as many baseline runs.

    `left` is what the grid's best has above that, `reached` how often so many baseline runs alone are as good. Those
    runs differ in all that a seed decides, data too, while the runs of a grid share a seed: that is hard on the grid.
    `within` is what the grid's gain has above the luck of runs of one seed; None with a single seed.
    """

    tries: int
    mean: float
    gain: float
    baseline: BestOfTries
    left: float
    interval: tuple[float, float] | None
    reached: float | None
    within: float | None
    within_interval: tuple[float, float] | None


@dataclass(frozen=True)
class Line:
    """One method in one cell. `values` and `differences` are by seed, in the order of `seeds`: those that are whole.

    `gain` is the paired difference to the baseline; None for the baseline itself and where no seed is whole.
    """

    cell: Cell
    method: str
    settings: int
    setting: str
    choices: tuple[str, ...]
    seeds: tuple[int, ...]
    planned: int
    runs: int
    runs_planned: int
    failed: int
    values: tuple[float, ...]
    differences: tuple[float, ...]
    gain: Gain | None
    optimistic: Optimistic | None
    paper: Published | None
    paper_gains: tuple[float, ...] | None
    problem: str | None

    @property
    def mean(self) -> float | None:
        """The mean over seeds."""
        return statistics.fmean(self.values) if self.values else None

    @property
    def spread(self) -> float | None:
        """The standard deviation over seeds."""
        return statistics.stdev(self.values) if len(self.values) > 1 else None

    @property
    def paper_gain(self) -> float | None:
        """The paper's gain over its baseline, a mean where it has several seeds."""
        return statistics.fmean(self.paper_gains) if self.paper_gains else None


def lines(study: Study, records: Records, figure: str) -> list[Line]:
    """Return a line for every cell and method, in the order of the study; test figures by `figure`."""
    found = []
    for cell in study.cells_list():
        found += [_line(study, records, figure, cell, method) for method in study.methods]
    return found


def _line(study: Study, records: Records, figure: str, cell: Cell, method: Method) -> Line:
    baseline = study.method(study.baseline)
    variants = _distinct(study, cell, method)
    grid = [[study.run(cell, method, variant, seed) for variant in variants] for seed in study.seeds]
    base = {seed: _test(records, study.run(cell, baseline, {}, seed), figure) for seed in study.seeds}
    is_base = method.name == baseline.name
    planned = [run for row in grid for run in row]
    if is_base:
        planned += study.runs(cell, method, study.extra_seeds)
    there = [records[run] for run in planned if run in records]
    test = [[_test(records, run, figure) for run in row] for row in grid]
    kept = [place for place, seed in enumerate(study.seeds) if None not in test[place] and base[seed] is not None]
    validation, problem = _validation(records, [grid[place] for place in kept], study.figure)
    if problem is not None:
        kept = []
    tests: Figures = np.array([test[place] for place in kept], dtype=np.float64)
    seeds = tuple(study.seeds[place] for place in kept)
    plain = [value for seed in seeds if (value := base[seed]) is not None]
    own = choose_without_each(validation) if kept else np.array([], dtype=np.intp)
    values = [float(row[place]) for row, place in zip(tests, own, strict=True)]
    differences = () if is_base else tuple(value - low for value, low in zip(values, plain, strict=True))
    example = planned[0]
    reference = study.run(cell, baseline, {}, study.seeds[0])
    gains = None if is_base else published_gains(study.paper, example, reference)
    return Line(
        cell=cell,
        method=method.name,
        settings=len(variants),
        setting=shown(variants[choose(validation) if kept else 0]) if kept or len(variants) == 1 else "",
        choices=tuple(shown(variants[place]) for place in own),
        seeds=seeds,
        planned=len(study.seeds),
        runs=len(there),
        runs_planned=len(planned),
        failed=sum(record.failed_at_epoch is not None for record in there),
        values=tuple(values),
        differences=differences,
        gain=paired_gain(differences, settings=len(variants)) if differences else None,
        optimistic=None if is_base or not kept else _optimistic(study, records, figure, cell, method, seeds, tests),
        paper=published(study.paper, example),
        paper_gains=None if gains is None else tuple(gains),
        problem=problem,
    )


def _test(records: Records, run: Settings, figure: str) -> float | None:
    return figures.on_test(records[run], figure) if run in records else None


def _distinct(study: Study, cell: Cell, method: Method) -> list[Variant]:
    """Return the settings of a grid, those that make the same run once."""
    by_run = {study.run(cell, method, variant, study.seeds[0]): variant for variant in reversed(method.variants())}
    return list(reversed(by_run.values()))


def _validation(records: Records, grid: Sequence[Sequence[Settings]], figure: str) -> tuple[Figures, str | None]:
    """Return what settings are chosen by, `[S, K]`; and what is wrong, where there is a choice and nothing to go by."""
    if not grid or len(grid[0]) == 1:
        return np.zeros((len(grid), 1)), None
    found = [[figures.on_validation(records[run], figure) for run in row] for row in grid]
    if any(value is None for row in found for value in row):
        return np.zeros((len(grid), len(grid[0]))), "no validation accuracy to choose by"
    return np.array(found, dtype=np.float64), None


def baseline_pool(study: Study, records: Records, figure: str, cell: Cell) -> list[float]:
    """Return the test figures of all the baseline's runs in a cell, those of its further seeds too."""
    runs = study.runs(cell, study.method(study.baseline), (*study.seeds, *study.extra_seeds))
    return [value for run in runs if (value := _test(records, run, figure)) is not None]


def _optimistic(
    study: Study, records: Records, figure: str, cell: Cell, method: Method, seeds: Sequence[int], tests: Figures
) -> Optimistic | None:
    """Return the best of a grid on test beside the baseline's best of as many tries; None without a grid.

    As in the paper, age's grid holds ρ = 0, which is no weighting by the same mechanism: one try more.
    """
    if tests.shape[1] == 1:
        return None
    baseline = study.method(study.baseline)
    plain = np.array([_test(records, study.run(cell, baseline, {}, seed), figure) for seed in seeds], dtype=np.float64)
    if is_claim(method.name):
        runs = [replace(study.run(cell, method, method.variants()[0], seed), weighting="none") for seed in seeds]
        zero = [_test(records, run, figure) for run in runs]
        if None not in zero:
            tests = np.column_stack([np.array(zero, dtype=np.float64), tests])
    best = np.take_along_axis(tests, best_on_test(tests)[:, None], axis=1)[:, 0]
    pool, tries = baseline_pool(study, records, figure, cell), int(tests.shape[1])
    theirs = best_of_tries(pool, tries)
    left, interval = gain_over_tries(best.tolist(), theirs)
    luck = luck_of_runs(tests)
    within = (None, None) if luck is None else gain_over_luck((best - plain).tolist(), tries, luck)
    chances = [chance_of_reaching(pool, tries, float(value)) for value in best] if tries <= len(pool) else []
    return Optimistic(
        tries=tries,
        mean=float(best.mean()),
        gain=float((best - plain).mean()),
        baseline=theirs,
        left=left,
        interval=interval,
        reached=statistics.fmean(chances) if chances else None,
        within=within[0],
        within_interval=within[1],
    )


def is_claim(method: str) -> bool:
    """Return whether a method is the paper's, whose gain is the claim of a table; the others are rivals."""
    return method.startswith("aol")


def shown(variant: Variant) -> str:
    """Return a setting of a grid in a few signs.

    >>> shown({"rho": 0.5, "level": "class"})
    'ρ=0.5 class'
    """
    words = []
    for name, value in variant.items():
        text = f"{value:g}" if isinstance(value, float) else str(value)
        plain = isinstance(value, str) and name in ("level", "mechanism", "loss", "weighting")
        words.append(text if plain else f"{LETTERS.get(name, name + ' ')}{'=' if name in LETTERS else ''}{text}")
    return " ".join(words)
