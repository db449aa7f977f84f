"""Records from elsewhere: folders, single files and tar archives, each record verified before it is taken.

Assumes nothing about the sources: they may be cut short, or made to do harm. Only regular files of at most `LARGEST`
bytes are read, and a record is written under the id that follows from its settings, never under a name that was given.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import tarfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from aol.study.records import LARGEST, DamagedRecordError, Store, check_size, content_of, decoded

# What reading an archive that is cut short or damaged comes to; the last two are of headers with absurd numbers.
_BROKEN = (tarfile.TarError, EOFError, OSError, zlib.error, lzma.LZMAError, ValueError, OverflowError)
_PACKED: Mapping[bytes, Callable[[Path], io.BufferedIOBase]] = {
    b"\x1f\x8b": gzip.GzipFile,
    b"BZh": bz2.BZ2File,
    b"\xfd7zXZ\0": lzma.LZMAFile,
    b"\x5d\0\0": lzma.LZMAFile,
}


@dataclass
class Gathered:
    """How many records were new, how many were there already, and which files are no records, each with the reason."""

    new: int = 0
    known: int = 0
    refused: list[tuple[str, str]] = field(default_factory=list)


@dataclass(frozen=True)
class _Found:
    """A file that should be a record: what to call it, the run it is named after, and its content or what is wrong."""

    name: str
    run_id: str
    content: bytes | DamagedRecordError


def gather(sources: Sequence[Path], store: Store) -> Gathered:
    """Copy records into a store. One that is there and whole stays as it is."""
    for source in sources:
        if not source.exists():
            raise FileNotFoundError(f"{source}: no such folder or file")
    found = Gathered()
    for source in sources:
        for file in _files(source):
            try:
                if isinstance(file.content, DamagedRecordError):
                    raise file.content
                record = decoded(file.content, file.run_id)
            except DamagedRecordError as error:
                found.refused.append((file.name, str(error)))
                continue
            if store.get(record.run_id) is not None:
                found.known += 1
            else:
                store.put(record)
                found.new += 1
    return found


def _files(source: Path) -> Iterator[_Found]:
    """Yield every JSON file of a folder (or of `records` in it), an archive, or one file."""
    if source.is_dir():
        inside = source / "records"
        for path in sorted((inside if inside.is_dir() else source).glob("*.json")):
            yield _file(path)
    elif source.is_file() and (opened := _opened(source)) is not None:
        with opened:
            yield from _members(source, opened)
    else:
        yield _file(source)


def _file(path: Path) -> _Found:
    try:
        return _Found(str(path), path.stem, content_of(path))
    except DamagedRecordError as error:
        return _Found(str(path), path.stem, error)
    except FileNotFoundError:
        return _Found(str(path), path.stem, DamagedRecordError("it is a link to nothing"))
    except OSError as error:
        return _Found(str(path), path.stem, DamagedRecordError(f"it cannot be read: {error.strerror}"))


def _opened(source: Path) -> io.BufferedIOBase | None:
    """Return what is in a file that is packed, or is a tar archive as it lies; None for any other."""
    try:
        with source.open("rb") as file:
            start = file.read(tarfile.BLOCKSIZE)
    except OSError:
        return None  # and why is said when it is read
    for magic, unpack in _PACKED.items():
        if start.startswith(magic):
            return unpack(source)
    is_record = start.lstrip().startswith(b"{") or source.suffix == ".json"
    return None if is_record and start[257:262] != b"ustar" else source.open("rb")


class _Bounded:
    """A file as tarfile reads it, without the reads that would fill the memory; the last of them is kept."""

    def __init__(self, file: io.BufferedIOBase) -> None:
        self._file, self.last = file, b""
        self.tell, self.seek, self.write, self.close = file.tell, file.seek, file.write, file.close

    def read(self, size: int) -> bytes:
        if not 0 <= size <= LARGEST:  # headers of a tar archive are members too, of any size, and read whole
            raise tarfile.ReadError(f"a header of {size:,} bytes")
        self.last = self._file.read(size)
        return self.last

    def seekable(self) -> bool:
        return True


def _members(source: Path, file: io.BufferedIOBase) -> Iterator[_Found]:
    """Yield the records of an archive; at last, if it is broken, the archive itself."""
    bounded, end = _Bounded(file), -1
    try:
        archive = tarfile.TarFile(fileobj=bounded, mode="r")
        while (member := archive.next()) is not None:
            if archive.offset <= end:
                raise tarfile.ReadError("a member that leads back")
            end = archive.offset
            archive.members = []  # type: ignore[attr-defined]  # else all there are pile up
            if member.name.endswith(".json"):
                yield _member(source, archive, member)
        if bounded.last != bytes(tarfile.BLOCKSIZE):  # what ends an archive, and tarfile can do without
            raise tarfile.ReadError("no mark of its end" if len(bounded.last) < tarfile.BLOCKSIZE else "no header")
    except _BROKEN as error:
        if end < 0 and isinstance(file, io.BufferedReader):  # not packed: it may be anything
            why = f"it is neither a record nor an archive of some ({error})"
        else:
            why = f"the archive is cut short or damaged ({error}); what came before was taken"
        yield _Found(str(source), "", DamagedRecordError(why))


def _member(source: Path, archive: tarfile.TarFile, member: tarfile.TarInfo) -> _Found:
    name = f"{source}: {member.name if member.name.isprintable() else ascii(member.name)}"
    run_id = PurePosixPath(member.name).stem
    try:
        if member.isdir():
            raise DamagedRecordError("it is a folder")
        if member.issym() or member.islnk():
            raise DamagedRecordError("it is a link, and only regular files are taken")
        if not member.isreg() or member.issparse():
            raise DamagedRecordError("it is no regular file")
        check_size(member.size)
    except DamagedRecordError as error:
        return _Found(name, run_id, error)
    content = archive.extractfile(member)
    assert content is not None  # as it is of a regular file
    return _Found(name, run_id, content.read(member.size))
