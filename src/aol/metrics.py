"""Metrics for imbalanced problems: balanced accuracy, G-mean, macro-F1, kappa, worst classes, head, middle and tail.

The last dimension is that of the classes, `[C]`; any others (runs, epochs) come before it. The accuracy of a class is
its recall: right answers over samples. A class without a test sample has the accuracy NaN and is left out.
"""

from __future__ import annotations

import torch
from torch import Tensor

from aol import _check

NAMES = (
    "balanced_accuracy", "macro_f1", "worst_class", "worst_tenth", "head_accuracy", "middle_accuracy", "tail_accuracy",
)  # fmt: skip


def balanced_accuracy(accuracy: _check.Numbers) -> Tensor:
    """Return the mean accuracy of the classes, `float64 [...]`.

    >>> balanced_accuracy([0.9, 0.5, torch.nan])
    tensor(0.7000, dtype=torch.float64)
    """
    return _accuracies("accuracy", accuracy).nanmean(-1)


def g_mean(accuracy: _check.Numbers) -> Tensor:
    """Return the geometric mean of the accuracies of the classes, `float64 [...]`; 0 if one of them is.

    >>> g_mean([0.9, 0.4, torch.nan])
    tensor(0.6000, dtype=torch.float64)
    """
    return _accuracies("accuracy", accuracy).log().nanmean(-1).exp()


def macro_f1(accuracy: _check.Numbers, precision: _check.Numbers) -> Tensor:
    r"""Return the mean F1 score of the classes, `float64 [...]`.

    .. math:: \frac{1}{C} \sum_c \frac{2\, a_c\, p_c}{a_c + p_c}

    A class counts 0 if one of the two is NaN or both are zero; it is left out if both are NaN.

    >>> macro_f1([0.5, 1.0, 0.0], [1.0, 0.5, torch.nan])
    tensor(0.4444, dtype=torch.float64)
    """
    recall, share = _accuracies("accuracy", accuracy), _accuracies("precision", precision)
    if recall.shape != share.shape:
        raise ValueError(f"precision must have the shape of accuracy, {list(recall.shape)}, not {list(share.shape)}.")
    absent = recall.isnan() & share.isnan()
    score = (2 * recall * share / (recall + share)).nan_to_num(nan=0.0)
    return score.masked_fill(absent, torch.nan).nanmean(-1)


def worst_class(accuracy: _check.Numbers) -> Tensor:
    """Return the lowest accuracy of a class, `float64 [...]`.

    >>> worst_class([[0.9, 0.5, torch.nan], [0.25, 1.0, 1.0]])
    tensor([0.5000, 0.2500], dtype=torch.float64)
    """
    return _accuracies("accuracy", accuracy).sort(-1).values[..., 0]  # NaN comes last


