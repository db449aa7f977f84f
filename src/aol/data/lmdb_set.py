"""LMDB: one environment a split, `train.lmdb` beside `val.lmdb` or `test.lmdb`; `.lmdb` may be left out.

Assumes lmdb, imported on first use, and the keys `num-samples` (decimal), `image-000000001`, `label-000000001` (encoded
image, decimal label; counted from 1 or from 0) and, if given, `classes` (a JSON list of names).
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from aol.data.encoded_images import Records
from aol.data.errors import DataError, need
from aol.data.folder import TEST_FOLDERS, same_classes
from aol.data.images import check_labels

# LMDB allows one environment a file and process; threads share it, each with a transaction of its own.
_environments: dict[str, Any] = {}
_lock = threading.Lock()


def _forget_inherited() -> None:
    # A forked worker may not use the parent's environments, nor open the files again while it holds them.
    global _lock
    _lock = threading.Lock()
    for environment in _environments.values():
        environment.close()
    _environments.clear()


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_forget_inherited)


def _transaction(path: str) -> Any:
    lmdb = need("lmdb", package="lmdb", extra="lmdb", why="reading LMDB")
    with _lock:
        if path not in _environments:
            options = {"readonly": True, "lock": False, "readahead": False, "max_readers": 1024}
            try:
                _environments[path] = lmdb.open(path, subdir=os.path.isdir(path), **options)
            except lmdb.Error as reason:
                raise DataError(f"{path}: not an LMDB environment ({reason})") from None
        return _environments[path].begin()


class _LmdbRecords:
    """The records of one LMDB environment."""

    def __init__(self, path: Path, name: str) -> None:
        self.name, self._path, self._inside = name, str(path.absolute()), path.name
        data = path / "data.mdb" if path.is_dir() else path
        self._stamp = f"{data.stat().st_size}:{data.stat().st_mtime_ns}"
        with _transaction(self._path) as view:
            count = _number(view.get(b"num-samples"), f"{self._path}: key 'num-samples'")
            if count < 1:
                raise DataError(f"{self._path}: no records in it")
            self._first = 0 if view.get(b"label-%09d" % 0) is not None else 1
            numbers = range(self._first, self._first + count)
            labels = [_number(view.get(b"label-%09d" % n), f"{self._path}: key 'label-{n:09d}'") for n in numbers]
            names = view.get(b"classes")
        try:
            listed = None if names is None else list(json.loads(names))
        except (TypeError, ValueError):
            raise DataError(f"{self._path}: key 'classes' is not a JSON list") from None
        self.labels = torch.tensor(labels, dtype=torch.int64)
        self.named = listed is not None
        self.classes = tuple(str(n) for n in (listed if listed is not None else range(max(labels) + 1)))

    def encoded(self, index: int) -> bytes:
        with _transaction(self._path) as view:
            content = view.get(b"image-%09d" % (index + self._first))
        if content is None:
            raise DataError(f"{self.source(index)}: no such key")
        return bytes(content)

    def source(self, index: int) -> str:
        return f"{self._path} (image-{index + self._first:09d})"

    def stamp(self, index: int) -> str:
        return f"{self._stamp}:{index}"

    def names(self, index: Sequence[int]) -> list[str]:
        """Return the environment and key of the records at these positions."""
        return [f"{self._inside}#image-{place + self._first:09d}" for place in index]


def _number(value: bytes | None, what: str) -> int:
    if value is None:
        raise DataError(f"{what} is missing")
    try:
        return int(bytes(value))
    except ValueError:
        raise DataError(f"{what} is not a whole number: {bytes(value)[:20]!r}") from None


def lmdb_split(root: Path, name: str) -> Path | None:
    """Return the LMDB environment of a split, or None."""
    for path in (root / f"{name}.lmdb", root / name):
        if path.is_file() or (path / "data.mdb").is_file():
            return path
    return None


def open_lmdb(root: Path) -> dict[str, Records]:
    """Open the splits of a folder of LMDB environments."""
    train, *others = (lmdb_split(root, name) for name in ("train", *TEST_FOLDERS))
    paths = [train, *filter(None, others)]
    if train is None or len(paths) < 2:
        raise DataError(f"{root}: train.lmdb and test.lmdb (or val.lmdb) must both be there")
    opened = {}
    for role, path in zip(("train", "test", "validation"), paths, strict=False):
        assert path is not None
        records = opened[role] = _LmdbRecords(path, f"{root.name}/{path.stem}")
        if records.named and opened["train"].named:
            same_classes(opened["train"], records, train, path)
        records.classes = opened["train"].classes
        check_labels(records.labels, len(records.classes), records.name)
    return dict(opened)
