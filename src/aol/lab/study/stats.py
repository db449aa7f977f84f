"""Statistics of a study: choosing a setting, the best of k runs, and one spread for all methods.

Works on arrays only: `float [S, K]` with a row a seed and a column a setting (or a method), nothing missing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from aol.stats import Gain, inflation

Figures = npt.NDArray[np.float64]
Places = npt.NDArray[np.intp]


def choose(validation: Figures) -> int:
    """Return the setting with the highest mean over all seeds: the one to use next. Of equal ones, the first."""
    return int(_best(validation.mean(0)))


def choose_leaving_one_out(validation: Figures) -> Places:
    """Return for each seed the setting with the highest mean over the *other* seeds, `int [S]`.

    A run that is lucky on validation is mostly lucky on test too: its own validation accuracy would choose lucky runs,
    whose test accuracy is biased. A single seed has no others and uses its own validation accuracy.

    >>> choose_leaving_one_out(np.array([[0.1, 0.9], [0.4, 0.2], [0.5, 0.3]])).tolist()
    [0, 1, 1]
    """
    seeds = range(len(validation))
    if len(seeds) == 1:
        return np.array([choose(validation)])
    return _best(np.array([np.delete(validation, seed, axis=0).mean(0) for seed in seeds]))


def _best(values: Figures) -> Places:
    # Means of the same numbers in another order differ in the last bits, which must not decide.
    return np.asarray(np.argmax(np.round(values, 12), axis=-1))


def best_of_k(values: Sequence[float], k: int) -> float:
    """Return the expected best of k of B runs; NaN where there are fewer.

    The mean over all ways to draw k values without replacement, unbiased for the expected best of k:
    `Σ x_(i) · C(i - 1, k - 1) / C(B, k)` over the B values in ascending order.

    >>> best_of_k([1.0, 2.0, 3.0], k=2)  # of 12, 13, 23: 2, 3, 3
    2.6666666666666665
    """
    if len(values) < k:
        return math.nan
    ways = [value * math.comb(place, k - 1) for place, value in enumerate(sorted(values))]
    return math.fsum(ways) / math.comb(len(values), k)


def residual_noise(figures: Figures) -> tuple[float, int] | None:
    """Return the noise of runs from figures `[S, K]`, and its degrees of freedom.

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


def pooled_gains(values: Figures, baseline: int, chosen: Sequence[int]) -> list[Gain]:
    """Return the gain of each method (column) over the baseline's column, with one spread for all methods.

    The spread is `residual_noise` of the values `[S, M]`, and the error of a gain `s · √(2 f / S)`, where f is
    `inflation` (`chosen`: whether a method's setting was chosen, by column). Too narrow for a method that varies more
    than the others: it has no part in a verdict. Empty if there is no noise to estimate.
    """
    noise, seeds = residual_noise(values), len(values)
    if noise is None or noise[0] <= 1e-12:
        return []
    spread, freedom = math.sqrt(2.0) * noise[0], noise[1]
    errors = [spread * math.sqrt(inflation(seeds, sides) / seeds) for sides in chosen]
    means = [float((own - values[:, baseline]).mean()) for own in values.T]
    columns = zip(means, errors, chosen, strict=True)
    return [Gain(mean, seeds, spread, error, sides, freedom) for mean, error, sides in columns]
