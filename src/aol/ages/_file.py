"""The state of sample ages in a memory-mapped file: labels, and two copies of words and smoothed ages.

A new state is written over the older copy, block by block, and its header last. So a process that is killed, or a
machine that loses power, leaves the state of the last `advance` that finished.

    header 0 | header 1 | labels | words 0 | smoothed ages 0 | words 1 | smoothed ages 1
"""

from __future__ import annotations

import contextlib
import errno
import json
import mmap
import os
import sys
import warnings
import zlib
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor

from aol import _check, _files
from aol.ages._store import Layout

Block: TypeAlias = tuple[slice, Tensor, Tensor]  # of these samples: words and smoothed ages, [R, B]
Header: TypeAlias = dict[str, Any]

_MAGIC = "aol ages 1"
_ALIGNED = 1 << 16  # bytes of a header; sections begin at multiples of it
_MOST_RUNS = 1000  # whose rates and checksums fit into a header
_BLOCK = 1 << 20  # numbers written at once: few enough for the processor's cache
_MAPPED = 1 << 23  # numbers that are observed before their pages are released
_POPULATE_WRITE = 23  # MADV_POPULATE_WRITE, which the module mmap does not name
_BINARY = getattr(os, "O_BINARY", 0)
_SYNCED = getattr(os, "O_DSYNC", 0)  # a write returns when its data are on the disk


