"""Losses for unequal classes, as modules: `criterion = ...`, `loss = criterion(model(x), y)`; nothing else changes.

All follow `torch.nn.CrossEntropyLoss`: logits `[C]`, `[B, C]` or `[B, C, ...]`; indices of the other dimensions, or
soft targets in the shape of the logits (mixup); `ignore_index`, `label_smoothing`, `reduction`. In training mode with
gradients enabled they adjust the loss and learn from the batch. In `criterion.eval()` or `torch.no_grad()` they are
plain cross-entropy and learn nothing; `model.eval()` does not reach a criterion. `torch.utils.checkpoint` must not
contain one: it would call it twice for a batch.

What they learn is in buffers: in `state_dict()`, float32 after `.half()`, moved to the device of the logits at first
use. Processes of `torch.distributed` must call equally often, with batches of any size: a training call adds C numbers
up (2 C for ages, 3 C for margins) in one all-reduce. Nothing waits for a GPU; `torch.compile` does not recompile. This
file needs PyTorch only: it can be copied. Leading dimensions of rules are runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Self, SupportsIndex

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

if TYPE_CHECKING:
    from aol.ages import SampleAges


def label_counts(target: Tensor, num_classes: int, *, ignore_index: int = -100) -> Tensor:
    """Return how often each class is in targets, `float32 [C]`; soft targets `[C]` or `[B, C, ...]` add their shares.

    >>> label_counts(torch.tensor([0, 2, 2, -100]), 3)
    tensor([1., 0., 2.])
    """
    if target.is_floating_point():
        shares = _rows(target.detach()).float().clamp(min=0.0).sum(0)
        return torch.where(shares.isfinite().all(), shares, 0.0)
    label, kept = _labels(target, ignore_index)
    return _by_class(kept, label, num_classes)


def counts_step(counts: Tensor, new: Tensor, memory: float | Tensor | None = None) -> Tensor:
    r"""Return the next running counts, `[..., C]`: the sum or, with a memory, an average over about so many labels.

    .. math:: n \leftarrow k\, n + (1 - k)\, M\, \frac{b}{|b|}, \qquad k = \exp(-|b| / M), \qquad |b| = \sum_c b_c

    Here n is `counts`, zero at the start; b is `new`, the labels that have come since; M is `memory`, in labels.

    >>> counts_step(torch.tensor([30.0, 10.0]), torch.tensor([0.0, 20.0]), memory=40)
    tensor([18.1959, 21.8041])
    """
    if memory is None:
        return counts + new
    number = new.sum(-1, keepdim=True)
    forget = -torch.expm1(-number / memory)  # 1 - k, without the rounding of k
    return counts + forget * (memory * new / number.clamp(min=1e-6) - counts)


def count_offsets(counts: Tensor, tau: float | Tensor = 1.0) -> Tensor:
    r"""Return the offsets of logit adjustment, `[..., C]`. A class that has not come yet counts as seen once.

    .. math:: o_c = \tau\,(\log n_c - \tfrac{1}{C} \sum_k \log n_k)

    >>> count_offsets(torch.tensor([1000.0, 10.0, 0.0]))
    tensor([ 3.8376, -0.7675, -3.0701])
    """
    log = counts.clamp(min=1.0).log()
    return tau * (log - log.mean(-1, keepdim=True))


def margin_sums(logits: Tensor, target: Tensor, seen: Tensor, *, ignore_index: int = -100) -> Tensor:
    """Return what `margin_step` needs of a batch, `float32 [3, C]`; batches between two steps add up.

    By class: its labels; the probability that they miss; and the probability that samples of other classes give to it,
    divided by `seen [C]`, the labels of their own class so far.
    """
    share = _rows(logits.detach()).float().softmax(1)
    unit = seen.clamp(min=1.0).reciprocal()
    if target.is_floating_point():
        soft = _rows(target.detach()).float()
        number, own, weight = soft.sum(0), (soft * share).sum(0), (soft * unit).sum(1)
    else:
        label, kept = _labels(target, ignore_index)
        values = torch.stack((kept, kept * share.gather(1, label[:, None]).squeeze(1)))
        number, own = _by_class(values, label, share.shape[1])
        weight = kept * unit[label]
    # No matrix product, which autocast would round.
    sums = torch.stack((number, number - own, (weight[:, None] * share).sum(0) - unit * own))
    return torch.where(sums.isfinite().all(0).all(), sums, 0.0)  # an overflow, whose step a scaler of gradients skips


def margin_step(
    offset: Tensor, state: Tensor, sums: Tensor, *, gain: float = 0.1, rho: float = 0.2, few: float = 2.0
) -> tuple[Tensor, Tensor]:
    r"""Return the next offsets `[..., C]` and moving sums `[3, ..., C]`, by the `margin_sums` since the last step.

    .. math:: o_c \leftarrow o_c - g \log \frac{n_c m_c + \epsilon}{n_c q_c + \epsilon}, \;
        m_c = \operatorname*{mean}_{y_i = c} (1 - p_{ic}), \; q_c = \sum_{d \ne c} \operatorname*{mean}_{y_i = d} p_{ic}

    A class that is missed (m) more than samples of others claim it (q) gets a lower offset. ε, `few` errors of mean
    size, lets a class with few labels move little, and none once all errors are gone.

    >>> margin_step(torch.zeros(2), torch.zeros(3, 2), torch.tensor([[90.0, 10], [9, 6], [0.6, 0.1]]))[0]
    tensor([ 0.1664, -0.1664])
    """
    state = (1 - rho) * state + sums.clamp(min=0.0)
    number, missed, claimed = state
    small = few * (missed.sum(-1, keepdim=True) / number.sum(-1, keepdim=True).clamp(min=1.0) + 0.01)
    moved = offset - gain * ((missed + small) / (claimed * number + small)).log()
    return moved - moved.mean(-1, keepdim=True), state


def class_age_step(
    age: Tensor, ema: Tensor, accuracy: Tensor, rho: float | Tensor, threshold: str | float | Tensor = "median"
) -> tuple[Tensor, Tensor]:
    r"""Return the next ages of classes and their moving average, `[..., C]`: the paper's equations 14, 4 and 5.

    .. math:: a_c \leftarrow \begin{cases} a_c + 1 & r_c < \tau \\ 1 & r_c \ge \tau \\ a_c & \text{c not observed}
        \end{cases} \qquad \bar a_c \leftarrow (1 - \rho)\, \bar a_c + \rho\, a_c

    `age` starts as one, `ema` as NaN. `accuracy`, r, is NaN where a class was not observed. τ is the "median" of the
    observed accuracies, "positive-median" (never zero), or a number, also one per run.

    >>> class_age_step(torch.ones(3), torch.ones(3), torch.tensor([0.9, 0.5, 0.1]), rho=0.5)
    (tensor([1., 1., 2.]), tensor([1.0000, 1.0000, 1.5000]))
    """
    if isinstance(threshold, str):
        median = accuracy.nanquantile(0.5, -1, keepdim=True)
        threshold = median if threshold == "median" else median.clamp(min=torch.finfo(median.dtype).tiny)
    age = torch.where(accuracy.isnan(), age, torch.where(accuracy < threshold, age + 1, 1))
    now = age.to(ema.dtype)
    return age, torch.where(ema.isnan(), now, torch.lerp(ema, now, rho))


def _rows(value: Tensor) -> Tensor:
    """Return `[n, C]`, of `[C]`, `[B, C]` or `[B, C, ...]`."""
    return value[None] if value.dim() == 1 else value.movedim(1, -1).flatten(0, -2)


def _labels(target: Tensor, ignore_index: int) -> tuple[Tensor, Tensor]:
    """Return class indices `[n]`, 0 where ignored, and whether they count, 1.0 or 0.0."""
    label = target.reshape(-1).long()  # cross-entropy takes bytes, too, which as an index would be a mask
    kept = label != ignore_index
    return torch.where(kept, label, 0), kept.float()


def _by_class(values: Tensor, label: Tensor, num_classes: int) -> Tensor:
    """Return sums of values `[..., n]` by class, `[..., C]`."""
    # One kernel with all that follows, where a scatter takes two; for very many classes it would be the slower way.
    if torch.compiler.is_compiling() and values.is_cuda and num_classes <= 4096:
        own = torch.arange(num_classes, device=label.device)[:, None] == label
        return torch.where(own, values[..., None, :], 0.0).sum(-1)
    return values.new_zeros(*values.shape[:-1], num_classes).scatter_add_(-1, label.expand_as(values), values)


def _plus(logits: Tensor, offset: Tensor) -> Tensor:
    return logits + offset.to(logits.device).view(-1, *[1] * max(logits.dim() - 2, 0))  # float32, or float64 of such


def _kept(value: Tensor) -> Tensor:
    """Return a vector that a compiled backward pass uses as it is now, in place of computing it again."""
    # A minimum is never computed again; that of one value takes no kernel.
    return value[None].amin(0) if torch.compiler.is_compiling() else value


def _of_all_processes(value: Tensor) -> Tensor:
    """Add up a fresh tensor over all processes, in place, and return it."""
    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        dist.all_reduce(value)
    return value


def _is_whole(value: object) -> bool:
    return isinstance(value, SupportsIndex) and not isinstance(value, bool)  # also of NumPy


def _within(low: float, value: Any, high: float) -> bool:
    try:
        return bool(low <= value <= high)
    except (TypeError, ValueError, RuntimeError):  # no number
        return False


def _counts(given: Any, num_classes: int) -> Tensor:
    """Return given counts as `float32 [C]`; refuse a pandas Series in the order of `value_counts()`, by frequency."""
    wanted = f"counts must be {num_classes} numbers of samples (not shares)"
    if hasattr(given, "to_numpy") and hasattr(given, "index"):
        index = list(given.index)
        ordered = index == list(range(len(index))) or not all(map(_is_whole, index))
        _require(ordered, "counts must be in the order of the classes: use .reindex(range(num_classes))", index)
        given = given.to_numpy().copy()
    try:
        counts = torch.as_tensor(given).detach().float().clone()
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"{wanted}, not {given!r}.") from error
    whole = (counts == 0) | ((counts >= 1) & counts.isfinite())
    _require(counts.shape == (num_classes,) and bool(whole.all()), wanted, given)
    return counts


def _require(holds: bool, what: str, given: object) -> None:
    if not holds:
        raise ValueError(f"{what}, not {given!r}.")


class KeepsTypes(nn.Module):
    """A module whose tensors keep their type: `half()` and `to(bfloat16)` must not round what is counted."""

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        def keep_type(value: Tensor) -> Tensor:
            moved = fn(value)
            return moved if moved.dtype == value.dtype else value.to(moved.device)

        return super()._apply(keep_type, recurse)  # type: ignore[no-untyped-call, no-any-return]


class _Criterion(KeepsTypes):
    """What the losses share: arguments of cross-entropy, and buffers that follow the logits."""

    _settings: tuple[str, ...] = ()  # further ones, that are printed

    def __init__(
        self,
        num_classes: int,
        *,
        ignore_index: int = -100,
        label_smoothing: float = 0.0,
        reduction: str = "mean",
        **unknown: object,
    ) -> None:
        super().__init__()
        if unknown:
            known = "of torch.nn.CrossEntropyLoss it has ignore_index, label_smoothing and reduction"
            raise TypeError(f"{type(self).__name__} has no argument {', '.join(unknown)}: {known}.")
        good = _is_whole(num_classes) and num_classes >= 1
        _require(good, "num_classes must be a whole number of 1 or more", num_classes)
        _require(reduction in ("mean", "sum", "none"), "reduction must be 'mean', 'sum' or 'none'", reduction)
        _require(_within(0, label_smoothing, 1), "label_smoothing must be a number from 0 to 1", label_smoothing)
        self.num_classes, self.ignore_index = int(num_classes), ignore_index
        self.label_smoothing, self.reduction = label_smoothing, reduction

    def extra_repr(self) -> str:
        """Return the settings, for `print(criterion)`."""
        names = ("num_classes", *self._settings, "ignore_index", "label_smoothing", "reduction")
        return ", ".join(f"{name}={getattr(self, name)!r}" for name in names)

    def _add(self, **buffers: Tensor) -> None:
        for name, value in buffers.items():
            self.register_buffer(name, value)

    def _cross_entropy(self, logits: Tensor, target: Tensor, reduction: str | None = None) -> Tensor:
        options: dict[str, Any] = {"ignore_index": self.ignore_index, "label_smoothing": self.label_smoothing}
        return F.cross_entropy(logits, target, reduction=reduction or self.reduction, **options)

    def _learning(self, logits: Tensor, target: Tensor) -> bool:
        """Return whether this is a training call; then check shapes, and move the state to the device of the logits."""
        if not (self.training and torch.is_grad_enabled()):
            return False
        for name, given in (("logits", logits), ("target", target)):
            if not isinstance(given, Tensor):
                raise TypeError(f"{name} must be a tensor, not {type(given).__name__}.")
        shape, place = logits.shape, min(1, logits.dim() - 1)
        wanted = shape if target.is_floating_point() else shape[:place] + shape[place + 1 :]
        if place < 0 or shape[place] != self.num_classes or target.shape != wanted:
            raise ValueError(
                f"logits must be [B, C, ...] with C = {self.num_classes} (num_classes), and target indices [B, ...] or "
                "floating-point soft targets [B, C, ...], "
                f"not {list(shape)} and {list(target.shape)} of {target.dtype}."
            )
        if target.device.type == "cpu" and not (target.is_floating_point() or torch.compiler.is_compiling()):
            label = target[target != self.ignore_index]
            low, high = (int(end) for end in label.aminmax()) if label.numel() else (0, 0)
            if low < 0 or high >= self.num_classes:
                wrong = low if low < 0 else high
                raise IndexError(f"target must lie in 0 to {self.num_classes - 1} (num_classes - 1), not {wrong}.")
        for name, value in self.named_buffers(recurse=False):
            if value.device != logits.device == target.device:  # else the call fails, and moves nothing
                setattr(self, name, value.to(logits.device))
        return True


class _Adjusted(_Criterion):
    offset: Tensor  # of τ = 1

    def __init__(self, num_classes: int, tau: float, **cross_entropy: Any) -> None:
        super().__init__(num_classes, **cross_entropy)
        _require(_within(0, tau, 1e300), "tau must be a number of 0 or more", tau)
        self.tau = tau

    @property
    def offsets(self) -> Tensor:
        """What is added to the logits in training, `float32 [C]`, with mean zero."""
        return self.tau * self.offset

    def with_prior(self, logits: Tensor) -> Tensor:
        """Return logits plus the offsets: calibrated for the prior of training; logits alone are for equal classes."""
        return _plus(logits, self.offsets)


class LogitAdjustedLoss(_Adjusted):
    r"""Logit-adjusted cross-entropy (Menon et al. 2021; balanced softmax for τ = 1) that counts labels as they come.

    .. math:: \ell = -\log \frac{n_y^\tau \exp z_y}{\sum_c n_c^\tau \exp z_c}

    Predict with the logits alone. A class that has not come yet counts as seen once.

    Args:
        num_classes: C.
        counts: n, the samples by class, if known. By default labels are counted as they come, the batch included.
        tau: τ. More than 1 is for image networks in long trainings only.
        memory: n is an average over about so many labels, of all processes, for a stream whose head moves: a
            twentieth of the labels between two moves, or fewer. By default nothing is forgotten.
        **cross_entropy: `ignore_index`, `label_smoothing`, `reduction`, as of `torch.nn.CrossEntropyLoss`.

    >>> criterion = LogitAdjustedLoss(2)
    >>> loss = criterion(torch.zeros(10, 2, requires_grad=True), torch.tensor([0] * 9 + [1]))
    >>> round(loss.item(), 4)  # nine times -log 0.9, once -log 0.1
    0.3251
    >>> criterion.counts, criterion.offsets
    (tensor([9., 1.]), tensor([ 1.0986, -1.0986]))
    """

    counts: Tensor
    _settings = ("tau", "memory")

    def __init__(
        self,
        num_classes: int,
        *,
        counts: Tensor | Sequence[float] | None = None,
        tau: float = 1.0,
        memory: float | None = None,
        **cross_entropy: Any,
    ) -> None:
        super().__init__(num_classes, tau, **cross_entropy)
        good = memory is None or (counts is None and _within(0, memory, 1e300) and memory != 0)
        _require(good, "memory must be a number of labels above 0, without counts", memory)
        self.memory, self.learns = memory, counts is None
        self._add(counts=torch.zeros(num_classes) if counts is None else _counts(counts, self.num_classes))

    @property
    def offset(self) -> Tensor:  # type: ignore[override]
        """The offsets for τ = 1."""
        return count_offsets(self.counts)

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return the loss of logits `[B, C, ...]` for class indices `[B, ...]` or soft targets `[B, C, ...]`."""
        if not self._learning(logits, target):
            return self._cross_entropy(logits, target)
        counts = self.counts
        if self.learns:
            with torch.no_grad():
                new = _of_all_processes(label_counts(target, self.num_classes, ignore_index=self.ignore_index))
                counts = counts_step(counts, new, self.memory)
        # Cross-entropy needs no centred offsets, and so one pass less over the classes.
        offset = counts.clamp(min=1.0).log() if torch.compiler.is_compiling() else count_offsets(counts)
        loss = self._cross_entropy(_plus(logits, _kept(self.tau * offset)), target)
        if self.learns:  # last: a call that fails teaches nothing
            self.counts.copy_(counts)
        return loss


