"""`aol data pack`: turns an image folder, LMDB or Parquet set into the packed format of `packed.py`.

It may be killed at any moment: shards are written atomically, the manifest last, and a second call does
only what is missing or has changed. This process writes the shards; others decode and shrink the images.
"""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from aol._files import locked, read_json, remove_partial_files, write_atomically
from aol.lab.data.decode import open_image, shrink
from aol.lab.data.encoded_images import Progress, Records, typical_bytes
from aol.lab.data.errors import DataError
from aol.lab.data.open import open_records
from aol.lab.data.packed import FORMAT, MANIFEST, NAMES, ROW, VERSION, Manifest, Shard, has_shards, packed_names
from aol.lab.data.workers import Asked, Lane, Workers, cores

QUALITY = 90
_CHUNK = 64  # records of a request, and between two reports of progress
_SHARD, _KINDS = re.compile(r"(train|test|validation)-\d{5,}"), ("bin", "npy", "json", NAMES.removeprefix("."))


@dataclass(frozen=True)
class Packed:
    """What packing did: where, how many records, how many shards were written or found up to date."""

    where: str
    records: int
    bytes: int
    written: int
    kept: int


def pack(
    source: str | os.PathLike[str],
    dest: str | os.PathLike[str],
    *,
    size: int | None = None,
    quality: int = QUALITY,
    workers: int | None = None,
    shard_records: int = 8192,
    progress: Progress | None = None,
) -> Packed:
    """Pack a data set; every image is decoded, so a damaged one is found here and named.

    `size`: images whose shorter side is larger are shrunk to it (bicubic) and stored as JPEG of `quality`; all others,
    and all without `size`, are stored byte for byte. `progress(done, total)` counts records. Damaged images do not stop
    the other shards: all are named at the end, and after a repair only their shards are packed.

    >>> import tempfile
    >>> from PIL import Image
    >>> root = Path(tempfile.mkdtemp())
    >>> for folder in ("train/cat", "train/dog", "val/cat", "val/dog"):
    ...     (root / "pets" / folder).mkdir(parents=True)
    ...     Image.new("RGB", (64, 48)).save(root / "pets" / folder / "0.jpg")
    >>> done = pack(root / "pets", root / "packed", size=32)
    >>> done.records, done.written, done.kept
    (4, 2, 0)
    >>> pack(root / "pets", root / "packed", size=32).kept
    2
    """
    if size is not None and size < 1:
        raise ValueError(f"size must be at least 1, got {size}")
    if not 1 <= quality <= 100:
        raise ValueError(f"quality must be in 1..100, got {quality}")
    if shard_records < 1:
        raise ValueError(f"shard_records must be at least 1, got {shard_records}")
    root, target = Path(source).absolute(), Path(dest).absolute()
    splits = open_records(root)
    if target == root or root in target.parents:
        raise ValueError(f"dest must lie outside the source {root}, got {target}")
    if target.is_dir() and any(path.name != ".lock" for path in target.iterdir()) and not has_shards(target):
        raise ValueError(f"dest must be empty or an earlier packing, and {target} holds something else")
    # Before the lock, which they would hold for a while after this process was killed.
    answer = partial(_stored, splits, size, quality)
    with closing(_processes(answer, splits["train"], workers or cores())) as processes, locked(target, called="dest"):
        options = f"{VERSION}:{size}:{quality}:upright" if size else f"{VERSION}:None:None"  # 0.1.0 ignored EXIF
        work = _Work(target, progress, sum(len(records.labels) for records in splits.values()))
        jobs = [
            _Job(target, options, split, records, range(start, min(start + shard_records, len(records.labels))), number)
            for split, records in splits.items()
            for number, start in enumerate(range(0, len(records.labels), shard_records))
        ]
        shards = work.run(jobs, processes.lanes[0])
        manifest: Manifest = {
            "format": FORMAT,
            "version": VERSION,
            "classes": list(splits["train"].classes),
            "size": size,
            "quality": None if size is None else quality,
            "splits": {split: [s for s in shards if s["file"].rpartition("-")[0] == split] for split in splits},
        }
        _remove_strays(target, {s["file"] for s in shards})
        write_atomically(target / MANIFEST, (json.dumps(manifest, indent=1) + "\n").encode())
    kept = sum(job.existing is not None for job in jobs)
    return Packed(str(target), work.total, sum(s["bytes"] for s in shards), len(shards) - kept, kept)


