"""Samples that were once wrong for long: a set that only grows, and a constant factor on its weights."""

from __future__ import annotations

import os

import torch
from torch import Tensor

from aol import _check
from aol.ages._sums import ADDING
from aol.ages.rules import balancing_factor
from aol.ages.sample import SampleAges
from aol.ids import Ids


class OldSet(SampleAges):
    r"""Ages of samples, with a constant factor on the weight of each that was ever wrong `after` times in a row.

    Used like `SampleAges`, at sample level. With $\hat a_i$ the largest age of sample i so far, and T = `after`:

    .. math:: w_i \propto \begin{cases} f & \hat a_i > T \\ 1 & \text{else} \end{cases}, \qquad
        \frac{1}{N} \sum_i w_i = 1

    Weights from ages fade when a sample is learnt; these do not. They are for minorities that no label names: the
    samples that contradict a shortcut of the network.

    Args:
        labels: the class of each of the N samples.
        after: T, 1 or more: the number of wrong answers in a row that makes a sample old. A vector of R numbers gives
            every state and weight a leading run axis.
        factor: f, 0 or more, or one number per run. None: the number of young samples over that of old ones, but at
            least one, so that both have the same total weight.
        num_classes, absent, store, file, ids, device: as in `SampleAges`.

    >>> ages = OldSet([0, 0, 0, 1], after=2, factor=5)
    >>> for right in (False, False, True):
    ...     ages.observe([0, 1, 2, 3], [True, True, True, right])
    ...     ages.advance()
    >>> ages.age, ages.old
    (tensor([1, 1, 1, 1], dtype=torch.int32), tensor([False, False, False,  True]))
    >>> ages.weight([0, 3])
    tensor([0.5000, 2.5000])
    """

    def __init__(
        self,
        labels: _check.Integers,
        *,
        after: _check.Rate = 5,
        factor: _check.Rate | None = None,
        num_classes: int | None = None,
        absent: str = "keep",
        store: str = "full",
        file: str | os.PathLike[str] | None = None,
        ids: Ids | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        often = _check.rates("after", after, 1.0, float("inf"))
        times = None if factor is None else _check.rates("factor", factor, 0.0, 1e6)
        if times is not None and times.numel() not in (1, often.numel()):
            raise ValueError(f"factor must be one number, or one for each of {often.numel()} runs of after.")
        self._after = often.reshape(-1, 1)
        self._factor = None if times is None else times.reshape(-1, 1)
        super().__init__(
            labels,
            num_classes=num_classes,
            rho=torch.ones_like(often),  # no rate: the largest age is kept
            level="sample",
            fuse="peak",
            absent=absent,
            store=store,
            file=file,
            ids=ids,
            device=device,
        )
        self.to(self.device)  # the two settings as well

    def _start(self) -> None:
        self._old = torch.zeros((self._rho.numel(), 1), dtype=torch.int64, device=self._labels.device)
        super()._start()

    @property
    def old(self) -> Tensor:
        """Which samples were ever wrong `after` times in a row, `bool [N]`."""
        return self._out(self._is_old(self._ema))

    def _is_old(self, peak: Tensor) -> Tensor:
        return peak.to(torch.float64) > self._after  # false for NaN: never seen

    def _count_anew(self) -> None:
        super()._count_anew()
        self._old.zero_()

    def _tally(self, part: slice, ema: Tensor) -> None:
        super()._tally(part, ema)
        old = self._is_old(ema).sum(1, keepdim=True)
        with ADDING:
            self._old += old

    def _relative(self, ema: Tensor) -> Tensor:
        seen = self._sums.seen.sum(1, keepdim=True).to(torch.float64)
        factor = balancing_factor(self._old, seen) if self._factor is None else self._factor
        mean = (seen + (factor - 1) * self._old) / seen
        weight = torch.where(self._is_old(ema), factor, 1.0) / mean
        # All old with a factor of zero: no weight is left, and all are one.
        return weight.masked_fill_(ema.isnan() | ~weight.isfinite(), 1.0).to(torch.float32)

    def _settings(self) -> dict[str, object]:
        factor = "balanced" if self._factor is None else self._factor.flatten().tolist()
        return {**super()._settings(), "kind": "OldSet", "after": self._after.flatten().tolist(), "factor": factor}
