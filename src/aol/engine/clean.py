"""One clean forward pass over given samples, and all that is read off it: right or wrong, loss and margin by class."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from aol import _distributed
from aol.engine.learner import Learner
from aol.engine.source import Source
from aol.losses import is_correct, softmax_loss

_BATCH, _PIXELS = 4096, 1 << 22  # the most images, and pixels, of all runs together in one evaluation batch


@dataclass(frozen=True)
class Readings:
    """What a clean pass says of n samples: `correct [R, n]`, and sums by class `[R, C]`, float64."""

    correct: Tensor
    right: Tensor
    count: Tensor
    loss: Tensor
    margin: Tensor

    @property
    def accuracy(self) -> Tensor:
        """The share of right answers of each run, `[R]`."""
        return self.right.sum(1) / self.count.sum(1)

    @property
    def class_accuracy(self) -> Tensor:
        """The share of right answers in each class, `[R, C]`, NaN where there was no sample."""
        return self.right / self.count

    @property
    def class_loss(self) -> Tensor:
        """The mean softmax loss in each class, `[R, C]`."""
        return self.loss / self.count

    @property
    def class_margin(self) -> Tensor:
        """The mean margin in each class, `[R, C]`: the true class's logit over the best other one."""
        return self.margin / self.count


def clean_pass(
    learner: Learner,
    source: Source,
    index: Tensor,
    *,
    num_classes: int,
    times: Tensor | None = None,
    averaged: bool = False,
) -> Readings:
    """Classify samples in evaluation mode, unaugmented.

    `index` is `[n]`, common to all runs, or `[R, n]`. `times [R, n]` says how often each counts in the sums (zero for
    padding); by default once. Processes share the samples and each gets the sums of all; `correct` is only known for
    this process's own share, `index[..., rank::world]`.
    """
    rank, world = _distributed.world()
    index = index[..., rank::world]
    times = None if times is None else times[:, rank::world]
    runs = len(learner.runs)
    label = source.labels[index]
    sums = torch.zeros((4, runs, num_classes), dtype=torch.float64, device=label.device)
    correct = []
    batch = max(16, min(_BATCH, _PIXELS // source.area) // runs)
    start = 0
    for images in source.clean(index, batch=batch):
        logits = learner.predict(images, averaged=averaged)
        part = slice(start, start + logits.shape[1])
        start = part.stop
        target = label[..., part].expand(runs, -1)
        right = is_correct(logits, target)
        correct.append(right)
        once = torch.ones_like(right, dtype=torch.float64)
        weight = once if times is None else times[:, part].to(torch.float64)
        readings = (right.to(torch.float64), once, softmax_loss(logits, target), margin(logits, target))
        for row, reading in enumerate(readings):
            # A sample that does not count must not spoil a sum with a NaN either.
            value = (reading.to(torch.float64) * weight).masked_fill(weight == 0, 0.0)
            sums[row].scatter_add_(1, target, value)
    sums = _distributed.total(sums)
    found = torch.cat(correct, 1) if correct else torch.zeros((runs, 0), dtype=torch.bool, device=label.device)
    return Readings(found, *sums.unbind())


def margin(logits: Tensor, label: Tensor) -> Tensor:
    """Return the true class's logit minus the best other one, `[R, B]`; positive where the answer is right.

    >>> margin(torch.tensor([[[1.0, 3.0, 2.0]]]), torch.tensor([[1]]))
    tensor([[1.]])
    """
    true = logits.gather(-1, label[..., None])
    others = logits.scatter(-1, label[..., None], -torch.inf)
    return (true - others.amax(-1, keepdim=True)).squeeze(-1)