class _Stored(NamedTuple):
    """Images as they are stored, one after the other; of a damaged one, what is wrong with it."""

    content: Tensor  # uint8 [M]
    length: Tensor  # [n]: bytes
    damaged: Tensor  # bool [n]


def _stored(
    splits: Mapping[str, Records], size: int | None, quality: int, requests: Sequence[tuple[str, int]]
) -> _Stored:
    """Read images of some splits, decode them to find damaged ones, and shrink them if a size is given."""
    contents, damaged = [], []
    for split, index in requests:
        records = splits[split]
        try:
            content, source = records.encoded(index), records.source(index)
            if size is None:
                open_image(content, source)
            else:
                content = shrink(content, source, size=size, quality=quality)
            damaged.append(False)
        except DataError as reason:
            content = str(reason).encode()
            damaged.append(True)
        contents.append(content)
    joined = torch.frombuffer(bytearray(b"".join(contents)), dtype=torch.uint8)
    return _Stored(joined, torch.tensor([len(each) for each in contents]), torch.tensor(damaged))


def _processes(answer: Callable[[Sequence[tuple[str, int]]], _Stored], records: Records, workers: int) -> Workers:
    """Return processes for the work, elsewhere than on Linux threads; for one worker it is done in this one."""
    processes = workers if workers > 1 else 0
    slot = int(1.5 * _CHUNK * typical_bytes(records)) if processes else 0
    return Workers(answer, workers=processes, together=1, slot=slot, pin=False, threads=True)


