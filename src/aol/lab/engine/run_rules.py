"""What R runs learn from answers, each by its own settings: ages, error rates, margins, losses; and their weights."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from aol import _distributed
from aol.ages import SampleAges, class_mean
from aol.class_ages import ClassAges
from aol.criteria import class_age_step, count_offsets, counts_step, margin_step, margin_sums
from aol.lab.engine.learner import Mixed
from aol.lab.methods import MARGINS, WEIGHTINGS, Inputs
from aol.lab.settings import Settings
from aol.margins import Margins
from aol.offsets import logit_offsets
from aol.weights import ErrorRates, combine, temper

_LABELS = 20  # for each class, between two updates of ages: the default of `AgeWeightedLoss`


def _column(values: Sequence[float], device: torch.device) -> Tensor:
    """Return a setting of R runs, `[R, 1]`."""
    return torch.tensor(values, device=device)[:, None]


class RunWeights:
    """The weights of R runs by class, `[R, C]`, and by sample, `[R, n]`; ones in the epochs before a run's `start`.

    `resampled`, bool `[R, 1]`, says which runs draw samples by weight instead of weighting the loss.
    """

    def __init__(self, runs: Sequence[Settings], device: torch.device) -> None:
        names = {run.weighting for run in runs if not WEIGHTINGS[run.weighting].is_uniform}
        self._rows = {name: _column([run.weighting == name for run in runs], device) for name in names}
        self._temper = torch.tensor([run.temper for run in runs], dtype=torch.float64, device=device)
        by_sample = [WEIGHTINGS[run.weighting].by_sample(run.level) for run in runs]
        self._by_sample, self._any_by_sample = _column(by_sample, device), any(by_sample)
        self.resampled = _column([run.mechanism == "resample" for run in runs], device)
        self._first = _column([run.first_weighted_epoch for run in runs], device)

    def by_class(self, inputs: Inputs, *, epoch: int) -> Tensor:
        """Return class weights `float32 [R, C]`."""
        inputs = replace(inputs, age=inputs.age.masked_fill(self._by_sample, 1.0))
        weights = torch.ones_like(inputs.age)
        if not self._rows:
            return weights
        for name, rows in self._rows.items():
            if factors := WEIGHTINGS[name].factors:
                weights = torch.where(rows, combine(*(factor(inputs) for factor in factors)), weights)
        # For runs at sample level, `by_sample` multiplies the sample's own weight and tempers the product, once.
        tempered = temper(weights, self._temper.masked_fill(self._by_sample.squeeze(1), 1.0))
        return tempered.masked_fill(epoch < self._first, 1.0)

    def by_sample(self, class_weight: Tensor, inputs: Inputs, label: Tensor, *, epoch: int) -> tuple[Tensor, Tensor]:
        """Return sample weights `float32 [R, n]`, and the class weights `[R, C]` to record.

        For runs at sample level they are the samples' own and their means, for others those of the class.
        """
        weights = class_weight.gather(1, label.expand(len(class_weight), -1))
        if not self._any_by_sample:
            return weights, class_weight
        own = torch.ones_like(weights)
        for name, rows in self._rows.items():
            if sample := WEIGHTINGS[name].sample:
                own = torch.where(rows, sample(inputs), own)
        own = temper(combine(weights, own), self._temper)
        weights = torch.where(self._by_sample & (epoch >= self._first), own, weights)
        mean = class_mean(weights, label, class_weight.shape[1]).nan_to_num(1.0).to(class_weight.dtype)
        return weights, torch.where(self._by_sample, mean, class_weight)


class SampleSignals(nn.Module):
    """The largest age, the number of errors, and the last loss of N samples in R runs; `[R, N]` each."""

    peak: Tensor  # the largest age so far; 0 where never seen
    wrong: Tensor  # in how many of its `seen` epochs a sample was wrong
    seen: Tensor
    marked: Tensor  # whether it was wrong at the end of epoch `after`, counted from one
    loss: Tensor  # the last softmax loss; NaN where never observed

    def __init__(self, runs: Sequence[Settings], num_samples: int, device: torch.device) -> None:
        super().__init__()
        shape = (len(runs), num_samples)
        self._after = _column([run.after for run in runs], device)
        for name in ("peak", "wrong", "seen"):
            self.register_buffer(name, torch.zeros(shape, dtype=torch.int32, device=device))
        self.register_buffer("marked", torch.zeros(shape, dtype=torch.bool, device=device))
        self.register_buffer("loss", torch.full(shape, torch.nan, device=device))

    @property
    def error_rate(self) -> Tensor:
        """The share of epochs in which a sample was wrong, `float32 [R, N]`; NaN where never seen."""
        return self.wrong / self.seen

    def observe(self, position: Tensor, confidence: Tensor) -> None:
        """Keep the losses of samples at `position [R, m]`, from the probabilities of their labels.

        Collective under `torch.distributed`: each process has the `confidence` of `position[:, rank::world]`.
        """
        rank, world = _distributed.world()
        loss = torch.zeros(position.shape, device=self.loss.device)
        loss[:, rank::world] = -confidence.clamp_min(torch.finfo(torch.float32).tiny).log()
        self.loss.scatter_(1, position, _distributed.total(loss))

    def advance(self, position: Tensor, age: Tensor, *, epoch: int) -> None:
        """End the epoch, counted from zero, that observed the samples at `position [R, m]` and led to `age [R, N]`.

        An observed sample was wrong if its age is above one: ages are the same on all processes, and so are signals.
        """
        observed = torch.zeros_like(self.marked).scatter_(1, position, True)
        wrong = observed & (age > 1)
        known = observed | (self.peak > 0)
        self.peak = torch.where(known, torch.maximum(self.peak, age), self.peak)
        self.wrong += wrong
        self.seen += observed
        self.marked = torch.where(self._after == epoch + 1, wrong, self.marked)


@dataclass(frozen=True, eq=False)
class _Part:
    """Margins of the runs in `rows`, which move after every so many `steps` of training; None: once an epoch."""

    rows: Tensor
    steps: int | None
    in_training: bool  # observes training steps, not clean passes
    margins: Margins


class RunMargins:
    """The offsets `[R, C]` of R runs: zero, from class counts, or from answers.

    `labels` are the classes of samples that come back; None on a stream.
    """

    def __init__(self, runs: Sequence[Settings], num_classes: int, labels: Tensor | None, device: torch.device) -> None:
        self._shape, self._device, self._labels = (len(runs), num_classes), device, labels
        self._parts: dict[str, _Part] = {}
        by_rule: dict[tuple[str, int | None], list[int]] = {}
        for row, run in enumerate(runs):
            by_rule.setdefault((run.margin, run.margin_steps), []).append(row)
        counting = by_rule.get(("counts", None), [])
        self._by_counts = torch.tensor(counting, dtype=torch.int64, device=device)
        self._tau = torch.tensor([runs[row].tau for row in counting], dtype=torch.float64)
        for (margin, steps), rows in by_rule.items():
            signal = MARGINS[margin].signal
            if signal is None:
                continue
            soft = signal == "probability"
            margins = Margins(
                num_classes,
                labels=None if soft else labels,
                signal=signal,
                gain=torch.tensor([runs[row].gain for row in rows]),
                tau=torch.tensor([runs[row].tau for row in rows]) if soft else 1.0,
                device=device,
            )
            name = margin if steps is None else f"{margin}, {steps} steps"
            in_training = runs[0].signal == "train" or steps is not None
            self._parts[name] = _Part(torch.tensor(rows, device=device), steps, in_training, margins)
        self.any = bool(self._parts) or self._by_counts.numel() > 0
        self.in_training = any(part.in_training for part in self._parts.values())

    def offsets(self, counts: Tensor) -> Tensor:
        """Return the offsets of every run, `float32 [R, C]`; `counts` is `[C]` or `[R, C]`."""
        offsets = torch.zeros(self._shape, device=self._device)
        if self._by_counts.numel():
            offsets[self._by_counts] = logit_offsets(counts.expand(self._shape)[self._by_counts], self._tau)
        for part in self._parts.values():
            offsets[part.rows] = part.margins.offsets
        return offsets

    def observe(
        self, label: Tensor, given: Tensor, at: Tensor | None = None, *, training: bool, times: Tensor | None = None
    ) -> None:
        """Count the answers `given [R, B]` to samples of the classes `label`, or their logits `[R, B, C]`.

        `at` are the positions of samples that come back, where it is they that are right or wrong.
        """
        key, soft = label if at is None or self._labels is None else at, given.dim() == 3
        for part in self._parts.values():
            if part.in_training is training and (part.margins.signal == "probability") is soft:
                told, often = given[part.rows], None if times is None else times[part.rows].to(torch.int64)
                part.margins.observe(key[part.rows], told.softmax(-1) if soft else told, times=often)

    def advance(self, scale: float, *, steps: int | None = None, last: bool = False) -> bool:
        """Move the offsets whose turn it is; return whether there are any. `scale` multiplies the gain.

        They move once an epoch, or after so many training `steps` of one, and after the `last` of them.
        """
        turn = [
            part
            for part in self._parts.values()
            if (part.steps is None if steps is None else part.steps and (last or steps % part.steps == 0))
        ]
        for part in turn:
            part.margins.advance(scale=scale)
        return bool(turn)

    def pending(self) -> Iterator[Tensor]:
        """Yield the tensors that `observe` changes in place."""
        for part in self._parts.values():
            yield from part.margins.pending()

    def state_dict(self) -> dict[str, Any]:
        """Return the state of all margins, by name."""
        return {name: part.margins.state_dict() for name, part in self._parts.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a state of margins of the same runs."""
        for name, part in self._parts.items():
            part.margins.load_state_dict(state[name])


