"""Statistics of a study: choosing a setting, the best of k runs, verdicts on gains, and correlations with class age.

*Is there a gain?* The interval against 0: "gain", "loss", or "no gain shown". *Is it as large as the paper's?* The
interval against half of the paper's gain: "as large as half the paper's", "smaller", or "open". Each is a two-sided
test at 5 %, corrected for all claims that are judged together. Each has one limit only, so more seeds do not turn a
wrong statement into another one. Where there is nothing to gain, a study names the largest loss that it accepts.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from scipy.stats import norm, pearsonr

from aol.records.record import Floats, Run
from aol.stats import Gain, holm

Figures = npt.NDArray[np.float64]  # [S, K]: a row a seed, a column a setting, nothing missing
Places = npt.NDArray[np.intp]
GAIN, LOSS, NOT_SHOWN, FEW = "gain", "loss", "no gain shown", "under 3 seeds"
AS_LARGE, SMALLER, OPEN = "as large as half the paper's", "smaller", "open"
LESS, MORE = "loses less", "loses more"
ALPHA = 0.05
LEAST_SEEDS = 3
SIGNALS = ("accuracy_test", "loss_train", "margin_train", "loss_test", "margin_test")  # as the paper names them
# The paper's signs: old classes have lower accuracy, higher loss and smaller margins.
SIGNS = {name: 1.0 if name.startswith("loss") else -1.0 for name in SIGNALS}
SAME, OTHER, UNCLEAR, NOT_JUDGED, NO_RUNS = "same signs", "another sign", "signs open", "not judged", "no runs"

# Choosing a setting


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


# Verdicts


@dataclass(frozen=True)
class Claim:
    """The gain of a method, averaged over the cells with three or more complete seeds, on the seeds that these share.

    `over` is the method that it is compared with, None for the baseline; `paper_gain` is the paper's mean over the same
    `cells`. `word` and `size` (empty where there is nothing to compare with) are the statements, p-values corrected.
    """

    method: str
    over: str | None
    cells: tuple[int, ...]
    cells_planned: int
    seeds: tuple[int, ...]
    gain: Gain | None
    paper_gain: float | None = None
    largest_loss: float | None = None
    word: str = FEW
    size: str = ""
    p: float | None = None
    p_size: float | None = None

    @property
    def limit(self) -> float | None:
        """What the gain is compared with besides 0: minus the largest loss, or half of the paper's gain."""
        if self.largest_loss is not None:
            return -self.largest_loss
        return 0.5 * self.paper_gain if self.paper_gain is not None and self.paper_gain > 0.0 else None


def judge(claims: Sequence[Claim]) -> list[Claim]:
    """Return claims with their statements: they are judged together, corrected for their number by Holm's method."""
    known = [(claim.gain, claim.limit) for claim in claims if claim.gain is not None]
    p_gain = iter(holm([gain.p for gain, _ in known]))
    p_size = iter(holm([gain.p_equal(limit) for gain, limit in known if limit is not None]))
    judged = []
    for claim in claims:
        if claim.gain is not None:
            mean, limit, p = claim.gain.mean, claim.limit, next(p_gain)
            claim = replace(claim, p=p, word=statement(mean, p, (GAIN, LOSS, NOT_SHOWN)))
            if limit is not None:
                p = next(p_size)
                words = (AS_LARGE, SMALLER, OPEN) if claim.largest_loss is None else (LESS, MORE, OPEN)
                claim = replace(claim, p_size=p, size=statement(mean - limit, p, words))
        judged.append(claim)
    return judged


def statement(difference: float, p: float, words: tuple[str, str, str]) -> str:
    """Return the first word for a difference above 0, the second for one below, the third where p is 5 % or more."""
    above, below, neither = words
    return neither if p >= ALPHA else above if difference > 0 else below


# Correlations: the classes are the sample, so more seeds make r more stable, and the interval stays that of C classes


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
    half = float(norm.ppf(0.975)) / math.sqrt(classes - 3)
    p = 2 * float(norm.sf(abs(z) * math.sqrt(classes - 3)))
    return math.tanh(z), math.tanh(z - half), math.tanh(z + half), p


def pearson(x: Floats, y: Floats) -> tuple[float, int] | None:
    """Return Pearson's r and the number of pairs; None below 3 pairs or without spread. NaNs are left out."""
    x, y = np.stack([x, y])[:, np.isfinite(x) & np.isfinite(y)]
    if len(x) < 3 or np.ptp(x) == 0 or np.ptp(y) == 0:
        return None
    return float(pearsonr(x, y).statistic), len(x)


def correlations(runs: Sequence[Run]) -> list[Correlation]:
    """Return how class age correlates with each signal, over runs that differ by their seeds only.

    Age is a sample's age averaged over all epochs, then over its class (`mean_age`); signals are of the last epoch.
    """
    rows = []
    whole = [run.by_class for run in runs if run.failed_at_epoch is None and "mean_age" in run.by_class]
    for signal in SIGNALS:
        name = "_".join(reversed(signal.split("_")))  # in a record
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
