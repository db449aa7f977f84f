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
from aol.report.figures.summary import correlation
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
LEAST_CLASSES = 5
CLAIM = "class age against accuracy, loss and margin"
NOT_JUDGED = "not judged"
Interval = tuple[float, float, float]  # r, low, high


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
    z = statistics.fmean(math.atanh(max(-1 + 1e-12, min(1 - 1e-12, each))) for each in r)
    half = float(stats.norm.ppf(0.975)) / math.sqrt(classes - 3)
    p = 2 * float(stats.norm.sf(abs(z) * math.sqrt(classes - 3)))
    return math.tanh(z), math.tanh(z - half), math.tanh(z + half), p


def correlations(runs: Sequence[Run]) -> list[Correlation]:
    """Return how class age correlates with each signal, over runs that differ by their seeds only.

    Age is a sample's age averaged over all epochs, then over its class (`mean_age`); signals are of the last epoch.
    """
    found = []
    for signal, name in SIGNALS.items():
        each = []
        for run in runs:
            age, reading = run.by_class.get("mean_age"), run.by_class.get(name)
            if age is not None and reading is not None and run.failed_at_epoch is None:
                each.append(correlation(age, reading))
        known = [pair for pair in each if pair is not None]
        classes = min((pair.n for pair in known), default=0)
        if classes >= 4:
            r, low, high, p = fisher([pair.r for pair in known], classes)
            found.append(Correlation(signal, r, low, high, p, classes, len(known)))
    return found


def judge_correlations(found: Sequence[Correlation], cells: int = 1, planned: int = 1) -> tuple[str, str]:
    """Return the verdict on all correlations of a study, in so many of its planned cells, and its sentence.

    It holds when all have the paper's sign with a corrected p-value below 5 %. It does not hold when one has the other
    sign with such a p-value, or is shown (corrected) to be weaker than half of the paper's, or than 0.1. Otherwise: not
    enough runs. Without any figure in the paper there is nothing to judge.
    """
    if not found:
        return OPEN, f"{CLAIM}: {OPEN}. No run has class ages."
    if all(each.paper is None for each in found):
        return NOT_JUDGED, f"{CLAIM}: {NOT_JUDGED}. The paper has no figures for these runs."
    signs = [(each.p_corrected < ALPHA, SIGNS[each.signal] * each.r > 0) for each in found]
    held = sum(clear and same for clear, same in signs)
    other = sum(clear and not same for clear, same in signs)
    below = zip(signs, holm([_p_weak(each) for each in found]), strict=True)
    weak = sum(p < ALPHA and (same or not clear) for (clear, same), p in below)
    known = [each for each in found if each.paper is not None]
    inside = sum(each.low <= each.paper <= each.high for each in known if each.paper is not None)
    word = FAILS if other or weak else HOLDS if held == len(found) else OPEN
    where = "" if cells == planned else f", in {cells} of {planned} cells"
    text = f"{CLAIM}: {word}. {held} of {len(found)} correlations have the paper's sign, corrected p below 5 %"
    text += f"; {other} the other sign" if other else ""
    text += f"; {weak} {'is' if weak == 1 else 'are'} weaker than half of the paper's" if weak else ""
    return word, f"{text}{where}; the paper's figure is inside the interval for {inside} of {len(known)}."


def _p_weak(each: Correlation) -> float:
    """Return the p-value, doubled as if two-sided, of "r is half of the paper's figure or more" (at least 0.1)."""
    least = max(LEAST, 0.5 * abs(each.paper or 0.0))
    r = max(-1 + 1e-12, min(1 - 1e-12, SIGNS[each.signal] * each.r))
    distance = (math.atanh(least) - math.atanh(r)) * math.sqrt(each.classes - 3)
    return min(1.0, 2 * float(stats.norm.sf(distance)))


def powers(values: Floats, degree: int = 3) -> list[Floats]:
    """Return the standardised values to the powers 1 to `degree`: controls for any smooth curve.

    >>> [column.round(2).tolist() for column in powers(np.array([1.0, 2.0, 3.0]), 2)]
    [[-1.22, 0.0, 1.22], [1.5, 0.0, 1.5]]
    """
    centred = (values - values.mean()) / values.std()
    return [centred**power for power in range(1, degree + 1)]


