"""Shared by the callbacks of trainers: a watch that opens with a training and is kept in its checkpoints."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from aol import _check
from aol.ages import SampleAges
from aol.records.datasets import ages_of
from aol.records.watch import Answer, Watch, answer_of


class Watching:
    """Opens an `aol.Watch`, with its arguments, when a training begins, and ends its epochs; `every` counts these."""

    def __init__(
        self,
        folder: str | os.PathLike[str],
        train_set: Any,
        test_set: Any = None,
        *,
        every: int = 1,
        ages: SampleAges | None = None,
        answer: Answer = answer_of,
        **record: Any,
    ) -> None:
        self.ages = ages_of(train_set, record.get("classes")) if ages is None else ages
        self.watch: Watch | None = None
        self._folder, self._sets, self._answer, self._record = Path(folder), (train_set, test_set), answer, record
        self._every = _check.whole("every", every, 1)
        self._epochs = 0  # of the training, that have ended
        self._suffix = ""  # of the folder: "-2" for a second run

    @property
    def folder(self) -> Path:
        """The folder of the record, for `aol.find_label_errors`; a second run has another."""
        return self._folder.with_name(self._folder.name + self._suffix)

    def _begin(self, device: torch.device, answer: Answer) -> None:
        """Open the watch, on a device; ages that go on continue their record."""
        self._end(finished=False)
        self.ages.to(device)
        self.watch = Watch(
            self.folder, *self._sets, ages=self.ages, answer=answer, resume=self.ages.epoch > 0, **self._record
        )
        self._suffix = self.watch.folder.name[len(self._folder.name) :]

    def _end_epoch(self, model: nn.Module, epochs: int, optimizers: Sequence[Any]) -> dict[str, float]:
        """Watch, unless these epochs were watched already, and return what to log. Collective."""
        if self.watch is None or epochs <= self._epochs:
            return {}
        self._epochs = epochs
        if epochs % self._every:
            return {}
        rates = [float(group["lr"]) for optimizer in optimizers for group in optimizer.param_groups]
        self.watch.epoch(model, lr=max(rates, default=None))
        return self.watch.readings()

    def _end(self, *, finished: bool) -> None:
        if self.watch is not None:
            self.watch.close(finished=finished)
        self.watch = None

    def state_dict(self) -> dict[str, Any]:
        """Return the ages, and how far the training was."""
        return {"ages": self.ages.state_dict(), "epochs": self._epochs, "suffix": self._suffix}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on with the ages of a checkpoint."""
        self.ages.load_state_dict(state_dict["ages"])
        self._epochs, self._suffix = int(state_dict["epochs"]), str(state_dict["suffix"])
