"""Parquet in the Hugging Face image layout: `train-*.parquet` beside `validation-*` or `test-*` shards.

Rows are (image: {bytes, path}, label), class names lie in the schema's metadata; `row_names.py` finds what the rows
are called. Assumes pyarrow, imported
on first use. One row costs its whole row group, of which each thread keeps the last few: good for reading in
order, slow at random. `aol data pack` makes a set that is quick at random.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Protocol, cast

import numpy as np
import torch

from aol.data.encoded_images import PerThread, Records
from aol.data.errors import DataError, need
from aol.data.images import check_labels
from aol.data.name_table import Places, gathered
from aol.data.row_names import naming_column, read_column

_LABEL_COLUMNS = ("label", "labels", "fine_label")
_KEPT_GROUPS = 4
_naming_lock = threading.Lock()  # packing asks in many threads, and a million names are read but once


class _Cell(Protocol):
    def as_py(self) -> bytes | None: ...


def _pyarrow() -> ModuleType:
    return need("pyarrow.parquet", package="pyarrow", extra="parquet", why="reading Parquet")


class _Shard:
    """One open file and its last few row groups, for one thread."""

    def __init__(self, path: str, column: str) -> None:
        self._file = _pyarrow().ParquetFile(path, memory_map=True)
        self._column = column
        self._groups: OrderedDict[int, Sequence[_Cell]] = OrderedDict()

    def cell(self, group: int, row: int) -> bytes | None:
        if group not in self._groups:
            table = self._file.read_row_group(group, columns=[f"{self._column}.bytes"])
            column = table.column(0).combine_chunks()
            self._groups[group] = cast(Sequence[_Cell], column.field("bytes"))
            while len(self._groups) > _KEPT_GROUPS:
                self._groups.popitem(last=False)
        self._groups.move_to_end(group)
        return self._groups[group][row].as_py()


def _no_shards() -> dict[int, _Shard]:
    return {}


class ParquetRecords:
    """The rows of one split's shards, in the order of sorted file names."""

    def __init__(self, shards: Sequence[Path], name: str, root: Path) -> None:
        parquet = _pyarrow()
        self.name = name
        self._inside = [path.relative_to(root).as_posix() for path in shards]
        self._paths = [str(path) for path in shards]
        self._stamps = [f"{path.name}:{path.stat().st_size}:{path.stat().st_mtime_ns}" for path in shards]
        labels, group_ends, group_shard, group_number = [], [0], [], []
        for number, path in enumerate(self._paths):
            try:
                file = parquet.ParquetFile(path)
            except Exception as reason:
                raise DataError(f"{path}: not a whole Parquet file ({str(reason).strip()})") from None
            image, label = _columns(file.schema_arrow, path)
            names = _class_names(file.schema_arrow, label)
            if number == 0:
                self._image, self._label, self.class_names = image, label, names
            elif (image, label, names) != (self._image, self._label, self.class_names):
                raise DataError(f"{path}: columns or class names unlike those of {self._paths[0]}")
            column = file.read(columns=[label]).column(label)
            if column.null_count:
                raise DataError(f"{path}: {column.null_count} rows without a {label}")
            labels.append(np.asarray(column.to_numpy(), dtype=np.int64))
            for group in range(file.metadata.num_row_groups):
                group_ends.append(group_ends[-1] + file.metadata.row_group(group).num_rows)
                group_shard.append(number)
                group_number.append(group)
            file.close()
        self.labels = torch.from_numpy(np.concatenate(labels))
        if len(self.labels) == 0:
            raise DataError(f"{self._paths[0]}: no rows in it")
        self._starts = np.cumsum([0, *(len(each) for each in labels)])  # of the files
        self._ends = np.array(group_ends, dtype=np.int64)
        self._shard, self._group = np.array(group_shard), np.array(group_number)
        self.classes = self.class_names or tuple(str(n) for n in range(int(self.labels.max()) + 1))
        self._open = PerThread(_no_shards)
        self._naming: tuple[str | None] | None = None  # not looked for yet

    @property
    def unlabelled(self) -> bool:
        """Whether every label is −1, as in the test splits of competitions."""
        return bool((self.labels == -1).all())

    def _place(self, index: int) -> tuple[int, int, int]:
        at = int(np.searchsorted(self._ends, index, side="right")) - 1
        return int(self._shard[at]), int(self._group[at]), index - int(self._ends[at])

    def encoded(self, index: int) -> bytes:
        """Read the encoded image of a row."""
        number, group, row = self._place(index)
        shards = self._open()
        if number not in shards:
            shards[number] = _Shard(self._paths[number], self._image)
        content = shards[number].cell(group, row)
        if content is None:
            raise DataError(f"{self.source(index)}: no bytes in column {self._image!r}")
        return content

    def source(self, index: int) -> str:
        """Name the file, row group and row of a position."""
        number, group, row = self._place(index)
        return f"{self._paths[number]} (row group {group}, row {row})"

    def stamp(self, index: int) -> str:
        """Return the shard's name, size and time with the row."""
        number, group, row = self._place(index)
        return f"{self._stamps[number]}:{group}:{row}"

    def names(self, index: Sequence[int]) -> list[str]:
        """Return the rows' own names, where a column names each differently, else `FILE#ROW`, counted from 0."""
        with _naming_lock:
            if self._naming is None:
                self._naming = (naming_column(self._paths, self._image),)
        (column,) = self._naming

        def read(file: int, rows: Places) -> list[str]:
            if column is None:
                return [f"{self._inside[file]}#{row}" for row in rows.tolist()]
            return read_column(self._paths[file], column, rows)

        return gathered(index, self._starts, read)


