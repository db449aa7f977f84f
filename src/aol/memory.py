"""Memories of a stream: everything, a reservoir, or the last step. They hold indices, not samples."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from aol import _check, _seeds


class Memory(ABC):
    """Base class of memories."""

    _items: Tensor  # with spare capacity
    _size = 0

    def __init__(self) -> None:
        self._items = torch.empty(0, dtype=torch.int64, device="cpu")

    def __len__(self) -> int:
        return self._size

    @property
    def indices(self) -> Tensor:
        """The stored indices, `int64 [len]`."""
        return self._items[: self._size].clone()

    @abstractmethod
    def add(self, indices: _check.Integers) -> None:
        """Add the indices of one step."""

    def counts(self, num_samples: int) -> Tensor:
        """Return how often each of N samples is stored, `int64 [N]`."""
        size = _check.whole("num_samples", num_samples, 1)
        _check.within("indices", self._items[: self._size], size, f"num_samples={size}")
        return torch.bincount(self._items[: self._size], minlength=size)

    def _append(self, new: Tensor, most: int = 2**62) -> None:
        """Append indices; room doubles, so that n calls copy O(n) indices and not O(n²)."""
        size = self._size + new.numel()
        if size > self._items.numel():
            grown = self._items.new_empty(min(most, max(size, 2 * self._items.numel())))
            grown[: self._size] = self._items[: self._size]
            self._items = grown
        self._items[self._size : size] = new
        self._size = size

    def _settings(self) -> dict[str, object]:
        return {"kind": type(self).__name__}

    def state_dict(self) -> dict[str, object]:
        """Return the state as tensors and primitives."""
        return {**self._settings(), "indices": self.indices}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the state of another memory with the same settings."""
        _check.same_settings(type(self).__name__, self._settings(), state)
        items = _check.state_value(type(self).__name__, state, "indices", self._items, any_size=True)
        self._items, self._size = items.clone(), items.numel()


class KeepAll(Memory):
    """Stores every index, repeats included.

    Args:
        num_samples: None stores the indices in order, 8 bytes each. A number N, above every index, stores a count per
            sample instead: 8 N bytes for a stream of any length, and `indices` are in ascending order.

    >>> memory, counted = KeepAll(), KeepAll(num_samples=4)
    >>> for indices in ([3, 1], [3]):
    ...     memory.add(indices)
    ...     counted.add(indices)
    >>> memory.indices, counted.indices
    (tensor([3, 1, 3]), tensor([1, 3, 3]))
    >>> memory.counts(4)
    tensor([0, 1, 0, 2])
    """

    def __init__(self, num_samples: int | None = None) -> None:
        super().__init__()
        self.num_samples = None if num_samples is None else _check.whole("num_samples", num_samples, 1)
        if self.num_samples is not None:
            self._items = torch.zeros(self.num_samples, dtype=torch.int64, device="cpu")  # the counts

    @property
    def indices(self) -> Tensor:
        """The stored indices, `int64 [len]`."""
        if self.num_samples is None:
            return super().indices
        return torch.arange(self.num_samples, device="cpu").repeat_interleave(self._items)

    def counts(self, num_samples: int) -> Tensor:
        """Return how often each of N samples is stored, `int64 [N]`."""
        if self.num_samples is None:
            return super().counts(num_samples)
        if num_samples != self.num_samples:
            raise ValueError(f"num_samples must be {self.num_samples}, as given to this memory, not {num_samples}.")
        return self._items.clone()

    def add(self, indices: _check.Integers) -> None:
        """Add these indices."""
        new = _vector(indices)
        if self.num_samples is None:
            self._append(new)
            return
        _check.within("indices", new, self.num_samples, f"num_samples={self.num_samples}")
        self._items += torch.bincount(new, minlength=self.num_samples)
        self._size += new.numel()

    def _settings(self) -> dict[str, object]:
        return {**super()._settings(), "num_samples": self.num_samples}

    def state_dict(self) -> dict[str, object]:
        """Return the state as tensors and primitives; with `num_samples`, the counts."""
        return super().state_dict() if self.num_samples is None else {**self._settings(), "counts": self._items.clone()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the state of another memory with the same settings."""
        if self.num_samples is None:
            super().load_state_dict(state)
            return
        _check.same_settings("KeepAll", self._settings(), state)
        self._items = _check.state_value("KeepAll", state, "counts", self._items).clone()
        self._size = int(self._items.sum())


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
        self._size = self._items.numel()


class Reservoir(Memory):
    """Stores at most `capacity` indices: a uniform random sample of all indices so far.

    Once full, the n-th index enters with probability capacity / n and replaces one that is drawn uniformly. The result
    does not depend on how a stream is divided into calls of `add`.

    >>> memory = Reservoir(100, seed=1)
    >>> memory.add(range(1_000_000))
    >>> len(memory), memory.seen
    (100, 1000000)
    """

    def __init__(self, capacity: int, seed: int = 0) -> None:
        super().__init__()
        self.capacity, self.seed, self.seen = _check.whole("capacity", capacity, 1), _seeds.seed(seed), 0
        self._generator = _seeds.generator(self.seed)

    def add(self, indices: _check.Integers) -> None:
        """Add these indices, in this order."""
        new = _vector(indices)
        room = min(self.capacity - self._size, new.numel())
        self._append(new[:room], self.capacity)
        late = new[room:]
        if late.numel():
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
        _check.same_settings("Reservoir", self._settings(), state)
        seen = _check.state_value("Reservoir", state, "seen", 0)
        _check.state_value("Reservoir", state, "indices", self._items.new_empty(min(seen, self.capacity)))
        drawn = _check.state_value("Reservoir", state, "generator", self._generator.get_state())
        super().load_state_dict(state)
        self._generator.set_state(drawn)
        self.seen = seen

    def __getstate__(self) -> dict[str, object]:
        return self.state_dict()

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["capacity"], state["seed"])  # type: ignore[misc] # a torch.Generator cannot be pickled
        self.load_state_dict(state)


def _vector(indices: object) -> Tensor:
    vector = _check.integers("indices", indices).cpu()
    if vector.dim() != 1:
        raise ValueError(f"indices must be a vector, not {_check.shown(vector)}.")
    if vector.numel() and int(vector.min()) < 0:
        raise IndexError(f"indices must be 0 or more, not {int(vector.min())}.")
    return vector
