"""Margins: offsets of the logits in training, from the answers of the model; prediction uses the logits alone."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from aol import _check, _distributed
from aol._state import State
from aol.ages import RIGHT, WRONG, mark, marks_of_all
from aol.losses import ROUNDING, with_offset

SIGNALS = ("probability", "error", "age")
_LONGEST = 2**10 - 1  # a longer age counts as this
_SHARE = 2.0**30  # the unit of probabilities as integers, so that sums do not depend on the order
_MOST_CLASSES = 2**15  # pairs of them take 34 GB
_BY_CHANCE = 20.0  # minus the logarithm of a probability: what is rarer is no chance
_FLOOR = 0.02  # so that classes without errors have a logarithm


class Margins(State):
    r"""Offsets of the logits that make every class as much missed as wrongly named, found while training.

    Call `observe` with the probabilities of samples (from unadjusted logits), then `advance` after every few steps or,
    in a long training, once per epoch. Train on `adjust(logits)`; predict with the logits alone.

    .. math::
        m_c = \operatorname*{mean}_{y_i = c} (1 - p_{ic}), \qquad
        q_c = \sum_{d \ne c} \operatorname*{mean}_{y_i = d} p_{ic}, \qquad
        o_c \leftarrow o_c - k\, g_c\, e_c

        e_c = \log\Big(\frac{m_c}{\bar m} + \epsilon\Big) - \log\Big(\frac{q_c}{\bar m} + \epsilon\Big) - \bar e, \qquad
        g_c = \max\Big(0,\; 1 - \frac{w \sqrt{v_c}}{|m_c - q_c|}\Big)

    Here m and q are smoothed, and v is the variance of m - q: offsets move only where the difference is more than
    sampling and the swings of the network explain. A class that was not observed keeps its m and its part of the q of
    others, until it is away for longer than chance explains. A calibrated network has m = q with `logit_offsets`.

    Args:
        num_classes: C, by default that of `labels`. Errors are counted by pairs of classes, 32 C² bytes per run.
        labels: the classes of the samples, where these come back every epoch: `observe` then takes their indices.
        signal: what of an answer counts. "probability": the probability of wrong classes. "error": one for a wrong
            answer, p is 0 or 1. "age": the same times how often in a row the sample was wrong or, without `labels`,
            how many steps in a row its class was taken for the answer.
        gain: k, per `advance`; the default is for 30 calls or more. A vector of R numbers gives every state a leading
            run axis, and `observe` then takes `answer [R, B, C]`.
        rho: smoothing rate of m and q, in (0, 1]; also one per run. The first 1 / ρ epochs count alike.
        tau: strength, also one per run. Training uses τ o, and p is taken from the logits plus (τ - 1) o, so that o
            is that of τ = 1. Other than 1 only for the signal "probability".
        width: w, of the dead zone, in standard errors of m - q.
        limit: the largest offset.
        device: of the state.

    >>> margins = Margins(2, gain=0.1)
    >>> for _ in range(3):
    ...     margins.observe([0] * 90 + [1] * 10, torch.tensor([[0.9, 0.1]] * 90 + [[0.6, 0.4]] * 10))
    ...     margins.advance()
    >>> margins.offsets
    tensor([ 0.2630, -0.2630])
    """

    _pending = ("_count", "_sums", "_observed")
    _labels: Tensor | None

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
        device: torch.device | str | None = None,
    ) -> None:
        label = None
        if labels is not None:
            label, num_classes = _check.labels(labels, num_classes)
            device = device or label.device
        speed, smooth = _check.rates("gain", gain, 0.0, 1e3), _check.rates("rho", rho, 1e-9, 1.0)
        strength = _check.rates("tau", tau, 0.0, 1e3)
        runs = max(rate.numel() for rate in (speed, smooth, strength))
        vectors = [rate for rate in (speed, smooth, strength) if rate.dim()]
        if any(len(rate) != runs for rate in vectors):
            raise ValueError(f"gain, rho and tau must be one number, or a list of {runs}, one per run.")
        super().__init__(smooth.expand(runs), device, torch.float64, single=not vectors)
        size = self.num_classes = _check.whole("num_classes", num_classes, 1, _MOST_CLASSES)
        self.signal, self._strong = _check.choice("signal", signal, SIGNALS), bool((strength != 1).any())
        if self.signal != "probability" and self._strong:
            raise ValueError(f'tau must be 1 with signal={self.signal!r}; only "probability" has a strength.')
        self.width, self.limit = _check.number("width", width, 0.0, 1e3), _check.number("limit", limit, 0.0, 1e3)
        self._digest = "" if label is None else _check.fingerprint(label)
        for name, rate in (("_gain", speed), ("_tau", strength)):
            self.register_buffer(name, rate.expand(runs)[:, None].to(self.device), persistent=False)
        own = None if label is None else label.to(self.device, torch.int32, copy=True)
        self.register_buffer("_labels", own, persistent=False)
        for name, shape, value in (
            ("_offset", (runs, size), 0),
            ("_missed", (runs, size), torch.nan),
            ("_variance", (runs, size), 0),  # of missed, by sampling
            ("_swing", (runs, size), torch.nan),  # of m - q from epoch to epoch, squared
            ("_times", (runs, size), 0),  # epochs in which the class was observed
            ("_first", (runs, size), 0),
            ("_last", (runs, size), 0),  # of these epochs
            ("_steps", (runs, 1), 0),  # epochs in which any was
            ("_claims", (2, runs, size, size), 0),  # mean strength of errors by (class, answer), smoothed; its variance
        ):
            self._add(name, shape, value, torch.float64)
        # Since the last advance, as integers: samples; strengths of errors by (class, answer), and their squares.
        self._add("_count", (runs, size), 0, torch.int64)
        self._add("_sums", (2, runs, size * size), 0, torch.int64)
        if self.signal == "age":  # of samples, or of pairs of classes where samples do not come back
            keys = size * size if label is None else label.numel()
            self._add("_age", (runs, keys), 1, torch.int32)
            if label is not None:
                self._add("_observed", (runs, keys + 1), 0, torch.uint8)  # the last column takes what does not count

    @property
    def labels(self) -> Tensor | None:
        """The classes of the samples, `int64 [N]`; None if `observe` takes labels."""
        return None if self._labels is None else self._labels.to(torch.int64)

    @property
    def offsets(self) -> Tensor:
        """What is added to the logits in training, `float32 [C]` or `[R, C]`; mean zero, unless one is at the limit."""
        return self._out((self._tau * self._offset).to(torch.float32))

    @property
    def missed(self) -> Tensor:
        """The smoothed mean strength of errors on samples by class, `float64 [C]`; NaN if never observed."""
        return self._out(self._missed.clone())

    @property
    def claimed(self) -> Tensor:
        """The smoothed strength of errors by the class that they name, `float64 [C]`; classes count equally."""
        return self._out(self._claimed()[0])

    def adjust(self, logits: Tensor) -> Tensor:
        """Return the logits for the loss, in training: `logits + offsets`, float32; `[B, C]` or `[R, B, C]`."""
        return with_offset(logits, self.offsets)

    def observe(self, label: _check.Integers, answer: _check.Numbers, *, times: _check.Integers | None = None) -> None:
        """Count answers until `advance`.

        `label` is `[B]` or `[R, B]`: the classes of samples or, if the margins were made with `labels`, their indices.
        `answer` holds the probabilities of the classes, `[B, C]`, or `[R, B, C]` with a run axis; one with NaN does not
        count. Or it is the predicted class, `[B]` or `[R, B]`, which then has the probability one. `times`, like
        `label`, gives counts. Wrong values raise an error; on a CUDA device, `advance` raises it.
        """
        size, own = self.num_classes, self._labels
        keys, what = (size, "classes") if own is None else (own.numel(), "samples of these margins")
        index, inside = self._places("label", label, keys, what)
        given = _check.real("answer", answer)
        soft = given.is_floating_point()
        self._fits("answer", given, inside, "label", *[size] * soft)
        if soft:
            share = given.to(torch.float64)
            if self.signal == "probability":
                inside = inside & self._are_probabilities(share).reshape(inside.shape)
            share = _check.moved(share, self.device).reshape(*inside.shape, size)
            void, named = share.isnan().any(-1), share.argmax(-1)
        else:
            named, known = self._places("answer", given, size, "classes")
            void, inside = ~known, inside & known
        often, inside = self._often(times, inside)
        self._refused.logical_or_(~inside.all())
        often = often * ~void
        true = index if own is None else own[index].to(torch.int64)
        self._count.scatter_add_(1, true, often)
        if self.signal == "probability":
            if not soft:
                share = F.one_hot(named, size).to(torch.float64)
            if self._strong:  # of the logits plus (τ - 1) o
                raised = (share.log() + ((self._tau - 1) * self._offset)[:, None]).softmax(-1)
                share = torch.where((self._tau == 1)[..., None], share, raised)
            share = share.clamp(0.0, 1.0).nan_to_num(0.0)
            classes = torch.arange(size, device=true.device)
            part = torch.where(true[..., None] == classes, 1 - share, share)  # on the diagonal, what is missing of it
            amounts = (torch.stack((part, part.square())) * _SHARE).round().to(torch.int64) * often[..., None]
            place = (true[..., None] * size + classes).flatten(1)
            self._sums.scatter_add_(2, place.expand(2, -1, -1), amounts.flatten(2))
            return
        place, wrong = true * size + named, true != named
        strength = torch.ones_like(true)
        if self.signal == "age":
            strength = self._age.gather(1, place if own is None else index).to(torch.int64).clamp_max(_LONGEST)
        amount = often * wrong * strength
        self._sums.scatter_add_(2, place.expand(2, -1, -1), torch.stack((amount, amount * strength)))
        if self.signal == "age" and own is not None:
            mark(self._observed, index.masked_fill(~inside | void, keys), ~wrong)

    def _are_probabilities(self, share: Tensor) -> Tensor:
        """Return which have the sum one, on the device of the state; ValueError where they can be read."""
        wrong = (share.amin(-1) < 0) | ((share.sum(-1) - 1).abs() > ROUNDING)  # neither, of NaN
        if _check.readable(wrong) and bool(wrong.any()):
            raise ValueError(
                "answer must hold probabilities, with the sum 1, not logits or scores. Use logits.softmax(-1)."
            )
        return ~_check.moved(wrong, self.device)

    def advance(self, *, scale: float = 1.0, sync: bool = True) -> None:
        """End the epoch or step: move the offsets. Collective under `torch.distributed`, unless `sync=False`.

        `scale`, in [0, 1], multiplies the gain: lr / (largest lr) lets offsets settle as the network does.
        """
        scale = _check.number("scale", scale, 0.0, 1.0)
        allowed = f"{self.num_classes} classes; probabilities from 0 to 1, with the sum 1"
        together = self._begin(sync, f"label and answer must be in range ({allowed}), and times 0 or more")
        count, sums = self._count, self._sums
        if together:
            count, sums = _distributed.total(count), _distributed.total(sums)
        number = count.to(torch.float64)
        self._smooth(sums.to(torch.float64) / (_SHARE if self.signal == "probability" else 1.0), number)
        if self.signal == "age":  # of samples, or of pairs of classes, which are right if there was no such error
            if self._labels is None:
                seen = number.repeat_interleave(self.num_classes, 1) > 0
                right, wrong = seen & (sums[0] == 0), seen & (sums[0] > 0)
            else:
                marks = (marks_of_all(self._observed) if together else self._observed)[:, :-1]
                right, wrong = marks == RIGHT, marks == WRONG
            self._age.copy_(torch.where(right, 1, torch.where(wrong, self._age + 1, self._age)))
        self._end()
        claimed, variance = self._claimed()
        # By sampling, and what smoothing leaves of swings between epochs.
        spread = self._variance + variance + (self._rate(self._times) / 2 * self._swing).nan_to_num(torch.inf)
        missed = self._missed.masked_fill(~self._present(), torch.nan)
        unit = missed.nanmean(-1, keepdim=True)
        error = (missed / unit + _FLOOR).log() - (claimed / unit + _FLOOR).log()
        error = (error - error.nanmean(-1, keepdim=True)).nan_to_num(0.0, 0.0, 0.0)
        sure = 1 - self.width * spread.sqrt() / (self._missed - claimed).abs()
        sure = sure.nan_to_num(0.0, 0.0, 0.0).clamp_min(0.0)
        moved = self._offset - scale * self._gain * (sure * error).masked_fill(number == 0, 0.0)
        self._offset.copy_((moved - moved.mean(1, keepdim=True)).clamp(-self.limit, self.limit))
        # Last: where warnings are errors, the states of all processes still agree, and none waits for this one.
        self._warn_of_nothing(number)

    def _smooth(self, sums: Tensor, number: Tensor) -> None:
        """Smooth missed and claims, from the sums of strength and of squares by pairs of classes."""
        size = self.num_classes
        table = sums.reshape(2, -1, size, size)
        if self.signal == "probability":  # the diagonal has what is missing from the right class
            first, second = table.diagonal(dim1=2, dim2=3)
        else:
            first, second = table.sum(3)
        seen, count = number > 0, number.clamp_min(1.0)
        own = torch.eye(size, dtype=torch.bool, device=sums.device)
        now = table.masked_fill(own, 0.0) / torch.stack((count, count.square()))[..., None]
        # What classes that were not observed now claim is what they claimed before: a step without the rare classes,
        # whose errors go to the frequent ones, would look as if these were claimed less.
        claims = torch.where(seen[..., None], now[0], self._claims[0] * self._present()[..., None]).sum(1)
        # As if every class had one more error of mean strength and one more right answer: a variance of zero would be
        # too sure (Agresti and Coull).
        usual = (second.sum(1, keepdim=True) / first.sum(1, keepdim=True)).nan_to_num(0.0)
        more = count + 2
        variance = ((second + usual.square()) / more - ((first + usual) / more).square()) / more
        missed = first / count
        swing = ((missed - claims) - (self._missed - self._claimed()[0])).square()
        self._times += seen
        self._steps += seen.any(1, keepdim=True)
        self._first.copy_(torch.where(seen & (self._times == 1), self._steps, self._first))
        self._last.copy_(torch.where(seen, self._steps, self._last))
        self._blend(self._missed, missed, self._times, seen)
        self._blend(self._variance, variance, self._times, seen)
        self._blend(self._swing, swing, self._times - 1, seen)
        self._blend(self._claims, now, self._times[..., None], seen[..., None])

    def _blend(self, before: Tensor, now: Tensor, times: Tensor, seen: Tensor) -> None:
        """Smooth values in place at the n-th time, where something was observed; the first one stays as it is."""
        blended = torch.where(times <= 1, now, torch.lerp(before.nan_to_num(0.0), now, self._rate(times)))
        before.copy_(torch.where(seen, blended, before))

    def _rate(self, times: Tensor) -> Tensor:
        """Return the smoothing rate at the n-th time, like `times [R, ...]`: of a running mean at first."""
        rho = self._rho.reshape(-1, *[1] * (times.dim() - 1))
        return torch.maximum(rho, times.clamp_min(1.0).reciprocal())

    def _claimed(self) -> tuple[Tensor, Tensor]:
        """Return the smoothed claimed, and its sampling variance, `[R, C]`."""
        claimed, variance = (self._claims * self._present()[..., None]).sum(2)
        return claimed, variance

    def _present(self) -> Tensor:
        """Return which classes were observed, and not for the last time longer ago than chance explains, `[R, C]`."""
        # On a stream a class may stay away. What it claimed before would be integrated again with every move.
        often = self._times / (self._last - self._first + 2)  # how often it was observed while it was there
        return (self._times > 0) & ((self._last - self._steps) * torch.log1p(-often) <= _BY_CHANCE)

    def _settings(self) -> dict[str, object]:
        gain, tau = ([round(rate, 7) for rate in rates[:, 0].tolist()] for rates in (self._gain, self._tau))
        known = {"num_classes": self.num_classes, _check.HASH: self._digest, "signal": self.signal}
        return {**super()._settings(), **known, "gain": gain, "tau": tau, "width": self.width, "limit": self.limit}
