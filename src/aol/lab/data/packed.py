"""The packed format: a few large files with fast random access; needs only Pillow.

    manifest.json      format, version, classes, the splits and their shards; written last, atomically
    train-00000.bin    encoded images (JPEG, PNG, …), one after another, nothing between them
    train-00000.npy    one row a record: offset u8, length u4, crc32 u4, label i4 (little-endian)
    train-00000.names  what each record is called where it comes from: a JSON list, compressed
    train-00000.json   what the shard was made from; written when the others are whole

Assumes the manifest is there: without it the packing has not finished. Each record's checksum is compared
when read, names are read when asked for.
"""

from __future__ import annotations

import io
import json
import zlib
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO, TypedDict

import numpy as np
import numpy.typing as npt
import torch

from aol._files import open_regular, read_json, read_regular, unpacked
from aol.lab.data.encoded_images import PerThread, Places, Records, gather_names
from aol.lab.data.errors import DataError
from aol.lab.data.images import check_labels, class_names

_LARGEST = 2**31  # bytes of an index, or of a table of names
_OPEN_FILES = 8  # of each thread: systems allow a process 256 or 1,024, and a set may have more shards

FORMAT, VERSION = "aol-packed", 1
MANIFEST, NAMES = "manifest.json", ".names"
ROW = np.dtype([("offset", "<u8"), ("length", "<u4"), ("crc32", "<u4"), ("label", "<i4")])


class Shard(TypedDict):
    """What is known of one shard: `fingerprint` of its source, and sizes and checksums of its own files."""

    file: str
    records: int
    bytes: int
    index_crc32: int
    fingerprint: str
    names_crc32: int


class Manifest(TypedDict):
    """What `manifest.json` holds. `size` and `quality` are None where images were kept as they were."""

    format: str
    version: int
    classes: list[str]
    size: int | None
    quality: int | None
    splits: dict[str, list[Shard]]


def read_index(root: Path, shard: Shard) -> npt.NDArray[np.void]:
    """Read and check the index of a shard, and the size of the file it points into."""
    path = root / f"{shard['file']}.npy"
    data = root / f"{shard['file']}.bin"
    try:
        content = read_regular(path, _LARGEST)
        size = data.stat().st_size
    except FileNotFoundError as missing:
        raise FileNotFoundError(f"{missing.filename}: no such file; pack the set again") from None
    if zlib.crc32(content) != shard["index_crc32"]:
        raise DataError(f"{path}: damaged, its checksum is not the manifest's; pack the set again")
    if size != shard["bytes"]:
        raise DataError(f"{data}: {size:,} bytes instead of {shard['bytes']:,}; pack the set again")
    try:
        rows: npt.NDArray[np.void] = np.load(io.BytesIO(content), allow_pickle=False)
    except (ValueError, OSError, EOFError) as reason:
        raise DataError(f"{path}: not an index ({reason})") from None
    if rows.dtype != ROW or rows.shape != (shard["records"],):
        raise DataError(f"{path}: not the index of {shard['records']} records")
    return rows


def _shard_files() -> Callable[[str], BinaryIO]:
    """Return a function that opens files and keeps the last few of them open."""
    return lru_cache(_OPEN_FILES)(lambda path: open_regular(Path(path)))


