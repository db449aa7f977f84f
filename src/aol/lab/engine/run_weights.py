"""The class and sample weights of R runs, each by its own settings."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from aol.ages.rules import class_mean
from aol.lab.engine.weighting import WEIGHTINGS, Inputs, SampleInputs
from aol.lab.settings import Settings
from aol.weights import combine, gather, temper


class RunWeights:
    """The weights of R runs by class, `[R, C]`, and by sample, `[R, n]`; ones in the epochs before a run's `start`.

    Attributes:
        resampled: `bool [R, 1]`, which runs draw samples by weight instead of weighting the loss.
        any_sample_level: whether any run has weights by sample.
    """

    def __init__(self, runs: Sequence[Settings], device: torch.device) -> None:
        def rows(values: list[bool] | list[int]) -> Tensor:
            return torch.tensor(values, device=device)[:, None]

        self._runs = runs
        self._rows = {name: rows([run.weighting == name for run in runs]) for name in {run.weighting for run in runs}}
        self._temper = torch.tensor([run.temper for run in runs], dtype=torch.float64, device=device)
        by_sample = [WEIGHTINGS[run.weighting].by_sample(run.level) for run in runs]
        self._by_sample = rows(by_sample)
        self.resampled = rows([run.mechanism == "resample" for run in runs])
        self.any_sample_level = any(by_sample)
        self._first = rows([run.first_weighted_epoch for run in runs])

    def by_class(self, counts: Tensor, age_weight: Tensor, error_weight: Tensor, *, epoch: int) -> Tensor:
        """Return class weights `float32 [R, C]` from counts `[C]` or `[R, C]` and the weights of ages and errors."""
        inputs = Inputs(counts, age_weight.masked_fill(self._by_sample, 1.0), error_weight, self._runs)
        weights = torch.ones_like(age_weight)
        for name, rows in self._rows.items():
            if factors := WEIGHTINGS[name].factors:
                weights = torch.where(rows, combine(*(factor(inputs) for factor in factors)), weights)
        # For runs at sample level, `by_sample` multiplies the sample's own weight and tempers the product, once.
        tempered = temper(weights, self._temper.masked_fill(self._by_sample.squeeze(1), 1.0))
        return tempered.masked_fill(epoch < self._first, 1.0)

    def by_sample(self, class_weight: Tensor, inputs: SampleInputs, label: Tensor, *, epoch: int) -> Tensor:
        """Return sample weights `float32 [R, n]`: those of the class, or for runs at sample level the sample's own."""
        weights = gather(class_weight, label)
        if not self.any_sample_level:
            return weights
        own = torch.ones_like(weights)
        for name, rows in self._rows.items():
            if sample := WEIGHTINGS[name].sample:
                own = torch.where(rows, sample(inputs), own)
        own = temper(combine(weights, own), self._temper)
        return torch.where(self._by_sample & (epoch >= self._first), own, weights)

    def mean_by_class(self, class_weight: Tensor, sample_weight: Tensor, label: Tensor) -> Tensor:
        """Return the class weights `[R, C]` to record: for runs at sample level, the mean over the class's samples."""
        if not self.any_sample_level:
            return class_weight
        mean = class_mean(sample_weight, label, class_weight.shape[1]).nan_to_num(1.0).to(class_weight.dtype)
        return torch.where(self._by_sample, mean, class_weight)
