"""Ages of classes on a stream, where samples do not return; O(C) state."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from aol import _check, _distributed
from aol._state import State
from aol._values import THRESHOLDS
from aol.ages import age_step, blend, mean_one

Threshold: TypeAlias = str | float | Callable[[Tensor], float | Tensor]

_MANY = 3  # steps in a row with a threshold of zero: then a warning


class ClassCounts(State):
    """Counts of right and of all predictions by class since the last `advance`: the base of class states.

    Where `num_classes` is None, classes are added as they are observed. `_NEW` has what a class holds in each buffer
    before it is observed.
    """

    _NEW: Mapping[str, float] = {"_right": 0, "_count": 0}
    _right: Tensor
    _count: Tensor

    def __init__(self, num_classes: int | None, *, rho: _check.Rate, device: torch.device | str | None) -> None:
        super().__init__()
        rate = _check.rates("rho", rho, 0.0, 1.0)
        self._open = num_classes is None
        self.num_classes = (
            0 if num_classes is None else _check.whole("num_classes", num_classes, 1, _check.MOST_CLASSES)
        )
        self._start(rate, _check.device(device))
        # An extra column takes what is refused, so that no check has to wait for a GPU: `_count` labels outside the
        # classes and bad `times`, and both all labels of a call whose `correct` is neither true nor false.
        none = torch.zeros((rate.numel(), self.num_classes + 1), dtype=torch.int64, device=self.device)
        self._add(_right=none, _count=none.clone())

    def observe(self, label: _check.Integers, correct: _check.Truths, *, times: _check.Integers | None = None) -> None:
        """Count predictions until `advance`.

        `label` is `[B]` or `[R, B]`, `correct` is `[B]`, or `[R, B]` with a run axis. Repeats count repeatedly;
        `times`, of the shape of `label`, gives a count for each prediction. A label outside the classes raises
        IndexError; numbers in `correct` other than 0 and 1, and `times` below 0, raise ValueError. Tensors on a CUDA
        device are not read: there, `advance` raises an error. Where `num_classes` was not given, a label that is new
        adds its class, and CUDA devices are synchronised.
        """
        where = self._label(label)
        right, neither = self._correct(correct, where.shape[-1], "label")
        often = None if times is None else _check.times(times, where.shape, self.device)
        if self._open and where.numel() and int(where.max()) >= self.num_classes:
            self.grow(int(where.max()) + 1)
        where = where.expand(len(self._rho), -1)
        inside = (where >= 0) & (where < self.num_classes)
        if often is not None:
            inside = inside & _check.is_count(often)
        right = right & inside
        if neither is not None:
            inside, right = inside & ~neither, right | neither
        where = where.where(inside, self.num_classes)
        once = torch.ones_like(where) if often is None else torch.where(inside, often, 1)
        self._right.scatter_add_(1, where, once * right)
        self._count.scatter_add_(1, where, once)

    def pending(self) -> tuple[Tensor, ...]:
        """Return the tensors that `observe` changes in place, for CUDA graph capture."""
        return self._right, self._count

    def _accuracy(self, group: _distributed.Group, sync: bool) -> Tensor:
        """Return the accuracies over all processes, `float64 [R, C]`, NaN where unseen."""
        if sync:
            self._agree(group)
            if self._open:  # processes may have met other classes
                self.grow(int(_distributed.largest(torch.tensor(self.num_classes, device=self.device), group)))
        counts = torch.stack((self._right, self._count))
        if sync:
            counts = _distributed.total(counts, group)
        neither, stray = counts[:, :, -1].any(1).tolist()
        if stray:
            self._right[:, -1] = 0
            self._count[:, -1] = 0
            if neither:
                raise _check.neither_true_nor_false()
            raise IndexError(
                f"{self._allowed()}, and times 0 or more, but observe() was given others since the last advance(). "
                "They were ignored. Call advance() again to continue without them."
            )
        return counts[0, :, :-1].to(torch.float64) / counts[1, :, :-1]

    def _end(self) -> None:
        self._right.zero_()
        self._count.zero_()
        self.epoch += 1

    def _allowed(self) -> str:
        if self._open:
            return "label must be 0 or more"
        return f"label must be one of the {self.num_classes} classes given by num_classes, 0 to {self.num_classes - 1}"

    def _label(self, label: object) -> Tensor:
        most = _check.MOST_CLASSES if self._open else self.num_classes
        try:
            return self._of_samples("label", label, most, "classes")[0]
        except IndexError as error:
            raise IndexError(f"{self._allowed()}, not {str(error).rpartition(' ')[2]}") from error

    @property
    def class_weight(self) -> Tensor:
        """Ages or error rates of the classes divided by their mean, `float32 [C]`; one for a class never observed."""
        return self._out(self._class_weight())

    def weight(self, label: _check.Integers) -> Tensor:
        """Return the class weight of each label, `float32 [B]` or `[R, B]`; `label` is `[B]` or `[R, B]`.

        NaN for a label outside the classes on a CUDA device. Where `num_classes` was not given, a class that was never
        observed has weight one.
        """
        where = self._label(label).expand(len(self._rho), -1)
        weight = F.pad(self._class_weight(), (0, 1), value=1.0 if self._open else torch.nan)
        return self._out(weight.gather(1, where.clamp(0, self.num_classes)).masked_fill(where < 0, torch.nan))

    def _class_weight(self) -> Tensor:
        """Return the weights of classes, `float32 [R, C]`."""
        raise NotImplementedError

    # Classes that are not known in advance

    @property
    def grows(self) -> bool:
        """Whether classes are added as they are observed."""
        return self._open

    def grow(self, num_classes: int) -> None:
        """Make room for more classes. A new one is as if it had been there, but never observed."""
        number = _check.whole("num_classes", num_classes, self.num_classes, _check.MOST_CLASSES)
        now, self.num_classes = self.num_classes, number
        for name, fill in self._NEW.items():
            value: Tensor = getattr(self, name)
            new = value.new_full((len(value), number - now), fill)
            setattr(self, name, torch.cat((value[:, :now], new, value[:, now:]), 1))

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """Load a state; one with other settings or sizes is a ValueError, and nothing changes."""
        before = self.num_classes, dict(self._buffers)
        try:
            counts = state_dict.get("_count") if isinstance(state_dict, Mapping) else None
            if self._open and isinstance(counts, Tensor) and counts.dim() == 2 and counts.shape[1]:
                for name, fill in self._NEW.items():
                    more = 1 if name in ClassCounts._NEW else 0
                    size = (len(self._rho), counts.shape[1] - 1 + more)
                    setattr(self, name, getattr(self, name).new_full(size, fill))
                self.num_classes = counts.shape[1] - 1
            return super().load_state_dict(state_dict, strict, assign)
        except BaseException:
            self.num_classes, self._buffers = before
            raise

    def _settings(self) -> dict[str, object]:
        return {**super()._settings(), "num_classes": None if self._open else self.num_classes}

    def extra_repr(self) -> str:
        """Return the settings, for `repr`."""
        runs = "" if self._single else f", runs={len(self._rho)}"
        return f"num_classes={self.num_classes}{runs}, epoch={self.epoch}"


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

    A `torch.nn.Module` without parameters. Under `torch.distributed` each process observes its share, and `advance`
    (collective) adds the counts. Repeated samples count repeatedly.

    If more than half of the classes are at accuracy 0, their median is 0, and no class grows older. `advance` warns
    when that lasts.

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

    _NEW: Mapping[str, float] = {**ClassCounts._NEW, "_age": 1, "_ema": 1, "_last_accuracy": torch.nan}
    _age: Tensor
    _ema: Tensor
    _last_accuracy: Tensor
    _last_threshold: Tensor
    _zeros: Tensor

    def __init__(
        self,
        num_classes: int | None = None,
        *,
        rho: _check.Rate = 0.1,
        threshold: Threshold | Sequence[Threshold] = "median",
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__(num_classes, rho=rho, device=device)
        self._rules = self._checked_rules(threshold)
        runs, shape = len(self._rho), (len(self._rho), self.num_classes)
        with self.device:
            self._add(
                _age=torch.ones(shape, dtype=torch.int32),
                _ema=torch.ones(shape, dtype=torch.float32),
                _last_accuracy=torch.full(shape, torch.nan, dtype=torch.float64),
                _last_threshold=torch.full((runs,), torch.nan, dtype=torch.float64),
                _zeros=torch.zeros(runs, dtype=torch.int64),  # steps in a row whose threshold was zero
            )

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
        return self._out(self._last_threshold.clone())

    def advance(self, *, group: _distributed.Group = None, sync: bool = True) -> None:
        """End the step: update the ages. Collective under `torch.distributed`, unless `sync=False`."""
        accuracy = self._accuracy(group, sync)
        tau = self._threshold(accuracy)  # before anything changes: the user's function may fail
        observed = ~accuracy.isnan()
        self._age.copy_(torch.where(observed, age_step(self._age, accuracy >= tau[:, None]), self._age))
        start = self._age.to(torch.float32)
        self._ema.copy_(start if self.epoch == 0 else blend(self._ema, start, self._rho))
        self._last_accuracy.copy_(torch.where(observed, accuracy, self._last_accuracy))
        self._last_threshold.copy_(torch.where(observed.any(1), tau, self._last_threshold))
        self._end()
        if _distributed.world(group)[0] == 0:
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
        wanted = torch.tensor([isinstance(rule, float) for rule in self._rules], device=tau.device)
        zero = (tau == 0) & (accuracy == 0).any(1) & (accuracy > 0).any(1) & ~wanted
        self._zeros.copy_(torch.where(zero, self._zeros + 1, 0))
        if bool((self._zeros == _MANY).any()):
            warnings.warn(
                f"The threshold was 0 in {_MANY} steps in a row, so that classes at accuracy 0 do not grow older. Use "
                "threshold='positive-median' (a class at 0 always grows older), 'mean' or a number.",
                stacklevel=3,
            )

    def _checked_rules(self, threshold: Threshold | Sequence[Threshold]) -> list[Threshold]:
        """Return the rule of each run."""
        runs = len(self._rho)
        rules = list(threshold) if isinstance(threshold, list | tuple) and not self._single else [threshold] * runs
        if len(rules) != runs:
            raise ValueError(f"threshold must be one rule, or one for each of the {runs} runs, not {len(rules)} rules.")
        checked: list[Threshold] = []
        for rule in rules:
            if isinstance(rule, str):
                rule = _check.choice("threshold", rule, THRESHOLDS)
            elif not callable(rule):
                rule = _check.number("threshold", rule, 0.0, 1.0)
            checked.append(rule)
        return checked

    def _class_weight(self) -> Tensor:
        return mean_one(self._ema).masked_fill(self._rho == 0, 1.0)

    def _settings(self) -> dict[str, object]:
        return {**super()._settings(), "threshold": ["a function" if callable(rule) else rule for rule in self._rules]}


def _tau(rule: Threshold, accuracy: Tensor) -> Tensor:
    """Return the threshold of each run, `float64 [R]`, by one rule from accuracies `[R, C]`."""
    if callable(rule):
        taus = [torch.nan if bool(row.isnan().all()) else _one(rule(row.clone())) for row in accuracy]
        return torch.tensor(taus, dtype=torch.float64, device=accuracy.device)
    if rule == "mean":
        return _mean(accuracy)
    if rule == "positive-median":
        return _median(accuracy).clamp_min(torch.finfo(torch.float64).tiny)
    return _median(accuracy) if rule == "median" else accuracy.new_full(accuracy.shape[:1], float(rule))


def _one(answer: object) -> float:
    """Return the result of a user's threshold function, which must be one finite number."""
    value = _check.real("The answer of the threshold function", answer)
    if value.numel() != 1 or not bool(value.isfinite()):
        raise ValueError(f"The answer of the threshold function must be one finite number, not {_check.shown(answer)}.")
    return float(value)


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
