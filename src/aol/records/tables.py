"""Tables of numbers as CSV: written so that others can read them, read so that what is missing is NaN.

Knows text and arrays. An empty cell means that nothing was read, or a value that was not finite.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


class DamagedRecordsError(ValueError):
    """Records that cannot be read; the message names the file."""


def cells(values: Iterable[float]) -> list[str]:
    """Return numbers as text: whole ones without a point, unknown ones as nothing.

    >>> cells([2.0, 0.5, float("nan"), float("inf")])
    ['2', '0.5', '', '']
    """
    # Most numbers lie in between, where seven digits write whole ones without a point anyway; tables have millions.
    return [f"{v:.7g}" if 0.0 < v < 1e7 else _cell(v) for v in values]


def _cell(value: float) -> str:
    if not math.isfinite(value):
        return ""
    return str(int(value)) if value == int(value) else f"{value:.7g}"


def table(rows: Iterable[Sequence[str]]) -> bytes:
    r"""Return rows as CSV.

    >>> table([("name", "age"), ("cat, or not", "1.5")])
    b'name,age\n"cat, or not",1.5\n'
    """
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode()


def read_epochs(path: Path) -> dict[str, Floats]:
    """Read a table with a row an epoch: `float64 [E]` a column, NaN where a cell is empty."""
    head, rows = _rows(path)
    if head[0] != "epoch":
        raise DamagedRecordsError(f"{path}: not a table of epochs.")
    values = _numbers(path, rows, len(head))
    epoch = values[:, 0]
    if not (np.isfinite(epoch).all() and (epoch == np.floor(epoch)).all() and (np.diff(epoch, prepend=0.0) > 0).all()):
        raise DamagedRecordsError(f"{path}: epochs must be whole numbers from 1 that grow from row to row.")
    return {name: values[:, place] for place, name in enumerate(head)}


def read_classes(path: Path) -> tuple[list[str], dict[str, Floats]]:
    """Read a table with a row an epoch and class: the names of the classes, and `float64 [E, C]` a column."""
    head, rows = _rows(path)
    if head[:3] != ["epoch", "class", "name"]:
        raise DamagedRecordsError(f"{path}: not a table of classes by epoch.")
    names: list[str] = []
    for place, row in enumerate(rows):
        if row[1] != str(place):
            break
        names.append(row[2])
    if not names or len(rows) % len(names):
        raise DamagedRecordsError(f"{path}: {len(rows)} rows do not fit {len(names)} classes.")
    values = _numbers(path, [[row[0], *row[3:]] for row in rows], len(head) - 2).reshape(-1, len(names), len(head) - 2)
    return names, {name: values[:, :, place] for place, name in enumerate(["epoch", *head[3:]])}


def _rows(path: Path) -> tuple[list[str], list[list[str]]]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:  # a spreadsheet that saved it puts a mark before it
            rows = list(csv.reader(file))
    except FileNotFoundError as error:
        raise DamagedRecordsError(f"{path}: this file of the run is missing.") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise DamagedRecordsError(f"{path}: not a CSV table.") from error
    if not rows or any(len(row) != len(rows[0]) for row in rows):
        raise DamagedRecordsError(f"{path}: not a whole CSV table.")
    return rows[0], rows[1:]


def _numbers(path: Path, rows: list[list[str]], width: int) -> Floats:
    try:
        found = np.array([[float(cell) if cell else math.nan for cell in row] for row in rows], dtype=np.float64)
        return found.reshape(-1, width)
    except ValueError as error:
        raise DamagedRecordsError(f"{path}: {error}.") from error
