"""The lines of a table: what each method gains in each cell, from whatever records are there.

A seed counts for a method when every run of its grid, and the baseline's, is there: half a grid is never shown as a
whole one. The setting of each seed is chosen on the validation figures of the other seeds.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from aol.engine.intervals import Gain, paired_gain
from aol.engine.settings import Settings
from aol.study import figures
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


@dataclass(frozen=True)
class _Whole:
    """The seeds of a method in a cell that are whole: test and validation figures `[S, K]`, the baseline's `[S]`."""

    seeds: tuple[int, ...]
    test: Figures
    validation: Figures
    plain: Figures
    problem: str | None


def _whole(study: Study, records: Records, figure: str, cell: Cell, method: Method, variants: list[Variant]) -> _Whole:
    grid = {seed: [study.run(cell, method, variant, seed) for variant in variants] for seed in study.seeds}
    test = {seed: [_test(records, run, figure) for run in row] for seed, row in grid.items()}
    plain = {seed: _test(records, baseline_run(study, cell, seed), figure) for seed in study.seeds}
    seeds = tuple(seed for seed in study.seeds if None not in test[seed] and plain[seed] is not None)
    validation, problem = _validation(records, [grid[seed] for seed in seeds], study.figure)
    kept = seeds if problem is None else ()
    tests = np.array([test[seed] for seed in kept], dtype=np.float64).reshape(len(kept), len(variants))
    return _Whole(kept, tests, validation, np.array([plain[seed] for seed in kept], dtype=np.float64), problem)


def _line(study: Study, records: Records, figure: str, cell: Cell, method: Method) -> Line:
    is_base = method.name == study.baseline
    variants = _distinct(study, cell, method)
    whole = _whole(study, records, figure, cell, method, variants)
    planned = [study.run(cell, method, variant, seed) for variant in variants for seed in study.seeds]
    planned += study.runs(cell, method, study.extra_seeds) if is_base else []
    there = [records[run] for run in planned if run in records]
    own = choose_without_each(whole.validation) if whole.seeds else np.array([], dtype=np.intp)
    values = whole.test[np.arange(len(own)), own]
    differences = () if is_base else tuple((values - whole.plain).tolist())
    first = choose(whole.validation) if whole.seeds else 0
    reference = baseline_run(study, cell, study.seeds[0])
    gains = None if is_base else published_gains(study.paper, planned[0], reference)
    return Line(
        cell=cell,
        method=method.name,
        settings=len(variants),
        setting=shown(variants[first]) if whole.seeds or len(variants) == 1 else "",
        choices=tuple(shown(variants[place]) for place in own),
        seeds=whole.seeds,
        planned=len(study.seeds),
        runs=len(there),
        runs_planned=len(planned),
        failed=sum(record.failed_at_epoch is not None for record in there),
        values=tuple(values.tolist()),
        differences=differences,
        gain=paired_gain(differences, chosen=int(len(variants) > 1)) if differences else None,
        optimistic=_optimistic(study, records, figure, cell, method, whole) if differences else None,
        paper=published(study.paper, planned[0]),
        paper_gains=None if gains is None else tuple(gains),
        problem=whole.problem,
    )


def chosen_runs(study: Study, records: Records, cell: Cell, method: Method) -> list[Settings]:
    """Return the runs whose mean a line shows: of each whole seed the one in the setting chosen without that seed."""
    variants = _distinct(study, cell, method)
    whole = _whole(study, records, study.figure, cell, method, variants)
    own = choose_without_each(whole.validation).tolist() if whole.seeds else []
    return [study.run(cell, method, variants[place], seed) for seed, place in zip(whole.seeds, own, strict=True)]


def all_gains(study: Study, records: Records, figure: str, cell: Cell, method: Method) -> list[float]:
    """Return what every setting gains with every whole seed, none chosen."""
    whole = _whole(study, records, figure, cell, method, _distinct(study, cell, method))
    gains: list[float] = (whole.test - whole.plain[:, None]).ravel().tolist()
    return gains


def baseline_run(study: Study, cell: Cell, seed: int) -> Settings:
    """Return the baseline's run in a cell."""
    baseline = study.method(study.baseline)
    return study.run(cell, baseline, baseline.variants()[0], seed)


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
        why = "no validation accuracy to choose by: give the study a validation part"
        return np.zeros((len(grid), len(grid[0]))), why
    return np.array(found, dtype=np.float64), None


def baseline_pool(study: Study, records: Records, figure: str, cell: Cell) -> list[float]:
    """Return the test figures of all the baseline's runs in a cell, those of its further seeds too."""
    runs = study.runs(cell, study.method(study.baseline), (*study.seeds, *study.extra_seeds))
    return [value for run in runs if (value := _test(records, run, figure)) is not None]


def _optimistic(
    study: Study, records: Records, figure: str, cell: Cell, method: Method, whole: _Whole
) -> Optimistic | None:
    """Return the best of a grid on test beside the baseline's best of as many tries; None without a grid.

    As in the paper, age's grid holds ρ = 0, which is no weighting by the same mechanism: one try more.
    """
    if whole.test.shape[1] == 1:
        return None
    tests = whole.test
    if study.of_paper(method):
        zero = [_test(records, _unweighted(study, cell, method, seed), figure) for seed in whole.seeds]
        if None not in zero:
            tests = np.column_stack([np.array(zero, dtype=np.float64), tests])
    best = np.take_along_axis(tests, best_on_test(tests)[:, None], axis=1)[:, 0]
    gains = best - whole.plain
    pool, tries = baseline_pool(study, records, figure, cell), int(tests.shape[1])
    theirs = best_of_tries(pool, tries)
    left, interval = gain_over_tries(best.tolist(), theirs)
    luck = luck_of_runs(tests)
    within = (None, None) if luck is None or luck[0] == 0.0 else gain_over_luck(gains.tolist(), tries, luck)
    chances = [chance_of_reaching(pool, tries, float(value)) for value in best] if tries <= len(pool) else []
    return Optimistic(
        tries=tries,
        mean=float(best.mean()),
        gain=float(gains.mean()),
        baseline=theirs,
        left=left,
        interval=interval,
        reached=statistics.fmean(chances) if chances else None,
        within=within[0],
        within_interval=within[1],
    )


def _unweighted(study: Study, cell: Cell, method: Method, seed: int) -> Settings:
    """Return the run of a method at ρ = 0. Without weights no memory matters: it may be had with another."""
    zero = replace(study.run(cell, method, method.variants()[0], seed), weighting="none")
    runs = [study.run(cell, each, each.variants()[0], seed) for each in study.methods]
    return next((run for run in runs if replace(run, memory=zero.memory) == zero), zero)


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