@dataclass(frozen=True, eq=False)
class Observers:
    """Ages, error rates where a run needs them, and margins of R runs: what passes tell of answers."""

    ages: SampleAges | ClassAges
    error_rates: ErrorRates | None
    margins: RunMargins
    by_training: bool  # ages and error rates are by the answers in training

    def step(self, position: Tensor, label: Tensor, right: Tensor, predicted: Tensor, logits: Tensor) -> None:
        """Take the answers of a training step: positions, labels, which were right, and answers, `[R, B]` each."""
        if self.by_training:
            self.observe(position, label, right)
        self.margins.observe(label, predicted, position, training=True)
        self.margins.observe(label, logits, training=True)

    def batch(self, label: Tensor, logits: Tensor, times: Tensor) -> None:
        """Take the logits `[R, B, C]` of a batch of a clean pass."""
        self.margins.observe(label, logits, training=False, times=times)

    def observe(self, position: Tensor, label: Tensor, right: Tensor, times: Tensor | None = None) -> None:
        """Update ages and error rates with answers `[R, B]`."""
        if isinstance(self.ages, SampleAges):
            self.ages.observe(position, right)
        else:
            self.ages.observe(label, right, times=times)
        if self.error_rates is not None:
            self.error_rates.observe(label, right, times=times)

    def pending(self) -> Iterator[Tensor]:
        """Yield the tensors that `step` and `batch` change in place."""
        yield from self.ages.pending()
        yield from () if self.error_rates is None else self.error_rates.pending()
        yield from self.margins.pending()


