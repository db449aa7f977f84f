"""Which setting of a method to take: chosen on validation, never on test, and never on the run that is then judged.

Knows arrays of numbers: `validation [S, K]` and `test [S, K]`, a row a seed and a column a setting, nothing missing.
Equal settings: the first in the order of the grid.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Figures = npt.NDArray[np.float64]
Places = npt.NDArray[np.intp]


def choose(validation: Figures) -> int:
    """Return the setting with the highest mean over all seeds: the one to use next.

    >>> choose(np.array([[0.1, 0.5], [0.3, 0.2]]))
    1
    """
    _check(validation)
    return int(_best(validation.mean(0)))


def choose_without_each(validation: Figures) -> Places:
    """Return for each seed the setting with the highest mean over the *other* seeds, `int [S]`.

    A run that was lucky on validation was mostly lucky on test as well. A choice that looks at a run's own validation
    figure therefore takes lucky runs, and its test figure is too high although test was never looked at. Leaving
    the seed out is what makes the gain honest. A single seed has no others and chooses for itself.

    >>> choose_without_each(np.array([[0.1, 0.9], [0.4, 0.2], [0.5, 0.3]])).tolist()
    [0, 1, 1]
    """
    _check(validation)
    if validation.shape[0] == 1:
        return np.array([choose(validation)])
    others = [np.delete(validation, seed, axis=0).mean(0) for seed in range(validation.shape[0])]
    return np.array([_best(each) for each in others])


def best_on_test(test: Figures) -> Places:
    """Return for each seed the setting that is best on its own test figure, `int [S]`: optimistic, and said so."""
    _check(test)
    return np.array([_best(each) for each in test])


def _best(values: Figures) -> np.intp:
    # Means of the same numbers in another order differ in the last bits; those must not decide.
    return np.argmax(np.round(values, 12))


def _check(figures: Figures) -> None:
    if figures.ndim != 2 or 0 in figures.shape or not bool(np.isfinite(figures).all()):
        raise ValueError(f"figures must be finite, a row a seed and a column a setting, not of shape {figures.shape}.")
