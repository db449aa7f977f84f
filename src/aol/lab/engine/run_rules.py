"""What R runs learn from answers, each by its own settings: ages, error rates, margins; and the weights from them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from aol import _distributed
from aol.ages import SampleAges, class_mean
from aol.class_ages import ClassAges
from aol.lab.methods import MARGINS, WEIGHTINGS, Inputs
from aol.lab.settings import Settings
from aol.margins import Margins
from aol.offsets import logit_offsets
from aol.weights import ErrorRates, combine, temper


class RunWeights:
    """The weights of R runs by class, `[R, C]`, and by sample, `[R, n]`; ones in the epochs before a run's `start`.

    `resampled`, bool `[R, 1]`, says which runs draw samples by weight instead of weighting the loss.
    """

    def __init__(self, runs: Sequence[Settings], device: torch.device) -> None:
        def rows(values: list[bool] | list[int]) -> Tensor:
            return torch.tensor(values, device=device)[:, None]

        names = {run.weighting for run in runs if not WEIGHTINGS[run.weighting].is_uniform}
        self._rows = {name: rows([run.weighting == name for run in runs]) for name in names}
        self._temper = torch.tensor([run.temper for run in runs], dtype=torch.float64, device=device)
        by_sample = [WEIGHTINGS[run.weighting].by_sample(run.level) for run in runs]
        self._by_sample, self._any_by_sample = rows(by_sample), any(by_sample)
        self.resampled = rows([run.mechanism == "resample" for run in runs])
        self._first = rows([run.first_weighted_epoch for run in runs])

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

    def by_sample(self, class_weight: Tensor, inputs: Inputs, label: Tensor, *, epoch: int) -> Tensor:
        """Return sample weights `float32 [R, n]`: those of the class, or for runs at sample level the sample's own."""
        weights = class_weight.gather(1, label.expand(len(class_weight), -1))
        if not self._any_by_sample:
            return weights
        own = torch.ones_like(weights)
        for name, rows in self._rows.items():
            if sample := WEIGHTINGS[name].sample:
                own = torch.where(rows, sample(inputs), own)
        own = temper(combine(weights, own), self._temper)
        return torch.where(self._by_sample & (epoch >= self._first), own, weights)

    def mean_by_class(self, class_weight: Tensor, sample_weight: Tensor, label: Tensor) -> Tensor:
        """Return the class weights `[R, C]` to record: for runs at sample level, means over samples."""
        if not self._any_by_sample:
            return class_weight
        mean = class_mean(sample_weight, label, class_weight.shape[1]).nan_to_num(1.0).to(class_weight.dtype)
        return torch.where(self._by_sample, mean, class_weight)


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
        self._after = torch.tensor([run.after for run in runs], device=device)[:, None]
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
        self,
        label: Tensor,
        *,
        training: bool,
        position: Tensor | None = None,
        answer: Tensor | None = None,
        logits: Tensor | None = None,
        times: Tensor | None = None,
    ) -> None:
        """Count answers `[R, B]` to samples of the classes `label`, or their probabilities, from `logits [R, B, C]`."""
        key = label if self._labels is None else position
        for part in self._parts.values():
            rows, margins = part.rows, part.margins
            given = logits if margins.signal == "probability" else answer
            if part.in_training is not training or given is None:
                continue
            often = None if times is None else times[rows].to(torch.int64)
            if margins.signal == "probability":
                margins.observe(label[rows], given[rows].softmax(-1), times=often)
            elif key is not None:
                margins.observe(key[rows], given[rows], times=often)

    def advance(self, scale: float) -> None:
        """Move the offsets that move once an epoch; `scale` multiplies the gain."""
        for part in self._parts.values():
            if part.steps is None:
                part.margins.advance(scale=scale)

    def step(self, done: int, scale: float, *, last: bool) -> bool:
        """Move the offsets whose turn it is after so many training steps of an epoch; return whether there are any."""
        turn = [part for part in self._parts.values() if part.steps and (last or done % part.steps == 0)]
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

    @property
    def in_training(self) -> bool:
        """Whether any of them observes training steps."""
        return self.by_training or self.margins.in_training

    def step(self, position: Tensor, label: Tensor, right: Tensor, predicted: Tensor, logits: Tensor) -> None:
        """Take the answers of a training step: positions, labels, which were right, and answers, `[R, B]` each."""
        if self.by_training:
            self.observe(position, label, right)
        self.margins.observe(label, training=True, position=position, answer=predicted, logits=logits)

    def batch(self, label: Tensor, logits: Tensor, times: Tensor) -> None:
        """Take the logits `[R, B, C]` of a batch of a clean pass."""
        self.margins.observe(label, training=False, logits=logits, times=times)

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
