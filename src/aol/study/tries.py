"""The best of many tries: what picking the best of k runs gives when nothing but luck tells them apart.

Knows arrays of numbers, nothing of runs. A method that was tried with k settings and shown at its best is compared with
the best of k runs of the baseline, which differ by their seeds alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt
from scipy import stats


def _values(values: Sequence[float]) -> npt.NDArray[np.float64]:
    found = np.asarray(values, dtype=np.float64)
    if found.ndim != 1 or found.size == 0 or not bool(np.isfinite(found).all()):
        raise ValueError(f"values must be one or more finite numbers, not {list(values)!r}.")
    return np.sort(found)


def expected_best(values: Sequence[float], tries: int) -> float:
    """Return the expected largest of `tries` runs, over all ways of taking them out of `values` without repeats.

    `Σ x_(i) · C(i - 1, k - 1) / C(B, k)` over the B values in rising order: unbiased for the expected largest of k.

    >>> expected_best([1.0, 2.0, 3.0], tries=2)  # of 12, 13, 23: 2, 3, 3
    2.6666666666666665
    """
    ordered = _values(values)
    if not 1 <= tries <= ordered.size:
        raise ValueError(f"tries must be a whole number from 1 to {ordered.size}, the number of values, not {tries}.")
    ways = [math.comb(place, tries - 1) for place in range(ordered.size)]
    return math.fsum(x * way for x, way in zip(ordered.tolist(), ways, strict=True)) / math.comb(ordered.size, tries)


def chance_of_reaching(values: Sequence[float], tries: int, level: float) -> float:
    """Return how often the best of `tries` of the values is `level` or more: `1 - C(m, k) / C(B, k)`, m of B below it.

    >>> chance_of_reaching([1.0, 2.0, 3.0, 4.0], tries=2, level=4.0)
    0.5
    """
    ordered = _values(values)
    if not 1 <= tries <= ordered.size:
        raise ValueError(f"tries must be a whole number from 1 to {ordered.size}, the number of values, not {tries}.")
    below = int((ordered < level).sum())
    return 1.0 - math.comb(below, tries) / math.comb(ordered.size, tries)


@cache
def normal_best(tries: int) -> float:
    """Return the expected largest of `tries` standard normal values, to six digits.

    >>> round(normal_best(11), 4)
    1.5864
    """
    x = np.linspace(-10.0, 10.0, 20_001)
    density = tries * stats.norm.pdf(x) * stats.norm.cdf(x) ** (tries - 1)
    return round(float((x * density).sum() * (x[1] - x[0])), 6)


@dataclass(frozen=True)
class BestOfTries:
    """The expected best of `tries` baseline runs, from `runs` of them. `extrapolated`: there are fewer runs than tries.

    `error` is the standard error of the expectation; None for a single run.
    """

    tries: int
    runs: int
    mean: float
    error: float | None
    extrapolated: bool

    @property
    def known(self) -> bool:
        """Whether it can be told: a single run says nothing about the best of several."""
        return self.runs > 1 or self.tries == 1


def best_of_tries(values: Sequence[float], tries: int) -> BestOfTries:
    """Return the expected best of `tries` runs of the baseline.

    From fewer runs than tries it is `x̄ + c(k) · s`, with c(k) of the normal distribution, and marked extrapolated; its
    standard error is then `s · √(1 / B + c(k)² / (2 (B - 1)))`. `expected_best` takes no distribution for granted and
    leans on the few largest values: for normal ones its error is larger, by 1 + k / 50 or less (found by simulation).
    """
    ordered = _values(values)
    runs = int(ordered.size)
    if runs == 1:
        return BestOfTries(tries, 1, float(ordered[0]), None, tries > 1)
    lift, spread = normal_best(tries), float(ordered.std(ddof=1))
    error = spread * math.sqrt(1.0 / runs + lift**2 / (2.0 * (runs - 1)))
    if tries > runs:
        return BestOfTries(tries, runs, float(ordered.mean()) + lift * spread, error, True)
    return BestOfTries(tries, runs, expected_best(ordered.tolist(), tries), error * (1.0 + tries / 50.0), False)


def luck_of_runs(figures: npt.NDArray[np.float64]) -> tuple[float, int] | None:
    """Return the spread of runs that share a seed, from figures `[S, K]`, a row a seed, and its degrees of freedom.

    What a seed does to all settings and what a setting does on all seeds are taken out; the rest is luck:
    `√(Σ(x - row mean - column mean + mean)² / ((S - 1)(K - 1)))`. None for a single row or column.

    >>> luck_of_runs(np.array([[1.0, 2.0], [2.0, 5.0]]))
    (1.0, 1)
    """
    seeds, settings = figures.shape
    freedom = (seeds - 1) * (settings - 1)
    if freedom < 1:
        return None
    rest = figures - figures.mean(1, keepdims=True) - figures.mean(0, keepdims=True) + figures.mean()
    return math.sqrt(float((rest**2).sum()) / freedom), freedom


def gain_over_luck(
    gains: Sequence[float], tries: int, luck: tuple[float, int]
) -> tuple[float, tuple[float, float] | None]:
    """Return what the gain of a grid's best, one a seed, has above the luck of as many tries with the same seed.

    `mean gain - c(k) · s`, where s is `luck_of_runs` and c(k) `normal_best`; Welch's interval of 95 %.
    """
    found = _values(gains)
    lift, (spread, freedom) = normal_best(tries), luck
    return _welch(found, lift * spread, (lift * spread) ** 2 / (2.0 * freedom), freedom)


def _welch(
    found: npt.NDArray[np.float64], mean: float, variance: float, freedom: int
) -> tuple[float, tuple[float, float] | None]:
    difference = float(found.mean()) - mean
    ours = float(found.var(ddof=1)) / found.size if found.size > 1 else 0.0
    if found.size < 2 or ours + variance == 0.0:
        return difference, None
    both = (ours + variance) ** 2 / (ours**2 / (found.size - 1) + variance**2 / freedom)
    half = float(stats.t.ppf(0.975, both)) * math.sqrt(ours + variance)
    return difference, (difference - half, difference + half)


def gain_over_tries(best: Sequence[float], baseline: BestOfTries) -> tuple[float, tuple[float, float] | None]:
    """Return how far the best of a grid, one a seed, lies above the baseline's best of as many tries; its interval.

    Welch's interval of 95 %: the two are taken as independent. None where either side has a single run.
    """
    found = _values(best)
    if baseline.error is None:
        return float(found.mean()) - baseline.mean, None
    return _welch(found, baseline.mean, baseline.error**2, baseline.runs - 1)
