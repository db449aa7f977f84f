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

from aol.lab.study.verdict import ALPHA
from aol.records.record import Floats, Run

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
SAME, OTHER, UNCLEAR, NOT_JUDGED, NO_RUNS = "same signs", "another sign", "signs open", "not judged", "no runs"


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
    """Return Pearson's r and the number of pairs; None below 3 pairs or without spread. NaNs are left out."""
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
            rows.append(Correlation(signal, *fisher([r for r, _ in known], classes), classes, len(known)))
    return rows


def judge_correlations(rows: Sequence[Correlation]) -> str:
    """Return two statements: whether clear correlations have the paper's signs, and how many intervals have its r."""
    if not rows:
        return NO_RUNS
    papers = [(own.low, own.paper, own.high) for own in rows if own.paper is not None]
    if not papers:
        return NOT_JUDGED
    clear = [SIGNS[own.signal] * own.r > 0 for own in rows if own.p_corrected < ALPHA]
    signs = OTHER if not all(clear) else SAME if len(clear) == len(rows) else UNCLEAR
    inside = sum(low <= paper <= high for low, paper, high in papers)
    return f"{signs}; {inside} of {len(papers)} of its r in our intervals"
