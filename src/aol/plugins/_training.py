"""Shared by plug-ins for training loops: order and mode of a clean pass, and exchange of observations.

Uses PyTorch and the ages, no framework.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor, nn

from aol import _check, _distributed
from aol.ages import ClassAges, SampleAges
from aol.ids import Ids
from aol.sampling import EpochSampler
from aol.weights import ErrorRates

Ages: TypeAlias = SampleAges | ClassAges | ErrorRates
Key: TypeAlias = Tensor | Ids  # what ages are kept of: positions or ids of samples, or labels of classes


def single(ages: object) -> Ages:
    """Return ages of a single run, or raise ValueError."""
    if not isinstance(ages, SampleAges | ClassAges | ErrorRates):
        raise TypeError(f"ages must be SampleAges, ClassAges or ErrorRates, not {_check.shown(ages)}.")
    if ages.rho.dim():
        raise ValueError(f"ages must be of one run: give them one number as rho, not {ages.rho.numel()}.")
    return ages


def settings(signal: str, every: int | None, divide_by: str) -> tuple[str, int | None, str]:
    """Return the checked common settings: signal, steps between two calls of `advance`, divisor."""
    return (
        _check.choice("signal", signal, ("pass", "training")),
        None if every is None else _check.whole("every", every, 1),
        _check.choice("divide_by", divide_by, ("weight", "count")),
    )


def by_position(ages: Ages) -> bool:
    """Return whether ages refer to samples by position, not by id or class."""
    return isinstance(ages, SampleAges) and ages._ids is None


def same_size(ages: Ages, size: int) -> None:
    """Raise ValueError unless ages and data set have the same number of samples."""
    if isinstance(ages, SampleAges) and ages.num_samples != size:
        raise ValueError(f"ages must have the {size} samples of the training set, not {ages.num_samples}.")


def is_pair(batch: object) -> bool:
    """Return whether a batch is two tensors, as (x, y) is.

    >>> is_pair([torch.zeros(2, 3), torch.zeros(2)]), is_pair({"x": torch.zeros(2)})
    (True, False)
    """
    return isinstance(batch, tuple | list) and len(batch) == 2 and all(isinstance(each, Tensor) for each in batch)


def anything_observed(ages: Ages) -> bool:
    """Return whether anything was observed since the last `advance`.

    >>> ages = ClassAges(2)
    >>> anything_observed(ages)
    False
    >>> ages.observe([1], [True])
    >>> anything_observed(ages)
    True
    """
    if isinstance(ages, SampleAges):
        return bool(ages._layout.observed(ages._words).any())
    return bool(ages._total.any())


class InOrder(EpochSampler):
    """Every sample once, in the order of the data set, split among processes.

    >>> list(InOrder(5, seed=0, even=False, rank=1, world_size=2))
    [1, 3]
    """

    def _draw(self) -> Tensor:
        return torch.arange(self.num_samples, device="cpu")


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put a model into evaluation mode without gradients; afterwards restore the mode of each module.

    >>> model = nn.Sequential(nn.Dropout(), nn.Dropout().eval())
    >>> with evaluating(model):
    ...     print([part.training for part in model])
    [False, False]
    >>> [part.training for part in model]
    [True, False]
    """
    modes = [(part, part.training) for part in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for part, mode in modes:
            part.training = mode


def observe_together(ages: Ages, key: Key, correct: Tensor) -> None:
    """Observe on every process what all processes saw in this step, in the order of ranks. Collective.

    So a state saved within an epoch is the same on all processes, and the later of two draws of a sample counts.
    """
    if _distributed.world()[1] == 1:
        ages.observe(key, correct)  # type: ignore[arg-type]
        return
    for index, right in _of_all(key, correct):
        ages.observe(index, right)  # type: ignore[arg-type]


def _of_all(key: Key, correct: Tensor) -> list[tuple[Key, Tensor]]:
    if isinstance(key, Tensor):
        lengths = torch.stack(_distributed.gather(torch.tensor(key.numel(), device=key.device))).tolist()
        shared = _distributed.gather_lists((key, correct.to(key.device, torch.uint8)), lengths)
        return [(index, right.to(torch.bool)) for index, right in shared]
    told: list[tuple[Key, list[bool]] | None] = [None] * _distributed.world()[1]
    dist.all_gather_object(told, (key, correct.tolist()))
    return [(each[0], torch.tensor(each[1], dtype=torch.bool)) for each in told if each is not None]
