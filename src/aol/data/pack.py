"""`aol data pack`: turns an image folder, LMDB or Parquet set into the packed format of `packed.py`.

It may be killed at any moment: shards are written atomically, the manifest last, and a second call does
only what is missing or has changed. Threads do the work, because Pillow releases Python's lock while decoding.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import threading
import zlib
from collections.abc import Iterator
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from aol.data.decode import open_image, shrink
from aol.data.encoded_images import Progress, Records
from aol.data.errors import DataError
from aol.data.name_table import SUFFIX, packed_names
from aol.data.open import open_records
from aol.data.packed import FORMAT, MANIFEST, ROW, VERSION, Manifest, Shard
from aol.data.shard_files import read_back, write_index, write_whole

QUALITY = 90
_LOCK = ".lock"
_TICK = 64  # records between two reports of progress


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

    `size`: images whose shorter side is larger are shrunk to it (bicubic) and stored as JPEG of `quality`;
    all others, and all without `size`, are stored byte for byte. `progress(done, total)` counts records.
    Damaged images do not stop the other shards: all are named at the end, and after a repair only their
    shards are packed.

    >>> import tempfile
    >>> from aol.data.decode import encode_jpeg
    >>> from PIL import Image
    >>> root = Path(tempfile.mkdtemp())
    >>> for folder in ("train/cat", "train/dog", "val/cat", "val/dog"):
    ...     (root / "pets" / folder).mkdir(parents=True)
    ...     image = encode_jpeg(Image.new("RGB", (64, 48)), quality=90)
    ...     _ = (root / "pets" / folder / "0.jpg").write_bytes(image)
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
    _, splits = open_records(root)
    if target == root or root in target.parents:
        raise ValueError(f"dest must lie outside the source {root}, got {target}")
    with _only_packer(target):
        work = _Work(target, size, quality, progress, sum(len(r.labels) for r in splits.values()))
        plan = [
            (split, records, start, f"{split}-{start // shard_records:05d}")
            for split, records in splits.items()
            for start in range(0, len(records.labels), shard_records)
        ]
        jobs = [
            (records, range(start, min(start + shard_records, len(records.labels))), name)
            for _, records, start, name in plan
        ]
        shards = work.run(jobs, workers or os.cpu_count() or 1)
        manifest: Manifest = {
            "format": FORMAT,
            "version": VERSION,
            "classes": list(splits["train"].classes),
            "size": size,
            "quality": None if size is None else quality,
            "splits": {split: [s for s, (of, *_) in zip(shards, plan, strict=True) if of == split] for split in splits},
        }
        _remove_strays(target, {s["file"] for s in shards})
        write_whole(target / MANIFEST, (json.dumps(manifest, indent=1) + "\n").encode())
    return Packed(str(target), work.total, sum(s["bytes"] for s in shards), work.written, work.kept)


class _Work:
    """Packs shards in threads; counts, reports, and stops early when asked to."""

    def __init__(self, target: Path, size: int | None, quality: int, progress: Progress | None, total: int) -> None:
        self.target, self.size, self.quality, self.progress = target, size, quality, progress
        self.total, self.done, self.written, self.kept = total, 0, 0, 0
        self.problems: list[str] = []
        self._stop, self._lock = threading.Event(), threading.Lock()

    def run(self, jobs: list[tuple[Records, range, str]], workers: int) -> list[Shard]:
        with ThreadPoolExecutor(workers) as pool:
            futures = [pool.submit(self.shard, *job) for job in jobs]
            try:
                wait(futures, return_when=FIRST_EXCEPTION)
                shards = [f.result() for f in futures if f.done()]
            finally:
                self._stop.set()
                pool.shutdown(cancel_futures=True)
        if self.problems:
            more = f" (and {len(self.problems) - 1} more)" if len(self.problems) > 1 else ""
            raise DataError(f"{min(self.problems)}{more}; repair or remove what is damaged and pack again")
        return [s for s in shards if s is not None]

    def shard(self, records: Records, positions: range, name: str) -> Shard | None:
        """Bring one shard up to date; None when it holds a damaged image or work has stopped."""
        fingerprint, names = self._fingerprint(records, positions), records.names(positions)
        table = None if names is None else packed_names(names)
        there = _up_to_date(self.target, name, fingerprint)
        if there is not None:
            if not _same_names(self.target, there, table):  # of an earlier version, or of a folder that was renamed
                there = self._name(there, table)
            self._advance(len(positions), kept=1)
            return there
        made = self._images(records, positions, name, fingerprint)
        if made is None:
            return None
        made = self._name(made, table)
        self._advance(len(positions) % _TICK, written=1)
        return made

    def _begin(self) -> None:
        with self._lock:
            (self.target / MANIFEST).unlink(missing_ok=True)  # the set is not whole until we are done

    def _name(self, made: Shard, table: bytes | None) -> Shard:
        """Write the names of a shard whose images are there, then what it was made from."""
        self._begin()
        path = self.target / f"{made['file']}{SUFFIX}"
        made.pop("names_crc32", None)
        if table is None:
            path.unlink(missing_ok=True)
        else:
            write_whole(path, table)
            made["names_crc32"] = zlib.crc32(table)
        write_whole(self.target / f"{made['file']}.json", json.dumps(made).encode())
        return made

    def _images(self, records: Records, positions: range, name: str, fingerprint: str) -> Shard | None:
        """Write the images of a shard and their index; None when one is damaged or work has stopped."""
        self._begin()
        data = self.target / f"{name}.bin.tmp"
        try:
            rows, damaged = self._write(data, records, positions)
            if rows is None or damaged:
                with self._lock:
                    self.problems += damaged
                return None
            read_back(data, rows)
            (self.target / f"{name}.json").unlink(missing_ok=True)  # of what this one replaces
            os.replace(data, self.target / f"{name}.bin")
        except OSError as reason:
            if reason.errno == errno.ENOSPC:
                raise OSError(errno.ENOSPC, f"no space left for {data.with_suffix('')}") from None
            raise
        finally:
            data.unlink(missing_ok=True)
        return Shard(
            file=name,
            records=len(rows),
            bytes=int(rows["length"].sum(dtype=np.uint64)),
            index_crc32=write_index(self.target / f"{name}.npy", rows),
            fingerprint=fingerprint,
        )

    def _write(self, data: Path, records: Records, positions: range) -> tuple[npt.NDArray[np.void] | None, list[str]]:
        """Write the records of a shard; return its index, None when work has stopped, and what is damaged."""
        rows: npt.NDArray[np.void] = np.zeros(len(positions), ROW)
        damaged: list[str] = []
        offset = 0
        with data.open("wb") as file:
            for at, index in enumerate(positions):
                if self._stop.is_set():
                    return None, damaged
                try:
                    content = self._content(records, index)
                except DataError as reason:
                    damaged.append(str(reason))
                    continue
                file.write(content)
                rows[at] = (offset, len(content), zlib.crc32(content), int(records.labels[index]))
                offset += len(content)
                if at % _TICK == _TICK - 1:
                    self._advance(_TICK)
            file.flush()
            os.fsync(file.fileno())
        return rows, damaged

    def _content(self, records: Records, index: int) -> bytes:
        encoded, source = records.encoded(index), records.source(index)
        if self.size is not None:
            return shrink(encoded, source, size=self.size, quality=self.quality)
        open_image(encoded, source)
        return encoded

    def _fingerprint(self, records: Records, positions: range) -> str:
        found = hashlib.sha256(
            f"{VERSION}:{self.size}:{self.quality if self.size else None}".encode(), usedforsecurity=False
        )
        for index in positions:
            said = f"\n{int(records.labels[index])}:{records.stamp(index)}"
            found.update(said.encode(errors="surrogateescape"))
        return found.hexdigest()

    def _advance(self, records: int, *, written: int = 0, kept: int = 0) -> None:
        with self._lock:
            self.done += records
            self.written += written
            self.kept += kept
            if self.progress is not None:
                self.progress(self.done, self.total)


def _up_to_date(target: Path, name: str, fingerprint: str) -> Shard | None:
    try:
        made: Shard = json.loads((target / f"{name}.json").read_text())
        whole = (
            made["fingerprint"] == fingerprint
            and made["file"] == name
            and (target / f"{name}.bin").stat().st_size == made["bytes"]
            and zlib.crc32((target / f"{name}.npy").read_bytes()) == made["index_crc32"]
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return made if whole else None


def _same_names(target: Path, made: Shard, table: bytes | None) -> bool:
    try:
        there = (target / f"{made['file']}{SUFFIX}").read_bytes()
    except FileNotFoundError:
        there = None
    return there == table and made.get("names_crc32") == (None if table is None else zlib.crc32(table))


def _remove_strays(target: Path, files: set[str]) -> None:
    """Remove files of an earlier, larger or interrupted packing."""
    for path in target.iterdir():
        shard = path.name.partition(".")[0]
        stray = path.suffix in (".bin", ".npy", ".json", SUFFIX) and shard not in files and path.name != MANIFEST
        if stray or path.suffix == ".tmp":
            path.unlink()


@contextmanager
def _only_packer(target: Path) -> Iterator[None]:
    """Hold the destination: made if missing, refused if it holds something else or another holds it."""
    if target.exists() and not target.is_dir():
        raise ValueError(f"dest must be a folder, and {target} is a file")
    if target.is_dir() and any(target.iterdir()) and not (target / _LOCK).exists():
        raise ValueError(f"dest must be empty or an earlier packing, and {target} holds something else")
    target.mkdir(parents=True, exist_ok=True)
    with (target / _LOCK).open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise BlockingIOError(f"another process is packing into {target}") from None
        yield
