"""A clean pass over a part of the samples: which ones, and the standard error of the class accuracies it estimates."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from aol import _seeds
from aol.engine.settings import Settings

_CLEAN = 1_000_007  # this use's place in the path of a seed; orders are 1,000,001
LEAST = 30  # samples of a class, or all of them: fewer say little of its accuracy


def sample_counts(counts: Tensor, part: float) -> Tensor:
    """Return how many samples of each class a clean pass sees, `int64 [C]`: their part rounded up, at least `LEAST`.

    >>> sample_counts(torch.tensor([1000, 50, 7]), 0.1)
    tensor([100,  30,   7])
    """
    wanted = (counts.to(torch.float64) * part).ceil().to(torch.int64)
    return torch.minimum(counts, wanted.clamp(min=LEAST))


def standard_error(accuracy: Tensor, seen: Tensor, counts: Tensor) -> Tensor:
    """Return the standard error of accuracies p `[..., C]` that are of `seen [C]` of `counts [C]` samples.

    Drawn without replacement: sqrt(p (1 - p) / (m - 1) · (1 - m / n)); zero where all samples were seen.

    >>> standard_error(torch.tensor([0.5]), torch.tensor([101]), torch.tensor([10100]))
    tensor([0.0497])
    """
    variance = accuracy * (1 - accuracy) / (seen - 1).clamp(min=1) * (1 - seen / counts.clamp(min=1))
    return variance.sqrt()


class CleanSample:
    """Draws the samples of each epoch's clean pass, of each class the same number every time.

    Args:
        labels: of the samples, ordered by class, `int64 [n]`.
        counts: samples of each class, `int64 [C]`.
        part: of the samples that a pass sees.
    """

    def __init__(self, labels: Tensor, counts: Tensor, part: float) -> None:
        self._labels, self._counts = labels, counts
        self._seen = sample_counts(counts, part)
        place = torch.arange(labels.numel(), device=labels.device) - (counts.cumsum(0) - counts)[labels]
        self._taken = (place < self._seen[labels]).nonzero().flatten()

    def draw(self, runs: Sequence[Settings], epoch: int) -> Tensor:
        """Return the positions of each run's samples in an epoch, ascending: `int64 [R, m]`."""
        rows = []
        for run in runs:
            generator = _seeds.generator(run.seed, _CLEAN, epoch, device=self._labels.device)
            shuffled = torch.randperm(self._labels.numel(), generator=generator, device=self._labels.device)
            by_class = shuffled[self._labels[shuffled].argsort(stable=True)]
            rows.append(by_class[self._taken].sort().values)
        return torch.stack(rows)

    def error(self, accuracy: Tensor) -> Tensor:
        """Return the standard error of class accuracies `[R, C]` of a pass."""
        return standard_error(accuracy, self._seen, self._counts)
