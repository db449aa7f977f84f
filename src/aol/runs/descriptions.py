"""What some samples are, in words: text, or a short row of a table, kept beside the records like thumbnails."""

from __future__ import annotations

import json
import numbers
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TypeAlias

import numpy as np
from torch import Tensor

from aol import _check
from aol._files import read_json, write_atomically

FILE = "descriptions.json"
LETTERS = 2000  # of a text
ENTRIES = 12  # of a row
Description: TypeAlias = "str | list[list[str]]"


def described(value: object) -> Description:
    """Return text as text, and a mapping or a vector as `[name, value]` pairs; both shortened.

    >>> described("a short text"), described({"age": 31, "height": 1.7321}), described(np.array([0.5, 2.0]))
    ('a short text', [['age', '31'], ['height', '1.732']], [['0', '0.5'], ['1', '2']])
    """
    if isinstance(value, str):
        return value if len(value) <= LETTERS else value[: LETTERS - 1] + "…"
    if isinstance(value, Tensor):
        value = value.detach().cpu().numpy()
    if isinstance(value, np.ndarray | list | tuple):
        vector = np.asarray(value)
        if vector.ndim != 1:
            raise ValueError(f"describe must return text, a mapping or a vector, not {_check.shown(value)}.")
        value = dict(enumerate(vector.tolist()))
    if not isinstance(value, Mapping):
        raise TypeError(f"describe must return text, a mapping or a vector, not {_check.shown(value)}.")
    rows = [[str(name)[:LETTERS], _entry(each)] for name, each in list(value.items())[:ENTRIES]]
    return rows if len(value) <= ENTRIES else [*rows, ["…", f"{len(value) - ENTRIES} more"]]


def _entry(value: object) -> str:
    real = isinstance(value, numbers.Real) and not isinstance(value, numbers.Integral)
    return f"{float(value):.4g}" if real else str(value)[:LETTERS]  # type: ignore[arg-type]


class Descriptions:
    """The descriptions of those samples that are worth looking at; each is asked for once."""

    def __init__(self, describe: Callable[[int], object]) -> None:
        self._describe = describe
        self._kept: dict[int, Description] = {}

    def keep(self, rows: Iterable[int]) -> None:
        """Keep the descriptions of these samples and of no others."""
        self._kept = {row: self._kept[row] if row in self._kept else described(self._describe(row)) for row in rows}

    def write(self, folder: Path) -> None:
        """Write them into the folder of a run."""
        write_atomically(folder / FILE, json.dumps(self._kept, ensure_ascii=False).encode(errors="backslashreplace"))


def read_descriptions(folder: Path) -> dict[int, Description]:
    """Return the descriptions in the folder of a run by the sample's row; none where none were kept or can be read."""
    try:
        found = read_json(folder / FILE)
        return {int(row): each if isinstance(each, str) else described(dict(each)) for row, each in found.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}