class _Schema(Protocol):
    names: list[str]
    metadata: dict[bytes, bytes] | None

    def field(self, name: str) -> object: ...


def _columns(schema: _Schema, path: str) -> tuple[str, str]:
    """Find the image column, a struct with `bytes` in it, and the label column, whole numbers."""
    types = {name: str(getattr(schema.field(name), "type", "")) for name in schema.names}
    images = [n for n, kind in types.items() if kind.startswith("struct<") and "bytes: binary" in kind]
    labels = [n for n in _LABEL_COLUMNS if types.get(n, "").startswith(("int", "uint"))]
    if not images:
        raise DataError(f"{path}: no image column (a struct of bytes and path) among {', '.join(types)}")
    if not labels:
        raise DataError(
            f"{path}: no label column ({', '.join(_LABEL_COLUMNS)}, whole numbers) among {', '.join(types)}"
        )
    return images[0], labels[0]


def _class_names(schema: _Schema, label: str) -> tuple[str, ...]:
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        return tuple(str(name) for name in features[label]["names"])
    except (KeyError, TypeError, ValueError):
        return ()  # plain Parquet: classes are then numbered


def parquet_folder(root: Path) -> Path | None:
    """Return the folder that holds training shards: root itself or its `data` folder, or None."""
    for folder in (root, root / "data"):
        if folder.is_dir() and any(folder.glob("train*.parquet")):
            return folder
    return None


def open_parquet(root: Path) -> dict[str, Records]:
    """Open the splits of a Parquet folder; a test split whose labels are all −1 is replaced by validation."""
    folder = parquet_folder(root)
    if folder is None:
        raise DataError(f"{root}: no train*.parquet in it")
    opened = {"train": ParquetRecords(sorted(folder.glob("train*.parquet")), f"{root.name}/train", root)}
    for role, name in (("test", "test"), ("validation", "val")):
        shards = sorted(folder.glob(f"{name}*.parquet"))
        if shards:
            records = ParquetRecords(shards, f"{root.name}/{name}", root)
            if not records.unlabelled:
                opened[role if "test" in opened or role == "test" else "test"] = records
    if "test" not in opened:
        raise DataError(f"{folder}: no labelled test*.parquet or validation*.parquet beside the training shards")
    train = opened["train"]
    for records in opened.values():
        if records.class_names != train.class_names:
            raise DataError(f"classes differ: {records.name} names others than {train.name}")
        records.classes = train.classes
        check_labels(records.labels, len(train.classes), records.name)
    return dict(opened)
