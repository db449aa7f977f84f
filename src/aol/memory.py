"""Memories of a stream: everything, a reservoir, or the last step. They hold indices, not samples."""

from __future__ import annotations

import math
from typing import Protocol

import torch
from torch import Tensor

from aol import _check, _seeds
from aol._seal import check_seal, sealed


class Memory(Protocol):
    """The interface of memories."""

    def __len__(self) -> int: ...

    @property
    def indices(self) -> Tensor:
        """The stored indices, `int64 [len]`."""

    def add(self, indices: _check.Integers) -> None:
        """Add the indices of one step."""

    def counts(self, num_samples: int) -> Tensor:
        """Return how often each of N samples is stored, `int64 [N]`."""

    def state_dict(self) -> dict[str, object]:
        """Return the state as tensors and primitives."""

    def load_state_dict(self, state: dict[str, object]) -> None:
        """Load the state of another memory with the same settings."""


class _Stored:
    """What memories share that hold their indices in `_items`."""

    _items: Tensor

    def __len__(self) -> int:
        return self._items.numel()

    @property
    def indices(self) -> Tensor:
        """The stored indices, `int64 [len]`."""
        return self._items.clone()

    def counts(self, num_samples: int) -> Tensor:
        """Return how often each of N samples is stored, `int64 [N]`."""
        return _counts(self._items, num_samples)


