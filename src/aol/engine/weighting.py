"""From ages, counts and error rates to the weights of every run: each run follows its own settings."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from aol.engine.settings import Settings
from aol.weights import class_balanced_weight, combine, frequency_weight, gather, temper


class Weighting:
    """The weights of R runs by class, `[R, C]`, and by sample, `[R, n]`."""

    def __init__(self, runs: Sequence[Settings], device: torch.device) -> None:
        def column(values: list[float]) -> Tensor:
            return torch.tensor(values, dtype=torch.float64, device=device)

        def where(*kinds: str) -> Tensor:
            return torch.tensor([[run.weighting in kinds] for run in runs], device=device)

        self._beta = column([run.beta for run in runs])
        self._power = column([run.power for run in runs])
        self._temper = column([run.temper for run in runs])
        self._cb = where("cb", "cb+aol")
        self._aol = where("aol", "cb+aol")
        self._frequency = where("frequency")
        self._error = where("error")
        self._by_sample = torch.tensor([[run.level == "sample"] for run in runs], device=device) & self._aol
        self.resampled = torch.tensor([[run.mechanism == "resample"] for run in runs], device=device)
        self.any_sample_level = bool(self._by_sample.any())

    def by_class(self, counts: Tensor, age_weight: Tensor, error_weight: Tensor | None) -> Tensor:
        """Return class weights `float32 [R, C]` from counts `[C]` or `[R, C]` and the weights of the signals."""
        one = torch.ones_like(age_weight)
        parts = [
            torch.where(self._cb, class_balanced_weight(counts, self._beta), one),
            torch.where(self._frequency, frequency_weight(counts, self._power), one),
            torch.where(self._aol & ~self._by_sample, age_weight, one),
        ]
        if error_weight is not None:
            parts.append(torch.where(self._error, error_weight, one))
        # At sample level the sample's own weight is still to come: `by_sample` tempers the product, once.
        return temper(combine(*parts), self._temper.masked_fill(self._by_sample.squeeze(1), 1.0))

    def by_sample(self, class_weight: Tensor, sample_weight: Tensor | None, label: Tensor) -> Tensor:
        """Return sample weights `float32 [R, n]`: those of the class, or for runs at sample level the sample's own."""
        found = gather(class_weight, label)
        if sample_weight is None:
            return found
        own = temper(combine(found, sample_weight), self._temper)
        return torch.where(self._by_sample, own, found)

    def mean_by_class(self, class_weight: Tensor, sample_weight: Tensor, label: Tensor) -> Tensor:
        """Return class weights `[R, C]` to write down: for runs at sample level, the mean over the class's samples."""
        if not self.any_sample_level:
            return class_weight
        label = label.expand_as(sample_weight)
        total = torch.zeros_like(class_weight, dtype=torch.float64).scatter_add_(1, label, sample_weight.double())
        count = torch.zeros_like(total).scatter_add_(1, label, torch.ones_like(sample_weight, dtype=torch.float64))
        mean = (total / count).nan_to_num(1.0).to(class_weight.dtype)
        return torch.where(self._by_sample, mean, class_weight)
