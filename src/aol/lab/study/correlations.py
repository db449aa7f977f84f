"""How the age of classes correlates with their accuracy, loss and margin: Pearson's r with Fisher's interval.

The classes are the sample: the interval follows from the number of classes C. More seeds make r more stable, but all
seeds share the same C classes, so the interval stays the same.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from aol.lab.study.verdict import ALPHA, FAILS, HOLDS, OPEN
from aol.records.record import Floats, Run
from aol.stats import holm

# By the paper's name: the name in a record.
SIGNALS = {
    "accuracy_test": "test_accuracy",
    "loss_train": "train_loss",
    "margin_train": "train_margin",
    "loss_test": "test_loss",
    "margin_test": "test_margin",
}
# The paper's signs: old classes have lower accuracy, higher loss and smaller margins.
SIGNS = {name: 1.0 if name.startswith("loss") else -1.0 for name in SIGNALS}
LEAST = 0.1
NOT_JUDGED = "not judged"


@dataclass(frozen=True)
class Correlation:
    """Pearson's r over `classes` classes, averaged over `seeds` runs; p of no correlation; the paper's r, if any."""

    signal: str
    r: float
    low: float
    high: float
    p: float
    classes: int
    seeds: int
    p_corrected: float = 1.0
    paper: float | None = None


def fisher(r: Sequence[float], classes: int) -> tuple[float, float, float, float]:
    """Return the mean of correlations by Fisher's z, its interval of 95 % and the p-value of no correlation.

    `z = artanh r`, with a standard error of `1 / √(C - 3)` however many runs are averaged.

    >>> [round(value, 3) for value in fisher([0.5], classes=28)[:3]]
    [0.5, 0.156, 0.736]
    """
    z = statistics.fmean(math.atanh(max(-1 + 1e-12, min(1 - 1e-12, own))) for own in r)
    half = float(stats.norm.ppf(0.975)) / math.sqrt(classes - 3)
    p = 2 * float(stats.norm.sf(abs(z) * math.sqrt(classes - 3)))
    return math.tanh(z), math.tanh(z - half), math.tanh(z + half), p


def pearson(x: Floats, y: Floats) -> tuple[float, int] | None:
    """Return Pearson's r and the number of pairs; None below 3 pairs or without spread. NaNs are left out.

    >>> pearson(np.array([1.0, 2.0, 3.0, 4.0, np.nan]), np.array([1.0, 3.0, 2.0, 4.0, 5.0]))
    (0.8, 4)
    """
    x, y = np.stack([x, y])[:, np.isfinite(x) & np.isfinite(y)]
    if len(x) < 3 or np.ptp(x) == 0 or np.ptp(y) == 0:
        return None
    return float(stats.pearsonr(x, y).statistic), len(x)


def correlations(runs: Sequence[Run]) -> list[Correlation]:
    """Return how class age correlates with each signal, over runs that differ by their seeds only.

    Age is a sample's age averaged over all epochs, then over its class (`mean_age`); signals are of the last epoch.
    """
    rows = []
    whole = [run.by_class for run in runs if run.failed_at_epoch is None and "mean_age" in run.by_class]
    for signal, name in SIGNALS.items():
        pairs = [pearson(own["mean_age"], own[name]) for own in whole if name in own]
        known = [pair for pair in pairs if pair is not None]
        classes = min((size for _, size in known), default=0)
        if classes >= 4:
            r, low, high, p = fisher([r for r, _ in known], classes)
            rows.append(Correlation(signal, r, low, high, p, classes, len(known)))
    return rows


def judge_correlations(rows: Sequence[Correlation]) -> str:
    """Return the verdict on all correlations of a study.

    It holds when all have the paper's sign with a corrected p-value below 5 %. It does not hold when one has the other
    sign with such a p-value, or is shown (corrected) to be weaker than half of the paper's, or than 0.1. Otherwise: not
    enough runs. Without any figure in the paper there is nothing to judge.
    """
    if not rows:
        return OPEN
    if all(own.paper is None for own in rows):
        return NOT_JUDGED
    signs = [(own.p_corrected < ALPHA, SIGNS[own.signal] * own.r > 0) for own in rows]
    below = zip(signs, holm([_p_weak(own) for own in rows]), strict=True)
    weak = any(p < ALPHA and (same or not clear) for (clear, same), p in below)
    other = any(clear and not same for clear, same in signs)
    return FAILS if other or weak else HOLDS if all(clear for clear, _ in signs) else OPEN


def _p_weak(own: Correlation) -> float:
    """Return the p-value, doubled as if two-sided, of "r is half of the paper's figure or more" (at least 0.1)."""
    least = max(LEAST, 0.5 * abs(own.paper or 0.0))
    r = max(-1 + 1e-12, min(1 - 1e-12, SIGNS[own.signal] * own.r))
    distance = (math.atanh(least) - math.atanh(r)) * math.sqrt(own.classes - 3)
    return min(1.0, 2 * float(stats.norm.sf(distance)))
