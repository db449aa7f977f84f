"""Statistics of differences paired by seed: mean gain, interval, p-value, and the correction for many of them.

Works on numbers only. The seed is the unit that is drawn at random, so seeds are counted: settings that share a seed
share its data and its initial weights, and are not independent evidence.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from scipy.special import nctdtr, stdtr, stdtrit  # Student's t; importing scipy.stats takes a second

LEVEL = 0.95
POWER = 0.80
MOST_SEEDS = 20  # `inflation` was simulated up to here


def inflation(seeds: int, chosen: int) -> float:
    """Return by how much the variance of a mean difference grows because settings were chosen.

    Each seed's setting is chosen on the other seeds, so that the gain is not biased. The choices share runs, though,
    and two differences have a correlation r: the variance of their mean grows by `(1 + (n - 1) r) / (1 - r)`. With a
    choice on one side this is at most about `1 + √n / 3` (simulated for up to 20 seeds and 22 settings, all equally
    good). With a choice on both sides of the comparison (`chosen` = 2), r is twice as large.

    >>> inflation(9, 0), inflation(9, 1), round(inflation(9, 2), 3)
    (1.0, 2.0, 3.25)
    """
    if chosen == 0 or seeds < 2:
        return 1.0
    one = 1.0 + math.sqrt(seeds) / 3.0
    r = chosen * (one - 1.0) / (seeds - 1.0 + one)
    return (1.0 + (seeds - 1.0) * r) / (1.0 - r)


@dataclass(frozen=True)
class Gain:
    """A mean difference over pairs."""

    mean: float
    seeds: int
    spread: float | None  # the standard deviation of the differences; None of one
    chosen: int = field(default=0, kw_only=True)  # on how many sides of the comparison a setting was chosen

    @property
    def error(self) -> float | None:
        """The standard error, None where it is not defined."""
        return self.spread * math.sqrt(inflation(self.seeds, self.chosen) / self.seeds) if self.spread else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """Student's interval of 95 %, or None."""
        if self.error is None:
            return None
        half = float(stdtrit(self.seeds - 1, 0.5 + LEVEL / 2)) * self.error
        return self.mean - half, self.mean + half

    @property
    def p(self) -> float:
        """The two-sided p-value of no gain; one where there is no test."""
        return self.p_equal(0.0)

    def p_equal(self, value: float) -> float:
        """Return the two-sided p-value of "the gain is `value`"."""
        distance = self.mean - value
        return min(1.0, 2 * min(self._tail(distance), self._tail(-distance)))

    def _tail(self, distance: float) -> float:
        """Return the one-sided p-value of "the gain is smaller than the mean by `distance` or more"."""
        if self.error is not None:
            return float(stdtr(self.seeds - 1, -distance / self.error))
        if self.seeds < 2 or distance == 0.0:
            return 1.0
        # All differences are equal: there is no spread, and only their sign can be tested.
        return 0.5**self.seeds if distance > 0 else 1.0

    def seeds_needed(self) -> int | None:
        """Return how many seeds would show this gain with 80 % power in Student's test at 5 %; None if more than 20.

        >>> Gain(0.01, 5, 0.01).seeds_needed()
        10
        """
        if not self.spread or self.mean == 0.0:
            return None
        seeds = np.arange(3, MOST_SEEDS + 1)
        wider = np.array([inflation(int(n), self.chosen) for n in seeds])
        shift = abs(self.mean) / (self.spread * np.sqrt(wider / seeds))
        power = 1.0 - nctdtr(seeds - 1, shift, stdtrit(seeds - 1, 0.5 + LEVEL / 2))  # the other side: below 0.1 %
        enough = np.flatnonzero(power >= POWER)
        return int(seeds[enough[0]]) if enough.size else None


def paired_gain(differences: Sequence[float], *, chosen: int = 0) -> Gain:
    """Return the mean of differences paired by seed, with Student's interval `x̄ ± t(n - 1) · s · √(f / n)`.

    f is `inflation`. Differences should be about normal.

    >>> gain = paired_gain([0.01, 0.02, 0.03])
    >>> [round(end, 4) for end in gain.interval], round(gain.p, 4)
    ([-0.0048, 0.0448], 0.0742)
    """
    values = np.asarray(differences, dtype=np.float64)
    if values.ndim != 1 or values.size == 0 or not bool(np.isfinite(values).all()):
        raise ValueError(f"differences must be one or more finite numbers, not {differences!r}.")
    mean, spread = float(values.mean()), float(values.std(ddof=1)) if values.size > 1 else None
    if spread is not None and spread <= 1e-12:  # rounding errors of equal numbers
        mean, spread = mean if abs(mean) > 1e-12 else 0.0, 0.0
    return Gain(mean, values.size, spread, chosen=chosen)


def holm(p_values: Sequence[float]) -> list[float]:
    """Return Holm's adjusted p-values: rejecting those below α makes any false rejection at most α likely.

    >>> [round(p, 3) for p in holm([0.04, 0.01, 0.03])]
    [0.06, 0.03, 0.06]
    """
    order = np.argsort(p_values, kind="stable")
    adjusted = np.maximum.accumulate(np.minimum(1.0, np.arange(len(order), 0, -1) * np.asarray(p_values)[order]))
    return [float(adjusted[place]) for place in np.argsort(order)]
