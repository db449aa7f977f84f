"""Ages of samples that come back: how long they have been wrong, smoothed; and the equations as functions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from aol import _check, _distributed
from aol._need import need
from aol._state import State

if TYPE_CHECKING:
    import pandas as pd

FUSE = ("ema", "peak")
WRONG, RIGHT = 1, 2  # marks of what was observed since the last `advance`; 0: nothing
_BLOCK = 1 << 22  # numbers folded at once, which bounds temporary memory


def age_step(age: Tensor, correct: _check.Truths) -> Tensor:
    r"""Return the next age: one where the prediction was right, one more where it was wrong.

    .. math:: a^{(e)} = (1 - c^{(e)})\,(a^{(e-1)} + 1) + c^{(e)}

    `age` has any shape and numeric type, at whose largest number ages stop; `correct` broadcasts with it.

    >>> age_step(torch.tensor([1, 1, 4]), torch.tensor([True, False, False]))
    tensor([1, 2, 5])
    """
    age = _check.real("age", age)
    right, _ = _check.truths("correct", correct, device=age.device)
    _check.broadcasts("correct", right, "age", age.shape)
    # A floating-point age stops by itself where its digits end: at 2048 in float16.
    older = age + 1 if age.is_floating_point() else age.clamp_max(torch.iinfo(age.dtype).max - 1).add_(1)
    return torch.where(right, 1, older)


def ema_step(ema: Tensor, age: Tensor, rho: _check.Rate) -> Tensor:
    r"""Return the next smoothed age.

    .. math:: \bar a^{(e)} = (1 - \rho)\,\bar a^{(e-1)} + \rho\, a^{(e)}

    `ema` is floating point, of any shape; `rho` a number in [0, 1], or a vector of R numbers along the first dimension.
    It is rounded to float32 first. The interpolation is exact: an EMA equal to the age does not change.

    >>> ema_step(torch.tensor([1.0, 3.0]), torch.tensor([2, 1]), 0.5)
    tensor([1.5000, 2.0000])
    """
    if not isinstance(ema, Tensor) or not ema.is_floating_point():
        raise TypeError(f"ema must be a floating-point tensor, not {_check.shown(ema)}.")
    rate, now = _check.rates("rho", rho, 0.0, 1.0), _check.real("age", age, device=ema.device)
    if rate.dim() and (ema.dim() == 0 or len(rate) not in (1, len(ema))):
        raise ValueError(f"rho must be one number, or one per row of ema {list(ema.shape)}, not {_check.shown(rate)}.")
    _check.broadcasts("age", now, "ema", ema.shape)
    return blend(ema, now, rate.reshape(*rate.shape, *[1] * (ema.dim() - rate.dim())).to(ema.device))


def blend(ema: Tensor, age: Tensor, rate: Tensor) -> Tensor:
    """Like `ema_step`, with a rate that is checked and broadcasts."""
    return torch.lerp(ema, age.to(ema.dtype), rate.to(torch.float32).to(ema.dtype))


def class_mean(value: Tensor, label: Tensor, num_classes: int) -> Tensor:
    """Return the mean of values `[R, N]` that are not NaN by class, `float64 [R, C]`; NaN for a class without any."""
    known = ~value.isnan()
    both = torch.stack((value.to(torch.float64).where(known, 0.0), known.to(torch.float64)))
    sums = both.new_zeros((2, len(value), num_classes)).scatter_add_(2, label.expand_as(both), both)
    return sums[0] / sums[1]


def mean_one(value: Tensor) -> Tensor:
    """Return values divided by their mean along the last dimension, as float32; NaN is ignored and becomes one.

    >>> mean_one(torch.tensor([1.0, 3.0, torch.nan]))
    tensor([0.5000, 1.5000, 1.0000])
    """
    value = value.to(torch.float64)
    weight = value / value.nanmean(-1, keepdim=True)
    return weight.masked_fill(weight.isnan(), 1.0).to(torch.float32)


def mark(marks: Tensor, index: Tensor, right: Tensor) -> None:
    """Mark which samples `index [R, B]` were right, in `marks [R, N]`; of repeats, the last one counts."""
    now = torch.where(right, RIGHT, WRONG).to(torch.uint8)
    if _check.readable(marks):  # NumPy guarantees that the last assignment to a repeated index stays
        marks.numpy()[np.arange(len(marks))[:, None], index.numpy()] = now.numpy()
    else:  # all repeats get the value of the last one: the order of writes does not matter
        ordered, place = index.sort(dim=1, stable=True)
        last = torch.searchsorted(ordered, ordered, right=True) - 1
        marks.scatter_(1, ordered, now.gather(1, place.gather(1, last)))


def marks_of_all(marks: Tensor) -> Tensor:
    """Return the marks of all processes; of two that saw the same sample, the higher rank counts. Collective."""
    rank, world = _distributed.world()
    small = torch.uint8 if 4 * world + RIGHT < 256 else torch.int32
    ranked = torch.where(marks > 0, marks.to(small) + 4 * (rank + 1), 0)
    return _distributed.total(ranked.to(small), largest=True) & 3


class SampleAges(State):
    r"""For how many epochs samples have been wrong, smoothed, and the resulting weights.

    Call `observe` with the correctness of predictions, any number of times per epoch, then `advance` once at its end.

    .. math::
        \bar a_c = \frac{1}{|I_c|} \sum_{i \in I_c} \bar a_i, \qquad
        w_c = \frac{\bar a_c}{\frac{1}{C} \sum_k \bar a_k}, \qquad
        w_i = \frac{\bar a_i}{\frac{1}{N} \sum_j \bar a_j}

    Args:
        labels: the classes of the N samples, 0 to C - 1.
        num_classes: C; by default one more than the largest label.
        rho: smoothing rate of ages, in [0, 1]. `rho = 0` means uniform weights. A vector of R numbers gives every state
            and weight a leading run axis, and `observe` then takes `correct [R, B]`.
        level: what `weight` returns: the weight of the sample's "class" or of the "sample".
        fuse: how ages over time become one number: "ema", or "peak", the largest so far.
        absent: "keep" does not change samples that were not observed; "grow", the rule for sparse arrivals, counts a
            sample from its first observation on, and it grows older in every epoch without one.
        device: of the state; by default that of `labels`.

    A `torch.nn.Module` without parameters, 9 bytes per sample and run. Under `torch.distributed` every process holds
    the whole state, observes its share, and all call `advance`.

    >>> ages = SampleAges([0, 0, 1], rho=0.5)
    >>> for _ in range(3):
    ...     ages.observe([0, 1, 2], [True, True, False])
    ...     ages.advance()
    >>> ages.age
    tensor([1, 1, 4], dtype=torch.int32)
    >>> ages.class_age
    tensor([1.0000, 3.2500])
    >>> ages.weight([2, 0])
    tensor([1.5294, 0.4706])
    """

    _pending = ("_observed",)

    def __init__(
        self,
        labels: _check.Integers,
        *,
        num_classes: int | None = None,
        rho: _check.Rate = 0.5,
        level: str = "class",
        fuse: str = "ema",
        absent: str = "keep",
        device: torch.device | str | None = None,
    ) -> None:
        label, size = _check.labels(labels, num_classes)
        rate = _check.rates("rho", rho, 0.0, 1.0)
        super().__init__(rate, device or label.device, single=rate.dim() == 0)
        self.num_classes, self.num_samples = size, label.numel()
        self.level = _check.choice("level", level, ("class", "sample"))
        self.fuse = _check.choice("fuse", fuse, FUSE)
        self.absent = _check.choice("absent", absent, ("keep", "grow"))
        self._digest = _check.fingerprint(label)
        small = torch.uint8 if size <= 256 else torch.int32
        self.register_buffer("_labels", label.to(self.device, small, copy=True), persistent=False)
        runs, number = rate.numel(), self.num_samples
        self._add("_age", (runs, number), int(absent == "keep"), torch.int32)
        self._add("_ema", (runs, number), torch.nan, torch.float32)
        self._add("_observed", (runs, number + 1), 0, torch.uint8)  # the last column takes what is refused
        # Sums of smoothed ages, and number of seen samples: integers, whose order does not matter.
        self._add("_total", (runs, size), 0, torch.int64)
        self._add("_seen", (runs, size), 0, torch.int64)
        self._add("_unit", (), 2.0**24, torch.float64)  # of `_total`; a tensor, as a compiled graph keeps numbers

    @property
    def labels(self) -> Tensor:
        """The classes of the samples, `int64 [N]`."""
        return self._labels.to(torch.int64)

    def label(self, index: _check.Integers) -> Tensor:
        """Return the classes of these samples, `int64 [B]` or `[R, B]`; IndexError for one outside the set."""
        where = _check.integers("index", index)
        _check.within("index", where, self.num_samples, "samples of these ages")
        return self._labels[_check.moved(where, self.device)].to(torch.int64)

    @property
    def age(self) -> Tensor:
        """Epochs since the last right prediction, from one, `int32 [N]`; 0 if never seen with absent="grow"."""
        return self._out(self._age.clone())

    @property
    def ema(self) -> Tensor:
        """The age over time as one number, by `fuse`: the smoothed age, `float32 [N]`; NaN where never seen."""
        return self._out(self._ema.clone())

    @property
    def mean_age(self) -> Tensor:
        """The mean age of the seen samples by class, not smoothed, `float32 [C]`; NaN for a class without one."""
        age = self._age.to(torch.float64).where(~self._ema.isnan(), torch.nan)
        return self._out(class_mean(age, self.labels, self.num_classes).to(torch.float32))

    @property
    def class_age(self) -> Tensor:
        """The mean smoothed age of the seen samples by class, `float32 [C]`; NaN for a class without one."""
        return self._out(self._class_age().to(torch.float32))

    @property
    def class_weight(self) -> Tensor:
        """Class ages divided by their mean, `float32 [C]`; one for a class without a seen sample."""
        return self._out(self._class_weight())

    @property
    def sample_weight(self) -> Tensor:
        """Smoothed ages divided by their mean, `float32 [N]`; one for a sample never seen."""
        return self._out(self._relative(self._ema))

    def _class_age(self) -> Tensor:
        return self._total.to(torch.float64) / self._unit / self._seen

    def _class_weight(self) -> Tensor:
        return mean_one(self._class_age()).masked_fill(self._rho == 0, 1.0)

    def _relative(self, ema: Tensor) -> Tensor:
        mean = self._total.sum(1, keepdim=True).to(torch.float64) / self._unit / self._seen.sum(1, keepdim=True)
        return (ema / mean.masked_fill(self._rho == 0, torch.nan).to(torch.float32)).nan_to_num_(1.0)

    @property
    def weights(self) -> Tensor:
        """The weight of every sample for a loss or a sampler, by `level`, `float32 [N]`."""
        if self.level == "sample":
            return self.sample_weight
        return self._out(self._class_weight().index_select(1, self._labels.to(torch.int32)))

    def weight(self, index: _check.Integers) -> Tensor:
        """Return the weights of these samples for a loss or a sampler, by `level`, `float32 [B]` or `[R, B]`.

        `index` is `[B]` or `[R, B]`. One outside the set is an IndexError; on a CUDA device, its weight is NaN.
        """
        where, inside = self._places("index", index, self.num_samples, "samples of these ages")
        if self.level == "class":
            weight = self._class_weight().gather(1, self._labels[where].to(torch.int64))
        else:
            weight = self._relative(self._ema.gather(1, where))
        return self._out(weight.masked_fill(~inside, torch.nan))

    def to_frame(self) -> pd.DataFrame:
        """Return the state as a pandas DataFrame, a row per sample; with a run axis, named by run and sample.

        >>> ages = SampleAges([0, 0, 1])
        >>> ages.observe([0, 2], [True, False])
        >>> ages.advance()
        >>> print(ages.to_frame())
                label  age  smoothed_age    weight
        sample
        0           0    1           1.0  0.666667
        1           0    1           NaN  0.666667
        2           1    2           2.0  1.333333
        """
        pandas: Any = need("pandas", "a DataFrame")
        rows = pandas.MultiIndex.from_product(map(range, self._age.shape), names=["run", "sample"])
        columns = {"label": self.labels, "age": self._age, "smoothed_age": self._ema, "weight": self.weights}
        arrays = {name: value.expand_as(self._age).flatten().cpu().numpy() for name, value in columns.items()}
        frame: pd.DataFrame = pandas.DataFrame(arrays, index=rows)
        return frame.droplevel("run") if self._single else frame

    def oldest(self, k: int) -> pd.DataFrame:
        """Return the k samples that are wrong for longest, oldest first, as rows of `to_frame`; k per run.

        Ties are broken by the smoothed age, then by position. Samples that were right when last seen are left out.

        >>> ages = SampleAges([0, 0, 1], rho=0.5)
        >>> for correct in ([False, False, True], [False, True, False]):
        ...     ages.observe([0, 1, 2], correct)
        ...     ages.advance()
        >>> ages.oldest(2)["age"].to_dict()
        {0: 3, 2: 2}
        """
        frame, wanted = self.to_frame(), _check.whole("k", k, 0)
        run: list[Any] = frame.index.names[:-1]  # with a run axis
        keys, order = [*run, "age", "smoothed_age"], [True] * len(run) + [False, False]
        oldest = frame[frame["age"] > 1].sort_values(keys, ascending=order)
        return oldest.groupby(run).head(wanted) if run else oldest.head(wanted)

    def observe(self, index: _check.Integers, correct: _check.Truths, label: _check.Integers | None = None) -> None:
        """Record which of these samples were predicted right; for a repeated index the last value counts.

        `index` is `[B]` or `[R, B]`, `correct` is `[B]`, or `[R, B]` with a run axis. Values outside their range raise
        an error; tensors on a CUDA device are not read, and `advance` raises it. `label`, of the shape of `index`, is
        compared with the labels of this state: ValueError where they differ. This synchronises a CUDA device.
        """
        where, inside = self._places("index", index, self.num_samples, "samples of these ages")
        right, inside = self._truths(correct, inside, "index")
        if label is not None:
            given, own = _check.integers("label", label, device=self.device), self._labels[where].to(torch.int64)
            if given.shape not in (own.shape, own.shape[1:]):
                raise ValueError(f"label must have the shape {list(own.shape[1:])} of index, not {list(given.shape)}.")
            wrong = (own != given) & inside
            if bool(wrong.any()):
                sample, here, there = (int(value[wrong][0]) for value in (where, own, given.expand_as(own)))
                raise ValueError(
                    f"label must be the class of each sample, but differs for {int(wrong.sum()):,} of "
                    f"{wrong.numel():,}: sample {sample} has class {here}, not {there}. Are the data in another order?"
                )
        self._refused.logical_or_(~inside.all())
        mark(self._observed, where.masked_fill(~inside, self.num_samples), right)

    def advance(self, *, sync: bool = True) -> None:
        """End the epoch: update the ages. Collective under `torch.distributed`, unless `sync=False`."""
        allowed = f"index must lie in 0 to {self.num_samples - 1}, and correct be true or false (not predicted classes)"
        together = self._begin(sync, allowed)
        observed = marks_of_all(self._observed) if together else self._observed
        # 24 fraction bits are exact; fewer where sums of all samples could overflow.
        bits = 62 - self.num_samples.bit_length() - min(self.epoch + 3, 2**31 - 1).bit_length()
        unit = 2.0 ** max(0, min(24, bits))
        self._unit.fill_(unit)
        self._total.zero_()
        self._seen.zero_()
        size = max(1, _BLOCK // len(self._rho))
        blocks = (torch.split(value, size, -1) for value in (self._age, self._ema, observed[:, :-1], self._labels))
        for age, ema, marks, labels in zip(*blocks, strict=True):
            older = (marks > 0) | (age > 0) if self.absent == "grow" else marks > 0
            age.copy_(torch.where(older, age_step(age.clamp_min(1), marks == RIGHT), age))
            now = age.to(torch.float32)
            before = torch.where(ema.isnan(), now, ema)  # the first age starts the EMA
            folded = torch.maximum(before, now) if self.fuse == "peak" else blend(before, now, self._rho)
            ema.copy_(torch.where(older, folded, ema))
            label = labels.to(torch.int64).expand_as(ema)
            self._seen.scatter_add_(1, label, (~ema.isnan()).to(torch.int64))
            self._total.scatter_add_(1, label, (ema.nan_to_num(0.0) * unit).round_().to(torch.int64))
        some = observed.any()
        self._end()
        if self.absent == "keep":
            self._warn_of_nothing(some)

    def _settings(self) -> dict[str, object]:
        sizes = {"num_samples": self.num_samples, "num_classes": self.num_classes, _check.HASH: self._digest}
        return {**super()._settings(), **sizes, "fuse": self.fuse, "absent": self.absent}
