"""Right or wrong, one bit per sample and epoch, from which all ages follow. 200 epochs of a million samples: 25 MB.

Uses only NumPy. Bit `i % 8` of byte `i // 8`, counted from the lowest, belongs to sample i.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Truths = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int32]


def pack(value: Truths) -> Bytes:
    """Return `bool [..., N]` as `uint8 [..., ceil(N / 8)]`.

    >>> pack(np.array([True, False, True]))
    array([5], dtype=uint8)
    """
    return np.packbits(value, axis=-1, bitorder="little")


@dataclass(frozen=True)
class Answers:
    """Which samples were seen in each epoch, and which were right: `uint8 [E, ceil(N / 8)]` each.

    Args:
        right: a bit is set where a sample was seen and right.
        seen: a bit is set where it was seen; None if every epoch saw every sample.
        size: N.
        grows: whether a sample that is not seen grows older, once it has been seen (`absent="grow"`).
        start: the ages before the first epoch, `int32 [N]`; None for those of new samples.

    >>> answers = Answers(pack(np.array([[True, False], [False, False], [True, False]])), None, 2)
    >>> answers.ages(np.array([0, 1]))
    array([[1, 2],
           [2, 3],
           [1, 4]], dtype=int32)
    """

    right: Bytes
    seen: Bytes | None
    size: int
    grows: bool = False
    start: Ints | None = None

    def __len__(self) -> int:
        return len(self.right)

    def epochs(self, rows: npt.NDArray[np.int64] | None = None) -> Iterator[tuple[Truths, Truths, Ints]]:
        """Yield for each epoch what was seen, what was right, and the ages after it, of all or some samples."""
        place = np.arange(self.size) if rows is None else np.asarray(rows, dtype=np.int64)
        if place.size and not 0 <= place.min() <= place.max() < self.size:
            raise IndexError(f"rows must lie in 0 to {self.size - 1}, not {int(place.min())} to {int(place.max())}.")
        age = self._first(place)
        everything = np.ones(place.size, bool)
        for epoch in range(len(self)):
            seen = everything if self.seen is None else self._bits(self.seen[epoch], rows)
            right = self._bits(self.right[epoch], rows)
            older = seen | (age > 0) if self.grows else seen
            age = np.where(right, 1, np.where(older, np.maximum(age, 1) + 1, age)).astype(np.int32)
            yield seen, right, age

    def first(self, epochs: int) -> Answers:
        """Return the answers of the first few epochs."""
        return replace(self, right=self.right[:epochs], seen=None if self.seen is None else self.seen[:epochs])

    def last(self) -> Ints:
        """Return the ages of all samples after the last epoch."""
        age = self._first(np.arange(self.size))
        for _, _, age in self.epochs():  # noqa: B007 (the last one is wanted)
            pass
        return age

    def _first(self, place: npt.NDArray[np.int64]) -> Ints:
        return np.full(place.size, 0 if self.grows else 1, np.int32) if self.start is None else self.start[place]

    def ages(self, rows: npt.NDArray[np.int64]) -> Ints:
        """Return the ages of some samples after every epoch, `int32 [E, len(rows)]`; 0 where never seen."""
        found = [age for _, _, age in self.epochs(rows)]
        return np.stack(found) if found else np.zeros((0, len(rows)), np.int32)

    def _bits(self, row: Bytes, rows: npt.NDArray[np.int64] | None) -> Truths:
        if rows is None:
            return np.unpackbits(row, count=self.size, bitorder="little").astype(bool)
        found: Truths = (row[rows >> 3] >> (rows & 7).astype(np.uint8)) & 1 == 1
        return found
