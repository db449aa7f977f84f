"""Ages of classes on a stream, where samples do not return; O(C) state."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from aol import _check, _distributed
from aol._counts import ClassCounts
from aol._values import THRESHOLDS
from aol.ages.rules import age_step, blend, mean_one

Threshold: TypeAlias = str | float | Callable[[Tensor], float | Tensor]

_MANY = 3  # steps in a row with a threshold of zero: then a warning


class ClassAges(ClassCounts):
    r"""For how many steps the accuracy of each class has been below a threshold, smoothed, and the resulting weights.

    Call `observe` with predictions on the memory or on the samples of the step, then `advance` once per step.

    .. math::
        a_c \leftarrow \begin{cases} a_c + 1 & r_c < \tau \\ 1 & r_c \ge \tau \\ a_c & \text{c not observed}
        \end{cases} \qquad w_c = \frac{\bar a_c}{\frac{1}{C} \sum_k \bar a_k}

    Args:
        num_classes: C. All labels must be below it. None if the classes are not known in advance: a class is added when
            it is first observed, as if it had been there and not been observed; until then its weight is one.
        rho: smoothing rate of ages, in [0, 1]. `rho = 0` means uniform weights. A vector of R numbers gives
            every state and weight a leading run axis, and `observe` then takes `correct [R, B]`.
        threshold: τ: "median" of the accuracies of the observed classes (for an even number, the mean of the middle
            two); "positive-median", the same but never zero, so that a class at accuracy 0 always grows older; "mean"
            of these accuracies; a number in [0, 1]; or a function from the accuracies `float64 [C]`, NaN where unseen,
            to a number, which is not called in a step without observations. With a run axis, also a list of these,
            one per run.
        device: device of the state.

    Under `torch.distributed` each process observes its share, and `advance` (collective) adds the counts. Repeated
    samples count repeatedly.

    If more than half of the classes are at accuracy 0, their median is 0, and no class grows older. `advance` warns
    once when that lasts.

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
    >>> for threshold in ("median", "positive-median", "mean"):
    ...     ages = ClassAges(3, threshold=threshold)
    ...     ages.observe([0, 1, 2], [True, False, False])
    ...     ages.advance()
    ...     print(ages.age.tolist())
    [1, 1, 1]
    [1, 2, 2]
    [1, 2, 2]
    """

    _BY_CLASS: Mapping[str, float] = {**ClassCounts._BY_CLASS, "_age": 1, "_ema": 1, "_last_accuracy": torch.nan}

    def __init__(
        self,
        num_classes: int | None = None,
        *,
        rho: _check.Rate = 0.1,
        threshold: Threshold | Sequence[Threshold] = "median",
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__(num_classes, rho=rho, device=device)
        self._rules = self._checked(threshold)
        self._zeros = [0] * self._rho.numel()  # steps in a row whose threshold was zero
        self._warned = False
        shape = (self._rho.numel(), self.num_classes)
        self._age = torch.ones(shape, dtype=torch.int32, device=self.device)
        self._ema = torch.ones(shape, dtype=torch.float32, device=self.device)
        self._last_accuracy = torch.full(shape, torch.nan, dtype=torch.float64, device=self.device)
        self._last_threshold = torch.full((shape[0],), torch.nan, dtype=torch.float64, device=self.device)

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
        """The last accuracy of each class, `float64 [C]`; NaN if never observed."""
        return self._out(self._last_accuracy.clone())

    @property
    def threshold(self) -> Tensor:
        """The threshold of the last step with observations, `float64 []` or `[R]`; NaN before."""
        return self._out(self._last_threshold[:, None])[..., 0].clone()

    def advance(self, *, group: _distributed.Group = None, sync: bool = True) -> None:
        """End the step: update the ages. Collective under `torch.distributed`, unless `sync=False`."""
        accuracy = self._accuracy(group, sync)
        tau = self._threshold(accuracy)
        self._count_anew()  # after the threshold: the user's function may fail
        observed = ~accuracy.isnan()
        stepped = age_step(self._age, accuracy >= tau[:, None])
        self._age = torch.where(observed, stepped, self._age)
        start = self._age.to(torch.float32)
        self._ema = start if self.epoch == 0 else blend(self._ema, start, self._rho[:, None])
        self._last_accuracy = torch.where(observed, accuracy, self._last_accuracy)
        self._last_threshold = torch.where(observed.any(1), tau, self._last_threshold)
        self.epoch += 1
        if not self._warned and _distributed.world(group)[0] == 0:
            self._warn_of_zeros(accuracy, tau)

    def _threshold(self, accuracy: Tensor) -> Tensor:
        tau = accuracy.new_empty(len(accuracy))
        for first, rule in enumerate(self._rules):
            if self._rules.index(rule) == first:  # each rule once, for all its runs
                rows = [row for row, own in enumerate(self._rules) if own == rule]
                tau[rows] = _tau(rule, accuracy[rows])
        return tau

    def _warn_of_zeros(self, accuracy: Tensor, tau: Tensor) -> None:
        """Warn when classes at accuracy 0 are not below a threshold of 0 for several steps, while others are better."""
        zero = (tau == 0) & (accuracy == 0).any(1) & (accuracy > 0).any(1)
        asked = [isinstance(rule, float) for rule in self._rules]  # a number is what the user wants
        pairs = zip(zero.tolist(), self._zeros, asked, strict=True)
        self._zeros = [steps + 1 if now and not wanted else 0 for now, steps, wanted in pairs]
        if max(self._zeros) >= _MANY:
            self._warned = True
            warnings.warn(
                f"The threshold was 0 in {_MANY} steps in a row, so that classes at accuracy 0 do not grow older. Use "
                "threshold='positive-median' (a class at 0 always grows older), 'mean' or a number.",
                stacklevel=3,
            )

    def _checked(self, threshold: Threshold | Sequence[Threshold]) -> list[Threshold]:
        """Return the rule of each run."""
        runs = self._rho.numel()
        rules = list(threshold) if isinstance(threshold, list | tuple) and not self._single else [threshold] * runs
        if len(rules) != runs:
            raise ValueError(f"threshold must be one rule, or one for each of the {runs} runs, not {len(rules)} rules.")
        found: list[Threshold] = []
        for rule in rules:
            if isinstance(rule, str):
                rule = _check.choice("threshold", rule, THRESHOLDS)
            elif not callable(rule):
                rule = _check.number("threshold", rule, 0.0, 1.0)
            found.append(rule)
        return found

    def _bounds(self, epoch: int) -> dict[str, _check.Bounds]:
        ages = _check.Bounds(1, 1.001 * (epoch + 1))  # with room for rounding
        last = {"_last_accuracy": _check.SHARES, "_last_threshold": _check.Bounds(nan=True)}
        return {**super()._bounds(epoch), "_age": ages, "_ema": ages, **last}

    def _class_weight(self) -> Tensor:
        return mean_one(self._ema).masked_fill(self._uniform(), 1.0)

    def _settings(self) -> dict[str, object]:
        rules = ["a function" if callable(rule) else rule for rule in self._rules]
        one = all(rule == rules[0] for rule in rules)  # a common rule as in states of 0.1.0
        return {**super()._settings(), "threshold": rules[0] if one else rules}


def _tau(rule: Threshold, accuracy: Tensor) -> Tensor:
    """Return the threshold of each run, `float64 [R]`, by one rule from accuracies `[R, C]`."""
    if callable(rule):
        found = [torch.nan if bool(row.isnan().all()) else _one(rule(row.clone())) for row in accuracy]
        return torch.tensor(found, dtype=torch.float64, device=accuracy.device)
    if rule == "mean":
        return _mean(accuracy)
    if rule == "positive-median":
        return _median(accuracy).clamp_min(torch.finfo(torch.float64).tiny)
    return _median(accuracy) if rule == "median" else accuracy.new_full(accuracy.shape[:1], float(rule))


def _one(answer: object) -> float:
    """Return the result of a user's threshold function, which must be one finite number."""
    found = _check.real("The answer of the threshold function", answer)
    if found.numel() != 1 or not bool(found.isfinite()):
        raise ValueError(f"The answer of the threshold function must be one finite number, not {_check.shown(answer)}.")
    return float(found)


