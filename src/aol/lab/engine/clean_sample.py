"""A clean pass over a part of the samples: which ones, and the standard error of the class accuracies it estimates."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from aol import _seeds
from aol.lab.settings import Settings

_CLEAN = 1_000_007  # this use's place in the path of a seed; orders are 1,000,001


def sample_size(samples: int, part: float) -> int:
    """Return how many samples a clean pass sees: their part, rounded up.

    >>> sample_size(1057, 0.1)
    106
    """
    return math.ceil(samples * part)


def standard_error(accuracy: Tensor, seen: Tensor, counts: Tensor) -> Tensor:
    """Return the standard error of accuracies p `[..., C]` that are of `seen` of `counts` samples.

    Drawn without replacement: sqrt(p (1 - p) / (m - 1) · (1 - m / n)); zero where all samples were seen, NaN where
    fewer than two were.

    >>> standard_error(torch.tensor([0.5, 1.0]), torch.tensor([101, 1]), torch.tensor([10100, 20]))
    tensor([0.0497,    nan])
    """
    variance = accuracy * (1 - accuracy) / (seen - 1).clamp(min=1) * (1 - seen / counts.clamp(min=1))
    return variance.sqrt().masked_fill((seen < 2) & (seen < counts), torch.nan)


class CleanSample:
    """Draws the samples of each epoch's clean pass: all are as likely, so that ages of all classes count alike.

    Args:
        labels: of the samples, ordered by class, `int64 [n]`.
        part: of the samples that a pass sees; of each class its part, up to one sample.
    """

    def __init__(self, labels: Tensor, part: float) -> None:
        self._labels = labels
        self._size = sample_size(labels.numel(), part)

    def draw(self, runs: Sequence[Settings], epoch: int) -> Tensor:
        """Return the positions of each run's samples in an epoch, ascending: `int64 [R, m]`."""
        step = self._labels.numel() / self._size
        rows = []
        for run in runs:
            generator = _seeds.generator(run.seed, _CLEAN, epoch, device=self._labels.device)
            shuffled = torch.randperm(self._labels.numel(), generator=generator, device=self._labels.device)
            by_class = shuffled[self._labels[shuffled].argsort(stable=True)]
            # Every n/m-th, from a random start: systematic sampling.
            start = torch.rand((), generator=generator, device=self._labels.device, dtype=torch.float64)
            places = ((torch.arange(self._size, device=self._labels.device) + start) * step).to(torch.int64)
            rows.append(by_class[places.clamp_max(self._labels.numel() - 1)].sort().values)
        return torch.stack(rows)
