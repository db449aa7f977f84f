"""Statistics of a study: choosing a setting, and the best of k runs.

Works on arrays only: `float [S, K]` with a row a seed and a column a setting (or a method), nothing missing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

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