def partial(first: Floats, second: Floats, controls: Sequence[Floats]) -> float | None:
    """Return the correlation of two readings with others held fixed; None where it is not defined.

    Pearson's r of what least squares of the controls (and a constant) leave of both.

    >>> round(partial(np.array([1.0, 2.0, 3.0, 5.0]), np.array([2.0, 1.0, 4.0, 4.0]), [np.arange(4.0)]), 3)
    -0.111
    """
    given = np.column_stack([np.ones(len(first)), *controls])
    both = np.column_stack([first, second])
    left = both - given @ np.linalg.lstsq(given, both)[0]
    if bool((np.ptp(left, axis=0) < 1e-9 * np.ptp(both, axis=0)).any()):  # the controls explain all of it
        return None
    found = correlation(*left.T)
    return None if found is None else found.r


# By name: what is held fixed, to which power.
_HELD: dict[str, tuple[tuple[str, ...], int]] = {
    "nothing": ((), 1),
    "log size": (("size",), 1),
    "log size, cubic": (("size",), 3),
    "error rate, cubic": (("error",), 3),
    "log size and error rate, cubic": (("size", "error"), 3),
    "log age, cubic": (("log_age",), 3),
    "log size and log age, cubic": (("size", "log_age"), 3),
}


def beyond(runs: Sequence[Run]) -> list[tuple[str, int, dict[str, Interval | None]]]:
    """Return how age and error rate correlate with test accuracy beyond class size and beyond each other.

    For each of `_HELD`: its name, the number of runs, and (r, low, high) over classes for `age`, `log_age` and `error`,
    None if unknown. Age and training error rate are means over epochs: how long a class was wrong, and how often. The
    runs differ by their seeds only. The interval is Fisher's, for one class less for each control.
    """
    tables = [table for run in runs if (table := _readings(run)) is not None]
    found = []
    for held, (names, degree) in _HELD.items():
        whole = [table for table in tables if all(name in table for name in names)]
        intervals = dict.fromkeys(("age", "log_age", "error"))
        for name in intervals:
            if name not in names and not (name == "age" and "log_age" in names):
                intervals[name] = _beyond(whole, name, names, degree)
        if any(intervals.values()):
            found.append((held, len(whole), intervals))
    return found


def _readings(run: Run) -> dict[str, Floats] | None:
    """Return the readings by class that `beyond` uses: of classes that have all of them; sizes only if they differ."""
    names = {"age": "mean_age", "accuracy": "test_accuracy", "size": "train_count", "error": "mean_train_error"}
    known = {name: run.by_class[own] for name, own in names.items() if own in run.by_class}
    if run.failed_at_epoch is not None or not {"age", "accuracy", "size"} <= known.keys():
        return None
    table = np.column_stack(list(known.values()))
    rows = ~np.isnan(table).any(1) & (known["size"] > 0)
    found = {name: values[rows] for name, values in known.items()}
    found |= {"size": np.log(found["size"]), "log_age": np.log(found["age"])}
    return {name: values for name, values in found.items() if len(values) and np.ptp(values) > 0}


def _beyond(tables: Sequence[dict[str, Floats]], name: str, held: Sequence[str], degree: int) -> Interval | None:
    used = degree * len(held)
    each = []
    for table in tables:
        if "accuracy" in table and name in table:
            controls = [column for other in held for column in powers(table[other], degree)]
            each.append((partial(table[name], table["accuracy"], controls), len(table["accuracy"]) - used))
    known = [(r, classes) for r, classes in each if r is not None and classes >= LEAST_CLASSES]
    return fisher([r for r, _ in known], min(classes for _, classes in known))[:3] if known else None


def described(found: Sequence[Correlation]) -> str:
    """Return the direction of each correlation in a sentence, without a verdict.

    >>> described([Correlation("loss_test", 0.8, 0.7, 0.9, 0.001, 100, 1, p_corrected=0.002)])
    'older classes have higher test loss.'
    """
    ways = [
        (SIGNALS[each.signal].replace("_", " ").replace("train ", "training "), each.r > 0, each.p_corrected < ALPHA)
        for each in found
    ]
    clear = [f"{'higher' if higher else 'lower'} {name}" for name, higher, sure in ways if sure]
    unclear = [name for name, _, sure in ways if not sure]
    words = [f"have {', '.join(clear)}"] if clear else []
    words += [f"do not clearly differ in {', '.join(unclear)}"] if unclear else []
    return f"older classes {'; they '.join(words)}."


def signed(value: float) -> str:
    """Return a correlation with its sign and three digits."""
    return f"{value:+.3f}".replace("-", "−")
