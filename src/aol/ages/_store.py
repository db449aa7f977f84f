"""Storage of a sample's age in 8 or 4 bytes: one integer word and one floating-point number.

A word holds, from the low bits: the age, the number of epochs counted (mean fusion only), and two bits for what was
observed since the last `advance` (seen, right). The sign bit is unused.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from aol import _check


@dataclass(frozen=True)
class Layout:
    """The bit fields of a word."""

    word: torch.dtype
    ema: torch.dtype
    age_bits: int
    count_bits: int = 0

    @property
    def largest_age(self) -> int:
        """The age at which counting stops."""
        return (1 << self.age_bits) - 1

    @property
    def largest_count(self) -> int:
        """The number of epochs at which counting stops."""
        return (1 << self.count_bits) - 1

    @property
    def _observed(self) -> int:
        return 1 << (self.age_bits + self.count_bits)

    @property
    def _right(self) -> int:
        return self._observed << 1

    def age(self, word: Tensor) -> Tensor:
        """Return the ages as int32."""
        return (word & self.largest_age).to(torch.int32)

    def count(self, word: Tensor) -> Tensor:
        """Return the number of epochs in a mean, as int32."""
        return ((word >> self.age_bits) & self.largest_count).to(torch.int32)

    def observed(self, word: Tensor) -> Tensor:
        """Return which samples were observed since the last `advance`."""
        return (word & self._observed).to(torch.bool)  # five times as fast as a comparison on a CPU

    def all_observed(self, word: Tensor) -> bool:
        """Return whether all were observed; False where that is not known without a synchronisation."""
        return _check.readable(word) and int(word.amin()) >= self._observed  # the highest bits, but for the right ones

    def right(self, word: Tensor) -> Tensor:
        """Return which samples were observed and right since the last `advance`."""
        return (word & self._right).to(torch.bool)

    def refuse(self, word: Tensor, ages: _check.Bounds) -> str | None:
        """Return why these are no words with such ages; None if they are."""
        if bool((word < 0).any()) or bool((self.right(word) & ~self.observed(word)).any()):
            return "must hold words of ages, not other numbers"
        return ages.refuse(self.age(word))

    def older_(self, word: Tensor, grows: bool) -> Tensor | None:
        """Replace words by the ages after the epoch, and return which samples it changed; None: all of them.

        If `grows`, samples that were seen before grow older also where they were not observed.
        """
        changed = None if self.all_observed(word) else self.observed(word)
        if changed is None and not (grows or self.count_bits):
            # Shifted by one, the bit of a right answer is the sign, and `observed` is where it was: clamping makes a
            # right answer an age of zero, and stops before the largest age. Four passes in place instead of six.
            zero = self._right
            word.bitwise_left_shift_(1).clamp_(zero, zero + 2 * (self.largest_age - 1))
            word.bitwise_right_shift_(1).sub_(self._observed - 1)
            return None
        wrong = (word >> (self.age_bits + self.count_bits + 1)).sub_(1)  # all bits, or none where the answer was right
        age = word.bitwise_and_(self.largest_age)
        if grows:  # a first answer finds an age of one
            age.copy_(age.clamp_min(1) if changed is None else torch.maximum(age, changed.to(age.dtype)))
            changed = None if changed is None else age > 0
        age.bitwise_and_(wrong).add_(1 if changed is None else changed).clamp_max_(self.largest_age)
        return changed

    def pack(self, age: Tensor, count: Tensor | None = None) -> Tensor:
        """Return words with nothing observed; ages are at most `largest_age`."""
        if count is not None:
            age = age | (count.clamp_max(self.largest_count) << self.age_bits)
        return age.to(self.word)

    def mark(self, word: Tensor, right: Tensor) -> Tensor:
        """Return the words with a new observation, which replaces the previous one."""
        return self.mark_(word.clone(), right)

    def mark_(self, word: Tensor, right: Tensor) -> Tensor:
        """Like `mark`, in place."""
        wrong = right.logical_not().view(torch.uint8)
        return word.bitwise_or_(self._observed | self._right).sub_(wrong, alpha=self._right)

    def unmarked(self, word: Tensor) -> Tensor:
        """Return the words with nothing observed."""
        return word & (self._observed - 1)


FULL = Layout(torch.int32, torch.float32, age_bits=29)
FULL_MEAN = Layout(torch.int32, torch.float32, age_bits=15, count_bits=14)
COMPACT = Layout(torch.int16, torch.float16, age_bits=13)


def fold_(word: Tensor, ema: Tensor, rho: Tensor, layout: Layout, *, fuse: str, grows: bool) -> None:
    """Fold what was observed in an epoch into words and smoothed ages `[R, B]`, in place; `rho` is `[R, 1]`."""
    count = layout.count(word) if fuse == "mean" else None
    changed = layout.older_(word, grows)
    before, age = ema.to(torch.float32), word.to(torch.float32)
    if not all_seen(ema):
        before = before.nan_to_num(0.0)
        before += age * ~before.to(torch.bool)  # the first age starts the EMA
    if count is not None:
        count += 1 if changed is None else changed
        rho = count.clamp(1, layout.largest_count).to(torch.float32).reciprocal()
        word.copy_(layout.pack(word, count))
    room = before if changed is None else None
    folded = torch.maximum(before, age, out=room) if fuse == "peak" else torch.lerp(before, age, rho, out=room)
    ema.copy_(folded if changed is None else torch.where(changed, folded.to(ema.dtype), ema))


def all_seen(ema: Tensor) -> bool:
    """Return whether no smoothed age is NaN; False where that is not known without a synchronisation."""
    return _check.readable(ema) and not bool(ema.amin().isnan())


def write_marks(words: Tensor, index: Tensor, right: Tensor, layout: Layout) -> None:
    """Mark `words [R, N]` at `index [R, B]` or `[B]`; for a repeated index the last value counts."""
    if _check.readable(words):
        # In parts that fit the cache, in order: temporary memory stays small, and the last repeat still counts.
        step = max(1, (1 << 16) // words.shape[0])
        for start in range(0, index.shape[-1], step):
            part = slice(start, start + step)
            assign(words, index[..., part], right[:, part], layout)
    else:
        scatter(words, index, right, layout)


def assign(words: Tensor, index: Tensor, right: Tensor, layout: Layout) -> None:
    """Mark words on the CPU, with NumPy."""
    # NumPy guarantees that the last assignment to a repeated index stays; torch's scatter does not.
    table = words.numpy()
    if index.dim() == 1:
        columns = index.numpy()
        if _consecutive(columns):  # twice as fast
            layout.mark_(words[:, int(columns[0]) : int(columns[0]) + columns.size], right)
            return
        marked = layout.mark(torch.from_numpy(table.take(columns, axis=1)), right).numpy()
        if words.shape[0] == 1:
            table[0][columns] = marked[0]
        else:
            table[:, columns] = marked
        return
    rows = torch.arange(words.shape[0], device=words.device)[:, None]
    table[rows.numpy(), index.numpy()] = layout.mark(words.gather(1, index), right).numpy()


def _consecutive(index: npt.NDArray[np.int64]) -> bool:
    """Return whether each index is one more than the one before."""
    last = index.size - 1
    return last > 0 and bool(index[last] - index[0] == last and (index[1:] > index[:-1]).all())


def scatter(words: Tensor, index: Tensor, right: Tensor, layout: Layout) -> None:
    """Mark words on any device, without synchronisation."""
    index = index.expand(words.shape[0], -1)
    right = last_of_repeats(index, right)
    words.scatter_(1, index, layout.mark(words.gather(1, index), right))


def last_of_repeats(index: Tensor, value: Tensor) -> Tensor:
    """Return `value [R, B]` where all repeats of an index have the value of the last one.

    Then the order of writes does not matter, and no synchronisation is needed.

    >>> last_of_repeats(torch.tensor([[5, 2, 5]]), torch.tensor([[False, True, True]]))
    tensor([[True, True, True]])
    """
    ordered, places = index.sort(dim=1, stable=True)
    last = torch.searchsorted(ordered, ordered, right=True) - 1
    settled = value.gather(1, places.gather(1, last))
    return torch.empty_like(value).scatter_(1, places, settled)


def split(whole: slice, step: int) -> Iterator[slice]:
    """Yield a range in parts of at most `step`.

    >>> list(split(slice(2, 7), 3))
    [slice(2, 5, None), slice(5, 7, None)]
    """
    for start in range(whole.start, whole.stop, step):
        yield slice(start, min(start + step, whole.stop))
