"""The paper and its protocol, as naive loops: plain Python numbers, the whole history kept and folded anew each time.

Written from the paper and the protocol, not from the library. Nothing here may import `aol`.
"""

from __future__ import annotations

import decimal
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from fractions import Fraction

NAN = float("nan")


def mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def mean_one(values: Sequence[float]) -> list[float]:
    """Divide by the mean over the finite values; a value of NaN (nothing known) becomes one."""
    known = [v for v in values if not math.isnan(v)]
    return [v / mean(known) if not math.isnan(v) else 1.0 for v in values]


def fold(history: Sequence[int], rho: float, fuse: str = "ema") -> float:
    """Fold one sample's (or class's) ages, oldest first; NaN for an empty history."""
    if not history:
        return NAN
    if fuse == "peak":
        return float(max(history))
    folded = float(history[0])
    for age in history[1:]:
        folded = (1 - rho) * folded + rho * age
    return folded


class SampleOracle:
    """Offline ages and arrivals of N samples. Each sample keeps the list of every age it ever had."""

    def __init__(self, labels, num_classes=None, rho=0.5, level="class", fuse="ema", absent="keep"):
        self.labels = [int(y) for y in labels]
        self.num_classes = max(self.labels) + 1 if num_classes is None else num_classes
        self.rho, self.level, self.fuse, self.absent = rho, level, fuse, absent
        self.history: list[list[int]] = [[] for _ in self.labels]

    def epoch(self, observed: Mapping[int, bool]) -> None:
        """One epoch: `observed` says, for each sample that was evaluated, whether it was right."""
        for i, ages in enumerate(self.history):
            if i in observed:
                before = ages[-1] if ages else 1
                ages.append(1 if observed[i] else before + 1)
            elif self.absent == "grow" and ages:
                ages.append(ages[-1] + 1)

    @property
    def age(self) -> list[int]:
        unseen = 0 if self.absent == "grow" else 1
        return [ages[-1] if ages else unseen for ages in self.history]

    @property
    def ema(self) -> list[float]:
        return [fold(ages, self.rho, self.fuse) for ages in self.history]

    @property
    def mean_age(self) -> list[float]:
        result = []
        for c in range(self.num_classes):
            members = [ages[-1] for ages, y in zip(self.history, self.labels, strict=True) if y == c and ages]
            result.append(mean(members) if members else NAN)
        return result

    @property
    def class_age(self) -> list[float]:
        ema = self.ema
        result = []
        for c in range(self.num_classes):
            members = [ema[i] for i, y in enumerate(self.labels) if y == c and not math.isnan(ema[i])]
            result.append(mean(members) if members else NAN)
        return result

    @property
    def class_weight(self) -> list[float]:
        return [1.0] * self.num_classes if self.rho == 0 else mean_one(self.class_age)

    @property
    def sample_weight(self) -> list[float]:
        return [1.0] * len(self.labels) if self.rho == 0 else mean_one(self.ema)

    def weight(self, index: Sequence[int]) -> list[float]:
        if self.level == "sample":
            weights = self.sample_weight
            return [weights[i] for i in index]
        weights = self.class_weight
        return [weights[self.labels[i]] for i in index]


class StreamOracle:
    """Class ages on a stream. Each class keeps the list of the ages it had after every step."""

    def __init__(self, num_classes: int, rho: float = 0.1, threshold: str | float | Callable = "median"):
        self.num_classes, self.rho, self.rule = num_classes, rho, threshold
        self.history: list[list[int]] = [[] for _ in range(num_classes)]
        self.accuracy = [NAN] * num_classes
        self.threshold = NAN

    def step(self, label: Sequence[int], correct: Sequence[bool]) -> None:
        rate: dict[int, float] = {}
        exact: dict[int, Fraction] = {}
        for c in range(self.num_classes):
            of_class = [bool(k) for y, k in zip(label, correct, strict=True) if y == c]
            if of_class:
                rate[c] = sum(of_class) / len(of_class)
                exact[c] = Fraction(sum(of_class), len(of_class))
        below = {}
        if rate and self.rule == "mean":  # without rounding, for a class may be at the mean
            tau = sum(exact.values(), Fraction(0)) / len(exact)
            self.threshold = float(tau)
            below = {c: exact[c] < tau for c in exact}
        elif rate:
            self.threshold = self._threshold(rate)
            below = {c: rate[c] < self.threshold for c in rate}
        for c in range(self.num_classes):
            before = self.history[c][-1] if self.history[c] else 1
            if c not in rate:
                self.history[c].append(before)
                continue
            self.accuracy[c] = rate[c]
            self.history[c].append(before + 1 if below[c] else 1)

    def _threshold(self, rate: Mapping[int, float]) -> float:
        if self.rule in ("median", "positive-median"):
            ordered = sorted(rate.values())
            half = len(ordered) // 2
            middle = ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2
            return middle if middle > 0 or self.rule == "median" else sys.float_info.min
        if callable(self.rule):
            return float(self.rule([rate.get(c, NAN) for c in range(self.num_classes)]))
        return float(self.rule)

    @property
    def age(self) -> list[int]:
        return [ages[-1] if ages else 1 for ages in self.history]

    @property
    def ema(self) -> list[float]:
        return [fold(ages, self.rho) for ages in self.history]

    @property
    def class_weight(self) -> list[float]:
        return [1.0] * self.num_classes if self.rho == 0 else mean_one(self.ema)


