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

from aol.engine.intervals import holm
from aol.study.records import Numbers, Record
from aol.study.verdict import ALPHA, FAILS, HOLDS, OPEN

# The paper's names, and where a record has them.
SIGNALS = {
    "accuracy_test": "test_accuracy",
    "loss_train": "train_loss",
    "margin_train": "train_margin",
    "loss_test": "test_loss",
    "margin_test": "test_margin",
}
# What the paper finds: classes that are old are less accurate, lose more, and have smaller margins.
SIGNS = {"accuracy_test": -1.0, "loss_train": 1.0, "margin_train": -1.0, "loss_test": 1.0, "margin_test": -1.0}
LEAST = 0.1
LEAST_CLASSES = 5
CLAIM = "class age against accuracy, loss and margin"
NOT_JUDGED = "not judged"
# What the signals are called in a sentence.
_SPOKEN = {
    "accuracy_test": "test accuracy",
    "loss_train": "training loss",
    "margin_train": "training margin",
    "loss_test": "test loss",
    "margin_test": "test margin",
}


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


def pearson(first: Numbers, second: Numbers) -> tuple[float, int] | None:
    """Return Pearson's r over the places where both are known, and how many those are; None where it is undefined.

    `Σ(x - x̄)(y - ȳ) / √(Σ(x - x̄)² · Σ(y - ȳ)²)`

    >>> pearson([1.0, 2.0, 3.0, None], [3.0, 2.0, 1.0, 7.0])
    (-1.0, 3)
    """
    pairs = np.array([(x, y) for x, y in zip(first, second, strict=True) if x is not None and y is not None])
    if len(pairs) < 3 or not np.ptp(pairs, axis=0).all():
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


def judge_correlations(found: Sequence[Correlation], cells: int = 1, planned: int = 1) -> tuple[str, str]:
    """Return the verdict on all correlations of a table, of so many of its planned cells, and its sentence.

    It holds when all have the paper's sign and a corrected p-value below 5 %. It does not hold when one has the other
    sign by that measure, or is shown, corrected as well, to be weaker than half of the paper's, or than 0.1. All else:
    not enough runs. Where the paper has no figure for any of them, there is no claim to judge.
    """
    if not found:
        return OPEN, f"{CLAIM}: {OPEN}: no run has the ages of its classes."
    if all(each.paper is None for each in found):
        return NOT_JUDGED, f"{CLAIM}: {NOT_JUDGED}: the paper has no figures for these runs."
    told = [(each.p_corrected < ALPHA, SIGNS[each.signal] * each.r > 0) for each in found]
    held = sum(clear and same for clear, same in told)
    other = sum(clear and not same for clear, same in told)
    below = zip(told, holm([_p_weak(each) for each in found]), strict=True)
    weak = sum(p < ALPHA and (same or not clear) for (clear, same), p in below)
    known = [each for each in found if each.paper is not None]
    inside = sum(each.low <= each.paper <= each.high for each in known if each.paper is not None)
    word = FAILS if other or weak else HOLDS if held == len(found) else OPEN
    where = "" if cells == planned else f", in {cells} of {planned} cells"
    text = f"{CLAIM}: {word}: {held} of {len(found)} correlations have the paper's sign with a corrected p below 5 %"
    text += f", and {other} the other sign" if other else ""
    text += f", and {weak} {'is' if weak == 1 else 'are'} weaker than half of the paper's" if weak else ""
    return word, f"{text}{where}; the paper's figure lies in our interval for {inside} of {len(known)}."


def _p_weak(each: Correlation) -> float:
    """Return the p-value, as large as a two-sided one, of "this is half of the paper's figure, or 0.1, or more"."""
    least = max(LEAST, 0.5 * abs(each.paper or 0.0))
    r = max(-1 + 1e-12, min(1 - 1e-12, SIGNS[each.signal] * each.r))
    distance = (math.atanh(least) - math.atanh(r)) * math.sqrt(each.classes - 3)
    return min(1.0, 2 * float(stats.norm.sf(distance)))


@dataclass(frozen=True)
class Sizes:
    """What goes with test accuracy: class size alone (r), and age among classes of one size (r and its interval)."""

    accuracy: float
    age: tuple[float, float, float]


def sizes(records: Sequence[Record]) -> Sizes | None:
    """Return how the logarithm of class size goes with test accuracy, and age with size held fixed; None if balanced.

    The partial correlation `(r_ay - r_an r_yn) / √((1 - r_an²)(1 - r_yn²))` of age a and accuracy y, for size n; its
    interval is Fisher's, for one class less.
    """
    alone, fixed, classes = [], [], []
    for record in records:
        rows = [record.by_class.get(name) for name in ("mean_age", "test_accuracy", "train_count")]
        if record.failed_at_epoch is not None or None in rows:
            continue
        whole = [row for row in zip(*(row or [] for row in rows), strict=True) if None not in row and row[2]]
        age, accuracy, count = (list(column) for column in zip(*whole, strict=True)) if whole else ([], [], [])
        size: Numbers = [math.log(each) for each in count if each]
        pairs = [pearson(age, accuracy), pearson(age, size), pearson(accuracy, size)]
        if len(whole) < LEAST_CLASSES or any(pair is None or abs(pair[0]) > 1 - 1e-9 for pair in pairs):
            continue
        both, older, better = (pair[0] for pair in pairs if pair is not None)
        alone.append(better)
        fixed.append((both - older * better) / math.sqrt((1 - older**2) * (1 - better**2)))
        classes.append(len(whole))
    if not fixed:
        return None
    return Sizes(fisher(alone, min(classes))[0], fisher(fixed, min(classes) - 1)[:3])


def described(found: Sequence[Correlation]) -> str:
    """Return what was found, in a sentence without a verdict: which way each signal goes with age. The table has r.

    >>> described([Correlation("loss_test", 0.8, 0.7, 0.9, 0.001, 100, 1, p_corrected=0.002)])
    'older classes have higher test loss.'
    """
    ways = [(_SPOKEN[each.signal], each.r > 0, each.p_corrected < ALPHA) for each in found]
    clear = [f"{'higher' if higher else 'lower'} {name}" for name, higher, told in ways if told]
    unclear = [name for name, _, told in ways if not told]
    words = [f"have {', '.join(clear)}"] if clear else []
    words += [f"do not clearly differ in {', '.join(unclear)}"] if unclear else []
    return f"older classes {'; they '.join(words)}."


def signed(value: float) -> str:
    """Return a correlation with its sign and three digits."""
    return f"{value:+.3f}".replace("-", "−")