class AgesFile:
    """A file of `labels [N]`, `words [R, N + 1]` and `ema [R, N]` that one process has open.

    `epoch` is None for a new file, until its first state is written.
    """

    def __init__(
        self, path: Path, settings: Header, layout: Layout, labels: Tensor, label: torch.dtype, runs: int
    ) -> None:
        self.path, self._settings, self._layout, self._runs = path, settings, layout, runs
        if runs > _MOST_RUNS:
            raise ValueError(f"rho must have at most {_MOST_RUNS} values for ages in a file, not {runs}.")
        self._held, self._label = labels.numel(), label
        self._starts = self._sections()
        with self._explained():
            path.parent.mkdir(parents=True, exist_ok=True)
            self._lock = _files.acquire(path, Path(f"{path}.lock"), "file")
        try:
            self._open(labels)
        except BaseException:
            self._lock.release()
            raise

    def _sections(self) -> list[int]:
        """Return where the sections begin, and the end of the file."""
        word = self._runs * (self._held + 1) * self._layout.word.itemsize
        ema = self._runs * self._held * self._layout.ema.itemsize
        starts = [2 * _ALIGNED]
        for size in (self._held * self._label.itemsize, word, ema, word, ema):
            starts.append(-(-(starts[-1] + size) // _ALIGNED) * _ALIGNED)
        return starts

    def _open(self, labels: Tensor) -> None:
        new = not self.path.exists()
        found = {} if new else self._read_headers()
        self._current = max(found, key=lambda place: int(found[place]["generation"]), default=1)
        newest = found.get(self._current, {"generation": 0, "epoch": None})
        self._generation: int = newest["generation"]
        self._checksums: dict[int, list[list[int]]] = {place: header["checksums"] for place, header in found.items()}
        self.epoch: int | None = newest["epoch"]
        self.previous: int | None = found.get(1 - self._current, {}).get("epoch")  # of the older copy, if it is whole
        with self._explained(), self.removed_on_error() if new else contextlib.nullcontext():
            if new:
                self._reserve()
            self._handle = os.open(self.path, os.O_RDWR | _BINARY | _SYNCED)
            self._memory = mmap.mmap(self._handle, self.size)
            self.labels = self._section(0, self._label, self._held)
            self._put_labels(labels, new)

    def _put_labels(self, labels: Tensor, new: bool) -> None:
        for mine, given in zip(torch.split(self.labels, _BLOCK), torch.split(labels, _BLOCK), strict=True):
            if new:
                mine.copy_(given)
            elif not torch.equal(mine, given.to(mine.dtype)):
                raise self.damaged("its labels are not those it was made with")
            self.release()
        if new:
            self._memory.flush(0, self._starts[1])

    @property
    def size(self) -> int:
        """The size of the file in bytes."""
        return self._starts[-1]

    @property
    def words(self) -> Tensor:
        """The words of the newest state, `[R, N + 1]`."""
        return self._copy(self._current)[0]

    @property
    def ema(self) -> Tensor:
        """The smoothed ages of the newest state, `[R, N]`."""
        return self._copy(self._current)[1]

    def _copy(self, place: int) -> tuple[Tensor, Tensor]:
        words = self._section(1 + 2 * place, self._layout.word, self._runs, self._held + 1)
        return words, self._section(2 + 2 * place, self._layout.ema, self._runs, self._held)

    def _section(self, number: int, dtype: torch.dtype, *shape: int) -> Tensor:
        count = torch.Size(shape).numel()
        return torch.frombuffer(self._memory, dtype=dtype, count=count, offset=self._starts[number]).view(shape)

    # Opening

    def _read_headers(self) -> dict[int, Header]:
        """Return the headers that are whole, by their place: 0 and 1."""
        with self._explained(), _files.open_regular(self.path) as file:
            start, size = file.read(2 * _ALIGNED), os.fstat(file.fileno()).st_size
        parts = {place: start[place * _ALIGNED :][:_ALIGNED] for place in (0, 1)}
        found = {place: header for place, part in parts.items() if (header := _header(part)) is not None}
        if not found:
            raise ValueError(
                f"file {self.path} holds no ages: it is another kind of file, or its process was stopped before the "
                "first state was complete. Remove it, or choose another file."
            )
        try:
            for header in found.values():
                _check.same_settings(str(self._settings["kind"]), self._settings, header["settings"])
        except ValueError as error:
            raise ValueError(f"file {self.path} is of other ages. {error}") from error
        if size != self.size:
            raise self.damaged(f"it has {size:,} bytes instead of {self.size:,}")
        if any(part.strip(b"\0") for place, part in parts.items() if place not in found):  # an erased one is zeros
            (kept,) = found.values()
            warnings.warn(
                f"file {self.path} has a damaged header. Its ages are those of epoch {kept['epoch']}; a later epoch, "
                "if there was one, is lost.",
                stacklevel=5,
            )
        return found

    def _reserve(self) -> None:
        """Create the file with all its blocks, so that a full disk is noticed now and not in the middle of an epoch."""
        with open(self.path, "xb") as file:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, self.size)
            else:
                file.truncate(self.size)

    @contextlib.contextmanager
    def removed_on_error(self) -> Iterator[None]:
        """Remove a new file if its first state cannot be written."""
        try:
            yield
        except BaseException:
            self.path.unlink(missing_ok=True)
            raise

    def check(self) -> None:
        """Raise ValueError if the newest state is not what was written; observations since then do not count."""
        if not self._whole(self._current):
            raise self.damaged("its checksum does not match its content")

    def check_previous(self) -> None:
        """Raise ValueError if the older copy is not what was written."""
        if not self._whole(1 - self._current):
            raise ValueError(
                f"file {self.path} is damaged: the checksum of epoch {self.previous} does not match its content. "
                f"Epoch {self.epoch} is kept."
            )

    def _whole(self, place: int) -> bool:
        """Return whether a copy has the checksums of its header."""
        found, (words, ema) = Checksums(self._runs, self._layout), self._copy(place)
        for start in range(0, self._held, _BLOCK):
            part = slice(start, min(start + _BLOCK, self._held))
            self.expect(slice(part.stop, part.stop + _BLOCK), 1, 2, place=place)
            found.add_words(words[:, part])
            found.add_ema(ema[:, part])
            self.release()
        return found.values == self._checksums[place]

    def damaged(self, why: str) -> ValueError:
        """Return the error for a file whose content its process did not write."""
        return ValueError(f"file {self.path} is damaged: {why}. Restore a copy, or remove it to start from epoch 0.")

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        """Name the file in errors of the system, and the bytes it needs if there is no room."""
        try:
            yield
        except OSError as error:
            full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
            why = f"needs {self.size:,} bytes, and the disk has no room for them" if full else "cannot be used"
            raise OSError(error.errno, f"file {self.path} {why} ({error.strerror})") from error

    # Writing

    @contextlib.contextmanager
    def rewriting(self, epoch: int) -> Iterator[Iterator[Block]]:
        """Give room for the blocks of a new state; at the end of the context it is the newest state."""
        other = 1 - self._current
        with self._explained():
            self._write_header(other, None)  # what it describes is overwritten
            self.previous = None
            with ThreadPoolExecutor(4) as threads:
                blocks = _Blocks(self, other, threads)
                yield iter(blocks)
                self._checksums[other] = blocks.finish()
            self._sync()
            self._generation += 1
            self._write_header(other, epoch)
        self._current, self.previous, self.epoch = other, self.epoch, epoch

    def go_back(self) -> None:
        """Return to the older copy, and forget the newest one: call `check_previous` before."""
        with self._explained():
            self._write_header(self._current, None)
        self._current, self.epoch, self.previous = 1 - self._current, self.previous, None

    def touched(self, numbers: int) -> None:
        """Count numbers that were changed in memory, and let go of pages from time to time."""
        self._touched += numbers
        if self._touched >= _MAPPED:
            self.release()

    def prepare(self, part: slice) -> None:
        """Map the words of these samples for writing, all pages at once: one by one takes several times as long."""
        rows, start = self.words, self._starts[1 + 2 * self._current]
        for row in range(len(rows)) if sys.platform == "linux" else ():
            first = start + (row * rows.shape[1] + part.start) * rows.itemsize
            stop = start + (row * rows.shape[1] + part.stop) * rows.itemsize
            first -= first % mmap.PAGESIZE
            with contextlib.suppress(OSError):  # before Linux 5.14
                self._memory.madvise(_POPULATE_WRITE, first, stop - first)

    def expect(self, part: slice, *sections: int, place: int | None = None) -> None:
        """Ask the system to read these samples from the disk: labels (section 0), words (1), smoothed ages (2).

        Those of the newest state, or of the copy at `place`.
        """
        if not hasattr(os, "posix_fadvise"):
            return
        for number in sections:
            rows = (self.labels[None], self.words, self.ema)[number]
            start = self._starts[number + 2 * (self._current if place is None else place) if number else 0]
            for row in range(len(rows)):
                first = start + (row * rows.shape[1] + part.start) * rows.itemsize
                many = min(part.stop, rows.shape[1]) - part.start
                if many > 0:  # 0 would mean all the rest of the file
                    os.posix_fadvise(self._handle, first, many * rows.itemsize, os.POSIX_FADV_WILLNEED)

    def release(self) -> None:
        """Let go of the pages in memory; their content stays in the file, and in the system's cache."""
        self._touched = 0
        if hasattr(mmap, "MADV_DONTNEED"):
            self._memory.madvise(mmap.MADV_DONTNEED)

    def write_rows(self, place: int, first: int, words: Tensor, ema: Tensor) -> None:
        """Write `words [R, B]` and `ema [R, B]` of the samples from `first` on."""
        for number, rows, width in ((1, words, self._held + 1), (2, ema, self._held)):
            start = self._starts[number + 2 * place]
            for run, row in enumerate(rows):
                self._write(start + (run * width + first) * row.itemsize, _bytes(row))

    def _write_header(self, place: int, epoch: int | None) -> None:
        text = b""
        if epoch is not None:
            body = json.dumps(
                {
                    "generation": self._generation,
                    "epoch": epoch,
                    "checksums": self._checksums[place],
                    "settings": self._settings,
                }
            )
            text = f"{_MAGIC}\n{zlib.crc32(body.encode())}\n{body}\n".encode()
        self._write(place * _ALIGNED, text.ljust(_ALIGNED, b"\0"))
        self._sync()

    def _write(self, start: int, content: bytes | memoryview) -> None:
        rest = memoryview(content)
        os.lseek(self._handle, start, os.SEEK_SET)
        while rest:
            rest = rest[os.write(self._handle, rest) :]

    def _sync(self) -> None:
        if not _SYNCED:
            os.fsync(self._handle)

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError, OSError):  # it may not have been opened
            os.close(self._handle)


