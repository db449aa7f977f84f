"""Accuracy, loss and margin by class, as sums and means. Sums are float64, with a run axis."""

from __future__ import annotations

import torch
from torch import Tensor

from aol import _distributed
from aol.losses import is_correct, softmax_loss

READINGS = ("accuracy", "loss", "margin")


def readings(logits: Tensor, label: Tensor) -> Tensor:
    """Return the values to sum for each prediction, `float64 [4, R, B]`: one, right or not, softmax loss, margin.

    >>> readings(torch.tensor([[[1.0, 3.0, 2.0]]]), torch.tensor([[1]])).flatten()
    tensor([1.0000, 1.0000, 0.4076, 1.0000], dtype=torch.float64)
    """
    right = is_correct(logits, label).to(torch.float64)
    return torch.stack((torch.ones_like(right), right, softmax_loss(logits, label), margin(logits, label)))


def margin(logits: Tensor, label: Tensor) -> Tensor:
    """Return the logit of the true class minus the largest other logit, `[R, B]`; positive if right.

    >>> margin(torch.tensor([[[1.0, 3.0, 2.0]]]), torch.tensor([[1]]))
    tensor([[1.]])
    """
    true = logits.gather(-1, label[..., None])
    others = logits.scatter(-1, label[..., None], -torch.inf)
    return (true - others.amax(-1, keepdim=True)).squeeze(-1)


def means(sums: Tensor) -> dict[str, Tensor]:
    """Return the means by class, `[R, C]` each, of sums `[4, R, C]`; NaN for a class without a sample."""
    count = sums[0]
    return {name: value / count for name, value in zip(READINGS, sums[1:], strict=True)}


class ClassReadings:
    """Sums by class since the last `take`.

    >>> found = ClassReadings(1, 2, torch.device("cpu"))
    >>> found.add(torch.tensor([[[1.0, 0.0], [1.0, 0.0]]]), torch.tensor([[0, 1]]))
    >>> means(found.take())["accuracy"]
    tensor([[1., 0.]], dtype=torch.float64)
    """

    def __init__(self, num_runs: int, num_classes: int, device: torch.device) -> None:
        self._sums = torch.zeros((len(READINGS) + 1, num_runs, num_classes), dtype=torch.float64, device=device)

    def add(self, logits: Tensor, label: Tensor) -> None:
        """Add predictions `logits [R, B, C]` for samples of the classes `label [R, B]`."""
        found = readings(logits, label).to(self._sums.device)
        self._sums.scatter_add_(2, label.to(self._sums.device).expand(found.shape[0], -1, -1), found)

    def take(self, group: _distributed.Group = None) -> Tensor:
        """Return the sums over all processes, `[4, R, C]`, and reset them."""
        found = _distributed.total(self._sums, group)
        self._sums = torch.zeros_like(self._sums)
        return found
