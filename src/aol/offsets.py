"""Offsets of the logits from class counts, and offsets for models that are already trained."""

from __future__ import annotations

import torch
from torch import Tensor

from aol import _check
from aol.losses import with_offset
from aol.margins import Margins
from aol.weights import per_run

_STEPS = 200  # of `fit_offsets`


def logit_offsets(counts: _check.Integers, tau: _check.Rate = 1.0) -> Tensor:
    r"""Return the offsets of logit adjustment, from class counts, with mean zero over the classes.

    .. math:: o_c = \tau\,(\log n_c - \tfrac{1}{C} \sum_k \log n_k)

    Args:
        counts: numbers of samples by class, `[C]` or `[R, C]`. A class without samples counts as seen once.
        tau: strength, 0 or more; 1 is the balanced softmax; a vector of R numbers gives `[R, C]`.

    >>> logit_offsets([1000, 10])
    tensor([ 2.3026, -2.3026])
    """
    number = _check.counts(counts)
    rate = per_run("tau", tau, number, 0.0, 1e6)
    rarest = number.masked_fill(number == 0, 1.0).amin(-1, keepdim=True)  # an absent class is never above a rare one
    log = torch.where(number > 0, number, rarest).log()
    return (rate * (log - log.nanmean(-1, keepdim=True))).to(torch.float32)


def posthoc_logits(logits: _check.Numbers, offset: _check.Numbers) -> Tensor:
    r"""Return the logits of a model that was trained without offsets, adjusted afterwards: `logits - offset`.

    Args:
        logits: `[..., C]`, a tensor or an array; logarithms of predicted probabilities, if a model has no logits.
        offset: `[C]`, or `[R, C]` for logits `[R, B, C]`: from `logit_offsets` or `fit_offsets`.

    >>> posthoc_logits(torch.tensor([[2.0, 1.0]]), logit_offsets([90, 10]))
    tensor([[0.9014, 2.0986]])
    """
    z = logits if isinstance(logits, Tensor) else _check.real("logits", logits)  # a tensor keeps its gradient
    return with_offset(z, -_check.real("offset", offset).to(torch.float64))


def fit_offsets(logits: _check.Numbers, label: _check.Integers, *, times: _check.Integers | None = None) -> Tensor:
    """Return offsets for `posthoc_logits`, `float32 [C]`, from held-out logits: no class counts, no training.

    Moves offsets as `Margins` does, and returns those with the lowest mean error rate of classes on the way. Use
    samples that the model was not trained on. `times`, `[B]`, counts a sample several times.

    >>> logits = torch.tensor([[1.0, 0.0]] * 50 + [[0.5, 0.0]] * 50)
    >>> offset = fit_offsets(logits, [0] * 50 + [1] * 50)
    >>> posthoc_logits(logits, offset).argmax(1).bincount()
    tensor([50, 50])
    """
    z, label = _check.real("logits", logits), _check.integers("label", label)
    if not z.is_floating_point() or z.dim() != 2:
        raise TypeError(f"logits must be floating point, [B, C], not {_check.shown(logits)}.")
    if label.shape != z.shape[:1]:
        raise ValueError(f"label must have the shape {[z.shape[0]]} to go with logits, not {list(label.shape)}.")
    z = z.to(torch.float64)
    finite = z[z.isfinite()]
    if finite.numel() == 0 or bool(z.isnan().any()):
        raise ValueError(f"logits must hold numbers (not NaN) of at least one sample, not {_check.shown(logits)}.")
    often = torch.ones_like(label) if times is None else _check.integers("times", times, device=label.device)
    if often.shape != label.shape or bool((often < 0).any()) or not bool(often.any()):
        raise ValueError(f"times must hold counts of 0 or more, {list(label.shape)}, not {_check.shown(times)}.")
    share = often.to(z)[:, None].expand_as(z)[z.isfinite()]  # logarithms of probabilities may be -inf
    middle = (share * finite).sum() / share.sum()
    unit = ((share * (finite - middle).square()).sum() / share.sum()).sqrt().clamp_min(1e-12)  # of the steps
    margins = Margins(z.shape[1], signal="error", rho=1.0, gain=0.1, limit=50.0, device=z.device)
    best, lowest = margins.offsets, torch.inf
    for step in range(_STEPS):
        current = margins.offsets
        margins.observe(label, (z - unit * current).argmax(1), times=often)
        margins.advance(scale=1 - step / _STEPS, sync=False)
        error = float(margins.missed.nanmean())
        if error < lowest:
            best, lowest = current, error
    return (best * unit).to(torch.float32)
