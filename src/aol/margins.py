"""Margins: offsets of the logits in training, from the answers of the model.

Training uses the logits plus the offsets; prediction uses the logits alone. A class with a negative offset must be
learnt with room to spare, and is then predicted more often.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from aol import _check, _distributed
from aol._seal import sealed
from aol._state import State
from aol.ages.rules import age_step
from aol.ages.sample import SampleAges
from aol.losses import with_offset

SIGNALS = ("probability", "error", "age")
_LONGEST = 2**10 - 1  # a longer age counts as this
_BITS = 60  # of sums of squares as integers
_SHARE = 2.0**30  # the unit of probabilities as integers, so that sums do not depend on the order
_DENSE = 2048  # up to this many classes, errors are counted by pairs of classes
_MOST_PAIRED = 2**15  # classes: pairs of them take 34 GB
_MOST_COUNTED = 2**32  # samples per advance: sums of integers must not wrap
_ROUNDING = 0.02  # of the sum of probabilities in bfloat16
_BY_CHANCE = 20.0  # minus the logarithm of a probability: what is rarer is no chance


def control_error(missed: Tensor, claimed: Tensor, *, floor: float = 0.02) -> Tensor:
    r"""Return how much more each class is missed than claimed, on a logarithmic scale, with mean zero, `[..., C]`.

    .. math:: e_c = \log\Big(\frac{m_c}{\bar m} + \epsilon\Big) - \log\Big(\frac{q_c}{\bar m} + \epsilon\Big) - \bar e

    Args:
        missed: m, the mean strength of errors on samples of the class; NaN where unknown, which gives 0.
        claimed: q, the strength of errors that name the class, in the same unit.
        floor: ε, so that classes without errors have a finite value.

    >>> control_error(torch.tensor([0.1, 0.3]), torch.tensor([0.3, 0.1]))
    tensor([-1.0726,  1.0726])
    """
    scale = missed.nanmean(-1, keepdim=True)
    error = (missed / scale + floor).log() - (claimed / scale + floor).log()
    return (error - error.nanmean(-1, keepdim=True)).nan_to_num(0.0, 0.0, 0.0)


def certainty(difference: Tensor, variance: Tensor, width: float | Tensor) -> Tensor:
    r"""Return the part of a difference that lies outside its dead zone, in [0, 1].

    .. math:: \max\Big(0,\; 1 - \frac{w \sqrt{v}}{|d|}\Big)

    >>> certainty(torch.tensor([0.1, 0.4, 0.0]), torch.tensor([0.04, 0.04, 0.0]), 1.0)
    tensor([0.0000, 0.5000, 0.0000])
    """
    return (1 - width * variance.sqrt() / difference.abs()).nan_to_num(0.0, 0.0, 0.0).clamp_min(0.0)


class Margins(State):
    r"""Offsets of the logits that make every class as much missed as wrongly named, found while training.

    No class counts are needed. Call `observe` with the probabilities of samples (from unadjusted logits), any number of
    times, then `advance` once per epoch or, in a short training, after every few steps. Train on `adjust(logits)`;
    predict with the logits alone.

    .. math::
        m_c = \operatorname*{mean}_{y_i = c} (1 - p_{ic}), \qquad
        q_c = \sum_{d \ne c} \operatorname*{mean}_{y_i = d} p_{ic}, \qquad
        o_c \leftarrow o_c - k\, g_c\, e_c

    Here e is `control_error` of the smoothed m and q, and g the `certainty` of m - q: offsets move only where the
    difference is more than sampling and the swings of the network from epoch to epoch explain. After one epoch nothing
    is known of swings, and nothing moves. A class that was not observed since the last `advance` keeps its m and its
    part of the q of others, until it is away for longer than chance explains. A calibrated network has m = q on
    balanced data without offsets, and on long-tailed data with those of `logit_offsets`.

    Args:
        num_classes: C. Without it, the classes are those of `labels`; without these either, a class is added when it is
            first observed or answered. Its offset starts at zero, the mean of all.
        labels: the class of each of the N samples, where samples come back every epoch. `observe` then takes the index
            of samples instead of their labels.
        signal: what of an answer counts. "probability": the probability of wrong classes. "error": one for a wrong
            answer, p is 0 or 1. "age": the same times how often in a row the sample was wrong or, without `labels`,
            how many steps in a row its class was taken for the answer.
        gain: k, the speed of offsets per `advance`; the default is for 30 calls or more. A vector of R numbers gives
            every state a leading run axis, and `observe` then takes `answer [R, B, C]`. 0 keeps all offsets at zero.
        rho: smoothing rate of m and q, in (0, 1]; also one per run. The first 1 / ρ epochs count alike.
        tau: strength, as of `logit_offsets`; also one per run. Training uses τ o, and p is taken from the logits plus
            (τ - 1) o, so that the offsets found are those of τ = 1. Other than 1 only for the signal "probability".
        width: of the dead zone, in standard errors of m - q.
        limit: the largest offset.
        pairs: count errors by pairs of classes (32 C² bytes), so that classes count the same whatever their sizes. By
            default up to 2048 classes, and always for ages of pairs. Otherwise the state is O(C), and q takes the sizes
            of classes from `labels`, or from earlier steps: give `labels` where steps show few of the classes.
        device: device of the state.

    Under `torch.distributed` each process observes its share, and `advance` (collective) adds the counts.

    >>> margins = Margins(2, gain=0.1)
    >>> for _ in range(3):
    ...     margins.observe([0] * 90 + [1] * 10, torch.tensor([[0.9, 0.1]] * 90 + [[0.6, 0.4]] * 10))
    ...     margins.advance()
    >>> margins.offsets
    tensor([ 0.2630, -0.2630])
    >>> margins.adjust(torch.tensor([[1.0, 1.0]]))
    tensor([[1.2630, 0.7370]])
    """

    _SETTINGS = ("_rho", "_gain", "_tau", "_labels")
    _BY_CLASS: Mapping[str, float] = {
        "_offset": 0, "_missed": torch.nan, "_variance": 0, "_count": 0, "_swing": torch.nan, "_times": 0,
        "_first": 0, "_last": 0,
    }  # fmt: skip

    def __init__(
        self,
        num_classes: int | None = None,
        *,
        labels: _check.Integers | None = None,
        signal: str = "probability",
        gain: _check.Rate = 0.1,
        rho: _check.Rate = 0.3,
        tau: _check.Rate = 1.0,
        width: float = 1.0,
        limit: float = 5.0,
        pairs: bool | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        self._open = num_classes is None and labels is None
        if num_classes is None:
            num_classes = 1 if labels is None else _check.labels(labels, None, None)[1]
        self.num_classes = _check.classes(num_classes)
        self.signal = _check.choice("signal", signal, SIGNALS)
        speed, rate = _check.rates("gain", gain, 0.0, 1e3), _check.rates("rho", rho, 0.0, 1.0)
        strength = _check.rates("tau", tau, 0.0, 1e3)
        if bool((rate == 0).any()):
            raise ValueError("rho must be above 0: with 0, margins would follow the first epoch for ever.")
        runs = max(each.numel() for each in (speed, rate, strength))
        for name, each in (("gain", speed), ("rho", rate), ("tau", strength)):
            if each.dim() and each.numel() != runs:
                raise ValueError(f"{name} must be one number, or one for each of {runs} runs, not {each.numel()}.")
        self._strong = bool((strength != 1).any())
        if self.signal != "probability" and self._strong:
            raise ValueError(f'tau must be 1 with signal={self.signal!r}; only "probability" has a strength.')
        self.width = _check.number("width", width, 0.0, 1e3)
        self.limit = _check.number("limit", limit, 0.0, 1e3)
        if pairs is not None and not isinstance(pairs, bool):
            raise TypeError(f"pairs must be True, False or None, not {_check.shown(pairs)}.")
        of_pairs = self.signal == "age" and labels is None
        if of_pairs and pairs is False:
            raise ValueError('pairs=False needs labels with signal="age", or another signal.')
        self.pairs = (of_pairs or self.num_classes <= _DENSE) if pairs is None else pairs
        self._check_room(self.num_classes)
        self._single = not any(each.dim() for each in (speed, rate, strength))
        place = _check.device(device)
        self._labels, self.ages, self._digest = None, None, ""
        if labels is not None:
            found, _ = _check.labels(labels, self.num_classes, place)
            self._labels, self._digest, place = found.to(torch.int32), _check.fingerprint(found), found.device
        self._start(runs, place)
        self._gain, self._rho, self._tau = (
            each.expand(runs).to(self._offset.device, torch.float64) for each in (speed, rate, strength)
        )
        if self.signal == "age" and self._labels is not None:
            self.ages = SampleAges(self._labels, num_classes=self.num_classes, rho=[1.0] * runs, device=place)

    def _start(self, runs: int, device: torch.device | None) -> None:
        """Set up the state: sums since the last advance, by (class, answer) or by class; smoothed values; offsets."""
        size = self.num_classes
        self.epoch = 0
        self._offset = torch.zeros((runs, size), dtype=torch.float64, device=device)
        self._highest = torch.zeros(1, dtype=torch.float64, device=device)  # learning rate so far
        self._missed = torch.full_like(self._offset, torch.nan)
        self._variance = torch.zeros_like(self._offset)  # of missed, by sampling
        self._swing = torch.full_like(self._offset, torch.nan)  # of m - q from epoch to epoch, squared
        self._times = torch.zeros_like(self._offset)  # epochs in which the class was observed
        self._first, self._last = torch.zeros_like(self._offset), torch.zeros_like(self._offset)  # of these epochs
        self._steps = torch.zeros((runs, 1), dtype=torch.float64, device=device)  # epochs in which any was
        # The last place takes labels and answers outside the classes, so that no check has to synchronise.
        self._count = torch.zeros((runs, size + 1), dtype=torch.int64, device=device)
        # The strengths of errors, and their squares: of every pair of classes, or as missed, then as claimed.
        places = size * size if self.pairs else 2 * size
        self._sums = torch.zeros((2, runs, places), dtype=torch.int64, device=device)
        # Claims and their variance, smoothed: of every pair, as often as its class was observed, or by answer.
        places = size * size if self.pairs else size
        self._claims = torch.zeros((2, runs, places), dtype=torch.float64, device=device)
        if not self.pairs:
            self._size = torch.ones_like(self._offset)
            if self._labels is not None:
                self._size.copy_(torch.bincount(self._labels, minlength=size).clamp_min(1))
        elif self.signal == "age" and self._labels is None:
            self._pair_age = torch.ones((runs, places), dtype=torch.int32, device=device)

    # Reading

    @property
    def offsets(self) -> Tensor:
        """What is added to the logits in training, `float32 [C]` or `[R, C]`; mean zero, unless one is at the limit."""
        return self._out((self._tau[:, None] * self._offset).to(torch.float32))

    @property
    def missed(self) -> Tensor:
        """The smoothed mean strength of errors on samples of each class, `float64 [C]`; NaN if never observed."""
        return self._out(self._missed.clone())

    @property
    def claimed(self) -> Tensor:
        """The smoothed strength of errors that name each class, `float64 [C]`; classes count equally.

        Every error is missed once and claimed once: the sum over classes is that of `missed`. Without pairs of classes
        that is so up to sampling. A class counts no longer if it was not observed for longer than chance explains.
        """
        return self._out(self._claimed()[0])

    def adjust(self, logits: Tensor) -> Tensor:
        """Return the logits for the loss, in training: `logits + offsets`, float32; `[B, C]` or `[R, B, C]`.

        Where classes are added as they are observed, the offset of a class that is not there yet is zero.
        """
        offsets = self.offsets
        if isinstance(logits, Tensor) and logits.is_floating_point():
            if self._open and logits.shape[-1:] > offsets.shape[-1:]:
                offsets = F.pad(offsets, (0, logits.shape[-1] - offsets.shape[-1]))
            runs = [] if self._single else [len(offsets)]
            if [*logits.shape[-1:]] != [*offsets.shape[-1:]] or (runs and [*logits.shape[:-2]] != runs):
                wanted = f"[{', '.join(map(str, [*runs, 'B', offsets.shape[-1]]))}]"
                raise ValueError(f"logits must have the shape {wanted} of these margins, not {list(logits.shape)}.")
        return with_offset(logits, offsets)

    # Classes that are not known in advance

    def _check_room(self, num_classes: int) -> None:
        """Raise ValueError if pairs of so many classes would not fit in memory."""
        if self.pairs and num_classes > _MOST_PAIRED:
            instead = "labels or another signal" if self.signal == "age" else "pairs=False"
            raise ValueError(
                f"num_classes must be at most {_MOST_PAIRED} to count errors by pairs of classes, not {num_classes}. "
                f"Use {instead}."
            )

    def grow(self, num_classes: int) -> None:
        """Make room for more classes. A new one is as if it had been there, but never observed; its offset is zero."""
        now = self.num_classes
        if self._labels is not None:
            raise ValueError("Margins with labels cannot grow: the labels say which classes there are.")
        self._check_room(_check.whole("num_classes", num_classes, now, _check.MOST_CLASSES))
        if not self.pairs:
            size = self._size.masked_fill(self._missed.isnan(), torch.nan).nanmean(1, keepdim=True).nan_to_num(1.0)
        super().grow(num_classes)
        runs, more = len(self._offset), self.num_classes - now
        if self.pairs:  # by class and answer
            self._sums, self._claims = (
                F.pad(each.reshape(2, runs, now, now), (0, more, 0, more)).flatten(-2)
                for each in (self._sums, self._claims)
            )
        else:  # missed, then claimed, by class
            self._sums = F.pad(self._sums.reshape(2, runs, 2, now), (0, more)).flatten(-2)
            self._claims = F.pad(self._claims, (0, more))
            self._size = torch.cat((self._size, size.expand(-1, more)), 1)
        if self.pairs and self.signal == "age":
            self._pair_age = F.pad(self._pair_age.reshape(runs, now, now), (0, more, 0, more), value=1).flatten(-2)

    def _shape_with(self, name: str, more: int) -> list[int]:
        shape, size = super()._shape_with(name, more), self.num_classes + more
        if name in ("_sums", "_pair_age"):
            shape[-1] = size * size if self.pairs else 2 * size
        elif name == "_claims" and self.pairs:
            shape[-1] = size * size
        elif name in ("_claims", "_size"):
            shape[-1] = size
        return shape

    def _observe_new(self, label: object, answer: _check.Numbers, times: object) -> None:
        """Make room for the classes of labels and answers, which are read, then observe; undone if that fails."""
        before = dict(vars(self))  # `grow` replaces tensors, and changes none
        answer = _given(answer)
        shares = answer if answer.is_floating_point() and answer.dim() > 1 else None
        found = {"label": _check.integers("label", label)}
        if shares is None:
            found["answer"] = answer
        for name, each in found.items():
            if each.numel() and int(each.min()) < 0:
                raise IndexError(f"{name} must be 0 or more, not {int(each.min())}.")
        columns = 0 if shares is None else shares.shape[-1]
        classes = max((columns, *(int(each.max()) + 1 for each in found.values() if each.numel())))
        most = _DENSE if self.pairs else _check.MOST_CLASSES
        if classes > most:
            hint = " unless pairs=False" if self.pairs else ""
            raise IndexError(f"label and answer must be below {most} without num_classes{hint}, not {classes - 1}.")
        try:
            self.grow(max(classes, self.num_classes))
            self._open = False
            if shares is not None:
                answer = F.pad(shares, (0, self.num_classes - columns))
            Margins.observe(self, label, answer, times=times)  # type: ignore[arg-type]
            self._open = True
        except Exception:
            vars(self).update(before)
            raise

    # Updating

    def observe(self, label: _check.Integers, answer: _check.Numbers, *, times: _check.Integers | None = None) -> None:
        """Count answers until `advance`.

        `label` is `[B]` or `[R, B]`: the classes of samples or, if the margins were made with `labels`, their indices.
        `answer` is the probability of each class, `[B, C]`, or `[R, B, C]` with a run axis; a sample with NaN does not
        count. Or it is the predicted class, `[B]` or `[R, B]`, which then has the probability one. `times`, of the
        shape of `label`, gives a count for each. Values outside their range, and probabilities whose sum is not one,
        raise an error; on the state's CUDA device, which is not synchronised, `advance` raises it.
        """
        if self._open:
            return self._observe_new(label, answer, times)
        runs, size = self._gain.numel(), self.num_classes
        keys = size if self._labels is None else self._labels.numel()
        index = self._whole("label", label, keys, "classes" if self._labels is None else "samples of these margins")
        shape = (index.shape[-1],) if self._single else (runs, index.shape[-1])
        named, share, void, stray = self._answers(answer, shape)
        often = torch.ones_like(index) if times is None else _check.times(times, index.shape, self.device)
        index, named, often = index.expand(runs, -1), named.reshape(runs, -1), often.expand(runs, -1)
        stray = stray | (index < 0) | (index >= keys)
        if times is not None:
            stray = stray | ~_check.is_count(often)
            often = often.masked_fill(stray, 1)
        index, named = index.clamp(0, keys - 1), named.clamp(0, size - 1)
        true = index if self._labels is None else self._labels[index].to(torch.int64)
        wrong = (true != named) & ~stray
        often = often * ~void
        self._count.scatter_add_(1, true.masked_fill(stray, size), often)
        if share is None:
            strength = self._strength(index, true, named)
            self._add(true, named, often * wrong * strength, strength)
        else:
            self._add_shares(true, share.nan_to_num(0.0), often * ~stray)
        if self.ages is not None:
            self.ages._mark(index.masked_fill(stray | void, keys), ~wrong)
        return None

    def _answers(self, answer: _check.Numbers, shape: tuple[int, ...]) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
        """Return predicted classes `[R, B]`, probabilities `[R, B, C]` for that signal, and which are void or stray."""
        size, soft, rows = self.num_classes, self.signal == "probability", (self._gain.numel(), shape[-1])
        answer = _given(answer)
        if not answer.is_floating_point():
            named = self._whole("answer", answer, size, "classes")
            if named.shape != torch.Size(shape):
                raise ValueError(f"answer must have the shape {list(shape)} to go with label, not {list(named.shape)}.")
            stray = ((named < 0) | (named >= size)).reshape(rows)
            share = (named[..., None] == torch.arange(size, device=named.device)).to(torch.float64) if soft else None
            return named, share if share is None else share.reshape(*rows, size), torch.zeros_like(stray), stray
        if answer.shape != torch.Size((*shape, size)):
            wanted = [*shape, size]
            raise ValueError(f"answer must have the shape {wanted} to go with label, not {list(answer.shape)}.")
        share = answer.to(torch.float64)
        void, stray = share.isnan().any(-1), torch.zeros(shape, dtype=torch.bool, device=share.device)
        if soft:
            stray = (share.amin(-1) < 0) | ((share.sum(-1) - 1).abs() > _ROUNDING)
            if _check.readable(stray) and bool(stray.any()):
                raise ValueError(
                    "answer must hold probabilities, from 0 to 1 and with the sum 1, not logits or scores. "
                    "Use logits.softmax(-1)."
                )
        share, void, stray = (_check.moved(each, self.device) for each in (share, void, stray))
        named, void, stray = share.argmax(-1), void.reshape(rows), stray.reshape(rows)
        return named, self._strengthened(share.reshape(*rows, size)) if soft else None, void, stray

    def _strengthened(self, share: Tensor) -> Tensor:
        """Return the probabilities of the logits plus (τ - 1) o, `[R, B, C]`."""
        if not self._strong:
            return share.clamp(0.0, 1.0)
        raised = (share.log() + ((self._tau[:, None] - 1) * self._offset)[:, None]).softmax(-1)
        return torch.where((self._tau == 1)[:, None, None], share, raised).clamp(0.0, 1.0)

    def _strength(self, index: Tensor, label: Tensor, named: Tensor) -> Tensor:
        """Return how much an error counts now, `int64 [R, B]`."""
        if self.signal != "age":
            return torch.ones_like(label)
        if self.ages is not None:
            return self.ages._age_at(index).to(torch.int64).clamp_max(_LONGEST)
        return self._pair_age.gather(1, label * self.num_classes + named).to(torch.int64).clamp_max(_LONGEST)

    def _add(self, label: Tensor, named: Tensor, amount: Tensor, strength: Tensor) -> None:
        """Add errors of classes `label [R, B]`, taken for `named`, to the sums."""
        amounts = torch.stack((amount, amount * strength))
        if self.pairs:
            place = label * self.num_classes + named
        else:
            inverse = self._smallest() / self._size.gather(1, label)
            shares = (torch.stack((inverse, inverse.square())) * self._unit()).round().to(torch.int64)
            place = torch.cat((label, self.num_classes + named), 1)
            amounts = torch.cat((amounts, amounts * shares), 2)
        self._sums.scatter_add_(2, place.expand(2, -1, -1), amounts)

    def _add_shares(self, label: Tensor, share: Tensor, often: Tensor) -> None:
        """Add the probabilities `share [R, B, C]` of wrong classes, and what is missing from the right one."""
        own = torch.nn.functional.one_hot(label, self.num_classes).to(torch.bool)
        part = torch.where(own, 1 - share, share)
        parts = torch.stack((part, part.square()))
        if self.pairs:
            place = label[..., None] * self.num_classes + torch.arange(self.num_classes, device=label.device)
        else:
            inverse = (self._smallest() / self._size.gather(1, label))[..., None]
            weights = torch.stack((inverse, inverse.square()))
            place = torch.arange(self.num_classes, device=label.device).expand_as(part)
            parts = torch.where(own, parts, parts * weights)
            place = torch.where(own, place, place + self.num_classes)
        amounts = (parts * _SHARE).round().to(torch.int64) * often[..., None]
        self._sums.scatter_add_(2, place.flatten(1).expand(2, -1, -1), amounts.flatten(2))

    def _unit(self) -> float:
        """Return the unit of inverse class sizes as integers: sums over all classes fit 64 bits."""
        if self.signal == "probability":
            return 1.0
        longest = _LONGEST if self.signal == "age" else 1
        return 2.0 ** min(30, _BITS - 2 * longest.bit_length() - self.num_classes.bit_length())

    def _smallest(self) -> Tensor:
        """Return the size of the smallest class, at most one, `[R, 1]`, so that no error has a weight above one."""
        return self._size.amin(1, keepdim=True).clamp_max(1.0)

    def pending(self) -> tuple[Tensor, ...]:
        """Return the tensors that `observe` changes in place, for CUDA graph capture."""
        own = (self._count, self._sums)
        return own if self.ages is None else (*own, *self.ages.pending())

    def advance(
        self,
        *,
        lr: float | Tensor | None = None,
        scale: float = 1.0,
        group: _distributed.Group = None,
        sync: bool = True,
    ) -> None:
        """End the epoch or step: move the offsets. Collective under `torch.distributed`, unless `sync=False`.

        `lr`, the learning rate: the gain is multiplied by it, divided by the largest so far, so that offsets settle as
        the network does. `scale`, in [0, 1], multiplies the gain directly.
        """
        scale = _check.number("scale", scale, 0.0, 1.0)
        if lr is not None:
            given = lr.item() if isinstance(lr, Tensor) and lr.numel() == 1 else lr  # optimisers may have tensors
            rate = torch.full_like(self._highest, _check.number("lr", given, 0.0, 1e9))
            self._highest.copy_(torch.maximum(self._highest, rate))
            scale *= float((rate / self._highest).nan_to_num(1.0))
        count, sums, most = self._totals(group, sync)
        if self.ages is not None:
            self.ages.advance(group=group, sync=sync)
        number = count.to(torch.float64)
        unit = _SHARE if self.signal == "probability" else 1.0
        (self._smooth_pairs if self.pairs else self._smooth_classes)(sums.to(torch.float64) / unit, number)
        for pending in (self._count, self._sums):
            pending.zero_()
        claimed, variance = self._claimed()
        error = control_error(self._missed.masked_fill(~self._present(), torch.nan), claimed)
        sure = certainty(self._missed - claimed, self._spread(variance), self.width)
        moved = self._offset - scale * self._gain[:, None] * (sure * error).masked_fill(number == 0, 0.0)
        moved = moved - moved.mean(1, keepdim=True)
        self._offset.copy_(moved.clamp(-self.limit, self.limit))
        self.epoch += 1
        # Last: where warnings are errors, the states of all processes still agree, and none waits for this one.
        if most == 0 and _distributed.world(group)[0] == 0:
            warnings.warn(
                "advance() was called although observe() was given no answer (NaN is none) since the last advance(): "
                "no offset moves. Call observe() with the answers of the epoch first.",
                stacklevel=2,
            )

    def _totals(self, group: _distributed.Group, sync: bool) -> tuple[Tensor, Tensor, int]:
        """Return counts `[R, C]` and sums of errors over all processes, and the most samples that a run observed."""
        count, sums = self._count, self._sums
        if sync:
            self._agree(group)
            count, sums = _distributed.total(self._count, group), _distributed.total(self._sums, group)
        strays, most = torch.stack((count[:, -1].sum(), count.sum(1).max())).tolist()  # waits for the device once
        if strays:
            self._count[:, -1] = 0
            raise IndexError(
                f"label and answer must be in range ({self.num_classes} classes; probabilities from 0 to 1, with the "
                "sum 1), and times 0 or more, but observe() was given others since the last advance(). They were "
                "ignored. Call advance() again to continue without them."
            )
        if most > _MOST_COUNTED:
            for pending in (self._count, self._sums):
                pending.zero_()
            raise ValueError(
                f"times must add up to at most {_MOST_COUNTED:,} between two calls of advance(), not {most:,}. All "
                "observations since the last one were dropped."
            )
        return count[:, :-1], sums, most

    def _smooth_pairs(self, sums: Tensor, number: Tensor) -> None:
        """Smooth missed and claims, from the sums of strength and of squares by pairs of classes."""
        first, second = table = sums.reshape(2, -1, self.num_classes, self.num_classes)
        if self.signal == "age" and self._labels is None:
            seen = number.repeat_interleave(self.num_classes, 1) > 0
            self._pair_age.copy_(torch.where(seen, age_step(self._pair_age, sums[0] == 0), self._pair_age))
        if self.signal == "probability":  # the diagonal has what is missing from the right class
            errors, squares = (each.diagonal(dim1=1, dim2=2) for each in (first, second))
        else:
            errors, squares = first.sum(2), second.sum(2)
        count = number.clamp_min(1.0)[..., None]
        own = torch.eye(self.num_classes, dtype=torch.bool, device=sums.device)
        now = table.masked_fill(own, 0.0) / torch.stack((count, count.square()))
        before = self._claims.reshape(now.shape)
        # What classes that were not observed now claim is what they claimed before: a step without the rare classes,
        # whose errors go to the frequent ones, would look as if these were claimed less.
        seen, kept = (number > 0)[..., None], before[0] * self._present()[..., None]
        self._smooth(number, errors, squares, torch.where(seen, now[0], kept).sum(1))
        self._claims = self._blended(before, now, self._times[..., None], seen).flatten(-2)

    def _smooth_classes(self, sums: Tensor, number: Tensor) -> None:
        """Smooth missed and claims, from sums by class; a claim is divided by the size of the class it is from."""
        missed, claims = sums.reshape(2, -1, 2, self.num_classes).unbind(2)
        observed = number.sum(1, keepdim=True)
        there = self._present() | (number > 0)
        scale = (self._size * there).sum(1, keepdim=True) / observed.clamp_min(1.0)  # a part of all was observed
        scale = scale / self._smallest()
        now = claims / self._unit() * torch.stack((scale, scale.square()))
        shown = self._shown()
        self._smooth(number, missed[0], missed[1], now[0] * self._claim_scale())
        self._claims = self._blended(self._claims, now, self._steps, observed > 0)
        if self._labels is None:
            self._learn_sizes(self._size / shown, number)

    def _learn_sizes(self, size: Tensor, number: Tensor) -> None:
        """Update the mean size of each class in a step, from that in the steps that showed it; mean if never seen."""
        rate = torch.where(self._times == 1, 1.0, self._rho[:, None])
        size = torch.where(number > 0, torch.lerp(size, number, rate), size) * self._shown()
        known = self._times > 0
        mean = size.masked_fill(~known, torch.nan).nanmean(1, keepdim=True).nan_to_num(1.0)
        self._size.copy_(torch.where(known, size, mean))

    def _shown(self) -> Tensor:
        """Return the share of the steps after the first that showed a class, up to the last, that did, `[R, C]`.

        Of a class that was shown once: of the steps since then. Before that, one.
        """
        once = 1 / (self._steps - self._first + 1)
        often = (self._times - 1) / (self._last - self._first).clamp_min(1.0)
        return torch.where(self._times > 1, often, torch.where(self._times > 0, once, 1.0))

    def _smooth(self, number: Tensor, first: Tensor, second: Tensor, claims: Tensor) -> None:
        """Update the smoothed missed, its sampling variance, and the swings of missed minus `claims`, those of now."""
        seen, count = number > 0, number.clamp_min(1.0)
        # As if each class had one more error of mean strength and one more right answer: a variance of zero would be
        # too sure (Agresti and Coull).
        usual = (second.sum(1, keepdim=True) / first.sum(1, keepdim=True)).nan_to_num(0.0)
        more = count + 2
        variance = ((second + usual.square()) / more - ((first + usual) / more).square()) / more
        missed = first / count
        swing = ((missed - claims) - (self._missed - self._claimed()[0])).square()
        self._times, self._steps = self._times + seen, self._steps + seen.any(1, keepdim=True)
        self._first = torch.where(seen & (self._times == 1), self._steps, self._first)
        self._last = torch.where(seen, self._steps, self._last)
        self._missed = self._blended(self._missed, missed, self._times, seen)
        self._variance = self._blended(self._variance, variance, self._times, seen)
        self._swing = self._blended(self._swing, swing, self._times - 1, seen)

    def _blended(self, before: Tensor, now: Tensor, times: Tensor, seen: Tensor) -> Tensor:
        """Return the smoothed value after the n-th time, where something was observed; the first one as it is."""
        blended = torch.where(times <= 1, now, torch.lerp(before.nan_to_num(0.0), now, self._rate(times)))
        return torch.where(seen, blended, before)

    def _claimed(self) -> tuple[Tensor, Tensor]:
        """Return the smoothed claimed, and its sampling variance, `[R, C]`."""
        if self.pairs:
            claims = self._claims.reshape(2, -1, self.num_classes, self.num_classes)
            claimed, variance = (claims * self._present()[..., None]).sum(2)
            return claimed, variance
        scale = self._claim_scale()
        return self._claims[0] * scale, self._claims[1] * scale.square()

    def _claim_scale(self) -> Tensor:
        """Return what makes the sum of claims that of missed, `[R, 1]`, where the sizes of classes are estimates."""
        if self._labels is not None:
            return torch.ones_like(self._steps)
        missed = (self._missed.nan_to_num(0.0) * self._present()).sum(1, keepdim=True)
        return (missed / self._claims[0].sum(1, keepdim=True)).nan_to_num(0.0, 0.0, 0.0)

    def _present(self) -> Tensor:
        """Return which classes were observed, and not for the last time longer ago than chance explains, `[R, C]`.

        On a stream a class may stay away. What it claimed before would be integrated again with every move.
        """
        often = self._times / (self._last - self._first + 2)  # how often it was observed while it was there
        return (self._times > 0) & ((self._last - self._steps) * torch.log1p(-often) <= _BY_CHANCE)

    def _rate(self, times: Tensor) -> Tensor:
        """Return the smoothing rate at the n-th time, of the shape of `times [R, ...]`: a running mean at first."""
        rho = self._rho.reshape(-1, *[1] * (times.dim() - 1))
        return torch.maximum(rho, times.clamp_min(1.0).reciprocal())

    def _spread(self, claimed: Tensor) -> Tensor:
        """Return the variance of missed - claimed: by sampling, and what smoothing leaves of swings between epochs."""
        return self._variance + claimed + (self._rate(self._times) / 2 * self._swing).nan_to_num(torch.inf)

    # Checks and state

    def _whole(self, name: str, value: object, size: int, what: str) -> Tensor:
        found = self._of_samples(name, value)
        if _check.readable(found):
            _check.within(name, found, size, what)
        return _check.moved(found, self.device)

    def _settings(self) -> dict[str, object]:
        return {
            "kind": "Margins",
            "num_classes": None if self._open else self.num_classes,
            "labels": self._digest,
            "signal": self.signal,
            "gain": [round(rate, 7) for rate in self._gain.tolist()],
            "rho": [round(rate, 7) for rate in self._rho.tolist()],
            "tau": [round(rate, 7) for rate in self._tau.tolist()],
            "width": self.width,
            "limit": self.limit,
            "pairs": self.pairs,
        }

    def _bounds(self, epoch: int) -> dict[str, _check.Bounds]:
        some = _check.Bounds(0)
        return {
            "_offset": _check.Bounds(-self.limit, self.limit),
            "_highest": some,
            "_missed": some._replace(nan=True),
            "_claims": some,
            **dict.fromkeys(("_first", "_last", "_steps"), _check.Bounds(0, epoch)),
            "_variance": _check.Bounds(),  # of zero up to rounding
            "_swing": some._replace(nan=True),
            "_times": _check.Bounds(0, epoch),
            "_count": _check.COUNTS,
            "_sums": _check.COUNTS,
            "_size": _check.Bounds(1e-300),
            "_pair_age": _check.Bounds(1, epoch + 1),
        }

    def state_dict(self) -> dict[str, object]:
        """Return the complete state, with pending observations, as copies of tensors and primitives."""
        state = super().state_dict()
        return state if self.ages is None else sealed({**state, "ages": self.ages.state_dict()})

    def load_state_dict(self, state: dict[str, object]) -> None:
        """Load a state; one with other settings, labels or sizes is refused, and nothing changes."""
        loaded = self._loaded(state)
        if self.ages is not None:
            self.ages.load_state_dict(_check.state_part("Margins", state, "ages"))
        vars(self).update(loaded)

    def to(self, device: torch.device | str) -> Margins:
        """Move the state to a device, and return it."""
        if self.ages is not None:
            self.ages.to(device)
        return super().to(device)

    def __repr__(self) -> str:
        runs = "" if self._single else f", runs={self._gain.numel()}"
        return f"Margins(num_classes={self.num_classes}{runs}, signal={self.signal!r}, epoch={self.epoch})"


def _given(answer: _check.Numbers) -> Tensor:
    """Return answers as a tensor: of predicted classes if they are whole numbers, otherwise of probabilities."""
    found = _check.real("answer", answer)
    return found.to(torch.int64) if not found.numel() and found.dim() < 2 else found
