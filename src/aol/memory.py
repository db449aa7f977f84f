"""What a stream remembers: everything, or a reservoir. Memories hold indices, never samples."""

from __future__ import annotations

import torch
from torch import Tensor

from aol import _check, _seeds


class KeepAll:
    """Remembers every index it was given, in order, repeats included.

    >>> memory = KeepAll()
    >>> memory.add([3, 1])
    >>> memory.add([3])
    >>> memory.indices
    tensor([3, 1, 3])
    """

    def __init__(self) -> None:
        self._items = torch.empty(0, dtype=torch.int64, device="cpu")
        self._size = 0

    def __len__(self) -> int:
        return self._size

    @property
    def indices(self) -> Tensor:
        """All that is remembered, `int64 [len]`."""
        return self._items[: self._size].clone()

    def add(self, indices: _check.Integers) -> None:
        """Remember these indices."""
        new = _vector(indices)
        size = self._size + new.numel()
        if size > self._items.numel():  # doubling keeps the cost of an item constant
            grown = torch.empty(max(size, 2 * self._items.numel()), dtype=torch.int64, device="cpu")
            grown[: self._size] = self._items[: self._size]
            self._items = grown
        self._items[self._size : size] = new
        self._size = size

    def state_dict(self) -> dict[str, object]:
        """Return what is remembered."""
        return {"kind": "KeepAll", "indices": self.indices}

    def load_state_dict(self, state: dict[str, object]) -> None:
        """Remember what another memory remembered."""
        _check.same_settings("KeepAll", {"kind": "KeepAll"}, state)
        self._items = _state_indices("KeepAll", state)
        self._size = self._items.numel()


class Reservoir:
    """Remembers at most `capacity` indices, each ever given with the same probability.

    Once full, the n-th index enters with probability capacity / n and takes the place of one drawn uniformly. How a
    stream is cut into calls of `add` makes no difference.

    >>> memory = Reservoir(100, seed=1)
    >>> memory.add(range(1_000_000))
    >>> len(memory), memory.seen
    (100, 1000000)
    """

    def __init__(self, capacity: int, seed: int = 0) -> None:
        self.capacity = _check.whole("capacity", capacity, 1)
        self.seed = _seeds.seed(seed)
        self.seen = 0
        self._items = torch.empty(0, dtype=torch.int64, device="cpu")
        self._generator = _seeds.generator(self.seed)

    def __len__(self) -> int:
        return self._items.numel()

    @property
    def indices(self) -> Tensor:
        """All that is remembered, `int64 [len]`."""
        return self._items.clone()

    def add(self, indices: _check.Integers) -> None:
        """Offer these indices, in this order."""
        new = _vector(indices)
        room = min(self.capacity - len(self), new.numel())
        if room:
            self._items = torch.cat((self._items, new[:room]))
        late = new[room:]
        if late.numel():
            # The n-th item draws a place among n; a place below the capacity is its slot. Later items overwrite.
            nth = torch.arange(self.seen + room + 1, self.seen + new.numel() + 1, dtype=torch.float64, device="cpu")
            drawn = torch.rand(late.numel(), dtype=torch.float64, device="cpu", generator=self._generator)
            place = (drawn * nth).to(torch.int64)
            enters = place < self.capacity
            # NumPy promises that of repeated slots the last assignment stays.
            self._items.numpy()[place[enters].numpy()] = late[enters].numpy()
        self.seen += new.numel()

    def _settings(self) -> dict[str, object]:
        return {"kind": "Reservoir", "capacity": self.capacity, "seed": self.seed}

    def state_dict(self) -> dict[str, object]:
        """Return what is remembered and where the draws stand."""
        generator = self._generator.get_state()
        return {**self._settings(), "seen": self.seen, "indices": self.indices, "generator": generator}

    def load_state_dict(self, state: dict[str, object]) -> None:
        """Go on where another reservoir of the same settings stood."""
        _check.same_settings("Reservoir", self._settings(), state)
        seen = _check.state_whole("Reservoir", state, "seen")
        items = _state_indices("Reservoir", state)
        if items.numel() != min(seen, self.capacity):
            raise ValueError(f"This state of Reservoir is damaged: {items.numel()} indices of {seen} seen.")
        mine = self._generator.get_state()
        drawn = _check.state_tensor("Reservoir", state, "generator", mine.shape, mine.dtype, mine.device)
        try:
            self._generator.set_state(drawn)
        except RuntimeError as error:
            raise ValueError(f"This state of Reservoir is damaged: 'generator' is none of torch: {error}.") from error
        self.seen, self._items = seen, items

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


def _state_indices(what: str, state: dict[str, object]) -> Tensor:
    found = state.get("indices")
    if not isinstance(found, Tensor) or found.dim() != 1 or found.dtype != torch.int64:
        raise ValueError(
            f"This state of {what} is damaged: 'indices' must be an int64 vector, not {_check.shown(found)}."
        )
    return found.to(device="cpu", copy=True)
