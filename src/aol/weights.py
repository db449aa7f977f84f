"""Weights from counts, error rates and other weights, with mean one along the last dimension; those before are runs."""

from __future__ import annotations

import torch
from torch import Tensor

from aol import _check
from aol.ages import blend, mean_one
from aol.class_ages import ClassCounts


def class_balanced_weight(counts: _check.Integers, beta: _check.Rate) -> Tensor:
    r"""Return class-balanced weights, the inverse of the effective number of samples, with mean one.

    .. math:: w_c \propto \frac{1 - \beta}{1 - \beta^{n_c}}

    Args:
        counts: numbers of samples by class, `[C]` or `[R, C]`. A class without samples has weight one.
        beta: in [0, 1); 0 gives ones, close to 1 gives inverse frequencies. A vector of R numbers gives `[R, C]`.

    >>> class_balanced_weight([1000, 100, 10], 0.99)
    tensor([0.2301, 0.3630, 2.4068])
    """
    number = _check.counts(counts)
    rate = per_run("beta", beta, number, 0.0, 1.0, open_above=True)
    # 1 - β^n = -expm1(n log β) is accurate where β^n rounds to one. The constant factor 1 - β cancels.
    effective = -torch.expm1(number * torch.log1p(rate - 1))
    return mean_one(torch.where(number > 0, 1 / effective, torch.nan))


def frequency_weight(counts: _check.Integers, power: _check.Rate) -> Tensor:
    r"""Return powers of the inverse class frequency, with mean one.

    .. math:: w_c \propto n_c^{-p}

    Counts as in `class_balanced_weight`; `power`, p, is 0 or more, or a vector of R numbers.

    >>> frequency_weight([100, 25], 0.5)
    tensor([0.6667, 1.3333])
    """
    number = _check.counts(counts)
    rate = per_run("power", power, number, 0.0, torch.inf)
    log = number.masked_fill(number == 0, torch.nan).log()
    above = log - log.nan_to_num(torch.inf).amin(-1, keepdim=True)
    return mean_one(torch.exp(torch.where(above == 0, 0.0, -rate * above)))  # an infinite power times zero is NaN


def per_run(
    name: str, setting: _check.Rate, value: Tensor, low: float, high: float, *, open_above: bool = False
) -> Tensor:
    """Return a setting between two bounds, `float64 []`, or as a column `[R, 1]` to go with `value [R, C]`."""
    rate = _check.rates(name, setting, low, high, open_above=open_above).to(value.device)
    if value.dim() > 1 and rate.numel() not in (1, value.shape[-2]):
        raise ValueError(f"{name} must be one number, or a list of {value.shape[-2]}, one per run, not {rate.numel()}.")
    return rate[:, None] if rate.dim() else rate


def set_weight(member: _check.Truths, factor: _check.Rate | None = None) -> Tensor:
    r"""Return weights with a constant factor on the members of a set, with mean one.

    .. math:: w_i \propto \begin{cases} f & i \in S \\ 1 & \text{else} \end{cases}

    For example just-train-twice: S holds the samples that were wrong at the end of an early epoch.

    Args:
        member: which samples are in S, `[N]` or `[R, N]`.
        factor: f, 0 or more; a vector of R numbers gives `[R, N]`. None: the number of samples outside S over that
            inside, but at least one.

    >>> set_weight([False, False, False, True])
    tensor([0.6667, 0.6667, 0.6667, 2.0000])
    """
    inside, _ = _check.truths("member", member)
    if inside.dim() == 0:
        raise ValueError(f"member must hold one value per sample, not {_check.shown(member)}.")
    return _set_weight(inside, torch.ones_like(inside), factor)


def old_set_weight(peak_age: _check.Numbers, after: _check.Rate = 5, factor: _check.Rate | None = None) -> Tensor:
    r"""Return weights with a constant factor on samples that were ever wrong `after` times in a row, with mean one.

    .. math:: w_i \propto \begin{cases} f & \hat a_i > T \\ 1 & \text{else} \end{cases}

    Args:
        peak_age: the largest ages of the samples so far, `[N]` or `[R, N]`, as in `SampleAges(..., fuse="peak").ema`. A
            sample never seen has NaN, and the weight one.
        after: T, 1 or more; a vector of R numbers gives `[R, N]`. Ages start at one: T errors give T + 1.
        factor: f, as in `set_weight`.

    >>> old_set_weight([1.0, 2.0, 1.0, 7.0], after=5, factor=5)
    tensor([0.5000, 0.5000, 0.5000, 2.5000])
    """
    peak = _check.real("peak_age", peak_age).to(torch.float64)
    if peak.dim() == 0:
        raise ValueError(f"peak_age must hold one age per sample, not {_check.shown(peak_age)}.")
    return _set_weight(peak > per_run("after", after, peak, 1.0, torch.inf), ~peak.isnan(), factor)


