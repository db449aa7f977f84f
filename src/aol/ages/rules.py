"""The equations of the Age of Learning, as pure functions of tensors."""

from __future__ import annotations

import torch
from torch import Tensor

from aol import _check


def age_step(age: Tensor, correct: _check.Truths) -> Tensor:
    r"""Return the next age: one where the prediction was right, one more where it was wrong.

    .. math:: a^{(e)} = (1 - c^{(e)})\,(a^{(e-1)} + 1) + c^{(e)}

    Ages stop at the largest number of the type of `age`; they do not overflow.

    Args:
        age: any shape, any numeric type; the result has the same type.
        correct: true or false, of a shape that broadcasts with `age`.

    >>> age_step(torch.tensor([1, 1, 4]), torch.tensor([True, False, False]))
    tensor([1, 2, 5])
    >>> age_step(torch.tensor([254, 255], dtype=torch.uint8), torch.tensor([False, False]))
    tensor([255, 255], dtype=torch.uint8)
    """
    age = _check.real("age", age)
    right = _check.truths("correct", correct, device=age.device)
    _check.broadcasts("correct", right, "age", age.shape)
    if age.is_floating_point():  # age + 1 stops by itself at the precision limit: 2048 in float16
        return torch.where(right, torch.ones_like(age), age + 1)
    largest = torch.iinfo(age.dtype).max
    if age.dtype in (torch.uint16, torch.uint32, torch.uint64):  # torch cannot add these types
        more = torch.where(age == largest, age, (age.to(torch.int64) + 1).to(age.dtype))
        return torch.where(right, torch.ones_like(age), more)
    return (age * ~right).clamp_max_(largest - 1).add_(1)  # three times as fast as torch.where on a CPU


def ema_step(ema: Tensor, age: Tensor, rho: _check.Rate) -> Tensor:
    r"""Return the next smoothed age.

    .. math:: \bar a^{(e)} = (1 - \rho)\,\bar a^{(e-1)} + \rho\, a^{(e)}

    `rho` is rounded to float32 first, so that a float and a float32 tensor give the same bits. The interpolation is
    exact at both ends: an EMA equal to the age does not change.

    Args:
        ema: floating point, any shape.
        age: the same shape, any numeric type.
        rho: a number in [0, 1], or a vector of R numbers along the first dimension of `ema`.

    >>> ema_step(torch.tensor([1.0, 3.0]), torch.tensor([2, 1]), 0.5)
    tensor([1.5000, 2.0000])
    >>> ema_step(torch.ones(2, 1), torch.full((2, 1), 5), torch.tensor([0.25, 1.0]))
    tensor([[2.],
            [5.]])
    """
    if not isinstance(ema, Tensor) or not ema.is_floating_point():
        raise TypeError(f"ema must be a floating-point tensor, not {_check.shown(ema)}.")
    rate = _check.rates("rho", rho, 0.0, 1.0)
    if rate.dim() == 1:
        if ema.dim() == 0 or rate.numel() not in (1, ema.shape[0]):
            raise ValueError(
                f"rho must be one number, or one per row of ema {list(ema.shape)}, not {_check.shown(rate)}."
            )
        rate = rate.view(-1, *[1] * (ema.dim() - 1))
    now = _check.real("age", age, device=ema.device)
    _check.broadcasts("age", now, "ema", ema.shape)
    return blend(ema, now, rate.to(ema.device))


def blend(ema: Tensor, age: Tensor, rate: Tensor) -> Tensor:
    """Like `ema_step`, with a rate that is checked and broadcasts."""
    weight = rate.to(torch.float32).to(ema.dtype)
    return torch.lerp(ema, age.to(ema.dtype), weight)


def balancing_factor(members: Tensor, total: Tensor) -> Tensor:
    """Return the factor that gives a set as much total weight as all others have, but at least one.

    `members` and `total` are numbers of samples; the factor of an empty set is one.

    >>> balancing_factor(torch.tensor([1, 8, 0]), torch.tensor([10, 10, 10]))
    tensor([9., 1., 1.], dtype=torch.float64)
    """
    inside = members.to(torch.float64)
    return torch.where(inside > 0, (total - inside) / inside, 1.0).clamp_min(1.0)


def class_mean(value: Tensor, label: Tensor, num_classes: int) -> Tensor:
    """Return the mean of values `[R, N]` over the samples of each class, `float64 [R, C]`; NaN for a class without any.

    >>> class_mean(torch.tensor([[1.0, 2.0, 5.0]]), torch.tensor([0, 0, 2]), 3)
    tensor([[1.5000,    nan, 5.0000]], dtype=torch.float64)
    """
    both = torch.stack((value.to(torch.float64), torch.ones_like(value, dtype=torch.float64)))
    sums = both.new_zeros((2, len(value), num_classes)).scatter_add_(2, label.expand_as(both), both)
    return sums[0] / sums[1]


def mean_one(value: Tensor) -> Tensor:
    """Return values divided by their mean along the last dimension, as float32; NaN is ignored and becomes one.

    If the mean is zero, all weights are one.

    >>> mean_one(torch.tensor([1.0, 3.0, torch.nan]))
    tensor([0.5000, 1.5000, 1.0000])
    """
    value = value.to(torch.float64)
    weight = value / value.nanmean(-1, keepdim=True)
    return weight.masked_fill(weight.isnan(), 1.0).to(torch.float32)
