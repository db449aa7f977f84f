"""Memories of a stream: everything, a reservoir, or the last step. They hold indices, not samples."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from aol import _check, _seeds


class Memory(ABC):
    """Base class of memories."""

    def __init__(self) -> None:
        self._items = torch.empty(0, dtype=torch.int64, device="cpu")

    def __len__(self) -> int:
        return self._items.numel()

    @property
    def indices(self) -> Tensor:
        """The stored indices, `int64 [len]`."""
        return self._items.clone()

    @abstractmethod
    def add(self, indices: _check.Integers) -> None:
        """Add the indices of one step."""

    def counts(self, num_samples: int) -> Tensor:
        """Return how often the N samples are stored, `int64 [N]`."""
        size = _check.whole("num_samples", num_samples, 1)
        indices = self.indices
        _check.within("indices", indices, size, f"num_samples={size}")
        return torch.bincount(indices, minlength=size)

    def _settings(self) -> dict[str, object]:
        return {"kind": type(self).__name__}

    def state_dict(self) -> dict[str, object]:
        """Return the state as tensors and primitives."""
        return {**self._settings(), "items": self._items.clone()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the state of another memory with the same settings."""
        _check.same_settings(self._settings(), state)
        self._items = _check.state_value(state, "items", self._items, any_size=True).clone()


class KeepAll(Memory):
    """Counts every index, repeats included: 8 bytes for every number up to the largest.

    >>> memory = KeepAll()
    >>> for indices in ([3, 1], [3]):
    ...     memory.add(indices)
    >>> memory.indices, memory.counts(4)
    (tensor([1, 3, 3]), tensor([0, 1, 0, 2]))
    """

    def __len__(self) -> int:
        return int(self._items.sum())

    @property
    def indices(self) -> Tensor:
        """The stored indices in ascending order, `int64 [len]`."""
        return torch.arange(self._items.numel(), device="cpu").repeat_interleave(self._items)

    def counts(self, num_samples: int) -> Tensor:
        """Return how often the N samples are stored, `int64 [N]`."""
        missing = _check.whole("num_samples", num_samples, 1) - self._items.numel()
        if missing < 0:
            raise IndexError(f"num_samples must be above every index, {self._items.numel() - 1}, not {num_samples}.")
        return F.pad(self._items, (0, missing))

    def add(self, indices: _check.Integers) -> None:
        """Add these indices."""
        new = _vector(indices)
        missing = int(new.max()) + 1 - self._items.numel() if new.numel() else 0
        if missing > 0:
            self._items = F.pad(self._items, (0, missing))
        self._items.index_add_(0, new, torch.ones_like(new))


class KeepLast(Memory):
    """Stores only the indices of the last step.

    >>> memory = KeepLast()
    >>> memory.add([3, 1])
    >>> memory.add([2, 2])
    >>> memory.indices
    tensor([2, 2])
    """

    def add(self, indices: _check.Integers) -> None:
        """Replace the stored indices by these."""
        self._items = _vector(indices).clone()


class Reservoir(Memory):
    """Stores at most `capacity` indices: a uniform random sample of all indices so far.

    Once full, the n-th index enters with probability capacity / n and replaces one that is drawn uniformly.

    >>> memory = Reservoir(100, seed=1)
    >>> memory.add(range(1_000_000))
    >>> len(memory), memory.seen
    (100, 1000000)
    """

    def __init__(self, capacity: int, seed: int = 0) -> None:
        super().__init__()
        self.capacity, self.seed, self.seen = _check.whole("capacity", capacity, 1), _check.whole("seed", seed, 0), 0
        self._generator = _seeds.generator(self.seed)

    def add(self, indices: _check.Integers) -> None:
        """Add these indices, in this order."""
        new = _vector(indices)
        room = min(self.capacity - len(self), new.numel())
        self._items, late = torch.cat((self._items, new[:room])), new[room:]
        # The n-th item draws one of n slots; it enters if the slot is below the capacity. Later items overwrite.
        nth = torch.arange(self.seen + room + 1, self.seen + new.numel() + 1, dtype=torch.float64, device="cpu")
        drawn = torch.rand(late.numel(), dtype=torch.float64, device="cpu", generator=self._generator)
        place = (drawn * nth).to(torch.int64)
        enters = place < self.capacity
        # NumPy guarantees that the last assignment to a repeated slot stays.
        self._items.numpy()[place[enters].numpy()] = late[enters].numpy()
        self.seen += new.numel()

    def _settings(self) -> dict[str, object]:
        return {**super()._settings(), "capacity": self.capacity, "seed": self.seed}

    def state_dict(self) -> dict[str, object]:
        """Return the indices and the state of the generator."""
        return {**super().state_dict(), "seen": self.seen, "generator": self._generator.get_state()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from the state of another reservoir with the same settings."""
        _check.same_settings(self._settings(), state)
        seen = _check.state_value(state, "seen", 0)
        items = _check.state_value(state, "items", self._items.new_empty(min(seen, self.capacity)))
        self._generator.set_state(_check.state_value(state, "generator", self._generator.get_state()))
        self._items, self.seen = items.clone(), seen


def _vector(indices: object) -> Tensor:
    vector = _check.integers("indices", indices).cpu()
    if vector.dim() != 1:
        raise ValueError(f"indices must be a vector, not {_check.shown(vector)}.")
    if vector.numel() and int(vector.min()) < 0:
        raise IndexError(f"indices must be 0 or more, not {int(vector.min())}.")
    return vector
