"""What a user tells a recorder, checked with the house's one voice."""

from __future__ import annotations

import math
import os
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence, Sized
from pathlib import Path
from typing import Protocol, TypeAlias

import torch

from aol import _check
from aol.ages import ClassAges, SampleAges
from aol.runs.thumbnails import Thumbnails, thumbnail

Value: TypeAlias = str | float | int | bool | None


class Images(Protocol):
    """What hands out an image by the place of a sample: an array `[N, ...]`, a data set of images, a list."""

    def __getitem__(self, index: int, /) -> object:
        """Return the image of a sample."""


def text(name: str, value: object) -> str:
    """Return some text that is not blank."""
    if not isinstance(value, str) or not value.strip():
        raise TypeError(f"{name} must be some text, not {_check.shown(value)}.")
    return value


def classes(value: Sequence[str] | None, size: int) -> list[str]:
    """Return the names of the classes; by default their numbers."""
    if value is None:
        return [str(place) for place in range(size)]
    if isinstance(value, str) or len(value) != size:
        raise ValueError(f"classes must be {size} names, one a class, not {_check.shown(value)}.")
    return [text("classes", str(each)) for each in value]


def counts(value: _check.Integers, size: int) -> list[int]:
    """Return a count for each class."""
    found = _check.integers("counts", value)
    if found.shape != torch.Size((size,)) or bool((found < 0).any()):
        raise ValueError(f"counts must be {size} whole numbers of 0 or more, not {_check.shown(value)}.")
    return [int(each) for each in found.tolist()]


def settings(value: Mapping[str, Value]) -> dict[str, Value]:
    """Return settings that JSON can hold."""
    for name, each in value.items():
        infinite = isinstance(each, float) and not math.isfinite(each)
        if not isinstance(name, str) or not isinstance(each, str | float | int | bool | None) or infinite:
            raise TypeError(f"settings must be text and finite numbers by name, not {_check.shown({name: each})}.")
    return dict(value)


def thumbnails(images: Images | Callable[[int], object], ages: SampleAges | ClassAges) -> Thumbnails:
    """Return who takes the pictures; the first image is tried at once."""
    if not isinstance(ages, SampleAges):
        raise ValueError("images are of samples, and ClassAges know none.")
    size = None if callable(images) or not isinstance(images, Sized) else len(images)
    if size not in (None, ages.num_samples):
        raise ValueError(f"images must be {ages.num_samples}, one a sample, not {size}.")
    show = images if callable(images) else images.__getitem__
    thumbnail(show(0))  # better now than after an hour
    return Thumbnails(show)


def names(value: Sequence[str | os.PathLike[str]] | None, ages: SampleAges | ClassAges) -> list[str] | list[int] | None:
    """Return what each sample is called; by default its id in the ages, or None."""
    if value is None:
        return ages.ids if isinstance(ages, SampleAges) else None
    if not isinstance(ages, SampleAges):
        raise ValueError("names are of samples, and ClassAges know none.")
    if isinstance(value, str | bytes) or not isinstance(value, Sized):
        raise TypeError(f"names must be a list of texts, one a sample, not {_check.shown(value)}.")
    if len(value) != ages.num_samples:
        raise ValueError(f"names must be {ages.num_samples}, one a sample, not {len(value)}.")
    return [text("names", os.fspath(each) if isinstance(each, os.PathLike) else each) for each in value]


def command(value: str | None) -> str | None:
    """Return what the user types to repeat the run, or how this program was started."""
    if value is not None:
        return text("command", value)
    started = sys.argv[:1]
    return shlex.join([Path(sys.executable).name, *sys.argv]) if started and started[0].endswith(".py") else None
