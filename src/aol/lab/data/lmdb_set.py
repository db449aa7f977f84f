"""LMDB: one environment a split, `train.lmdb` beside `val.lmdb` or `test.lmdb`; `.lmdb` may be left out.

Assumes the keys `num-samples` (decimal), `image-000000001`, `label-000000001` (encoded
image, decimal label; counted from 1 or from 0) and, if given, `classes` (a JSON list of names).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from aol.lab.data.encoded_images import Records, assign_splits
from aol.lab.data.errors import DataError
from aol.lab.data.folder import TEST_FOLDERS
from aol.lab.data.images import class_names, whole_labels
from aol.lab.data.lmdb_file import entries, read_value

_LARGEST = 64 * 2**20  # bytes of a value that is no image

_IMAGE, _LABEL = "image-%09d", "label-%09d"


class _LmdbRecords:
    """The records of one LMDB environment."""

    def __init__(self, path: Path, name: str) -> None:
        self.name, self._path, self._inside = name, str(path.absolute()), path.name
        self._file = path.absolute() / "data.mdb" if path.is_dir() else path.absolute()
        state = self._file.stat()
        self._stamp = f"{state.st_size}:{state.st_mtime_ns}"
        places, values = _contents(self._file)
        count = _number(values.get("num-samples"), f"{self._path}: key 'num-samples'")
        if count < 1:
            raise DataError(f"{self._path}: no records in it")
        self._first = 0 if _LABEL % 0 in values else 1
        keys = (_LABEL % number for number in range(self._first, self._first + count))
        labels = [_number(values.get(key), f"{self._path}: key {key!r}") for key in keys]
        images = range(self._first, self._first + count)
        self._places = np.array([places.get(number, (0, -1)) for number in images], dtype=np.int64)
        self.labels = whole_labels(labels, self._path)
        self.classes = _names(values.get("classes", b"[]"), self._path)

    def encoded(self, index: int) -> bytes:
        place, size = self._places[index].tolist()
        if size < 0:
            raise DataError(f"{self.source(index)}: no such key")
        return read_value(self._file, place, size)

    def source(self, index: int) -> str:
        return f"{self._path} ({_IMAGE % (index + self._first)})"

    def stamp(self, index: int) -> str:
        return f"{self._stamp}:{index}"

    def names(self, index: Sequence[int]) -> list[str]:
        """Return the environment and key of the records at these positions."""
        return [f"{self._inside}#{_IMAGE % (place + self._first)}" for place in index]


def _contents(path: Path) -> tuple[dict[int, tuple[int, int]], dict[str, bytes]]:
    """Return where the images are, place and size by number, and all other values by key."""
    places, values = {}, {}
    for entry in entries(path):
        kind, _, number = entry.key.partition(b"-")
        if kind == b"image" and number.isdigit() and len(number) == max(9, len(str(int(number)))):
            places[int(number)] = entry.place, entry.size
        elif entry.size > _LARGEST:
            raise DataError(f"{path}: key {entry.key[:40]!r} has {entry.size:,} bytes, which no label or list has")
        else:
            value = read_value(path, entry.place, entry.size) if entry.value is None else entry.value
            values[entry.key.decode(errors="replace")] = value
    return places, values


def _names(content: bytes, where: str) -> tuple[str, ...]:
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, list):
        raise DataError(f"{where}: key 'classes' is not a JSON list")
    return class_names(found, where)


def _number(value: bytes | None, what: str) -> int:
    if value is None:
        raise DataError(f"{what} is missing")
    if not value.removeprefix(b"-").isdigit() or len(value) > 20:
        raise DataError(f"{what} is not a whole number: {value[:20]!r}")
    return int(value)


def lmdb_split(root: Path, name: str) -> Path | None:
    """Return the LMDB environment of a split, or None."""
    for path in (root / f"{name}.lmdb", root / name):
        if path.is_file() or (path / "data.mdb").is_file():
            return path
    return None


def open_lmdb(root: Path) -> dict[str, Records]:
    """Open the splits of a folder of LMDB environments."""
    train, *others = (
        _LmdbRecords(path, f"{root.name}/{path.stem}")
        for name in ("train", *TEST_FOLDERS)
        if (path := lmdb_split(root, name)) is not None
    )
    return assign_splits(train, others, root, "test.lmdb or val.lmdb")
