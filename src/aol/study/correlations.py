"""How the age of classes goes with their accuracy, loss and margin: Pearson's r with Fisher's interval.

The classes are the sample: with C of them, an interval follows from C alone. Further seeds steady r, and the interval
stays that of C classes, which they share.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from aol.study.records import Numbers, Record

# The paper's names, and where a record has them.
SIGNALS = {
    "accuracy_test": "test_accuracy",
    "loss_train": "train_loss",
    "margin_train": "train_margin",
    "loss_test": "test_loss",
    "margin_test": "test_margin",
}


@dataclass(frozen=True)
class Correlation:
    """Pearson's r over `classes` classes, averaged over `seeds` runs; p of no correlation, two-sided."""

    signal: str
    r: float
    low: float
    high: float
    p: float
    classes: int
    seeds: int


def pearson(first: Numbers, second: Numbers) -> tuple[float, int] | None:
    """Return Pearson's r over the places where both are known, and how many those are; None where it is undefined.

    `Σ(x - x̄)(y - ȳ) / √(Σ(x - x̄)² · Σ(y - ȳ)²)`

    >>> pearson([1.0, 2.0, 3.0, None], [3.0, 2.0, 1.0, 7.0])
    (-1.0, 3)
    """
    pairs = np.array([(x, y) for x, y in zip(first, second, strict=True) if x is not None and y is not None])
    if len(pairs) < 3:
        return None
    x, y = (pairs - pairs.mean(0)).T
    scale = math.sqrt(float(x @ x) * float(y @ y))
    if scale == 0.0:
        return None
    return max(-1.0, min(1.0, float(x @ y) / scale)), len(pairs)


def fisher(r: Sequence[float], classes: int) -> tuple[float, float, float, float]:
    """Return the mean of correlations by Fisher's z, its interval of 95 % and the p-value of none.

    `z = artanh r`, with a standard error of `1 / √(C - 3)` however many runs are averaged.

    >>> [round(value, 3) for value in fisher([0.5], classes=28)[:3]]
    [0.5, 0.156, 0.736]
    """
    if classes < 4:
        raise ValueError(f"classes must be a whole number of 4 or more, not {classes}.")
    z = statistics.fmean(math.atanh(max(-1 + 1e-12, min(1 - 1e-12, each))) for each in r)
    half = float(stats.norm.ppf(0.975)) / math.sqrt(classes - 3)
    p = 2 * float(stats.norm.sf(abs(z) * math.sqrt(classes - 3)))
    return math.tanh(z), math.tanh(z - half), math.tanh(z + half), p


def correlations(records: Sequence[Record]) -> list[Correlation]:
    """Return how class age goes with each signal, over runs that differ by their seeds alone.

    Age is a sample's age averaged over all epochs, then over its class (`mean_age`); the rest is of the last epoch.
    """
    found = []
    for signal, name in SIGNALS.items():
        each = []
        for record in records:
            age, reading = record.by_class.get("mean_age"), record.by_class.get(name)
            if age and reading and record.failed_at_epoch is None:
                each.append(pearson(age, reading))
        known = [pair for pair in each if pair is not None]
        if known and min(classes for _, classes in known) >= 4:
            classes = min(classes for _, classes in known)
            r, low, high, p = fisher([value for value, _ in known], classes)
            found.append(Correlation(signal, r, low, high, p, classes, len(known)))
    return found
