"""Accuracy, loss, margin and precision by class, as sums and means. Sums are float64, with a run axis."""

from __future__ import annotations

import torch
from torch import Tensor

from aol.losses import softmax_loss

READINGS = ("accuracy", "loss", "margin")
SUMS = 5  # by class: of samples one, right or not, loss, margin; and how often it was answered


def margin(logits: Tensor, label: Tensor) -> Tensor:
    """Return the logit of the true class minus the largest other logit, `[R, B]`; positive if right."""
    true = logits.gather(-1, label[..., None])
    others = logits.scatter(-1, label[..., None], -torch.inf)
    return (true - others.amax(-1, keepdim=True)).squeeze(-1)


def answers(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Return the class of the largest logit, `[R, B]`, and whether it is an answer, bool `[R, B]`: no logit is NaN."""
    largest, answer = logits.max(-1)  # NaN is larger than any number
    return answer, ~largest.isnan()


def add_readings(sums: Tensor, logits: Tensor, label: Tensor, times: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Add predictions to sums by class `[5, R, C]`; return which are right, bool `[R, B]`, and the answers, `[R, B]`.

    A prediction counts `times [R, B]`; zero is padding, whose NaNs must not enter the sums. NaN logits are no answer.

    >>> sums = torch.zeros((5, 1, 2), dtype=torch.float64)
    >>> logits = torch.tensor([[[0.0, 1.0], [0.0, 1.0], [torch.nan, 0.0]]])
    >>> add_readings(sums, logits, torch.tensor([[0, 1, 1]]))[0]
    tensor([[False,  True, False]])
    >>> precision(sums)
    tensor([[   nan, 0.5000]], dtype=torch.float64)
    """
    answer, answered = answers(logits)
    right = (answer == label) & answered
    one = torch.ones_like(right, dtype=sums.dtype)
    values = torch.stack((one, right, softmax_loss(logits, label), margin(logits, label), answered)).to(sums.device)
    if times is not None:
        values = (values * times).masked_fill(times == 0, 0.0)
    place = torch.stack((*[label] * (SUMS - 1), answer)).to(sums.device)
    sums.scatter_add_(2, place, values)
    return right, answer


def means(sums: Tensor) -> dict[str, Tensor]:
    """Return the means by class, `[R, C]`, of sums `[5, R, C]`; NaN for a class without a sample."""
    return {name: value / sums[0] for name, value in zip(READINGS, sums[1:-1], strict=True)}


def precision(sums: Tensor) -> Tensor:
    """Return how often answers were right, by class, `[R, C]`; NaN for a class that was never answered."""
    return sums[1] / sums[-1]