class Checksums:
    """CRC-32 of the words and of the smoothed ages of each run, of blocks of any sizes."""

    def __init__(self, runs: int, layout: Layout) -> None:
        self._layout = layout
        self.values = [[0] * runs, [0] * runs]

    def add_words(self, words: Tensor) -> None:
        """Count the words of the next samples, `[R, B]`, without what was observed."""
        for part in torch.split(words, 1 << 16, 1):  # a copy of all would be new memory in each thread
            self._add(0, self._layout.unmarked(part))

    def add_ema(self, ema: Tensor) -> None:
        """Count the smoothed ages of the next samples, `[R, B]`."""
        self._add(1, ema)

    def _add(self, number: int, rows: Tensor) -> None:
        known = self.values[number]
        known[:] = [zlib.crc32(_bytes(row), value) for value, row in zip(known, rows, strict=True)]


class _Blocks:
    """Blocks of a new state: one is filled while threads write the one before it, and compute its checksums."""

    def __init__(self, file: AgesFile, place: int, threads: ThreadPoolExecutor) -> None:
        self._file, self._place, self._threads = file, place, threads
        self._checksums = Checksums(file._runs, file._layout)
        self._written: list[Future[None]] = []

    def __iter__(self) -> Iterator[Block]:
        """Give room for each block, in order; it is written when the next one is asked for."""
        file = self._file
        width = min(max(1, _BLOCK // file._runs), file._held)
        spare, full = (
            [torch.empty((file._runs, width), dtype=dtype) for dtype in (file._layout.word, file._layout.ema)]
            for _ in range(2)
        )
        file.expect(slice(0, 2 * width), 0, 1, 2)
        for start in range(0, file._held, width):
            stop = min(start + width, file._held)
            words, ema = (each[:, : stop - start] for each in spare)
            yield slice(start, stop), words, ema
            self._wait()
            self._written = [
                self._threads.submit(file.write_rows, self._place, start, words, ema),
                self._threads.submit(self._checksums.add_words, words),
                self._threads.submit(self._checksums.add_ema, ema),
            ]
            file.release()
            self._threads.submit(file.expect, slice(stop + width, stop + 2 * width), 0, 1, 2)
            spare, full = full, spare

    def _wait(self) -> None:
        for each in self._written:
            each.result()

    def finish(self) -> list[list[int]]:
        """Wait until the last block is written, and return the checksums."""
        self._wait()
        return self._checksums.values


def _bytes(row: Tensor) -> memoryview:
    return row.numpy().data.cast("B")


def _header(content: bytes) -> Header | None:
    """Return the header in these bytes, None if it is not whole."""
    try:
        magic, checksum, body = content.rstrip(b"\0").decode().split("\n")[:3]
    except ValueError:
        return None
    if magic != _MAGIC or checksum != str(zlib.crc32(body.encode())):
        return None
    header: Header = json.loads(body)
    return header
