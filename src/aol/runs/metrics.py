"""The metrics of one run: numbers computed from its accuracies by epoch, on test, on validation and so on.

To add one, add a line to `METRICS`: the frame, JSON, `aol study show --figure` and the page read it from there.
Accuracies are fractions. A run that diverged counts as chance in every metric: leaving such runs out would favour the
method that causes them.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from aol.runs.record import Floats, Run

if TYPE_CHECKING:
    from torch import Tensor

TAIL = 0.05  # of the epochs


@dataclass(frozen=True)
class Metric:
    """One number of a run: what it is, and how it follows from accuracies `float64 [E]`, NaN where not measured.

    Computed by torch: these sums have always been its own, and another order of adding changes their last digit.
    """

    help: str
    value: Callable[[Tensor], Tensor]
    streams_only: bool = False


METRICS = {
    "last": Metric("test accuracy of the last epoch", lambda values: values[-1]),
    "tail_mean": Metric(
        "test accuracy, mean over the last 5 % of epochs", lambda values: values[-_tail(len(values)) :].nanmean()
    ),
    "second_half_mean": Metric(
        "test accuracy, mean over the second half of the stream",
        lambda values: values[len(values) // 2 :].nanmean(),
        streams_only=True,
    ),
    "best": Metric(
        "test accuracy of the best epoch, chosen on test: optimistic",
        lambda values: values.nan_to_num(-math.inf).max() if not values.isnan().all() else values[-1],
    ),
}
# By the name of a split: the curve its metrics are computed from.
CURVES = {"test": "test_accuracy", "validation": "validation_accuracy", "averaged": "averaged_accuracy"}


def is_stream(run: Run) -> bool:
    """Return whether an epoch of this run is a step of a stream."""
    return run.settings.get("scenario") == "stream"


def accuracy_metrics(values: Floats, *, stream: bool) -> dict[str, float]:
    """Return the metrics of one run from its accuracies by epoch `[E]`, NaN where not measured.

    >>> accuracy_metrics(np.array([0.5, 0.75, 0.25, 0.5]), stream=True)
    {'last': 0.5, 'tail_mean': 0.5, 'second_half_mean': 0.375, 'best': 0.75}
    """
    import torch

    read = torch.from_numpy(np.asarray(values, dtype=np.float64))
    wanted = {name: metric for name, metric in METRICS.items() if stream or not metric.streams_only}
    return {name: float(metric.value(read)) for name, metric in wanted.items()} if len(values) else {}


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


def run_metrics(run: Run) -> dict[str, float]:
    """Return all metrics of a run by name, `test_last`, `validation_tail_mean` and so on; NaN where not measured."""
    found: dict[str, float] = {}
    for split, curve in CURVES.items():
        metrics = accuracy_metrics(counted(run, curve), stream=is_stream(run))
        found |= {f"{split}_{name}": metrics.get(name, math.nan) for name in METRICS}
    return found


def counted(run: Run, curve: str) -> Floats:
    """Return a run's accuracies by epoch as its metrics count them; of a run that diverged, that of chance, once."""
    return run.curves.get(curve, np.zeros(0)) if run.failed_at_epoch is None else np.full(1, chance(run))


def zero_threshold_share(run: Run) -> float:
    """Return the share of steps whose threshold was 0, so that no class grew older; NaN where it is not recorded."""
    values = run.curves.get("threshold", np.zeros(0))
    values = values[~np.isnan(values)]
    return float((values == 0).mean()) if len(values) else math.nan


def accuracy_by_epoch(run: Run) -> dict[int, float]:
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
