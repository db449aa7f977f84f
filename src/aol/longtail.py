"""Long-tailed subsets of a labelled set."""

from __future__ import annotations

import torch
from torch import Tensor

from aol import _check, _seeds


def long_tail_counts(largest: int, num_classes: int, imbalance: float) -> Tensor:
    r"""Return the numbers of samples of the classes, `int64 [C]`, in descending order.

    .. math:: n_r = \max\!\big(1, \lfloor n_{\max}\, \mu^{-r / (C - 1)} \rfloor\big)

    Args:
        largest: number of samples of the head class, n_max.
        num_classes: C.
        imbalance: μ, largest class over smallest class, 1 or more.

    >>> long_tail_counts(5000, 10, 100).tolist()
    [5000, 2997, 1796, 1077, 645, 387, 232, 139, 83, 50]
    """
    most, classes = _check.whole("largest", largest, 1, 2**53), _check.whole("num_classes", num_classes, 1, 1 << 24)
    factor = _check.number("imbalance", imbalance, 1.0, float("inf"))
    # Python's own power: a vectorised one may differ in the last bit, which changes the floor by one sample.
    counts = [int(most * factor ** (-rank / max(1, classes - 1))) for rank in range(classes)]
    return torch.tensor(counts, dtype=torch.int64, device="cpu").clamp_min(1)


def long_tail(labels: _check.Integers, imbalance: float, *, seed: int = 0) -> Tensor:
    """Return a long-tailed subset of a labelled set: indices in ascending order, `int64`; class 0 is the head.

    The head is as large as possible. With the same seed, the subset of a stronger imbalance is contained in that of a
    weaker one.

    >>> labels = torch.arange(100) % 4
    >>> torch.bincount(labels[long_tail(labels, 8)])
    tensor([25, 12,  6,  3])
    """
    pool, classes = _check.labels(labels, None)
    pool = pool.to("cpu", torch.int64)
    available = torch.bincount(pool, minlength=classes)
    if not bool(available.all()):
        missing = int((available == 0).nonzero()[0])
        raise ValueError(f"labels must hold every class from 0 to {classes - 1}, but {missing} has no sample.")
    low, high = 1, int(available[0])  # bisection for the largest head with which every class has enough samples
    while low < high:
        middle = (low + high + 1) // 2
        fits = bool((long_tail_counts(middle, classes, imbalance) <= available).all())
        low, high = (middle, high) if fits else (low, middle - 1)
    counts = long_tail_counts(low, classes, imbalance)
    return keep_per_class(pool, counts, _seeds.generator(_check.whole("seed", seed, 0)))


def keep_per_class(labels: Tensor, counts: Tensor, generator: torch.Generator) -> Tensor:
    """Return `counts[c]` random samples of every class c without replacement, as indices in ascending order."""
    shuffled = torch.randperm(labels.numel(), generator=generator, device=labels.device)
    by_class = shuffled[labels[shuffled].argsort(stable=True)]
    label = labels[by_class]
    size = torch.bincount(labels, minlength=counts.numel())
    rank = torch.arange(labels.numel(), device=labels.device) - (size.cumsum(0) - size)[label]
    return by_class[rank < counts[label]].sort().values
