"""Per-sample losses and their weighted mean, in float32 also under autocast. Logits are `[B, C]` or `[R, B, C]`."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor

from aol import _check, _distributed

ROUNDING = 0.02  # of soft targets in bfloat16, and of their sum


def softmax_loss(logits: Tensor, target: Tensor, *, offset: Tensor | None = None) -> Tensor:
    r"""Return the softmax cross-entropy per sample, `[B]` or `[R, B]`.

    .. math:: \ell = -\sum_k y_k \log \frac{\exp z_k}{\sum_j \exp z_j}

    Args:
        logits: `[B, C]` or `[R, B, C]`.
        target: labels, `[B]` or `[R, B]`, or floating-point soft targets, `[B, C]` or `[R, B, C]` (mixup, smoothing).
        offset: added to the logits, `[C]` or `[R, C]`, in training: from `logit_offsets` or `Margins.offsets`.

    >>> softmax_loss(torch.tensor([[0.0, 0.0], [3.0, 0.0]]), torch.tensor([0, 1]))
    tensor([0.6931, 3.0486])
    """
    z = _logits(logits, offset)
    with torch.autocast(z.device.type, enabled=False):
        wanted = _target(z, target)
        if wanted.is_floating_point():
            return -(wanted * z.log_softmax(-1)).sum(-1)
        return -z.log_softmax(-1).gather(-1, wanted.unsqueeze(-1)).squeeze(-1)


def sigmoid_loss(logits: Tensor, target: Tensor, *, offset: Tensor | None = None) -> Tensor:
    r"""Return the one-versus-all sigmoid cross-entropy per sample, summed over classes, `[B]` or `[R, B]`.

    .. math:: \ell = -\sum_k \big[ y_k \log \sigma(z_k) + (1 - y_k) \log(1 - \sigma(z_k)) \big]

    Arguments as in `softmax_loss`. Initialise the bias of the classifier with `sigmoid_bias`.

    >>> sigmoid_loss(torch.tensor([[0.0, 0.0]]), torch.tensor([0]))
    tensor([1.3863])
    """
    return focal_loss(logits, target, gamma=0.0, offset=offset)


def focal_loss(logits: Tensor, target: Tensor, gamma: float = 1.0, *, offset: Tensor | None = None) -> Tensor:
    r"""Return the sigmoid focal loss per sample, summed over classes, `[B]` or `[R, B]`.

    .. math:: \ell = -\sum_k \big[ y_k\, (1 - p_k)^\gamma \log p_k + (1 - y_k)\, p_k^\gamma \log(1 - p_k) \big],
        \qquad p = \sigma(z)

    Arguments as in `softmax_loss`; `gamma = 0` is the sigmoid loss.

    >>> focal_loss(torch.tensor([[0.0, 0.0]]), torch.tensor([0]), gamma=2.0)
    tensor([0.3466])
    """
    gamma = _check.number("gamma", gamma, 0.0, 1e6)
    z = _logits(logits, offset)
    with torch.autocast(z.device.type, enabled=False):
        soft = _target(z, target, add_up=False)
        if not soft.is_floating_point():
            soft = F.one_hot(soft, z.shape[-1]).to(z.dtype)
        right, wrong = F.logsigmoid(z), F.logsigmoid(-z)
        if gamma == 0.0:
            return -(soft * right + (1 - soft) * wrong).sum(-1)
        return -(soft * right * (gamma * wrong).exp() + (1 - soft) * wrong * (gamma * right).exp()).sum(-1)


def weighted_mean(
    loss: Tensor, weight: Tensor, *, divide_by: str = "weight", total: Tensor | float | None = None
) -> Tensor:
    r"""Return the weighted mean of losses over the batch, a scalar, or `[R]` with a run axis.

    .. math:: \frac{\sum_i w_i \ell_i}{\sum_i w_i} \;\text{("weight")} \qquad \text{or} \qquad
        \frac{\sum_i w_i \ell_i}{B} \;\text{("count")}

    A total weight of zero gives a loss and a gradient of zero; a sample of weight zero is ignored, even with a loss of
    NaN.

    Args:
        loss: `[B]` or `[R, B]`.
        weight: `[B]` or `[R, B]`; gets no gradient.
        divide_by: "weight" (the paper), or "count", the batch size (the paper's code for sigmoid and focal losses).
        total: another divisor, if this batch is a part of a larger one: see `loss_total`.

    >>> weighted_mean(torch.tensor([1.0, 3.0]), torch.tensor([3.0, 1.0]))
    tensor(1.5000)
    """
    _check.choice("divide_by", divide_by, ("weight", "count"))
    if not isinstance(loss, Tensor) or not loss.is_floating_point() or loss.dim() not in (1, 2):
        raise TypeError(f"loss must be a floating-point tensor [B] or [R, B], not {_check.shown(loss)}.")
    weight = weight if isinstance(weight, Tensor) else _check.real("weight", weight)
    weight = _check.moved(weight, loss.device).detach()
    if weight.dim() == 0 or weight.shape not in (loss.shape, loss.shape[-1:]):
        raise ValueError(f"weight must have the shape of loss, {list(loss.shape)}, not {list(weight.shape)}.")
    if _check.readable(weight) and bool((weight < 0).any()):
        raise ValueError(f"weight must be 0 or more, not {float(weight.min()):g}.")
    with torch.autocast(loss.device.type, enabled=False):
        value = loss if loss.dtype == torch.float64 else loss.float()
        weight = weight.to(value.dtype).expand_as(value)
        summed = (weight * value.masked_fill(weight == 0, 0.0)).sum(-1)
        if total is None:
            total = weight.sum(-1) if divide_by == "weight" else float(value.shape[-1])
        if isinstance(total, float):  # filled on the device: a copy from the CPU would synchronise
            total = torch.full((), total, dtype=value.dtype, device=value.device)
        divisor = _check.real("total", total, device=value.device).to(value.dtype)
        if divisor.shape not in (torch.Size([]), summed.shape):
            raise ValueError(f"total must be one number{' a run' * summed.dim()}, not {_check.shown(divisor)}.")
        return summed / divisor.masked_fill(divisor == 0, 1.0)


def loss_total(weights: Tensor | Iterable[Tensor], *, divide_by: str = "weight") -> Tensor:
    r"""Return the divisor of `weighted_mean` with which micro-batches and processes equal one large batch.

    Pass the weights of all micro-batches of one optimiser step on this process. The result is their sum over all
    processes (collective), divided by their number, because DDP averages gradients. Do not scale the losses.

    >>> total = loss_total([torch.tensor([1.0, 2.0]), torch.tensor([5.0])])
    >>> total
    tensor(8., dtype=torch.float64)
    >>> weighted_mean(torch.tensor([1.0, 1.0]), torch.tensor([1.0, 2.0]), total=total)  # of the first of both
    tensor(0.3750)
    """
    _check.choice("divide_by", divide_by, ("weight", "count"))
    parts = [weights] if isinstance(weights, Tensor) else list(weights)
    if not parts:
        raise ValueError("weights must hold the weights of at least one micro-batch; an empty tensor is enough.")
    parts = [part.detach() if isinstance(part, Tensor) else _check.real("weights", part) for part in parts]
    if divide_by == "count":
        parts = [torch.ones_like(part) for part in parts]
    summed = torch.stack([part.to(torch.float64).sum(-1) for part in parts]).sum(0)
    return _distributed.total(summed) / _distributed.world()[1]


def sigmoid_bias(num_classes: int) -> float:
    """Return the initial bias of a sigmoid or focal classifier, -log(C - 1): a class has odds 1 : C - 1.

    >>> round(sigmoid_bias(10), 4)
    -2.1972
    """
    return -math.log(_check.whole("num_classes", num_classes, 2) - 1)


def is_correct(logits: Tensor, target: Tensor) -> Tensor:
    """Return which samples are predicted right, bool `[B]` or `[R, B]`; those with NaN logits or targets are not.

    >>> is_correct(torch.tensor([[2.0, 1.0], [0.0, torch.nan]]), torch.tensor([0, 1]))
    tensor([ True, False])
    """
    z = _logits(logits).detach()
    label = _target(z, target, add_up=False)
    known = ~z.isnan().any(-1)
    if label.is_floating_point():
        label, known = label.argmax(-1), known & ~label.isnan().any(-1)
    return (z.argmax(-1) == label) & known


def _logits(logits: Tensor, offset: Tensor | None = None) -> Tensor:
    z = _full_precision(logits)
    if z.dim() not in (2, 3):
        raise TypeError(f"logits must be [B, C] or [R, B, C], not {_check.shown(logits)}.")
    return z if offset is None else with_offset(z, offset)


def _full_precision(logits: Tensor) -> Tensor:
    dense = isinstance(logits, Tensor) and logits.is_floating_point() and logits.layout == torch.strided
    if not dense or logits.dim() == 0:
        raise TypeError(f"logits must be a dense floating-point tensor, classes last, not {_check.shown(logits)}.")
    return logits if logits.dtype == torch.float64 else logits.float()


def with_offset(logits: Tensor, offset: Tensor) -> Tensor:
    """Return logits `[..., C]` plus an offset `[C]`, or `[R, C]` for logits `[R, B, C]`, which gets no gradient."""
    z, offset = _full_precision(logits), _check.real("offset", offset)
    if _check.readable(offset) and bool(offset.isnan().any()):
        raise ValueError("offset must hold numbers, not NaN.")
    offset = _check.moved(offset, z.device)
    if offset.shape != z.shape[-1:] and (z.dim() != 3 or offset.shape != (len(z), z.shape[-1])):
        wanted = f"[C], or [R, C] for logits [R, B, C], to go with logits {list(z.shape)}"
        raise ValueError(f"offset must be {wanted}, not {list(offset.shape)}.")
    return z + (offset[:, None] if offset.dim() == 2 else offset).to(z.dtype)


def _target(z: Tensor, target: Tensor, *, add_up: bool = True) -> Tensor:
    """Return labels `int64` with the shape of the loss, or soft targets like the logits; `add_up`: to one."""
    given = _check.moved(target if isinstance(target, Tensor) else _check.real("target", target), z.device)
    soft = given.is_floating_point()
    shape = z.shape if soft else z.shape[:-1]
    if given.shape not in (shape, shape[z.dim() - 2 :]):  # the latter: one batch for all runs
        kind = "soft targets" if soft else "labels"
        raise ValueError(f"target must be {kind} {list(shape)} for logits {list(z.shape)}, not {list(given.shape)}.")
    if not soft:
        given = _check.integers("target", given)
        if _check.readable(given):
            _check.within("target", given, z.shape[-1], "classes of logits")
    elif _check.readable(given) and given.numel():
        low, high = given.detach().aminmax()
        if not (low >= 0 and high <= 1 + ROUNDING):
            raise ValueError(f"target: soft targets must lie in 0 to 1, not {float(low):g} to {float(high):g}.")
        if add_up and bool(((given.detach().sum(-1, dtype=torch.float64) - 1).abs() > ROUNDING).any()):
            raise ValueError("target: the sum of soft targets over classes must be 1.")
    return given.to(z.dtype).expand(shape) if soft else given.expand(shape)
