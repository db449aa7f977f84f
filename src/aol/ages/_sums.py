"""Sums of smoothed ages over the samples of each class, as integers, so that their order does not matter."""

from __future__ import annotations

import threading

import torch
from torch import Tensor

from aol import _check, _distributed
from aol._state import HasRuns
from aol.ages._store import all_seen

ADDING = threading.Lock()  # ages in a file are summed in threads; one for all, since a state with a lock is not copied


class ClassSums(HasRuns):
    """The sum of smoothed ages and the number of seen samples of each class, `int64 [R, C]`.

    Processes and devices that add the same numbers in any order have the same bits.

    >>> sums = ClassSums(torch.tensor([2, 1]), samples=3, runs=1)
    >>> sums.restart(largest=4)
    >>> sums.add(torch.tensor([0, 1, 0]), torch.tensor([[2.0, 1.5, torch.nan]]))
    >>> sums.mean
    tensor([[2.0000, 1.5000]], dtype=torch.float64)
    """

    def __init__(self, members: Tensor, samples: int, runs: int) -> None:
        self._members, self._samples = members, samples  # of each class in this process; in all processes
        self.total = torch.zeros((runs, len(members)), dtype=torch.int64, device=members.device)
        self.seen = torch.zeros_like(self.total)
        # A tensor, so that a compiled step is not recompiled every epoch.
        self._unit = torch.ones((), dtype=torch.float64, device=members.device)
        self._largest, self.fraction_bits = 1, 24

    def restart(self, largest: int) -> None:
        """Begin anew, for smoothed ages that are hardly above `largest`, with all samples seen."""
        self.total.zero_()
        self.seen.copy_(self._members.expand_as(self.seen))
        # 24 fraction bits are exact; fewer where the sums could overflow.
        self.fraction_bits = max(0, min(24, 62 - self._samples.bit_length() - largest.bit_length()))
        self._largest = largest
        self._unit.fill_(float(1 << self.fraction_bits))

    def add(self, label: Tensor, ema: Tensor) -> None:
        """Add the smoothed ages `ema [R, B]` of samples of classes `label [B]`; NaN: not seen."""
        label = label.to(torch.int64).expand_as(ema)
        if not all_seen(ema):
            unseen = torch.zeros_like(self.seen).scatter_add_(1, label, ema.isnan().to(torch.int64))
            with ADDING:
                self.seen -= unseen
            ema = ema.nan_to_num(0.0)
        unit, bits = float(1 << self.fraction_bits), self.fraction_bits
        # Smoothed ages are whole multiples of 2^-23. Sums of few of them are exact in float64, in half the time.
        if _check.readable(ema) and bits >= 23 and ema.shape[1] * self._largest <= 1 << 29:
            exact = torch.zeros_like(self.total, dtype=torch.float64).scatter_add_(1, label, ema.to(torch.float64))
            added = (exact * unit).to(torch.int64)
        else:
            fixed = (ema.to(torch.float32) * unit).round_().to(torch.int64)
            added = torch.zeros_like(self.total).scatter_add_(1, label, fixed)
        with ADDING:
            self.total += added

    def share(self) -> None:
        """Add up the sums of all processes. Collective."""
        for sums in (self.total, self.seen):
            sums.copy_(_distributed.total(sums))

    @property
    def mean(self) -> Tensor:
        """The mean smoothed age of each class, `float64 [R, C]`; NaN for a class without a seen sample."""
        return self.total.to(torch.float64) / self._unit / self.seen

    @property
    def overall(self) -> Tensor:
        """The mean smoothed age of all seen samples, `float64 [R, 1]`."""
        return self.total.sum(1, keepdim=True).to(torch.float64) / self._unit / self.seen.sum(1, keepdim=True)
