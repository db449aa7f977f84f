"""Sample ids (text, or integers of any size) to positions 0 to N - 1, without a loop over samples."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from aol import _check

Ids: TypeAlias = Sequence[str] | Sequence[int] | npt.NDArray[np.generic] | Tensor
_Kind: TypeAlias = Literal["number", "large number", "text"]


def _keys(name: str, ids: object) -> tuple[_Kind, npt.NDArray[np.generic]]:
    """Return ids as int64, or as bytes if they are text or too large for int64."""
    if isinstance(ids, Tensor):
        ids = ids.detach().cpu().numpy()
    if isinstance(ids, str | bytes):
        raise TypeError(f"{name} must be a sequence of ids, not the single text {_check.shown(ids)}.")
    given = ids if isinstance(ids, np.ndarray) else np.asarray(ids)
    if given.size == 0:
        return "number", given.astype(np.int64)
    if given.dtype.kind == "i" or (given.dtype.kind == "u" and int(given.max()) < 2**63):
        return "number", given.astype(np.int64)
    if given.dtype.kind == "u":
        return "large number", given.astype(str).astype("S")
    if given.dtype.kind in "fUO" and not isinstance(ids, np.ndarray):
        given = np.asarray(ids, dtype=object)  # NumPy would convert [1, "a"] to text and [-1, 2**63] to floats
    types = {np.str_} if given.dtype.kind == "U" else set(map(type, given.flat))
    if all(issubclass(each, str) for each in types):
        text = given.astype(str)
        if given.dtype.kind == "O" and int(np.char.str_len(text).sum()) != sum(map(len, given.flat)):
            raise ValueError(f"{name} must not end in the character NUL.")  # NumPy would cut it off
        return "text", np.char.encode(text, "utf-8", "surrogatepass")  # file names may contain lone surrogates
    if any(not issubclass(each, int | np.integer) or issubclass(each, bool) for each in types):
        raise TypeError(f"{name} must be all text or all whole numbers, not {_check.shown(ids)}.")
    try:
        return "number", given.astype(np.int64)
    except OverflowError:
        return "large number", given.astype(str).astype("S")


class IdMap:
    """A fixed set of sample ids, each with its position in the given list.

    Ids are all text or all integers of any size. Memory per sample: 16 bytes for integers; for text, the longest id in
    UTF-8 plus 8 bytes.

    >>> ids = IdMap(["cat-001", "dog-017", "cat-002"])
    >>> ids.index(["cat-002", "cat-001"])
    tensor([2, 0])
    >>> IdMap([10**30, 7]).index([7])
    tensor([1])
    """

    def __init__(self, ids: Ids) -> None:
        self._kind, keys = _keys("ids", ids)
        if keys.ndim != 1:
            raise ValueError(f"ids must be a vector of ids, not {_check.shown(keys)}.")
        self._order = np.argsort(keys, kind="stable")
        self._sorted = keys[self._order]
        twice = np.flatnonzero(self._sorted[1:] == self._sorted[:-1])
        if twice.size:
            raise ValueError(f"ids must differ from each other, but {self._name(self._sorted[twice[0]])} occurs twice.")

    def __len__(self) -> int:
        return len(self._sorted)

    def ids(self) -> list[str] | list[int]:
        """Return the ids in the order given.

        >>> IdMap(["b", "a"]).ids()
        ['b', 'a']
        """
        keys = self._sorted[np.argsort(self._order)].tolist()
        if self._kind == "text":
            return [key.decode("utf-8", "surrogatepass") for key in keys]
        return [int(key) for key in keys]

    def index(self, ids: Ids) -> Tensor:
        """Return the positions of these ids, `int64` of the same shape; an unknown id raises IndexError."""
        return self.find("ids", ids)

    def find(self, name: str, ids: object) -> Tensor:
        """Like `index`, with the name of the argument for error messages."""
        kind, keys = _keys(name, ids)
        if keys.size == 0:
            return torch.empty(keys.shape, dtype=torch.int64, device="cpu")
        if kind == "number" and self._kind == "large number":
            keys = keys.astype(str).astype("S")
        elif kind == "large number" and self._kind == "number":
            raise self._unknown(name, next(key for key in keys.flat if not -(2**63) <= int(key) < 2**63))
        elif kind != self._kind:
            raise TypeError(f"{name} must be {self._kind}s like the ids of this map, not {kind}s.")
        place = np.searchsorted(self._sorted, keys)
        found = place < len(self)
        found[found] = self._sorted[place[found]] == keys[found]
        if not found.all():
            raise self._unknown(name, keys[~found][0])
        return torch.from_numpy(self._order[place].astype(np.int64))

    def _unknown(self, name: str, key: object) -> IndexError:
        return IndexError(f"{name} must name known samples, but {self._name(key)} is not among the {len(self)} ids.")

    def digest(self) -> str:
        """Return a fingerprint of the ids in their order."""
        keys = self._sorted[np.argsort(self._order)]
        return hashlib.sha256(self._kind.encode() + str(keys.dtype).encode() + keys.tobytes()).hexdigest()

    def _name(self, key: object) -> str:
        text = key.decode("utf-8", "surrogatepass") if isinstance(key, bytes) else str(key)
        return repr(text) if self._kind == "text" else text
