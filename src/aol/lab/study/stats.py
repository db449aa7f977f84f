"""Statistics of a study: choosing a setting, the best of k runs, the noise of runs, and a common spread.

Works on arrays only. Figures are `float [S, K]`: a row a seed, a column a setting (or a method), nothing missing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt
from scipy import stats

from aol.stats import Gain, inflation

Figures = npt.NDArray[np.float64]
Places = npt.NDArray[np.intp]


# Choosing a setting


def choose(validation: Figures) -> int:
    """Return the setting with the highest mean over all seeds: the one to use next. Of equal ones, the first.

    >>> choose(np.array([[0.1, 0.5], [0.3, 0.2]]))
    1
    """
    return int(_best(validation.mean(0)))


def choose_leaving_one_out(validation: Figures) -> Places:
    """Return for each seed the setting with the highest mean over the *other* seeds, `int [S]`.

    A run that is lucky on validation is mostly lucky on test too. A choice that uses a run's own validation accuracy
    therefore prefers lucky runs, and the test accuracy of the chosen run is biased although test was not used. Leaving
    the seed out removes this bias. A single seed has no others and uses its own validation accuracy.

    >>> choose_leaving_one_out(np.array([[0.1, 0.9], [0.4, 0.2], [0.5, 0.3]])).tolist()
    [0, 1, 1]
    """
    seeds = range(len(validation))
    if len(seeds) == 1:
        return np.array([choose(validation)])
    return _best(np.array([np.delete(validation, seed, axis=0).mean(0) for seed in seeds]))


def _best(values: Figures) -> Places:
    """Return the place of the largest value in each row."""
    # Means of the same numbers in another order differ in the last bits, which must not decide.
    return np.asarray(np.argmax(np.round(values, 12), axis=-1))


# The best of k runs


def expected_best(values: Sequence[float], tries: int) -> float:
    """Return the expected largest of `tries` runs, over all ways to draw them from `values` without replacement.

    `Σ x_(i) · C(i - 1, k - 1) / C(B, k)` over the B values in ascending order: unbiased for the expected best of k.

    >>> expected_best([1.0, 2.0, 3.0], tries=2)  # of 12, 13, 23: 2, 3, 3
    2.6666666666666665
    """
    ways = [value * math.comb(place, tries - 1) for place, value in enumerate(sorted(values))]
    return math.fsum(ways) / math.comb(len(values), tries)


def chance_of_reaching(values: Sequence[float], tries: int, level: float) -> float:
    """Return how often the best of `tries` of the values is `level` or more: `1 - C(m, k) / C(B, k)`, m of B below it.

    >>> chance_of_reaching([1.0, 2.0, 3.0, 4.0], tries=2, level=4.0)
    0.5
    """
    below = sum(value < level for value in values)
    return 1.0 - math.comb(below, tries) / math.comb(len(values), tries)


@cache
def expected_normal_best(tries: int) -> float:
    """Return the expected largest of `tries` standard normal values, to six digits.

    >>> round(expected_normal_best(11), 4)
    1.5864
    """
    x = np.linspace(-10.0, 10.0, 20_001)
    density = tries * stats.norm.pdf(x) * stats.norm.cdf(x) ** (tries - 1)
    return round(float((x * density).sum() * (x[1] - x[0])), 6)


@dataclass(frozen=True)
class BestOfTries:
    """The expected best of several baseline runs, from `runs` of them; `extrapolated` if there are fewer.

    `error` is the standard error of the expectation; None for a single run.
    """

    runs: int
    mean: float
    error: float | None
    extrapolated: bool

    @property
    def known(self) -> bool:
        """Whether it can be estimated: a single run does not show the best of several."""
        return self.runs > 1


def best_of_tries(values: Sequence[float], tries: int) -> BestOfTries:
    """Return the expected best of `tries` runs of the baseline.

    With fewer runs than tries it is `x̄ + c(k) · s`, c(k) that of the normal distribution, and marked extrapolated; its
    standard error is `s · √(1 / B + c(k)² / (2 (B - 1)))`. `expected_best` assumes no distribution and depends on the
    few largest values: for normal ones its error is larger by a factor of at most 1 + k / 50 (simulated).
    """
    ordered, runs = np.sort(values), len(values)
    if runs == 1:
        return BestOfTries(1, float(ordered[0]), None, tries > 1)
    lift, spread = expected_normal_best(tries), float(ordered.std(ddof=1))
    error = spread * math.sqrt(1.0 / runs + lift**2 / (2.0 * (runs - 1)))
    if tries > runs:
        return BestOfTries(runs, float(ordered.mean()) + lift * spread, error, True)
    return BestOfTries(runs, expected_best(values, tries), error * (1.0 + tries / 50.0), False)


def gain_over_best_of(best: Figures, baseline: BestOfTries) -> Gain:
    """Return how far the best of a grid, one a seed, is above the baseline's best of as many tries.

    Welch's interval of 95 %: the two sides are treated as independent. None where either side has a single run.
    """
    values = np.sort(best)  # the order of the seeds must not decide the last digit
    if baseline.error is None:
        return Gain(float(values.mean()) - baseline.mean, len(values), None, None)
    return _welch(values, baseline.mean, baseline.error**2, baseline.runs - 1)


# The noise of runs with the same seed


def residual_noise(figures: Figures) -> tuple[float, int] | None:
    """Return the noise of runs with the same seed, from figures `[S, K]`, and its degrees of freedom.

    Effects of seeds (rows) and of settings (columns) are removed; the residual is noise:
    `√(Σ(x - row mean - column mean + mean)² / ((S - 1)(K - 1)))`. None for a single row or column.

    >>> residual_noise(np.array([[1.0, 2.0], [2.0, 5.0]]))
    (1.0, 1)
    """
    seeds, settings = figures.shape
    freedom = (seeds - 1) * (settings - 1)
    if freedom < 1:
        return None
    rest = figures - figures.mean(1, keepdims=True) - figures.mean(0, keepdims=True) + figures.mean()
    return math.sqrt(float((rest**2).sum()) / freedom), freedom


def gain_over_noise(gains: Figures, tries: int, noise: tuple[float, int]) -> Gain:
    """Return how far the gain of a grid's best, one a seed, is above that of as many equal settings.

    `mean gain - c(k) · s`, where s is `residual_noise` and c(k) `expected_normal_best`; Welch's interval of 95 %.
    """
    lift, (spread, freedom) = expected_normal_best(tries), noise
    return _welch(np.sort(gains), lift * spread, (lift * spread) ** 2 / (2.0 * freedom), freedom)


def _welch(values: Figures, mean: float, variance: float, freedom: int) -> Gain:
    difference, seeds = float(values.mean()) - mean, len(values)
    ours = float(values.var(ddof=1)) / seeds if seeds > 1 else 0.0
    if seeds < 2 or ours + variance == 0.0:
        return Gain(difference, seeds, None, None)
    both = (ours + variance) ** 2 / (ours**2 / (seeds - 1) + variance**2 / freedom)
    return Gain(difference, seeds, None, math.sqrt(ours + variance), error_freedom=both)


# One spread for all methods


def pooled_gains(values: Figures, baseline: int, chosen: Sequence[int]) -> list[Gain]:
    """Return the gain of each method (column) over the baseline's column, with one spread for all methods.

    With three seeds, a method's own spread is estimated from three differences, and Student's interval is wide; five
    methods and three seeds estimate a common spread with eight degrees of freedom. The spread is `residual_noise` of
    the values `[S, M]`, and the error of a gain `s · √(2 f / S)`, where f is `inflation` (`chosen`: whether a method's
    setting was chosen, by column). Too narrow for a method that varies more than the others: it has no part in a
    verdict. Empty if there is no noise to estimate.
    """
    noise, seeds = residual_noise(values), len(values)
    if noise is None or noise[0] <= 1e-12:
        return []
    spread, freedom = math.sqrt(2.0) * noise[0], noise[1]
    errors = [spread * math.sqrt(inflation(seeds, sides) / seeds) for sides in chosen]
    means = [float((own - values[:, baseline]).mean()) for own in values.T]
    each = zip(means, errors, chosen, strict=True)
    return [Gain(mean, seeds, spread, error, None, sides, freedom) for mean, error, sides in each]
