"""Reading LMDB files without a memory map: a file that is cut short or damaged must not end the process.

LMDB itself trusts its file: a page that is missing is a SIGBUS, a wrong offset in a page reads other memory. Here pages
are read like any file, and checked. Assumes data format 1, which LMDB has had since 0.9, and keys in the main database.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

from aol._files import open_regular
from aol.lab.data.errors import DataError

_HEADER = struct.Struct("=QHHHH")  # of a page: number, padding, flags, end of the offsets, start of the nodes
_NODE = struct.Struct("=HHHH")  # two halves of a size or page number, flags or the rest of the number, size of the key
_META = struct.Struct("=IIQQ48xIHHQQQQQQQ")  # magic, version, address, map size; main database; last page, transaction
_MAGIC, _FORMAT = 0xBEEFC0DE, 1
_BRANCH, _LEAF, _BIG, _DEEPEST = 1, 2, 1, 32
_EMPTY = 2**64 - 1  # the root of a database without keys


class Entry(NamedTuple):
    """A key, and where its value is in the file; `value` where it is beside the key, else None."""

    key: bytes
    place: int
    size: int
    value: bytes | None


class _Meta(NamedTuple):
    page: int  # bytes of a page
    entries: int
    root: int
    last: int  # page
    transaction: int


def entries(path: Path) -> Iterator[Entry]:
    """Yield every key of an LMDB file, in their order; `DataError` says what is wrong with the file."""
    with open_regular(path) as file:
        meta = _meta(file, path)
        if file.seek(0, os.SEEK_END) < (meta.last + 1) * meta.page:
            raise DataError(f"{path}: cut short, it should have {(meta.last + 1) * meta.page:,} bytes")
        count, before = 0, b""
        for entry in _Walk(file, path, meta).nodes(meta.root):
            if entry.key <= before:
                raise DataError(f"{path}: damaged, its keys are not in order")
            count, before = count + 1, entry.key
            yield entry
        if count != meta.entries:
            raise DataError(f"{path}: damaged, {count:,} keys instead of {meta.entries:,}")


def read_value(path: Path, place: int, size: int) -> bytes:
    """Return a value that is not beside its key."""
    with open_regular(path) as file:
        file.seek(place)
        content = file.read(size)
    if len(content) != size:
        raise DataError(f"{path}: cut short after it was opened")
    return content


def _meta(file: BinaryIO, path: Path) -> _Meta:
    """Return the newer of the two meta pages; the size of a page is in the first."""
    found = []
    page = int.from_bytes(file.read(_HEADER.size + 28)[-4:], "little")  # of the first database, of free pages
    for number in range(2):
        file.seek(number * page)
        content = file.read(_HEADER.size + _META.size)
        if len(content) < _HEADER.size + _META.size:
            break
        magic, version, _, _, _, _, _, _, _, _, held, root, last, transaction = _META.unpack_from(content, _HEADER.size)
        if magic != _MAGIC or version & 0xFFFF != _FORMAT:
            break
        found.append(_Meta(page, held, root, last, transaction))
    if len(found) < 2 or not 256 <= page <= 65536 or page & (page - 1):
        raise DataError(f"{path}: not an LMDB environment, or of another format than {_FORMAT}")
    return max(found, key=lambda meta: meta.transaction)


class _Walk:
    """Reads the pages of a tree, each at most once."""

    def __init__(self, file: BinaryIO, path: Path, meta: _Meta) -> None:
        self._file, self._path, self._meta, self._left = file, path, meta, meta.last + 1

    def nodes(self, number: int, depth: int = 0) -> Iterator[Entry]:
        """Yield the entries below a page."""
        if number == _EMPTY and depth == 0:
            return
        content = self._read(number)
        if depth > _DEEPEST or self._left < 0:
            raise self._damaged(number)
        _, _, flags, lower, upper = _HEADER.unpack_from(content)
        if not _HEADER.size <= lower <= upper <= len(content) or flags & 3 not in (_BRANCH, _LEAF):
            raise self._damaged(number)
        for (place,) in struct.iter_unpack("=H", content[_HEADER.size : lower - lower % 2]):
            if not upper <= place <= len(content) - _NODE.size:
                raise self._damaged(number)
            low, high, more, length = _NODE.unpack_from(content, place)
            if flags & _BRANCH:
                yield from self.nodes(low | high << 16 | more << 32, depth + 1)
            else:
                yield self._entry(number, content, place + _NODE.size, length, low | high << 16, more)

    def _entry(self, number: int, content: bytes, start: int, length: int, size: int, flags: int) -> Entry:
        end = start + length
        inside = 8 if flags == _BIG else size
        if flags not in (0, _BIG) or end + inside > len(content):
            raise self._damaged(number)
        if not flags:
            place = number * self._meta.page + end
            return Entry(content[start:end], place, size, content[end : end + size])
        first = int.from_bytes(content[end : end + 8], "little")
        place = first * self._meta.page + _HEADER.size
        if not 2 <= first <= self._meta.last or place + size > (self._meta.last + 1) * self._meta.page:
            raise self._damaged(number)
        return Entry(content[start:end], place, size, None)

    def _read(self, number: int) -> bytes:
        self._left -= 1
        if not 2 <= number <= self._meta.last:
            raise self._damaged(number)
        self._file.seek(number * self._meta.page)
        content = self._file.read(self._meta.page)
        if len(content) < self._meta.page or _HEADER.unpack_from(content)[0] != number:
            raise self._damaged(number)
        return content

    def _damaged(self, number: int) -> DataError:
        return DataError(f"{self._path}: damaged, page {number} is not one of its tree")