class ErrorOracle:
    """The memoryless rival: a class's error rate, smoothed by an EMA over the steps that observed it."""

    def __init__(self, num_classes: int, rho: float):
        self.num_classes, self.rho = num_classes, rho
        self.history: list[list[float]] = [[] for _ in range(num_classes)]

    def step(self, label: Sequence[int], correct: Sequence[bool]) -> None:
        for c in range(self.num_classes):
            of_class = [bool(k) for y, k in zip(label, correct, strict=True) if y == c]
            if of_class:
                self.history[c].append(sum(not k for k in of_class) / len(of_class))

    @property
    def rate(self) -> list[float]:
        return [fold(rates, self.rho) for rates in self.history]


def long_tail_counts(largest: int, num_classes: int, imbalance: float) -> list[int]:
    powers = [rank / (num_classes - 1) if rank else 0 for rank in range(num_classes)]
    return [max(1, int(largest * imbalance**-power)) for power in powers]


_EXACT = decimal.Context(prec=80, Emin=decimal.MIN_EMIN, Emax=decimal.MAX_EMAX, traps=[])


def _decimal_mean_one(values: Sequence[Decimal | None]) -> list[float]:
    """Mean one over the known values; None (a class without samples) becomes one."""
    known = [v for v in values if v is not None]
    if not known:
        return [1.0] * len(values)
    total = Decimal(0)
    for v in known:
        total = _EXACT.add(total, v)
    average = _EXACT.divide(total, Decimal(len(known)))
    return [float(_EXACT.divide(v, average)) if v is not None else 1.0 for v in values]


def class_balanced_weight(counts: Sequence[int], beta: float) -> list[float]:
    """(1 − β) / (1 − βⁿ) to eighty digits, mean one over the classes that have samples."""
    b, one = Decimal(beta), Decimal(1)
    values: list[Decimal | None] = []
    for n in counts:
        if n == 0:
            values.append(None)
        elif beta == 0:
            values.append(one)
        else:
            power = _EXACT.exp(_EXACT.multiply(Decimal(n), _EXACT.ln(b)))
            values.append(_EXACT.divide(_EXACT.subtract(one, b), _EXACT.subtract(one, power)))
    return _decimal_mean_one(values)


def frequency_weight(counts: Sequence[int], power: float) -> list[float]:
    values = [None if n == 0 else _EXACT.power(Decimal(n), Decimal(-power)) for n in counts]
    return _decimal_mean_one(values)


def softmax_loss(logits: Sequence[float], target: Sequence[float]) -> float:
    """One sample; `target` is a distribution (one-hot for a hard label)."""
    top = max(logits)
    normaliser = top + math.log(math.fsum(math.exp(z - top) for z in logits))
    return math.fsum(-t * (z - normaliser) for z, t in zip(logits, target, strict=True))


def log_sigmoid(z: float) -> float:
    return -math.log1p(math.exp(-z)) if z >= 0 else z - math.log1p(math.exp(z))


def sigmoid_loss(logits: Sequence[float], target: Sequence[float]) -> float:
    return -math.fsum(t * log_sigmoid(z) + (1 - t) * log_sigmoid(-z) for z, t in zip(logits, target, strict=True))


def focal_loss(logits: Sequence[float], target: Sequence[float], gamma: float) -> float:
    """The one-vs-all focal loss of a hard (one-hot) target: each class's cross-entropy times (1 − p of the truth)^γ."""
    total = 0.0
    for z, t in zip(logits, target, strict=True):
        log_p = log_sigmoid(z) if t == 1 else log_sigmoid(-z)
        missed = 1 - math.exp(log_p)
        total += (missed**gamma if gamma else 1.0) * -log_p
    return total


def weighted_mean(loss: Sequence[float], weight: Sequence[float], divide_by: str = "weight") -> float:
    total = math.fsum(w * x for w, x in zip(weight, loss, strict=True) if w != 0)
    divisor = math.fsum(weight) if divide_by == "weight" else len(loss)
    return total / divisor if divisor else 0.0


class ReservoirOracle:
    """One item at a time: while there is room it enters; then the n-th with probability K/n, into a uniform slot."""

    def __init__(self, capacity: int, rng):
        self.capacity, self.rng, self.seen, self.items = capacity, rng, 0, []

    def add(self, indices: Sequence[int]) -> None:
        for item in indices:
            self.seen += 1
            if len(self.items) < self.capacity:
                self.items.append(item)
            elif self.rng.random() < self.capacity / self.seen:
                self.items[self.rng.integers(self.capacity)] = item
