"""The accuracy figures of one run: which part of training an accuracy is the mean of.

Accuracies are fractions. A run that diverged counts as chance in every figure: leaving such runs out would favour the
method that causes them.
"""

from __future__ import annotations

import math
import warnings

import numpy as np

from aol.runs.record import Floats, Run

TAIL = 0.05  # of the epochs
# By name: what it is. `best` is chosen on test, which makes it optimistic.
FIGURES = {
    "last": "test accuracy of the last epoch",
    "tail_mean": "test accuracy, mean over the last 5 % of epochs",
    "second_half_mean": "test accuracy, mean over the second half of the stream",
    "best": "test accuracy of the best epoch, chosen on test: optimistic",
}
# By the name of a split: the curve its figures are read from.
CURVES = {"test": "test_accuracy", "validation": "validation_accuracy", "averaged": "averaged_accuracy"}


def is_stream(run: Run) -> bool:
    """Return whether an epoch of this run is a step of a stream."""
    return run.settings.get("scenario") == "stream"


def accuracy_figures(values: Floats, *, stream: bool) -> dict[str, float]:
    """Return the figures of one run from its accuracies by epoch `[E]`, NaN where not measured.

    `last`, `best` (optimistic: chosen on test), `tail_mean` over the last 5 % of epochs and, on a stream, the mean over
    its second half.

    >>> accuracy_figures(np.array([0.5, 0.75, 0.25, 0.5]), stream=True)
    {'last': 0.5, 'best': 0.75, 'tail_mean': 0.5, 'second_half_mean': 0.375}
    """
    import torch  # whose sums these figures have always been: another order of adding changes their last digit

    if not len(values):
        return {}
    read = torch.from_numpy(np.asarray(values, dtype=np.float64))
    found = {"last": float(read[-1]), "best": _max(values), "tail_mean": float(read[-_tail(len(values)) :].nanmean())}
    if stream:
        found["second_half_mean"] = float(read[len(values) // 2 :].nanmean())
    return found


def at_the_end(values: Floats, *, stream: bool) -> Floats:
    """Return the mean over the last 5 % of epochs, on a stream over its second half, of `[E, ...]`; NaNs left out.

    >>> float(at_the_end(np.arange(40.0), stream=False))
    38.5
    """
    count = len(values) - len(values) // 2 if stream else _tail(len(values))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # the mean of nothing is NaN, which is meant
        found: Floats = np.nanmean(values[len(values) - count :], axis=0)
    return found


def run_figures(run: Run) -> dict[str, float]:
    """Return all figures of a run by name, `test_last`, `validation_tail_mean` and so on; a diverged run has chance.

    NaN where nothing was measured.
    """
    stream = is_stream(run)
    names = [name for name in FIGURES if stream or name != "second_half_mean"]
    found: dict[str, float] = {}
    for split, curve in CURVES.items():
        if run.failed_at_epoch is not None:  # before the curve: a run that failed at once has none
            figures = dict.fromkeys(names, chance(run))
        else:
            figures = accuracy_figures(run.curves.get(curve, np.zeros(0)), stream=stream)
        found |= {f"{split}_{name}": figures.get(name, math.nan) for name in FIGURES}
    return found


def test_accuracy_by_epoch(run: Run) -> dict[int, float]:
    """Return a run's test accuracy by epoch; from the epoch in which it diverged on it is that of chance."""
    values = run.curves.get("test_accuracy", np.full(len(run.epochs), math.nan))
    found = {int(epoch): float(value) for epoch, value in zip(run.epochs, values, strict=True) if value == value}
    if run.failed_at_epoch is not None:
        last = run.planned or int(run.epochs[-1])
        found |= dict.fromkeys(range(run.failed_at_epoch, last + 1), chance(run))
    return found


def chance(run: Run) -> float:
    """Return the accuracy of guessing."""
    return 1.0 / len(run.classes)


def _tail(epochs: int) -> int:
    return max(1, round(TAIL * epochs))


def _max(values: Floats) -> float:
    known = values[~np.isnan(values)]
    return float(known.max()) if known.size else math.nan
