"""The best of many tries: what picking the best of k runs gives when nothing but luck tells them apart.

Knows arrays of numbers, nothing of runs. A method that was tried with k settings and shown at its best is compared with
the best of k runs of the baseline, which differ by their seeds alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

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

    `error` is the standard error of the expectation, by the normal formula; None for a single run.
    """

    tries: int
    runs: int
    mean: float
    error: float | None
    extrapolated: bool


def best_of_tries(values: Sequence[float], tries: int) -> BestOfTries:
    """Return the expected best of `tries` runs of the baseline.

    From fewer runs than tries it is `x̄ + c(k) · s`, with c(k) of the normal distribution, and marked extrapolated.
    Its standard error is `s · √(1 / B + c(k)² / (2 (B - 1)))` either way.
    """
    ordered = _values(values)
    runs = int(ordered.size)
    if runs == 1:
        return BestOfTries(tries, 1, float(ordered[0]), None, tries > 1)
    lift, spread = normal_best(tries), float(ordered.std(ddof=1))
    error = spread * math.sqrt(1.0 / runs + lift**2 / (2.0 * (runs - 1)))
    extrapolated = tries > runs
    mean = float(ordered.mean()) + lift * spread if extrapolated else expected_best(ordered.tolist(), tries)
    return BestOfTries(tries, runs, mean, error, extrapolated)


def gain_over_tries(best: Sequence[float], baseline: BestOfTries) -> tuple[float, tuple[float, float] | None]:
    """Return how far the best of the grid, one a seed, lies above the baseline's best of as many tries, and its interval.

    Welch's interval of 95 %: the two are taken as independent. None where either side has a single run.
    """
    found = _values(best)
    difference = float(found.mean()) - baseline.mean
    if found.size < 2 or baseline.error is None:
        return difference, None
    ours, theirs = float(found.var(ddof=1)) / found.size, baseline.error**2
    if ours + theirs == 0.0:
        return difference, None
    freedom = (ours + theirs) ** 2 / (ours**2 / (found.size - 1) + theirs**2 / (baseline.runs - 1))
    half = float(stats.t.ppf(0.975, freedom)) * math.sqrt(ours + theirs)
    return difference, (difference - half, difference + half)