def worst_tenth(accuracy: _check.Numbers) -> Tensor:
    r"""Return the mean accuracy of the worst tenth of the classes, `float64 [...]`.

    .. math:: \frac{1}{k} \sum_{j=1}^{k} a_{(j)}, \qquad k = \max(1, \lfloor C / 10 + 1/2 \rfloor)

    Here a is in ascending order, and C the number of classes with a sample. Below 15 classes it is `worst_class`.

    >>> worst_tenth(torch.arange(20) / 20)  # the mean of 0 and 0.05
    tensor(0.0250, dtype=torch.float64)
    """
    ordered = _accuracies("accuracy", accuracy).sort(-1).values  # NaN comes last
    number = (((~ordered.isnan()).sum(-1, keepdim=True) + 5) // 10).clamp(min=1)
    place = torch.arange(ordered.shape[-1], device=ordered.device)
    return ordered.masked_fill(place >= number, 0.0).sum(-1) / number.squeeze(-1)


def kappa_of_counts(right: Tensor, samples: Tensor, answered: Tensor) -> Tensor:
    r"""Return Cohen's kappa, agreement beyond chance, from right answers, samples and answers by class, `[..., C]`.

    .. math:: \kappa = \frac{p - e}{1 - e}, \quad p = \sum_c r_c / B, \quad e = \sum_c s_c\, t_c / B^2

    NaN where chance alone would always agree.

    >>> kappa_of_counts(torch.tensor([2.0, 1.0]), torch.tensor([2.0, 2.0]), torch.tensor([3.0, 1.0]))
    tensor(0.5000)
    """
    total = samples.sum(-1)
    agreed, chance = right.sum(-1) / total, (samples * answered).sum(-1) / total**2
    return (agreed - chance) / (1.0 - chance)


def has_tail(counts: _check.Numbers) -> bool:
    """Return whether classes have a head and a tail: the largest is at least half as large again as the smallest.

    >>> has_tail([146, 139, 142]), has_tail([60, 5])
    (False, True)
    """
    low, high = _counts(counts).aminmax()
    return bool((high > low) & (2 * high >= 3 * low))


def thirds(counts: _check.Numbers) -> Tensor:
    r"""Return the thirds of classes by numbers of training samples, `int64 [C]`: 0 head, 1 middle, 2 tail.

    .. math:: \Big\lfloor \frac{3\,(r_c + s_c)}{2\,C} \Big\rfloor

    r is the number of classes with more samples, s that of classes with as many or more. Two parts are head and tail.
    Without a tail (see `has_tail`) every class is -1.

    >>> thirds([900, 500, 500, 10]), thirds([50, 50, 50, 50, 5, 5])
    (tensor([0, 1, 1, 2]), tensor([0, 0, 0, 0, 2, 2]))
    """
    sizes = _counts(counts)
    if not has_tail(sizes):
        return torch.full_like(sizes, -1, dtype=torch.int64)
    ordered = (-sizes).sort().values
    more, as_many = (torch.searchsorted(ordered, -sizes, right=right) for right in (False, True))
    part = (more + as_many) * 3 // (2 * sizes.numel())
    two = bool((torch.bincount(part, minlength=3) == 0).any())
    return torch.where(part == part.min(), 0, 2) if two else part


def head_middle_tail(accuracy: _check.Numbers, counts: _check.Numbers) -> Tensor:
    """Return the mean accuracy of the `thirds` by counts of training samples, `float64 [..., 3]`; NaN for none.

    >>> head_middle_tail([0.9, 0.8, 0.6, 0.1], [900, 500, 500, 10])
    tensor([0.9000, 0.7000, 0.1000], dtype=torch.float64)
    """
    known, part = _accuracies("accuracy", accuracy), thirds(counts)
    if known.shape[-1] != part.numel():
        raise ValueError(f"counts must be {known.shape[-1]} numbers, one a class of accuracy, not {part.numel()}.")
    part = part.to(known.device)
    return torch.stack([known.masked_fill(part != third, torch.nan).nanmean(-1) for third in range(3)], -1)


def class_metrics(
    accuracy: _check.Numbers, *, precision: _check.Numbers | None = None, counts: _check.Numbers | None = None
) -> dict[str, Tensor]:
    """Return the metrics of `NAMES` by name, `float64 [...]`: those that precision and counts allow.

    >>> {name: round(value.item(), 2) for name, value in class_metrics([0.9, 0.5, 0.25]).items()}
    {'balanced_accuracy': 0.55, 'worst_class': 0.25, 'worst_tenth': 0.25}
    """
    metrics = {"balanced_accuracy": balanced_accuracy(accuracy)}
    if precision is not None:
        metrics["macro_f1"] = macro_f1(accuracy, precision)
    metrics |= {"worst_class": worst_class(accuracy), "worst_tenth": worst_tenth(accuracy)}
    if counts is not None:
        metrics |= dict(zip(NAMES[-3:], head_middle_tail(accuracy, counts).unbind(-1), strict=True))
    return metrics


def _accuracies(name: str, value: _check.Numbers) -> Tensor:
    known = _check.real(name, value).to(torch.float64)
    if known.dim() == 0 or known.shape[-1] == 0:
        raise ValueError(f"{name} must hold a number for each class in its last dimension, not {_check.shown(value)}.")
    wrong = (known < 0.0) | (known > 1.0)
    if bool(wrong.any()):
        raise ValueError(f"{name} must be fractions from 0 to 1, or NaN, not {known[wrong][0].item():g}.")
    return known


def _counts(value: _check.Numbers) -> Tensor:
    counts = _check.counts(value)
    if counts.dim() != 1:
        raise ValueError(f"counts must be a vector with a number for each class, not {_check.shown(value)}.")
    return counts
