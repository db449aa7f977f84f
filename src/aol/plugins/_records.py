"""Shared by plug-ins: the record of a training."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TypeAlias

from torch import Tensor

from aol import _check
from aol.ages import SampleAges
from aol.class_ages import ClassAges
from aol.records.recorder import Figure, Recorder

Recording: TypeAlias = Recorder | str | os.PathLike[str] | Callable[[SampleAges | ClassAges], Recorder] | None


class Records:
    """What a plug-in was given as `recorder`: nothing, or the record of its training.

    Args:
        given: a folder; a function from the ages to an `aol.Recorder`; or an `aol.Recorder` of these ages, which the
            user closes. The first two make the recorder in `begin`, when processes know of each other.

    >>> Records(None).advance(lr=0.1)
    """

    def __init__(self, given: Recording) -> None:
        if not (given is None or isinstance(given, Recorder | str | os.PathLike) or callable(given)):
            raise TypeError(f"recorder must be a folder, a function or a Recorder, not {_check.shown(given)}.")
        self.given = given
        self.recorder: Recorder | None = None

    def begin(self, ages: object, classes: Sequence[str] | None = None) -> None:
        """Make the recorder. It continues the record in its folder if the ages go on."""
        if self.given is None or self.recorder is not None:
            return
        if not isinstance(ages, SampleAges | ClassAges):
            raise ValueError(f"recorder needs SampleAges or ClassAges, not {_check.shown(ages)}.")
        if isinstance(self.given, Recorder):
            self.recorder = self.given
        elif callable(self.given):
            self.recorder = self.given(ages)
        else:
            self.recorder = Recorder(self.given, ages, classes=classes, resume=ages.epoch > 0)

    def observe(self, key: _check.Integers, logits: Tensor) -> None:
        """Record predictions, logits or logarithms of probabilities `[B, C]`, by index or label."""
        if self.recorder is not None:
            self.recorder.observe(key, logits)

    def test(self, label: Tensor, logits: Tensor) -> None:
        """Record predictions of test or validation samples."""
        if self.recorder is not None:
            self.recorder.test(label, logits.detach().float())

    def advance(self, **figures: Figure) -> None:
        """Write the epoch that `ages.advance()` has just ended. Collective."""
        if self.recorder is not None:
            self.recorder.advance(**figures)

    def end(self, *, finished: bool) -> None:
        """Close a recorder that was made here; one that was not finished can be resumed."""
        if self.recorder is not None and self.recorder is not self.given:
            self.recorder.close(finished=finished)
        self.recorder = None

    def __getstate__(self) -> dict[str, object]:
        # Without the recorder, which holds a lock: what is loaded goes on with the record in its folder.
        return {"given": self.given.folder if isinstance(self.given, Recorder) else self.given, "recorder": None}
