"""Shared by scikit-learn and River: the record of a training, in a folder or by a function of the user."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from aol import _check
from aol.ages import SampleAges
from aol.class_ages import ClassAges
from aol.records.recorder import Recorder

Recording: TypeAlias = str | os.PathLike[str] | Callable[[Any], Recorder] | None


def recorder_of(given: Recording, ages: SampleAges | ClassAges, classes: Sequence[str]) -> Recorder | None:
    """Return a recorder in a folder, where ages that go on continue their record, or what a function makes of the ages.

    >>> recorder_of(None, SampleAges([0, 1]), ["cat", "dog"])
    """
    if isinstance(given, str | os.PathLike):
        return Recorder(given, ages, classes=classes, resume=ages.epoch > 0)
    if given is not None and not callable(given):
        raise TypeError(f"recorder must be a folder or a function of the ages, not {_check.shown(given)}.")
    return None if given is None else given(ages)
