"""The class and sample weights of R runs, each by its own settings, and what is remembered of samples for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from aol import _distributed
from aol.ages import class_mean
from aol.lab.methods import WEIGHTINGS, Inputs
from aol.lab.settings import Settings
from aol.weights import combine, temper


class RunWeights:
    """The weights of R runs by class, `[R, C]`, and by sample, `[R, n]`; ones in the epochs before a run's `start`.

    `resampled`, bool `[R, 1]`, says which runs draw samples by weight instead of weighting the loss.
    """

    def __init__(self, runs: Sequence[Settings], device: torch.device) -> None:
        def rows(values: list[bool] | list[int]) -> Tensor:
            return torch.tensor(values, device=device)[:, None]

        self._rows = {name: rows([run.weighting == name for run in runs]) for name in {run.weighting for run in runs}}
        self._temper = torch.tensor([run.temper for run in runs], dtype=torch.float64, device=device)
        by_sample = [WEIGHTINGS[run.weighting].by_sample(run.level) for run in runs]
        self._by_sample, self._any_by_sample = rows(by_sample), any(by_sample)
        self.resampled = rows([run.mechanism == "resample" for run in runs])
        self._first = rows([run.first_weighted_epoch for run in runs])

    def by_class(self, inputs: Inputs, *, epoch: int) -> Tensor:
        """Return class weights `float32 [R, C]`."""
        inputs = replace(inputs, age=inputs.age.masked_fill(self._by_sample, 1.0))
        weights = torch.ones_like(inputs.age)
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
        """Return the class weights `[R, C]` to record: for runs at sample level, the mean over the class's samples."""
        if not self._any_by_sample:
            return class_weight
        mean = class_mean(sample_weight, label, class_weight.shape[1]).nan_to_num(1.0).to(class_weight.dtype)
        return torch.where(self._by_sample, mean, class_weight)


class SampleSignals(nn.Module):
    """The largest age, the number of errors, and the last loss of N samples in R runs. No signal forgets but the loss.

    Attributes:
        peak: the largest age so far, `int32 [R, N]`; 0 where never seen.
        wrong: in how many of its `seen` epochs a sample was wrong, `int32 [R, N]`.
        marked: which samples were wrong at the end of epoch `after`, counted from one, `bool [R, N]`.
        loss: the last softmax loss, `float32 [R, N]`, NaN where never observed.
    """

    peak: Tensor
    wrong: Tensor
    seen: Tensor
    marked: Tensor
    loss: Tensor

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