def _set_weight(inside: Tensor, known: Tensor, factor: _check.Rate | None) -> Tensor:
    """Return weights with a factor where `inside`; None balances the `known` samples; others have weight one."""
    if factor is None:
        members, total = (mask.sum(-1, keepdim=True).to(torch.float64) for mask in (inside, known))
        times = torch.where(members > 0, (total - members) / members, 1.0).clamp_min(1.0)
    else:
        times = per_run("factor", factor, inside, 0.0, 1e6)
    return mean_one(torch.where(inside, times, 1.0).masked_fill(~known, torch.nan))


class ErrorRates(ClassCounts):
    r"""The error rates of classes, smoothed over steps, and the resulting weights.

    .. math:: \bar \epsilon_c \leftarrow (1 - \rho)\, \bar \epsilon_c + \rho\,(1 - r_c), \qquad
        w_c = \frac{\bar \epsilon_c}{\frac{1}{C} \sum_k \bar \epsilon_k}

    Used like `ClassAges`. The average of a class starts at its first observed rate; a class that is not observed keeps
    its average. `rho = 0` means uniform weights.

    >>> rates = ErrorRates(2, rho=0.5)
    >>> rates.observe([0, 0, 1, 1], [True, True, True, False])
    >>> rates.advance()
    >>> rates.class_weight
    tensor([0., 2.])
    """

    _smoothed = "_rate"

    def __init__(self, num_classes: int, *, rho: _check.Rate = 0.3, device: torch.device | str | None = None) -> None:
        super().__init__(num_classes, rho=rho, device=device)
        self._add("_rate", (len(self._rho), self.num_classes), torch.nan, torch.float32)

    @property
    def error_rate(self) -> Tensor:
        """The smoothed error rate, `float32 [C]`; NaN where never observed."""
        return self._out(self._rate.clone())

    def advance(self, *, sync: bool = True) -> None:
        """End the step: update the rates. Collective under `torch.distributed`, unless `sync=False`."""
        now = 1 - self._accuracy(sync)
        before = torch.where(self._rate.isnan(), now.to(torch.float32), self._rate)
        self._rate.copy_(torch.where(now.isnan(), self._rate, blend(before, now, self._rho)))
        self._end()


def combine(*weights: _check.Numbers) -> Tensor:
    """Return the product of several weights, with mean one along the last dimension.

    >>> combine(torch.tensor([0.5, 1.5]), torch.tensor([1.0, 3.0]))
    tensor([0.2000, 1.8000])
    """
    if not weights:
        raise ValueError("combine needs at least one weight.")
    product = _to_one(_check.finite("weight", weights[0]))
    for weight in weights[1:]:
        factor = _to_one(_check.finite("weight", weight, device=product.device))
        if factor.shape[-1] != product.shape[-1]:
            raise ValueError(f"weights must have the same size, not {product.shape[-1]} and {factor.shape[-1]}.")
        _check.broadcasts("weight", factor, "the others", product.shape)
        product = _to_one(product * factor)
    return mean_one(product)


def _to_one(weight: Tensor) -> Tensor:
    """Return weights scaled to a largest value of one, so that products do not overflow."""
    largest = weight.amax(-1, keepdim=True)
    return weight / largest.masked_fill(largest == 0, 1.0)


def temper(weight: _check.Numbers, power: _check.Rate) -> Tensor:
    """Return weights `[C]` or `[R, C]` raised to a power, with mean one; a vector of R powers gives `[R, C]`.

    >>> temper(torch.tensor([0.2, 1.8]), 0.5)
    tensor([0.5000, 1.5000])
    """
    base = _to_one(_check.finite("weight", weight))
    return mean_one(base ** per_run("power", power, base, 0.0, torch.inf))
