"""Ages of more samples than one process holds: each process has the state of its share only."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import torch
from torch import Tensor

from aol import _check, _distributed
from aol.ages import _store
from aol.ages.sample import SampleAges


class ShardedSampleAges(SampleAges):
    """`SampleAges` divided over the processes of `torch.distributed`: the same numbers, to the last bit.

    The samples of all processes have one numbering: those of process 0 first, then those of process 1. Any process can
    `observe` any sample: `advance` sends answers to the process that holds the sample, 8 bytes each. `age`, `ema`,
    `labels`, `sample_weight` and `weights` are those of this process's share. `class_age` and `class_weight` are those
    of all samples, on every process.

    Creating the object, `advance`, `mean_age` and `load_state_dict` are collective: all processes must call them.

    Args:
        labels: the class of each sample of this process's share, 0 to C - 1.
        num_classes: C.
        file: as in `SampleAges`; each process needs a file of its own. If a crash leaves the files one epoch apart, all
            return to the start of the older epoch.
        rho, level, fuse, absent, store, device: see `SampleAges`.

    >>> ages = ShardedSampleAges([0, 0, 1], num_classes=2)  # without torch.distributed, one process holds everything
    >>> ages.observe([0, 1, 2], [True, True, False])
    >>> ages.advance()
    >>> ages.class_weight
    tensor([0.6667, 1.3333])
    """

    def __init__(
        self,
        labels: _check.Integers,
        *,
        num_classes: int,
        rho: _check.Rate = 0.5,
        level: str = "class",
        fuse: str = "ema",
        absent: str = "keep",
        store: str = "full",
        file: str | os.PathLike[str] | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__(
            labels,
            num_classes=num_classes,
            rho=rho,
            level=level,
            fuse=fuse,
            absent=absent,
            store=store,
            file=file,
            device=device,
        )

    def _number(self) -> None:
        self._rank, self._world = _distributed.world()
        sizes = torch.stack(_distributed.gather(torch.tensor([self.num_samples], device=self._labels.device)))
        self._ends = sizes.flatten().cumsum(0)
        self.first = int(self._ends[self._rank]) - self.num_samples  # the number of this share's first sample
        self.num_samples = int(self._ends[-1])
        self._away: list[Tensor] = []  # answers to samples held elsewhere, as `_packed`

    def _start(self) -> None:
        with self._all_or_none("could not start"):
            super()._start()
        if self.file is not None:
            epochs = torch.stack(_distributed.gather(torch.tensor(self.epoch, device=self.device)))
            self.rewind(int(epochs.min()))

    @contextlib.contextmanager
    def _all_or_none(self, what: str) -> Iterator[None]:
        """Raise an error on all processes where one of them has one. Collective."""
        wrong: Exception | None = None
        try:
            yield
        except Exception as error:
            wrong = error
        failed = int(_distributed.total(torch.tensor(int(wrong is not None), device=self._rho.device)))
        if wrong is not None:
            raise wrong
        if failed:
            raise ValueError(f"{failed} of {self._world} processes {what}: see their errors.")

    @property
    def num_held(self) -> int:
        """The number of samples of this process's share."""
        return self._labels.numel()

    @property
    def mean_age(self) -> Tensor:
        """The mean age of each class's seen samples, over all processes, `float32 [C]`. Collective."""
        total = _distributed.total(self._age_sums()).to(torch.float64)
        return self._out((total / self._sums.seen).to(torch.float32))

    def weight(self, index: _check.Integers | object) -> Tensor:
        """Return the weights of samples that this process holds; of others, use `class_weight[label]`."""
        local = _check.integers("index", index) - self.first
        if bool(((local < 0) | (local >= self.num_held)).any()):
            held = f"{self.first} to {self.first + self.num_held - 1}"
            raise IndexError(f"index must lie in {held}, the samples of this process, not {_check.shown(index)}.")
        return super().weight(local)

    def _mark(self, where: Tensor, right: Tensor) -> None:
        local = where - self.first
        outside = (local < 0) | (local >= self.num_held)
        super()._mark(local.masked_fill(outside, self.num_held), right)
        away = (outside & (where < self.num_samples)).expand_as(right)
        if self._world > 1 and bool(away.any()):
            self._away.append(self._packed(where.expand_as(right), right)[away])

    def _packed(self, where: Tensor, right: Tensor) -> Tensor:
        """Return answers `right [R, B]` to samples `where [R, B]` as one number each: 2 (row N + sample) + right."""
        row = torch.arange(len(right), device=right.device)[:, None]
        return 2 * (row * self.num_samples + where) + right.to(torch.int64)

    def advance(self, *, group: _distributed.Group = None, sync: bool = True) -> None:
        """End the epoch: send answers to the processes that hold the samples, and fold them in. Collective."""
        if group is not None or not sync:
            raise ValueError(
                "ShardedSampleAges belong to all processes: advance() takes no group, and needs sync=True."
            )
        with self._all_or_none("could not advance; rewind() all to the same epoch"):
            super().advance()
        self._sums.share()

    def rewind(self, epoch: int) -> None:
        """Return to the start of an epoch, see `SampleAges.rewind`. Collective: all processes return, or none."""
        with self._all_or_none("could not return to that epoch; rewind() all again"):
            super().rewind(epoch)
        self._away.clear()
        self._sums.share()

    def _check_rewind(self, epoch: int) -> None:
        # Before anything is changed: a process that returned alone would have lost the state that all others hold.
        with self._all_or_none("hold no state of that epoch"):
            super()._check_rewind(epoch)

    def _agree(self, epoch: int) -> None:
        """Raise ValueError on all processes unless all have the same settings, and states of the same epoch."""
        common = {name: value for name, value in self._settings().items() if name not in ("labels", "first")}
        _distributed.agree(type(self).__name__, epoch, common, self.device)

    def _exchange(self, group: _distributed.Group) -> None:
        """Send answers to where the samples are; of two processes' answers to a sample, the higher rank's counts."""
        self._agree(self.epoch)
        self._report_stray(_distributed.total(self._stray.to(torch.int64)))
        away = torch.cat(
            [torch.empty(0, dtype=torch.int64, device=self.device), *(each.to(self.device) for each in self._away)]
        )
        self._away.clear()
        owner = torch.searchsorted(self._ends, away // 2 % self.num_samples, right=True)
        order = owner.argsort(stable=True)  # the last of repeated answers stays the last
        received = _distributed.route(away[order], owner.bincount(minlength=self._world))
        marks = []
        for rank, answers in enumerate(received):
            row, column = answers // 2 // self.num_samples, answers // 2 % self.num_samples - self.first
            if rank < self._rank:  # what this process observed itself counts more
                free = ~self._layout.observed(self._words[row, column])
                answers, row, column = answers[free], row[free], column[free]
            marks.append((row * self._words.shape[1] + column, answers % 2 == 1))
        for place, right in marks:
            _store.write_marks(self._words.view(1, -1), place[None], right[None], self._layout)

    def _settings(self) -> dict[str, object]:
        return {**super()._settings(), "kind": type(self).__name__, "first": self.first}

    def state_dict(self) -> dict[str, object]:
        """Return the state of this process's share, between two epochs, as copies of tensors and primitives."""
        if self._away:
            raise RuntimeError(
                "state_dict() must be called after advance(): answers are not yet sent to their samples."
            )
        return super().state_dict()

    def load_state_dict(self, state: dict[str, object]) -> None:
        """Load the state of this process's share. Collective: if one process refuses its state, no state changes."""
        with self._all_or_none("could not load their states; load them on all again"):
            super().load_state_dict(state)
        self._away.clear()
        self._sums.share()

    def _checked(self, state: dict[str, object]) -> tuple[int, list[bool], Tensor, Tensor]:
        with self._all_or_none("refused their states: load other ones on all"):
            found = super()._checked(state)
        self._agree(found[0])
        return found