class StepLosses(nn.Module):
    """What runs learn from their batches as the loss modules do.

    These are `LogitAdjustedLoss` for the margin "counts-seen", `MarginLoss` for "probability-seen", and
    `AgeWeightedLoss` for the weighting "aol-seen". It is part of the training step, and fit for a CUDA graph: buffers
    keep their memory, and nothing waits for the device.
    """

    counts: Tensor  # labels that have come, [a, C] for the a runs that count them
    offset: Tensor  # of τ = 1, [b, C]
    state: Tensor  # of `margin_step`, [3, b, C]
    sums: Tensor  # of the steps since the last move, [3, b, C]
    steps: Tensor
    answered: Tensor  # samples, and right answers, since ages were updated, [2, c, C]
    age: Tensor  # [c, C]
    ema: Tensor

    def __init__(self, runs: Sequence[Settings], num_classes: int, device: torch.device) -> None:
        super().__init__()

        self._size = (len(runs), num_classes)
        self._counting, self._moving, self._ageing = (
            [row for row, run in enumerate(runs) if word in (run.margin, run.weighting)]
            for word in ("counts-seen", "probability-seen", "aol-seen")
        )
        self.offsets_any = bool(self._counting or self._moving)  # whether any run has offsets from here
        chosen = (self._counting, self._moving, self._ageing)
        self._rows = [torch.tensor(rows, dtype=torch.int64, device=device) for rows in chosen]
        self._count_tau, self._move_tau = (_column([runs[row].tau for row in rows], device) for rows in chosen[:2])
        self._memory = _column([float(runs[row].margin_memory or torch.inf) for row in self._counting], device)
        self._every = _column([runs[row].margin_steps or 1 for row in self._moving], device)
        self._rho = _column([runs[row].rho for row in self._ageing], device)
        number, moving, ageing = (torch.zeros(len(rows), num_classes, device=device) for rows in chosen)
        buffers = {"counts": number, "offset": moving, "answered": torch.stack((ageing, ageing))}
        buffers |= {name: torch.stack((moving, moving, moving)) for name in ("state", "sums")}
        buffers |= {"age": torch.ones_like(ageing, dtype=torch.int32), "ema": torch.full_like(ageing, torch.nan)}
        buffers["steps"] = torch.zeros((), dtype=torch.int64, device=device)
        for name, value in buffers.items():
            self.register_buffer(name, value)

    def class_weight(self) -> Tensor:
        """Return the weights of the classes, `float32 [R, C]`; ones for runs without such weights."""
        ema = self.ema.nan_to_num(1.0)
        own = torch.where(self._rho > 0, ema / ema.mean(1, keepdim=True), 1.0)
        return torch.ones(self._size, device=own.device).index_copy(0, self._rows[2], own)

    def weighted(self, weight: Tensor, label: Tensor, mixed: Mixed | None) -> Tensor:
        """Return weights of samples, `[R, B]`, times those of their classes; of mixed ones, the mean of both."""
        if not self._ageing:
            return weight
        of_class = self.class_weight()
        own = of_class.gather(1, label)
        return weight * (own if mixed is None else torch.lerp(of_class.gather(1, mixed[0]), own, mixed[1]))

    def before(self, label: Tensor, offset: Tensor | None) -> None:
        """Count the labels `[R, B]` of a batch before it is trained on; set the rows of `offset [R, C]` from here."""
        if offset is None:  # no run has one
            return
        if self._counting:
            own = label[self._rows[0]]
            new = torch.zeros_like(self.counts).scatter_add_(1, own, torch.ones_like(own, dtype=torch.float32))
            new = _distributed.total(new)
            limited = counts_step(self.counts, new, self._memory.clamp(max=1e9))
            self.counts.copy_(torch.where(self._memory.isinf(), self.counts + new, limited))
            offset.index_copy_(0, self._rows[0], count_offsets(self.counts, self._count_tau))
        if self._moving:
            offset.index_copy_(0, self._rows[1], self._move_tau * self.offset)

    def after(self, label: Tensor, right: Tensor, logits: Tensor, mixed: Mixed | None) -> None:
        """Learn from the answers of a step: `logits [R, B, C]` for labels `[R, B]`, which were `right [R, B]`."""
        if self._moving:
            rows = self._rows[1]
            target = label[rows]
            if mixed is not None:
                soft, rest = (F.one_hot(part[rows], self._size[1]).float() for part in (label, mixed[0]))
                target = torch.lerp(rest, soft, mixed[1][rows][..., None])
            # Strengthened offsets make classes even in the logits plus the part of them that training alone has.
            answers = logits[rows] + ((self._move_tau - 1) * self.offset)[:, None]
            new = torch.func.vmap(margin_sums, out_dims=1)(answers, target, self.state[0] + self.sums[0])
            sums = self.sums + _distributed.total(new)
            moved, state = margin_step(self.offset, self.state, sums)
            due = self.steps.add_(1) % self._every == 0
            self.offset.copy_(torch.where(due, moved, self.offset))
            self.state.copy_(torch.where(due, state, self.state))
            self.sums.copy_(torch.where(due, 0.0, sums))
        if self._ageing:
            own, correct = label[self._rows[2]], right[self._rows[2]]
            values = torch.stack((torch.ones_like(correct), correct)).float()
            new = torch.zeros_like(self.answered).scatter_add_(2, own.expand(2, -1, -1), values)
            answered = self.answered + _distributed.total(new)
            seen, known = answered
            age, ema = class_age_step(self.age, self.ema, known / seen, self._rho)
            due = seen.sum(1, keepdim=True) >= _LABELS * self._size[1]
            self.age.copy_(torch.where(due, age, self.age))
            self.ema.copy_(torch.where(due, ema, self.ema))
            self.answered.copy_(torch.where(due, 0.0, answered))