class PackedRecords:
    """One split of a packed set; a shard is opened when it is read from."""

    def __init__(self, root: Path, shards: list[Shard], classes: tuple[str, ...], name: str) -> None:
        self.name, self.classes = name, classes
        indices = [read_index(root, shard) for shard in shards]
        if not indices or not sum(len(rows) for rows in indices):
            raise DataError(f"{root}: no records in split {name}")
        self._rows = np.concatenate(indices)
        self._ends = np.cumsum([0, *(len(rows) for rows in indices)])
        self.labels = torch.from_numpy(self._rows["label"].astype(np.int64))
        check_labels(self.labels, len(classes), name)
        self._root, self._shards = root, shards
        self._paths = [str(root / f"{shard['file']}.bin") for shard in shards]
        self._open = PerThread(_shard_files)

    def _shard(self, index: int) -> int:
        return int(np.searchsorted(self._ends, index, side="right")) - 1

    def encoded(self, index: int) -> bytes:
        """Read a record and compare its checksum."""
        row = self._rows[index]
        start = int(row["offset"])
        # Read, not mapped into memory: a file that is cut short meanwhile would end the process.
        file = self._open()(self._paths[self._shard(index)])
        file.seek(start)
        content = file.read(int(row["length"]))
        if zlib.crc32(content) != int(row["crc32"]):
            raise DataError(f"{self.source(index)}: damaged, its checksum is wrong; pack the set again")
        return content

    def source(self, index: int) -> str:
        """Name the shard and record of a position."""
        shard = self._shard(index)
        return f"{self._paths[shard]} (record {index - int(self._ends[shard])})"

    def stamp(self, index: int) -> str:
        """Return the checksum and length of a record."""
        row = self._rows[index]
        return f"{int(row['crc32'])}:{int(row['length'])}"

    def names(self, index: Sequence[int]) -> list[str]:
        """Return what the records at these positions were called where they were packed from."""

        def read(shard: int, rows: Places) -> list[str]:
            table = self.table(shard)
            return [table[row] for row in rows.tolist()]

        return gather_names(index, self._ends, read)

    def table(self, shard: int) -> list[str]:
        """Read the names of a shard's records. A wrong table is named."""
        known = self._shards[shard]
        path, records = self._root / f"{known['file']}{NAMES}", known["records"]
        try:
            content = read_regular(path, _LARGEST)
        except FileNotFoundError:
            raise DataError(f"{path}: no such file; pack the set again for the names of its samples") from None
        if zlib.crc32(content) != known["names_crc32"]:
            raise DataError(f"{path}: damaged, its checksum is not the manifest's; pack the set again")
        try:
            names = json.loads(unpacked(content, _LARGEST))
        except (ValueError, RecursionError):
            raise DataError(f"{path}: not a table of names; pack the set again") from None
        if not isinstance(names, list) or len(names) != records or not all(isinstance(name, str) for name in names):
            raise DataError(f"{path}: not the names of {records:,} records; pack the set again")
        return names

    @property
    def shards(self) -> int:
        """Return the number of shards."""
        return len(self._shards)


def has_shards(root: Path) -> bool:
    """Whether there are shards in a folder; without a manifest, their packing has not finished."""
    return any(root.glob("*-[0-9][0-9][0-9][0-9][0-9].bin*"))


def packed_names(names: Sequence[str]) -> bytes:
    """Return the content of a table of names; neighbouring paths differ little and take 3 to 4 bytes each.

    >>> len(packed_names([f"train/n01440764/n01440764_{number}.JPEG" for number in range(1000)])) < 5000
    True
    """
    return zlib.compress(json.dumps(names, ensure_ascii=False).encode())


def _check_shards(splits: Mapping[str, Sequence[Mapping[str, object]]]) -> None:
    """Raise ValueError unless shards are files of this folder, with whole numbers about them."""
    for shard in (each for shards in splits.values() for each in shards):
        name = str(shard["file"])
        keys = ("records", "bytes", "index_crc32", "names_crc32")
        whole = all(type(shard[key]) is int and shard[key] >= 0 for key in keys)  # type: ignore[operator]
        if not whole or Path(name).name != name:
            raise ValueError("not a shard")


def open_packed(root: Path) -> dict[str, Records]:
    """Open the splits of a packed set; a missing, foreign or damaged manifest is named."""
    path = root / MANIFEST
    try:
        manifest: Manifest = read_json(path)
        known = manifest["format"] == FORMAT and manifest["version"] == VERSION
        classes, splits = class_names(manifest["classes"], str(path)), manifest["splits"]
        _ = splits["train"], splits["test"]
        _check_shards(splits)
    except FileNotFoundError:
        raise FileNotFoundError(f"{path}: no such file; the packing has not finished") from None
    except (ValueError, KeyError, TypeError):
        raise DataError(f"{path}: not the manifest of a packed data set") from None
    if not known:
        raise DataError(f"{path}: format {manifest['format']} version {manifest['version']} is not known here")
    return {split: PackedRecords(root, shards, classes, f"{root.name}/{split}") for split, shards in splits.items()}
