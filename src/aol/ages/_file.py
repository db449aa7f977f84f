"""The state of sample ages in a memory-mapped file: labels, and two copies of words and smoothed ages.

A new state is written over the older copy, in blocks, and its header last. So a process that is killed, or a
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
import threading
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor

from aol import _check, _files
from aol.ages._store import Layout, split

Fill: TypeAlias = Callable[[slice, Tensor, Tensor], None]  # changes words and smoothed ages [R, B] of these samples
Header: TypeAlias = dict[str, Any]

_MAGIC = "aol ages 2"
_ALIGNED = 1 << 16  # bytes of a header; sections begin at multiples of it
_MOST_RUNS = 1000  # whose rates and checksums fit into a header
_BLOCK = 1 << 20  # numbers that a thread writes at once, with a checksum of their own: part of the format
_SPREAD = 31_153  # odd: words times this, so that the same damage in words and smoothed ages does not cancel out
_PART = 1 << 17  # numbers that are processed at once: few enough for a core's cache
_THREADS = 4  # also on two cores: some wait for the disk
_MAPPED = 1 << 23  # numbers that are observed before their pages are released
_POPULATE_WRITE = 23  # MADV_POPULATE_WRITE, which the module mmap does not name
_BINARY = getattr(os, "O_BINARY", 0)
_SYNCED = getattr(os, "O_DSYNC", 0)  # a write returns when its data are on the disk
_SEEKING = threading.Lock()


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
        self._held = held = labels.numel()
        self._width = max(1, _BLOCK // runs)  # samples of a block
        self._kinds = ((label, 1, held), (layout.word, runs, held + 1), (layout.ema, runs, held))
        self._starts = [2 * _ALIGNED]  # of the sections, and the end of the file
        for dtype, rows, width in (*self._kinds, *self._kinds[1:]):
            self._starts.append(-(-(self._starts[-1] + rows * width * dtype.itemsize) // _ALIGNED) * _ALIGNED)
        with self._explained():
            path.parent.mkdir(parents=True, exist_ok=True)
            self._lock = _files.acquire(path, Path(f"{path}.lock"), "file")
        try:
            self._open(labels)
        except BaseException:
            self._lock.release()
            raise

    def _open(self, labels: Tensor) -> None:
        new = not self.path.exists()
        found = {} if new else self._read_headers()
        self._current = max(found, key=lambda place: int(found[place]["generation"]), default=1)
        newest = found.get(self._current, {"generation": 0, "epoch": None})
        self._generation: int = newest["generation"]
        self._checksums: dict[int, list[int]] = {place: header["checksums"] for place, header in found.items()}
        self.epoch: int | None = newest["epoch"]
        self.previous: int | None = found.get(1 - self._current, {}).get("epoch")  # of the older copy, if it is whole
        with self._explained(), self.removed_on_error() if new else contextlib.nullcontext():
            if new:
                self._reserve()
            self._handle = os.open(self.path, os.O_RDWR | _BINARY | _SYNCED)
            self._memory = mmap.mmap(self._handle, self.size)
            self.labels = self._section(0)[0]
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
        return self._section(1, self._current)

    @property
    def ema(self) -> Tensor:
        """The smoothed ages of the newest state, `[R, N]`."""
        return self._section(2, self._current)

    def _section(self, number: int, place: int = 0) -> Tensor:
        """Return labels (0), or words (1) or smoothed ages (2) of the copy at `place`."""
        dtype, *shape = self._kinds[number]
        start = self._starts[number + 2 * place]
        return torch.frombuffer(self._memory, dtype=dtype, count=shape[0] * shape[1], offset=start).view(shape)

    def _ranges(self, part: slice, sections: tuple[int, ...], place: int) -> Iterator[tuple[int, int]]:
        """Yield the first byte and the number of bytes of these samples, for each section and run."""
        for number in sections:
            dtype, rows, width = self._kinds[number]
            many = min(part.stop, width) - part.start
            start = self._starts[number + 2 * place if number else 0]
            for row in range(rows if many > 0 else 0):
                yield start + (row * width + part.start) * dtype.itemsize, many * dtype.itemsize

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
        return self._each_block(place, lambda *_: None) == self._checksums[place]

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

    def rewrite(self, epoch: int, fill: Fill) -> None:
        """Write a new state, which is the newest one when all is written. `fill` changes a block, in any thread."""
        other = 1 - self._current
        with self._explained():
            self._write_header(other, None)  # what it describes is overwritten
            self.previous = None
            self._checksums[other] = self._each_block(self._current, fill, other)
            self._sync()
            self._generation += 1
            self._write_header(other, epoch)
        self._current, self.previous, self.epoch = other, self.epoch, epoch

    def _each_block(self, place: int, fill: Fill, to: int | None = None) -> list[int]:
        """Read the blocks of a copy, `fill` them, write them to the other one, in threads; return checksums of runs."""
        inference = torch.is_inference_mode_enabled()  # each thread has its own mode
        computing, room = threading.Semaphore(min(_THREADS, os.cpu_count() or 1)), threading.local()

        def begin() -> None:
            size = self._runs, min(self._width, self._held)
            room.words, room.ema = (torch.empty(size, dtype=dtype) for dtype, _, _ in self._kinds[1:])

        def one(block: slice) -> list[int]:
            words, ema = (each[:, : block.stop - block.start] for each in (room.words, room.ema))
            with computing, torch.inference_mode(inference):
                found = self._fill_block(place, block, words, ema, fill)
            if to is not None:
                for row, (start, _) in zip((*words, *ema), self._ranges(block, (1, 2), to), strict=True):
                    self._write(start, _bytes(row))
            return found

        with ThreadPoolExecutor(_THREADS, initializer=begin) as threads:
            found = list(threads.map(one, split(slice(0, self._held), self._width)))
        return [zlib.crc32(b"".join(each.to_bytes(4, "little") for each in run)) for run in zip(*found, strict=True)]

    def _fill_block(self, place: int, block: slice, words: Tensor, ema: Tensor, fill: Fill) -> list[int]:
        """Read and fill a block, part by part while it is in the core's cache, and return a checksum per run."""
        found = [0] * self._runs
        for part in split(block, max(1, _PART // self._runs)):
            here = slice(part.start - block.start, part.stop - block.start)
            word, smooth = words[:, here], ema[:, here]
            for row, (start, _) in zip((*word, *smooth), self._ranges(part, (1, 2), place), strict=True):
                self._read(start, _bytes(row))
            fill(part, word, smooth)
            # One CRC-32 of both costs half of one of each. What was observed does not count.
            both = self._layout.unmarked(word).mul_(_SPREAD).bitwise_xor_(smooth.view(word.dtype))
            found = [zlib.crc32(_bytes(row), before) for row, before in zip(both, found, strict=True)]
        self.release(self._ranges(block, (0,), place))  # labels
        return found

    def go_back(self) -> None:
        """Return to the older copy, and forget the newest one: call `check_previous` before."""
        with self._explained():
            self._write_header(self._current, None)
        self._current, self.epoch, self.previous = 1 - self._current, self.previous, None

    def prepare(self, where: Tensor) -> None:
        """Prepare to change the words of these samples: let go of pages from time to time, and map the next ones."""
        if self._touched >= _MAPPED:
            self.release()
        self._touched += where.numel()
        if where.numel() and sys.platform == "linux":
            flat = where.numpy().ravel()
            first, last = int(flat[0]), int(flat[-1])
            if 0 <= last - first < 2 * where.shape[-1]:  # likely in order: page by page takes several times as long
                with contextlib.suppress(OSError):  # before Linux 5.14
                    self._advise(_POPULATE_WRITE, self._ranges(slice(first, last + 1), (1,), self._current))

    def release(self, ranges: Iterable[tuple[int, int]] | None = None) -> None:
        """Let go of pages in memory, all or these; their content stays in the file, and in the system's cache."""
        if ranges is None:
            self._touched, ranges = 0, [(0, self.size)]
        if hasattr(mmap, "MADV_DONTNEED"):
            self._advise(mmap.MADV_DONTNEED, ranges)

    def _advise(self, advice: int, ranges: Iterable[tuple[int, int]]) -> None:
        for start, size in ranges:
            before = start % mmap.PAGESIZE
            self._memory.madvise(advice, start - before, size + before)

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

    def read(self, number: int, part: slice) -> Tensor:
        """Return a copy of labels (section 0), words (1) or smoothed ages (2) of these samples."""
        dtype, rows, _ = self._kinds[number]
        found = torch.empty((rows, part.stop - part.start), dtype=dtype, device="cpu")
        for row, (start, _) in zip(found, self._ranges(part, (number,), self._current), strict=True):
            self._read(start, _bytes(row))
        return found

    def _read(self, start: int, content: memoryview) -> None:
        if not hasattr(os, "preadv"):  # which takes less time than mapping the pages
            content[:] = self._memory[start : start + len(content)]
            return
        # Without posix_fadvise before it: Linux would keep what it reads ahead by request in single pages, not in large
        # folios. Mapping and writing them then takes two to four times as long.
        while content:  # Linux reads less than 2 GiB at once
            read = os.preadv(self._handle, [content], start)
            if not read:
                raise self.damaged("it was cut while it was in use")
            content, start = content[read:], start + read

    def _write(self, start: int, content: bytes | memoryview) -> None:
        rest = memoryview(content)
        while rest:
            if hasattr(os, "pwrite"):
                written = os.pwrite(self._handle, rest, start)
            else:
                with _SEEKING:
                    os.lseek(self._handle, start, os.SEEK_SET)
                    written = os.write(self._handle, rest)
            rest, start = rest[written:], start + written

    def _sync(self) -> None:
        if not _SYNCED:
            os.fsync(self._handle)

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError, OSError):  # it may not have been opened
            os.close(self._handle)


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