def _median(value: Tensor) -> Tensor:
    """Return the median of each row, ignoring NaN; for an even number, the mean of the middle two.

    >>> _median(torch.tensor([[0.1, 0.4, torch.nan, 0.2, 0.9]], dtype=torch.float64))
    tensor([0.3000], dtype=torch.float64)
    """
    ordered = value.sort(1).values  # NaN sorts last
    if value.shape[1] == 0:
        return value.new_full(value.shape[:1], torch.nan)
    count = (~value.isnan()).sum(1, keepdim=True)
    low = ordered.gather(1, ((count - 1) // 2).clamp_min(0))
    high = ordered.gather(1, (count // 2).clamp_max(value.shape[1] - 1))
    return ((low + high) / 2).squeeze(1)


def _mean(value: Tensor) -> Tensor:
    """Return the mean of each row of accuracies, ignoring NaN; rounded down to 2 ** -44.

    Sums of whole numbers do not depend on their order: classes with equal accuracies are never below their mean.

    >>> _mean(torch.tensor([[0.5, 0.25, torch.nan, 0.75]], dtype=torch.float64))
    tensor([0.5000], dtype=torch.float64)
    """
    scale = 2.0**44
    total = (value.nan_to_num(0.0) * scale).floor().to(torch.int64).sum(1)
    count = (~value.isnan()).sum(1)
    mean = (total // count.clamp_min(1)).to(torch.float64) / scale
    return mean.masked_fill(count == 0, torch.nan)
