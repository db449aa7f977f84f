"""What the rows of Parquet files are called: by a column that names each of them differently, if there is one.

Assumes pyarrow and the files of one split. A name that two rows share would lead to the wrong one: such a column is
ignored, as is one that leaves a row without a name.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Protocol

import numpy as np

from aol.data.errors import DataError, need
from aol.data.name_table import Places

PATHS = ("path", "file_path", "filepath", "image_path", "filename", "file_name")
IDS = ("id", "image_id", "key")


class _Texts(Protocol):
    chunks: list[object]

    def validate(self, *, full: bool) -> None: ...
    def take(self, rows: Places) -> _Texts: ...
    def to_pylist(self) -> list[str]: ...


class _Field(Protocol):
    name: str
    type: Sequence[_Field]


class _Schema(Protocol):
    names: list[str]

    def field(self, name: str) -> _Field: ...


def _arrow() -> tuple[ModuleType, ModuleType, ModuleType]:
    said = {"package": "pyarrow", "extra": "parquet", "why": "reading Parquet"}
    arrow, compute, parquet = (need(f"pyarrow{part}", **said) for part in ("", ".compute", ".parquet"))
    return arrow, compute, parquet


def naming_column(paths: Sequence[str], image: str) -> str | None:
    """Return the first column that names every row of these files differently; None where there is none.

    The path beside the bytes of the image comes first, then columns of paths or file names, then ids.
    """
    arrow, compute, parquet = _arrow()
    kinds = [_candidates(parquet.read_schema(path), image) for path in paths]
    for column in kinds[0]:
        if any(column not in others for others in kinds):
            continue
        parts = [part for path in paths if (part := _texts(path, column, None)) is not None]
        if len(parts) < len(paths):
            continue
        whole = arrow.chunked_array([chunk for part in parts for chunk in part.chunks], type=arrow.large_string())
        if whole.null_count or compute.count_distinct(whole).as_py() != len(whole):
            continue
        if compute.min(compute.utf8_length(compute.utf8_trim_whitespace(whole))).as_py() > 0:
            return column
    return None


def read_column(path: str, column: str, rows: Places) -> list[str]:
    """Return the names of some rows of a file: paths as they are, an id with its column, as `id=17`."""
    _, _, parquet = _arrow()
    with parquet.ParquetFile(path) as file:
        sizes = [file.metadata.row_group(group).num_rows for group in range(file.metadata.num_row_groups)]
    ends = np.cumsum([0, *sizes])
    groups, place = np.unique(np.searchsorted(ends, rows, side="right") - 1, return_inverse=True)
    kept = np.diff(ends)[groups]
    texts = _texts(path, column, groups.tolist())
    if texts is None:
        raise DataError(f"{path}: column {column!r} no longer holds names")
    names = texts.take((kept.cumsum() - kept)[place] + rows - ends[groups][place]).to_pylist()
    return [f"{column}={name}" for name in names] if column in IDS else names


def _candidates(schema: _Schema, image: str) -> list[str]:
    inside = [field.name for field in schema.field(image).type]
    return [f"{image}.path"] * ("path" in inside) + [name for name in (*PATHS, *IDS) if name in schema.names]


def _texts(path: str, column: str, groups: list[int] | None) -> _Texts | None:
    """Return a column as text, of some row groups or of a whole file; None where it holds something else."""
    arrow, compute, parquet = _arrow()
    try:
        with parquet.ParquetFile(path) as file:
            table = file.read([column]) if groups is None else file.read_row_groups(groups, [column])
    except (arrow.ArrowException, OSError) as reason:
        raise DataError(f"{path}: column {column!r} cannot be read ({' '.join(str(reason).split())})") from None
    values = table.column(0)
    if column not in (*PATHS, *IDS):
        values = compute.struct_field(values, "path")
    if arrow.types.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    kind = values.type
    if not (arrow.types.is_string(kind) or arrow.types.is_large_string(kind) or arrow.types.is_integer(kind)):
        return None
    try:
        texts: _Texts = values.cast(arrow.large_string())
        texts.validate(full=True)  # that it is UTF-8
    except arrow.ArrowInvalid:
        return None
    return texts