class KeepAll:
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
        self.num_samples = None if num_samples is None else _check.whole("num_samples", num_samples, 1)
        # Indices in order, with spare capacity; or a count for each sample.
        self._items = torch.zeros(self.num_samples or 0, dtype=torch.int64, device="cpu")
        self._size = 0

    def __len__(self) -> int:
        return self._size

    @property
    def indices(self) -> Tensor:
        """The stored indices, `int64 [len]`."""
        if self.num_samples is not None:
            return torch.arange(self.num_samples, device="cpu").repeat_interleave(self._items)
        return self._items[: self._size].clone()

    def counts(self, num_samples: int) -> Tensor:
        """Return how often each of N samples is stored, `int64 [N]`."""
        if self.num_samples is None:
            return _counts(self._items[: self._size], num_samples)
        if num_samples != self.num_samples:
            raise ValueError(f"num_samples must be {self.num_samples}, as given to this memory, not {num_samples}.")
        return self._items.clone()

    def add(self, indices: _check.Integers) -> None:
        """Add these indices."""
        new = _vector(indices)
        size = self._size + new.numel()
        if self.num_samples is not None:
            self._items += _counts(new, self.num_samples)
        else:
            self._items = _with_room(self._items, self._size, size)
            self._items[self._size : size] = new
        self._size = size

    def _settings(self) -> dict[str, object]:
        counted = {} if self.num_samples is None else {"num_samples": self.num_samples}
        return {"kind": "KeepAll", **counted}

    def state_dict(self) -> dict[str, object]:
        """Return the state."""
        if self.num_samples is None:
            return sealed({**self._settings(), "indices": self.indices})
        return sealed({**self._settings(), "counts": self._items.clone()})

    def load_state_dict(self, state: dict[str, object]) -> None:
        """Load the state of another memory."""
        _check.same_settings("KeepAll", self._settings(), state)
        if self.num_samples is None:
            items = _state_indices("KeepAll", state)
        else:
            shape, most = (self.num_samples,), _check.Bounds(0, 2**62 // self.num_samples)
            items = _check.state_tensor("KeepAll", state, "counts", shape, torch.int64, torch.device("cpu"), most)
        check_seal("KeepAll", state)
        self._items, self._size = items, items.numel() if self.num_samples is None else int(items.sum())


class KeepLast(_Stored):
    """Stores only the indices of the last step.

    >>> memory = KeepLast()
    >>> memory.add([3, 1])
    >>> memory.add([2, 2])
    >>> memory.indices
    tensor([2, 2])
    """

    def __init__(self) -> None:
        self._items = torch.empty(0, dtype=torch.int64, device="cpu")

    def add(self, indices: _check.Integers) -> None:
        """Replace the stored indices by these."""
        self._items = _vector(indices).clone()

    def state_dict(self) -> dict[str, object]:
        """Return the state."""
        return sealed({"kind": "KeepLast", "indices": self.indices})

    def load_state_dict(self, state: dict[str, object]) -> None:
        """Load the state of another memory."""
        _check.same_settings("KeepLast", {"kind": "KeepLast"}, state)
        items = _state_indices("KeepLast", state)
        check_seal("KeepLast", state)
        self._items = items


class Reservoir(_Stored):
    """Stores at most `capacity` indices: a uniform random sample of all indices so far.

    Once full, the n-th index enters with probability capacity / n and replaces one that is drawn uniformly. The result
    does not depend on how a stream is divided into calls of `add`.

    >>> memory = Reservoir(100, seed=1)
    >>> memory.add(range(1_000_000))
    >>> len(memory), memory.seen
    (100, 1000000)
    """

    def __init__(self, capacity: int, seed: int = 0) -> None:
        self.capacity = _check.whole("capacity", capacity, 1)
        self.seed = _seeds.seed(seed)
        self.seen = 0
        self._buffer = torch.empty(0, dtype=torch.int64, device="cpu")
        self._generator = _seeds.generator(self.seed)

    @property
    def _items(self) -> Tensor:  # type: ignore[override]
        return self._buffer[: min(self.seen, self.capacity)]

    def add(self, indices: _check.Integers) -> None:
        """Add these indices, in this order."""
        new = _vector(indices)
        there = len(self)
        room = min(self.capacity - there, new.numel())
        self._buffer = _with_room(self._buffer, there, there + room, self.capacity)
        self._buffer[there : there + room] = new[:room]
        late = new[room:]
        if late.numel():
            # The n-th item draws one of n slots; it enters if the slot is below the capacity. Later items overwrite.
            nth = torch.arange(self.seen + room + 1, self.seen + new.numel() + 1, dtype=torch.float64, device="cpu")
            drawn = torch.rand(late.numel(), dtype=torch.float64, device="cpu", generator=self._generator)
            place = (drawn * nth).to(torch.int64)
            enters = place < self.capacity
            # NumPy guarantees that the last assignment to a repeated slot stays.
            self._buffer.numpy()[place[enters].numpy()] = late[enters].numpy()
        self.seen += new.numel()

    def _settings(self) -> dict[str, object]:
        return {"kind": "Reservoir", "capacity": self.capacity, "seed": self.seed}

    def state_dict(self) -> dict[str, object]:
        """Return the indices and the state of the generator."""
        generator = self._generator.get_state()
        return sealed({**self._settings(), "seen": self.seen, "indices": self.indices, "generator": generator})

    def load_state_dict(self, state: dict[str, object]) -> None:
        """Continue from the state of another reservoir with the same settings."""
        _check.same_settings("Reservoir", self._settings(), state)
        seen = _check.state_whole("Reservoir", state, "seen")
        items = _state_indices("Reservoir", state)
        if items.numel() != min(seen, self.capacity):
            raise ValueError(f"This state of Reservoir is damaged: {items.numel()} indices of {seen} seen.")
        check_seal("Reservoir", state)
        mine = self._generator.get_state()
        drawn = _check.state_tensor("Reservoir", state, "generator", mine.shape, mine.dtype, mine.device)
        try:
            self._generator.set_state(drawn)
        except RuntimeError as error:
            raise ValueError(f"This state of Reservoir is damaged: 'generator' cannot be loaded: {error}.") from error
        self.seen, self._buffer = seen, items

    def __getstate__(self) -> dict[str, object]:
        return self.state_dict()

    def __setstate__(self, state: dict[str, object]) -> None:
        # A torch.Generator cannot be pickled; its state can.
        self.capacity = _check.state_whole("Reservoir", state, "capacity")
        self.seed = _check.state_whole("Reservoir", state, "seed")
        self._generator = _seeds.generator(self.seed)
        self.load_state_dict(state)


def _vector(indices: object) -> Tensor:
    found = _check.integers("indices", indices).cpu()
    if found.dim() != 1:
        raise ValueError(f"indices must be a vector, not {_check.shown(found)}.")
    if found.numel() and int(found.min()) < 0:
        raise IndexError(f"indices must be 0 or more, not {int(found.min())}.")
    return found


def _with_room(items: Tensor, used: int, size: int, most: float = math.inf) -> Tensor:
    """Return a buffer of at least `size` indices; it doubles, so that n calls copy O(n) indices and not O(n²)."""
    if size <= items.numel():
        return items
    grown = items.new_empty(int(min(most, max(size, 2 * items.numel()))))
    grown[:used] = items[:used]
    return grown


def _counts(indices: Tensor, num_samples: int) -> Tensor:
    size = _check.whole("num_samples", num_samples, 1)
    _check.within("indices", indices, size, f"num_samples={size}")
    return torch.bincount(indices, minlength=size)


def _state_indices(what: str, state: dict[str, object]) -> Tensor:
    return _check.state_tensor(what, state, "indices", (None,), torch.int64, torch.device("cpu"), _check.COUNTS)