class MarginLoss(_Adjusted):
    r"""Cross-entropy with offsets that make every class as much missed as claimed by samples of others.

    `margin_step` moves the offsets by the answers of the last `every` training calls, without an extra pass. Predict
    with the logits alone. Prefer `LogitAdjustedLoss`, which gained as much or more in all comparisons.

    Args:
        num_classes: C.
        every: training calls between two moves; a training should have 100 moves or more.
        tau: strength: the offsets are τ times those that make classes even.
        **cross_entropy: `ignore_index`, `label_smoothing`, `reduction`, as of `torch.nn.CrossEntropyLoss`.

    >>> criterion = MarginLoss(2, every=1)
    >>> logits, label = torch.tensor([[2.0, 0.0]] * 8 + [[1.0, 0.0]] * 2), torch.tensor([0] * 8 + [1] * 2)
    >>> for _ in range(5):  # class 1 is missed, and class 0 is claimed
    ...     loss = criterion(logits.requires_grad_(), label)
    >>> criterion.offsets
    tensor([ 0.6131, -0.6131])
    """

    state: Tensor
    sums: Tensor
    calls: Tensor
    _settings = ("every", "tau")

    def __init__(self, num_classes: int, *, every: int = 10, tau: float = 1.0, **cross_entropy: Any) -> None:
        super().__init__(num_classes, tau, **cross_entropy)
        _require(_is_whole(every) and every >= 1, "every must be a whole number of 1 or more", every)
        self.every = int(every)
        zeros = torch.zeros(3, num_classes)
        self._add(offset=zeros[0].clone(), state=zeros, sums=zeros.clone(), calls=torch.tensor(0))

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return the loss of logits `[B, C, ...]` for class indices `[B, ...]` or soft targets `[B, C, ...]`."""
        if not self._learning(logits, target):
            return self._cross_entropy(logits, target)
        loss = self._cross_entropy(_plus(logits, _kept(self.offsets)), target)
        with torch.no_grad():
            # Strengthened offsets make classes even in the logits plus the part of them that training alone has.
            answers = logits if self.tau == 1 else _plus(logits, (self.tau - 1) * self.offset)
            new = margin_sums(answers, target, self.state[0] + self.sums[0], ignore_index=self.ignore_index)
            sums = self.sums + _of_all_processes(new)
            offset, state = margin_step(self.offset, self.state, sums)
            due = self.calls.add_(1) % self.every == 0
            self.offset.copy_(torch.where(due, offset, self.offset))
            self.state.copy_(torch.where(due, state, self.state))
            self.sums.copy_(torch.where(due, 0.0, sums))
        return loss


class AgeWeightedLoss(_Criterion):
    r"""Cross-entropy weighted by the Age of Learning: for how long a class, or a sample, has been wrong.

    .. math:: \frac{\sum_i w_i \ell_i}{\sum_i w_i}, \qquad w_c = \frac{\bar a_c}{\frac{1}{C} \sum_k \bar a_k}

    With `num_classes`, classes grow older by the answers in training. With `ages`, the weights are those of samples
    that come back, advanced by a watch or by your own clean passes.

    Args:
        num_classes: C.
        ages: a `SampleAges`, instead of all other settings; not part of the `state_dict`.
        rho: smoothing rate of ages, in [0, 1]; 0 means uniform weights.
        threshold: a class below it grows older: "median" of the accuracies, "positive-median", or a number.
        every: labels between two updates, 20 C by default: of a few labels, the median accuracy is mostly 0.
        **cross_entropy: `ignore_index`, `label_smoothing`, `reduction`, as of `torch.nn.CrossEntropyLoss`.

    >>> criterion = AgeWeightedLoss(2, rho=1.0, every=2)
    >>> logits = torch.tensor([[2.0, 0.0]] * 2, requires_grad=True)
    >>> for _ in range(2):
    ...     loss = criterion(logits, torch.tensor([0, 1]))  # class 1 is wrong
    >>> criterion.class_weight
    tensor([0.5000, 1.5000])
    """

    ages: SampleAges | None
    counts: Tensor
    age: Tensor
    ema: Tensor
    _settings: tuple[str, ...] = ("rho", "threshold", "every")

    def __init__(
        self,
        num_classes: int | None = None,
        *,
        ages: SampleAges | None = None,
        rho: float = 0.5,
        threshold: str | float = "median",
        every: int | None = None,
        **cross_entropy: Any,
    ) -> None:
        _require((num_classes is None) != (ages is None), "num_classes or ages must be given", (num_classes, ages))
        _require(ages is None or hasattr(ages, "level"), "ages must be SampleAges", ages)
        super().__init__(num_classes if ages is None else ages.num_classes, **cross_entropy)  # type: ignore[arg-type]
        self.__dict__["ages"] = ages  # not a sub-module: a watch saves and moves it
        if ages is not None:
            _require(ages.class_weight.dim() == 1, "ages must have one rho", ages)
            self._settings = ("ages",)
            return
        _require(_within(0, rho, 1), "rho must be a number from 0 to 1", rho)
        good = threshold in ("median", "positive-median") if isinstance(threshold, str) else _within(0, threshold, 1)
        _require(good, "threshold must be 'median', 'positive-median' or a number from 0 to 1", threshold)
        _require(every is None or _within(1, every, 1e300), "every must be a number of labels, 1 or more", every)
        self.rho, self.threshold, self.every = rho, threshold, every or 20 * self.num_classes
        ones = torch.ones(2, self.num_classes)
        self._add(counts=0 * ones, age=ones[0].int(), ema=ones[0] * torch.nan)

    @property
    def class_weight(self) -> Tensor:
        """The weights of the classes, `float32 [C]`, with mean one."""
        if self.ages is not None:
            return self.ages.class_weight
        ema = self.ema.nan_to_num(1.0)
        return ema / ema.mean() if self.rho else torch.ones_like(ema)

    def forward(self, logits: Tensor, target: Tensor, index: Tensor | None = None) -> Tensor:
        """Return the loss of logits `[B, C, ...]` for class indices `[B, ...]` or soft targets `[B, C, ...]`.

        `index [B]`: which samples these are. Only `ages` with level="sample" use it, in training.
        """
        if not self._learning(logits, target):
            return self._cross_entropy(logits, target)
        losses = self._cross_entropy(logits.to(torch.promote_types(logits.dtype, torch.float32)), target, "none")
        with torch.no_grad():
            weight = self._weight(target, index, losses.shape)
            if self.ages is None:
                self._observe(logits, target)
        losses, total = weight * losses, weight.sum() if self.reduction == "mean" else 1.0
        return losses if self.reduction == "none" else losses.sum() / total

    def _weight(self, target: Tensor, index: Tensor | None, shape: torch.Size) -> Tensor:
        """Return the weight of every target: of a soft one, the mean of its classes; of an ignored one, 0."""
        if self.ages is not None and self.ages.level == "sample":
            if index is None:
                raise ValueError("index must be given: ages with level='sample' have a weight for each sample.")
            weight = self.ages.weight(index)
            size = shape[0] if shape else 1
            _require(weight.numel() == size, "index must be [B], one a sample", list(weight.shape))
            weight = weight.to(target.device).view(shape[:1] + (1,) * (len(shape) - 1)).expand(shape)
        else:
            weight = _kept(self.class_weight.to(target.device))
            if target.is_floating_point():
                return (_rows(target).float() * weight).sum(1).view(shape)
            weight = weight[_labels(target, self.ignore_index)[0]].view(shape)
        return weight if target.is_floating_point() else weight * (target.long() != self.ignore_index)

    def _observe(self, logits: Tensor, target: Tensor) -> None:
        """Count right answers by class; once `every` labels have come, classes grow older, or young again."""
        label, kept = _labels(_rows(target).argmax(1) if target.is_floating_point() else target, self.ignore_index)
        values = torch.stack((kept, kept * (_rows(logits).argmax(1) == label)))
        counts = self.counts + _of_all_processes(_by_class(values, label, self.num_classes))
        seen, right = counts
        age, ema = class_age_step(self.age, self.ema, right / seen, self.rho, self.threshold)
        due = seen.sum() >= self.every
        self.age.copy_(torch.where(due, age, self.age))
        self.ema.copy_(torch.where(due, ema, self.ema))
        self.counts.copy_(torch.where(due, 0.0, counts))
