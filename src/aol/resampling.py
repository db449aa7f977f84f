"""Resampling of iterable data sets, which have no index to draw: each item is passed on as often as its weight says."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import torch
from torch.utils.data import IterableDataset, get_worker_info

from aol import _check, _distributed, _seeds

Item = TypeVar("Item")
_BLOCK = 1 << 10  # random numbers drawn at once


class Resampled(IterableDataset[Item]):
    r"""An iterable data set whose items are passed on k times, where k is on average their weight.

    .. math:: k = \lfloor w \rfloor + \begin{cases} 1 & u < w - \lfloor w \rfloor \\ 0 & \text{else} \end{cases},
        \qquad u \sim U(0, 1)

    With weights of mean one, a pass is about as long as the data. An item of weight 0 is left out.

    Args:
        data: any iterable, such as an `IterableDataset` of PyTorch or of Hugging Face `datasets`.
        weight: the weight of an item, zero or more. Called once per item, in the process that reads the data.
        seed: the draws depend on the seed, the epoch, the process and the worker of the loader.

    Draws are not the same on another number of processes or workers, because these read other parts of the data.
    Repeats follow each other: shuffle afterwards where that matters. A pass depends on nothing but seed, epoch, weights
    and data; a loader that resumes by reading and skipping, such as torchdata's `StatefulDataLoader`, is exact.

    >>> weight = {"cat": 0.5, "dog": 2.0}
    >>> list(Resampled(["cat", "cat", "dog", "cat", "cat"], weight.get))
    ['cat', 'cat', 'dog', 'dog']
    """

    def __init__(self, data: Iterable[Item], weight: Callable[[Item], float], *, seed: int = 0) -> None:
        if not isinstance(data, Iterable):
            raise TypeError(f"data must be iterable, not {_check.shown(data)}.")
        if not callable(weight):
            raise TypeError(f"weight must be a function of an item, not {_check.shown(weight)}.")
        self.data = data
        self.weight = weight
        self.seed = _seeds.seed(seed)
        # Shared with workers that stay from epoch to epoch, which would not see an attribute of this process.
        self._epoch = torch.zeros((), dtype=torch.int64, device="cpu")
        self._epoch.share_memory_()  # type: ignore[no-untyped-call]

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch, which the draws depend on; also of the data, if they have a `set_epoch`."""
        self._epoch.fill_(_check.whole("epoch", epoch, 0))
        if hasattr(self.data, "set_epoch"):
            self.data.set_epoch(epoch)

    def __iter__(self) -> Iterator[Item]:
        worker = get_worker_info()
        place = _distributed.world()[0], 0 if worker is None else worker.id
        chances = _uniform(_seeds.generator(self.seed, int(self._epoch), *place))
        for item, chance in zip(self.data, chances, strict=False):
            weight = _check.number("The weight of an item", _plain(self.weight(item)), 0.0, math.inf)
            if weight == math.inf:
                raise ValueError("The weight of an item must be finite, not inf.")
            for _ in range(int(weight) + (chance < weight % 1.0)):
                yield item


def _plain(weight: object) -> object:
    """Return a tensor or array of one number as that number, anything else as it is."""
    return weight.item() if hasattr(weight, "item") and getattr(weight, "ndim", 1) == 0 else weight


def _uniform(generator: torch.Generator) -> Iterator[float]:
    while True:
        yield from torch.rand(_BLOCK, dtype=torch.float64, device="cpu", generator=generator).tolist()
