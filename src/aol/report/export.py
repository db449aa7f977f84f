"""The table of samples as CSV or Parquet, for spreadsheets, pandas and cleanlab. Parquet needs pyarrow."""

from __future__ import annotations

import csv
import io
import os
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from aol._files import write_atomically
from aol.data.errors import need
from aol.report.run_data import RunData
from aol.report.samples import Samples

Column = list[str] | npt.NDArray[np.generic]
# What a spreadsheet takes for a formula when a cell begins with it.
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")


_NUMBER = re.compile(r"[+-]?[0-9]+(\.[0-9]+)?")


def columns(data: RunData) -> dict[str, Column]:
    """Return the table of a run's samples by column, most suspicious first; unknown numbers are NaN, or -1."""
    samples = _samples(data)
    order = np.argsort(-samples.suspicion, kind="stable")
    names = np.array(data.run.classes, dtype=object)
    predicted = samples.prediction[order]
    answer = np.where(predicted < 0, "", names[np.maximum(predicted, 0)])
    return {
        "id": [samples.id(row) for row in order.tolist()],
        "index": samples.index[order],
        "label": samples.label[order],
        "label_name": [str(name) for name in names[samples.label[order]]],
        "prediction": predicted,
        "prediction_name": [str(name) for name in answer],
        "confidence": samples.confidence[order],
        "prediction_probability": samples.top[order],
        "mean_confidence": samples.mean_confidence[order],
        "mean_other": samples.mean_other[order],
        "age": samples.age[order],
        "ema": samples.ema[order],
        "episodes": samples.episodes[order],
        "epochs_seen": samples.seen[order],
        "epochs_wrong": samples.wrong[order],
        "suspicion": samples.suspicion[order],
        "label_quality": (1.0 - samples.suspicion[order]).astype(np.float32),
    }


def export(data: RunData, path: str | os.PathLike[str]) -> Path:
    """Write the table of a run's samples to a `.csv` or `.parquet` file, whole or not at all, and return the path.

    In CSV, a text that a spreadsheet would take for a formula gets an apostrophe before it. Parquet has every text as
    it is.
    """
    place = Path(path)
    kind = place.suffix.lower()
    if kind not in (".csv", ".parquet"):
        raise ValueError(f"path must end in .csv or .parquet, not {str(place)!r}.")
    if place.is_dir():
        raise ValueError(f"path must be a file, but {place} is a folder.")
    table = columns(data)
    write_atomically(place, _csv(table) if kind == ".csv" else _parquet(table))
    return place


def _samples(data: RunData) -> Samples:
    if data.samples is None:
        raise ValueError(f"{data.name} did not record its samples: train with --keep-samples, or record SampleAges.")
    return data.samples


def _csv(table: dict[str, Column]) -> bytes:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(table)
    cells = [_cells(values) for values in table.values()]
    writer.writerows(zip(*cells, strict=True))
    content = text.getvalue()
    return content.encode() if content.isascii() else f"\ufeff{content}".encode()  # else spreadsheets guess wrongly


def _cells(values: Column) -> Iterator[str]:
    if isinstance(values, list):
        return (plain(value) for value in values)
    if values.dtype.kind == "f":
        return ("" if value != value else f"{value:.6g}" for value in values.tolist())
    return (str(value) for value in values.tolist())


def plain(text: str) -> str:
    """Return text that a spreadsheet shows and does not compute; a number stays one.

    >>> plain("=1+2"), plain("cat"), plain("-3")
    ("'=1+2", 'cat', '-3')
    """
    return f"'{text}" if text.startswith(_FORMULA) and not _NUMBER.fullmatch(text) else text


def _parquet(table: dict[str, Column]) -> bytes:
    arrow = need("pyarrow", package="pyarrow", extra="parquet", why="writing Parquet")
    parquet = need("pyarrow.parquet", package="pyarrow", extra="parquet", why="writing Parquet")
    buffer = io.BytesIO()
    parquet.write_table(arrow.table({name: arrow.array(values) for name, values in table.items()}), buffer)
    return buffer.getvalue()
