"""Ages of classes on a stream, where samples do not return; O(C) state."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from aol import _check, _distributed
from aol._state import State
from aol._values import THRESHOLDS
from aol.ages import mean_one
from aol.criteria import class_age_step

Threshold: TypeAlias = str | float | Callable[[Tensor], float | Tensor]


class ClassCounts(State):
    """Counts of right and of all predictions by class since the last `advance`: the base of class states."""

    _pending = ("_right", "_count")
    _smoothed = "_ema"  # the buffer that weights are made of

    def __init__(self, num_classes: int, *, rho: _check.Rate, device: torch.device | str | None) -> None:
        rate = _check.rates("rho", rho, 0.0, 1.0)
        super().__init__(rate, device, single=rate.dim() == 0)
        self.num_classes = _check.whole("num_classes", num_classes, 1, _check.MOST_CLASSES)
        for name in self._pending:
            self._add(name, (rate.numel(), self.num_classes), 0, torch.int64)

    def observe(self, label: _check.Integers, correct: _check.Truths, *, times: _check.Integers | None = None) -> None:
        """Count predictions until `advance`.

        `label` is `[B]` or `[R, B]`, `correct` is `[B]`, or `[R, B]` with a run axis; `times`, like `label`, gives
        counts of predictions. Values outside their range raise an error; on a CUDA device, `advance` raises it.
        """
        where, inside = self._places("label", label, self.num_classes, "classes, by num_classes")
        right, inside = self._truths(correct, inside, "label")
        often, inside = self._often(times, inside)
        self._refused.logical_or_(~inside.all())
        self._right.scatter_add_(1, where, often * right)
        self._count.scatter_add_(1, where, often)

    def _accuracy(self, sync: bool) -> Tensor:
        """Return the accuracies over all processes, `float64 [R, C]`, NaN where unseen."""
        allowed = f"label must lie in 0 to {self.num_classes - 1} (classes, by num_classes), correct be true or false"
        together = self._begin(sync, f"{allowed} (not predicted classes), and times 0 or more")
        counts = torch.stack((self._right, self._count))
        right, count = (_distributed.total(counts) if together else counts).unbind()
        return right.to(torch.float64) / count

    @property
    def class_weight(self) -> Tensor:
        """Ages or error rates of the classes divided by their mean, `float32 [C]`; one for a class never observed."""
        return self._out(self._class_weight())

    def weight(self, label: _check.Integers) -> Tensor:
        """Return the class weights of labels, `float32 [B]` or `[R, B]`; on a CUDA device NaN for one outside."""
        where, inside = self._places("label", label, self.num_classes, "classes, by num_classes")
        return self._out(self._class_weight().gather(1, where).masked_fill(~inside, torch.nan))

    def _class_weight(self) -> Tensor:
        return mean_one(getattr(self, self._smoothed)).masked_fill(self._rho == 0, 1.0)

    def _settings(self) -> dict[str, object]:
        return {**super()._settings(), "num_classes": self.num_classes}


class ClassAges(ClassCounts):
    r"""For how many steps the accuracies of classes have been below a threshold, smoothed, and the resulting weights.

    Call `observe` with predictions on the memory or on the samples of the step, then `advance` once per step.

    .. math::
        a_c \leftarrow \begin{cases} a_c + 1 & r_c < \tau \\ 1 & r_c \ge \tau \\ a_c & \text{c not observed}
        \end{cases} \qquad w_c = \frac{\bar a_c}{\frac{1}{C} \sum_k \bar a_k}

    Args:
        num_classes: C.
        rho: smoothing rate of ages, in [0, 1]. `rho = 0` means uniform weights. A vector of R numbers gives every
            state and weight a leading run axis, and `observe` then takes `correct [R, B]`.
        threshold: τ: "median" or "mean" of the accuracies of the observed classes; "positive-median", which is never
            zero: if more than half of the classes are at accuracy 0, so is the median, and no class grows older; a
            number in [0, 1]; or a function from the accuracies `float64 [C]`, NaN where unseen, to a number. With a
            run axis, also a list of these, one per run.
        device: of the state.

    A `torch.nn.Module` without parameters. Under `torch.distributed` every process observes its share, and `advance`
    (collective) adds the counts.

    >>> ages = ClassAges(3, rho=0.5)
    >>> for _ in range(2):
    ...     ages.observe([0, 0, 1, 1, 2, 2], [True, True, True, False, False, False])
    ...     ages.advance()
    >>> ages.accuracy
    tensor([1.0000, 0.5000, 0.0000], dtype=torch.float64)
    >>> ages.threshold.item()
    0.5
    >>> ages.age
    tensor([1, 1, 3], dtype=torch.int32)
    >>> ages.class_weight
    tensor([0.6667, 0.6667, 1.6667])
    """

    def __init__(
        self,
        num_classes: int,
        *,
        rho: _check.Rate = 0.1,
        threshold: Threshold | Sequence[Threshold] = "median",
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__(num_classes, rho=rho, device=device)
        runs, shape = len(self._rho), (len(self._rho), self.num_classes)
        rules: Any = threshold if isinstance(threshold, list | tuple) and not self._single else [threshold] * runs
        if len(rules) != runs:
            raise ValueError(f"threshold must be one rule, or a list of {runs}, one per run, not {len(rules)} rules.")
        self._rules = [_checked_rule(rule) for rule in rules]
        self._add("_age", shape, 1, torch.int32)
        self._add("_ema", shape, 1, torch.float32)
        self._add("_last_accuracy", shape, torch.nan, torch.float64)
        self._add("_last_threshold", (runs,), torch.nan, torch.float64)

    @property
    def age(self) -> Tensor:
        """Observed steps since the class last reached the threshold, counted from one, `int32 [C]`."""
        return self._out(self._age.clone())

    @property
    def ema(self) -> Tensor:
        """The smoothed age, `float32 [C]`; one before the first step."""
        return self._out(self._ema.clone())

    @property
    def accuracy(self) -> Tensor:
        """The last accuracies of the classes, `float64 [C]`; NaN if never observed."""
        return self._out(self._last_accuracy.clone())

    @property
    def threshold(self) -> Tensor:
        """The threshold of the last step with observations, `float64 []` or `[R]`; NaN before."""
        return self._out(self._last_threshold.clone())

    def advance(self, *, sync: bool = True) -> None:
        """End the step: update the ages. Collective under `torch.distributed`, unless `sync=False`."""
        accuracy = self._accuracy(sync)
        rows = zip(self._rules, accuracy.cpu(), accuracy, strict=True)  # a GPU waits once, not once per run
        taus = [_tau(rule, own[~own.isnan()], row) for rule, own, row in rows]
        tau = torch.tensor(taus, dtype=torch.float64, device=self.device)  # first: the user's function may fail
        observed = ~accuracy.isnan()
        before = self._ema if self.epoch else torch.full_like(self._ema, torch.nan)
        age, ema = class_age_step(self._age, before, accuracy, self._rho, tau[:, None])
        self._age.copy_(age)
        self._ema.copy_(ema)
        self._last_accuracy.copy_(torch.where(observed, accuracy, self._last_accuracy))
        self._last_threshold.copy_(torch.where(observed.any(1), tau, self._last_threshold))
        self._end()

    def _settings(self) -> dict[str, object]:
        return {**super()._settings(), "threshold": ["a function" if callable(rule) else rule for rule in self._rules]}


def _checked_rule(rule: Threshold) -> Threshold:
    if isinstance(rule, str):
        return _check.choice("threshold", rule, THRESHOLDS)
    return rule if callable(rule) else _check.number("threshold", rule, 0.0, 1.0)


def _tau(rule: Threshold, known: Tensor, accuracy: Tensor) -> float:
    """Return the threshold by one rule, from the accuracies of the observed classes, and of all `[C]`."""
    if isinstance(rule, float):
        return rule
    if not len(known):
        return math.nan
    if callable(rule):
        return _check.number("The answer of the threshold function", float(rule(accuracy.clone())), -1e300, 1e300)
    if rule == "mean":  # of whole numbers, rounded down: classes with equal accuracies are never below it
        return int((known * 2.0**44).floor().to(torch.int64).sum()) // len(known) / 2.0**44
    ordered = known.sort().values
    median = float((ordered[(len(known) - 1) // 2] + ordered[len(known) // 2]) / 2)
    return max(median, sys.float_info.min) if rule == "positive-median" else median
