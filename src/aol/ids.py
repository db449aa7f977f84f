"""From a user's own sample ids (text, or numbers of any size) to positions 0 to N - 1, without a loop over samples."""

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
    """Return ids as int64, or as bytes where they are text or too large for int64."""
    if isinstance(ids, Tensor):
        ids = ids.detach().cpu().numpy()
    if isinstance(ids, str | bytes):
        raise TypeError(f"{name} must be a sequence of ids, not the single text {_check.shown(ids)}.")
    given = np.asarray(ids)
    if given.dtype.kind in "fO" and not isinstance(ids, np.ndarray):
        given = np.asarray(ids, dtype=object)  # numbers on both sides of 2**63 would else become floats
    if given.ndim != 1:
        raise ValueError(f"{name} must be a vector of ids, not {_check.shown(given)}.")
    if given.size == 0:
        return "number", given.astype(np.int64)
    if given.dtype.kind == "i" or (given.dtype.kind == "u" and int(given.max()) < 2**63):
        return "number", given.astype(np.int64)
    if given.dtype.kind == "U":
        return "text", np.char.encode(given, "utf-8")
    types = set(map(type, given)) if given.dtype.kind == "O" else set()
    if given.dtype.kind == "u" or types == {int}:
        return "large number", given.astype(str).astype("S")
    if types == {str}:
        return "text", np.char.encode(given.astype(str), "utf-8")
    raise TypeError(f"{name} must be all text or all whole numbers, not {_check.shown(ids)}.")


class IdMap:
    """A fixed set of sample ids, each with its position.

    Ids are all text or all whole numbers (of any size). Positions are those of the list given. Kept as one sorted
    array: 16 bytes a sample for numbers, and for text 8 bytes more than the longest id in UTF-8.

    >>> ids = IdMap(["cat-001", "dog-017", "cat-002"])
    >>> ids.index(["cat-002", "cat-001"])
    tensor([2, 0])
    >>> IdMap([10**30, 7]).index([7])
    tensor([1])
    """

    def __init__(self, ids: Ids) -> None:
        self._kind, keys = _keys("ids", ids)
        self._order = np.argsort(keys, kind="stable")
        self._sorted = keys[self._order]
        twice = np.flatnonzero(self._sorted[1:] == self._sorted[:-1])
        if twice.size:
            raise ValueError(f"ids must differ from each other, but {self._name(self._sorted[twice[0]])} comes twice.")

    def __len__(self) -> int:
        return len(self._sorted)

    def index(self, ids: Ids) -> Tensor:
        """Return the positions of these ids, `int64 [B]`; an id that was not in the list is an IndexError."""
        kind, keys = _keys("ids", ids)
        if keys.size == 0:
            return torch.empty(0, dtype=torch.int64)
        if kind != self._kind and {kind, self._kind} == {"number", "large number"}:
            # A batch of small numbers for a set of large ones, or the other way round: compare as text.
            keys = keys.astype(str).astype("S") if kind == "number" else keys
            known = self._sorted if self._kind == "large number" else np.empty(0, dtype="S1")
        elif kind != self._kind:
            raise TypeError(f"ids must be {self._kind}s like those of this map, not {kind}s.")
        else:
            known = self._sorted
        place = np.searchsorted(known, keys)
        found = place < len(known)
        found[found] = known[place[found]] == keys[found]
        if not found.all():
            raise IndexError(f"{self._name(keys[~found][0])} is not among the {len(self)} ids of this map.")
        return torch.from_numpy(self._order[place].astype(np.int64))

    def digest(self) -> str:
        """Return a fingerprint of the ids in their order."""
        keys = self._sorted[np.argsort(self._order)]
        return hashlib.sha256(self._kind.encode() + str(keys.dtype).encode() + keys.tobytes()).hexdigest()

    @staticmethod
    def _name(key: object) -> str:
        return repr(key.decode()) if isinstance(key, bytes) else str(key)