@dataclass(frozen=True)
class _Job:
    """A shard to bring up to date, and which records it holds; `options` are those of the packing, as text."""

    target: Path
    options: str
    split: str
    records: Records
    positions: range
    number: int

    @property
    def name(self) -> str:
        return f"{self.split}-{self.number:05d}"

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the options, and of the labels and stamps of its records."""
        digest = hashlib.sha256(self.options.encode(), usedforsecurity=False)
        for index in self.positions:
            line = f"\n{int(self.records.labels[index])}:{self.records.stamp(index)}"
            digest.update(line.encode(errors="surrogateescape"))
        return digest.hexdigest()

    @cached_property
    def existing(self) -> Shard | None:
        """The shard in the folder if it is up to date; None: it has to be written."""
        try:
            made: Shard = read_json(self.target / f"{self.name}.json")
            whole = (
                made["fingerprint"] == self.fingerprint
                and made["file"] == self.name
                and "names_crc32" in made
                and (self.target / f"{self.name}.bin").stat().st_size == made["bytes"]
                and zlib.crc32((self.target / f"{self.name}.npy").read_bytes()) == made["index_crc32"]
            )
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return made if whole else None

    def requests(self) -> Iterator[list[tuple[str, int]]]:
        for start in range(0, len(self.positions), _CHUNK):
            yield [(self.split, index) for index in self.positions[start : start + _CHUNK]]


class _Work:
    """Packs shards one after the other, while processes prepare the images of the next ones; counts and reports."""

    def __init__(self, target: Path, progress: Progress | None, total: int) -> None:
        self.target, self.progress, self.total, self.done = target, progress, total, 0
        self.problems: list[str] = []

    def run(self, jobs: Sequence[_Job], lane: Lane) -> list[Shard]:
        shards = []
        requests = (each for job in jobs if job.existing is None for each in job.requests())
        with closing(lane.answers(requests)) as answers:
            for job in jobs:
                names = packed_names(job.records.names(job.positions))
                if (shard := job.existing or self._write_shard(job, names, answers)) is None:
                    continue
                self._write_names(shard, names)
                shards.append(shard)
                if job.existing is not None:
                    self._advance(len(job.positions))
        if self.problems:
            more = f" (and {len(self.problems) - 1} more)" if len(self.problems) > 1 else ""
            raise DataError(f"{min(self.problems)}{more}; repair or remove what is damaged and pack again")
        return shards

    def _remove_manifest(self) -> None:
        (self.target / MANIFEST).unlink(missing_ok=True)  # the set is not whole until we are done

    def _write_names(self, shard: Shard, names: bytes) -> None:
        """Write the names of a shard whose images are there, then what it was made from, where they are not the same.

        A folder that was renamed has other names.
        """
        path, about = self.target / f"{shard['file']}{NAMES}", self.target / f"{shard['file']}.json"
        same = path.is_file() and path.read_bytes() == names and shard["names_crc32"] == zlib.crc32(names)
        if same and about.is_file():
            return
        self._remove_manifest()
        write_atomically(path, names)
        shard["names_crc32"] = zlib.crc32(names)
        write_atomically(about, json.dumps(shard).encode())

    def _write_shard(self, job: _Job, names: bytes, answers: Iterator[Asked]) -> Shard | None:
        """Write the images of a shard and their index; None when one is damaged."""
        self._remove_manifest()
        data = self.target / f"{job.name}.bin.tmp"
        try:
            rows = self._write_images(data, job, answers)
            if rows is None:
                return None
            (self.target / f"{job.name}.json").unlink(missing_ok=True)  # of what this one replaces
            os.replace(data, self.target / f"{job.name}.bin")
        except OSError as reason:
            if reason.errno == errno.ENOSPC:
                raise OSError(errno.ENOSPC, f"no space left for {data.with_suffix('')}") from None
            raise
        finally:
            data.unlink(missing_ok=True)
        index = io.BytesIO()
        np.save(index, rows, allow_pickle=False)
        write_atomically(self.target / f"{job.name}.npy", index.getvalue())
        return Shard(
            file=job.name,
            records=len(rows),
            bytes=int(rows["length"].sum(dtype=np.uint64)),
            index_crc32=zlib.crc32(index.getvalue()),
            fingerprint=job.fingerprint,
            names_crc32=zlib.crc32(names),
        )

    def _write_images(self, data: Path, job: _Job, answers: Iterator[Asked]) -> npt.NDArray[np.void] | None:
        """Write the images of a shard and return its index; None when one is damaged."""
        rows: npt.NDArray[np.void] = np.zeros(len(job.positions), ROW)
        damaged: list[str] = []
        at = offset = 0
        with data.open("wb") as file:
            for asked in islice(answers, -(-len(rows) // _CHUNK)):
                found: _Stored = asked.get()
                contents = [each.numpy().tobytes() for each in torch.split(found.content, found.length.tolist())]
                asked.release()
                for content, bad in zip(contents, found.damaged.tolist(), strict=True):
                    if bad:
                        damaged.append(content.decode())
                    else:
                        file.write(content)
                        label = int(job.records.labels[job.positions[at]])
                        rows[at] = (offset, len(content), zlib.crc32(content), label)
                        offset += len(content)
                    at += 1
                self._advance(len(contents))
            file.flush()
            os.fsync(file.fileno())
        self.problems += damaged
        if damaged:
            return None
        with data.open("rb") as file:
            for row in rows:
                if zlib.crc32(file.read(int(row["length"]))) != int(row["crc32"]):
                    raise OSError(f"{data}: what was written reads back differently")
        return rows

    def _advance(self, records: int) -> None:
        self.done += records
        if self.progress is not None:
            self.progress(self.done, self.total)


def _remove_strays(target: Path, files: set[str]) -> None:
    """Remove shards of an earlier, larger or interrupted packing; other files are not ours."""
    for path in target.iterdir():
        shard, _, kind = path.name.partition(".")
        if _SHARD.fullmatch(shard) and (kind == "bin.tmp" or (kind in _KINDS and shard not in files)):
            path.unlink()
    remove_partial_files(target)
