"""Parquet in the Hugging Face image layout: `train-*.parquet` beside `validation-*` or `test-*` shards.

Rows are (image: {bytes, path}, label), class names are in the schema's metadata. Needs pyarrow, imported on first use.
Reading one row reads its whole row group, of which each thread keeps the last few: fast in order, slow at random.
`aol data pack` makes a set that is fast at random.
"""

from __future__ import annotations

import contextlib
import json
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, lru_cache, partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch

from aol._files import open_regular
from aol._need import need
from aol.lab.data.encoded_images import PerThread, Places, Records, assign_splits, gather_names
from aol.lab.data.errors import DataError
from aol.lab.data.images import class_names, whole_labels

LABEL_COLUMNS = ("label", "labels", "fine_label")
_PATH_COLUMNS = ("path", "file_path", "filepath", "image_path", "filename", "file_name")
_ID_COLUMNS = ("id", "image_id", "key")
_KEPT_BYTES, _OPEN_FILES = 128 * 2**20, 8  # of each thread


def _pyarrow() -> ModuleType:
    return need("pyarrow.parquet", package="pyarrow", extra="parquet", why="reading Parquet")


@contextlib.contextmanager
def _readable(path: str) -> Iterator[None]:
    """Explain in one sentence why a file cannot be read."""
    try:
        open_regular(Path(path)).close()  # of a pipe, pyarrow would wait for the end
        yield
    except DataError:
        raise
    except Exception as reason:  # whatever a damaged file makes pyarrow raise
        raise DataError(f"{path}: not a whole Parquet file ({' '.join(str(reason).split())[:200]})") from None


def _row_groups(column: str) -> Callable[[str, int], Sequence[Any]]:
    """Return a function of a path and a number: a row group of encoded images. It keeps the last ones, and their files.

    For one thread. A set may have more files than a process may open, and more row groups than fit into memory.
    """

    @lru_cache(_OPEN_FILES)
    def opened(path: str) -> Any:
        with _readable(path):
            return _pyarrow().ParquetFile(path)  # no memory map: a file that is cut short would end the process

    kept: OrderedDict[tuple[str, int], Any] = OrderedDict()

    def group(path: str, number: int) -> Sequence[Any]:
        if (path, number) not in kept:
            file = opened(path)
            with _readable(path):
                images = file.read_row_group(number, columns=[f"{column}.bytes"]).column(0).combine_chunks()
                kept[path, number] = images.field("bytes")
            while len(kept) > 1 and sum(each.nbytes for each in kept.values()) > _KEPT_BYTES:
                kept.popitem(last=False)
        kept.move_to_end((path, number))
        cells: Sequence[Any] = kept[path, number]
        return cells

    return group


class _ParquetRecords:
    """The rows of one split's shards, in the order of sorted file names."""

    def __init__(self, shards: Sequence[Path], name: str, root: Path) -> None:
        parquet = _pyarrow()
        self.name = name
        self._inside = [path.relative_to(root).as_posix() for path in shards]
        self._paths = [str(path) for path in shards]
        self._stamps = [f"{path.name}:{path.stat().st_size}:{path.stat().st_mtime_ns}" for path in shards]
        labels, group_ends = [], [0]
        self._groups: list[tuple[int, int]] = []  # the file and the number in it of each row group
        for number, path in enumerate(self._paths):
            with _readable(path):
                file = parquet.ParquetFile(path)
            image, label = _columns(file.schema_arrow, path)
            names = _class_names(file.schema_arrow, label)
            if number == 0:
                self._image, self._label, self.classes = image, label, names
            elif (image, label, names) != (self._image, self._label, self.classes):
                raise DataError(f"{path}: columns or class names unlike those of {self._paths[0]}")
            with _readable(path):
                column = file.read(columns=[label]).column(label)
            if column.null_count:
                raise DataError(f"{path}: {column.null_count} rows without a {label}")
            labels.append(whole_labels(column.to_numpy(), path).numpy())
            for group in range(file.metadata.num_row_groups):
                group_ends.append(group_ends[-1] + file.metadata.row_group(group).num_rows)
                self._groups.append((number, group))
            file.close()
        self.labels = torch.from_numpy(np.concatenate(labels))
        if len(self.labels) == 0:
            raise DataError(f"{self._paths[0]}: no rows in it")
        self._starts = np.cumsum([0, *(len(each) for each in labels)])  # of the files
        self._ends = np.array(group_ends, dtype=np.int64)
        self._row_groups = PerThread(partial(_row_groups, self._image))

    def _place(self, index: int) -> tuple[int, int, int]:
        """Return the file, row group and row of a position."""
        at = int(np.searchsorted(self._ends, index, side="right")) - 1
        return *self._groups[at], index - int(self._ends[at])

    def encoded(self, index: int) -> bytes:
        number, group, row = self._place(index)
        content: bytes | None = self._row_groups()(self._paths[number], group)[row].as_py()
        if content is None:
            raise DataError(f"{self.source(index)}: no bytes in column {self._image!r}")
        return content

    def source(self, index: int) -> str:
        number, group, row = self._place(index)
        return f"{self._paths[number]} (row group {group}, row {row})"

    def stamp(self, index: int) -> str:
        number, group, row = self._place(index)
        return f"{self._stamps[number]}:{group}:{row}"

    @cached_property
    def _naming(self) -> str | None:
        return _naming_column(self._paths, self._image)

    def names(self, index: Sequence[int]) -> list[str]:
        """Return the rows' own names, where a column names each differently, else `FILE#ROW`, counted from 0.

        Paths are returned as they are, an id with its column, as `id=17`.
        """
        column = self._naming

        def read(file: int, rows: Places) -> list[str]:
            if column is None:
                return [f"{self._inside[file]}#{row}" for row in rows.tolist()]
            texts = _texts(self._paths[file], column)
            if texts is None:
                raise DataError(f"{self._paths[file]}: column {column!r} no longer holds names")
            prefix = f"{column}=" if column in _ID_COLUMNS else ""
            return [prefix + name for name in texts.take(rows).to_pylist()]

        return gather_names(index, self._starts, read)


def _columns(schema: Any, path: str) -> tuple[str, str]:
    """Find the image column, a struct with `bytes` in it, and the label column, whole numbers."""
    types = {name: str(schema.field(name).type) for name in schema.names}
    images = [n for n, kind in types.items() if kind.startswith("struct<") and "bytes: binary" in kind]
    labels = [n for n in LABEL_COLUMNS if types.get(n, "").startswith(("int", "uint"))]
    if not images:
        raise DataError(f"{path}: no image column (a struct of bytes and path) among {', '.join(types)}")
    if not labels:
        raise DataError(f"{path}: no label column ({', '.join(LABEL_COLUMNS)}, whole numbers) among {', '.join(types)}")
    return images[0], labels[0]


def _class_names(schema: Any, label: str) -> tuple[str, ...]:
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        names = features[label]["names"]
    except (KeyError, TypeError, ValueError, RecursionError):
        names = None
    return class_names(names, "the schema") if isinstance(names, list) else ()  # plain Parquet numbers its classes


def _naming_column(paths: Sequence[str], image: str) -> str | None:
    """Return the first column that names every row of these files differently; None where there is none.

    The path beside the bytes of the image comes first, then columns of paths or file names, then ids. A name that two
    rows share would lead to the wrong one: such a column is ignored, as is one that leaves a row without a name.
    """
    import pyarrow as arrow
    import pyarrow.compute as compute

    schemas = [_pyarrow().read_schema(path) for path in paths]
    inside = [{f"{image}.{field.name}" for field in schema.field(image).type} for schema in schemas]
    for column in (f"{image}.path", *_PATH_COLUMNS, *_ID_COLUMNS):
        if not all(column in fields or column in schema.names for fields, schema in zip(inside, schemas, strict=True)):
            continue
        parts = [_texts(path, column) for path in paths]
        if any(part is None for part in parts):
            continue
        whole = arrow.chunked_array([chunk for part in parts for chunk in part.chunks], type=arrow.large_string())
        if whole.null_count or compute.count_distinct(whole).as_py() != len(whole):
            continue
        if compute.min(compute.utf8_length(compute.utf8_trim_whitespace(whole))).as_py() > 0:
            return column
    return None


def _texts(path: str, column: str) -> Any:
    """Return a column of a file as text; None where it holds something else."""
    import pyarrow as arrow
    import pyarrow.compute as compute

    try:
        with _pyarrow().ParquetFile(path) as file:
            values = file.read([column]).column(0)
    except (arrow.ArrowException, OSError) as reason:
        raise DataError(f"{path}: column {column!r} cannot be read ({' '.join(str(reason).split())})") from None
    if column not in (*_PATH_COLUMNS, *_ID_COLUMNS):
        values = compute.struct_field(values, "path")
    if arrow.types.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    kind = values.type
    if not (arrow.types.is_string(kind) or arrow.types.is_large_string(kind) or arrow.types.is_integer(kind)):
        return None
    try:
        texts = values.cast(arrow.large_string())
        texts.validate(full=True)  # that it is UTF-8
    except arrow.ArrowInvalid:
        return None
    return texts


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
    shards = {name: sorted(folder.glob(f"{name}*.parquet")) for name in ("train", "test", "val")}
    train, *others = (_ParquetRecords(found, f"{root.name}/{name}", root) for name, found in shards.items() if found)
    return assign_splits(train, others, folder, "test*.parquet or validation*.parquet")
