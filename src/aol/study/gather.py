"""Runs from elsewhere: other stores, single runs and tar archives, each record checked before it is copied.

Only the record of a run (`run.json`) is copied; samples, pictures and networks stay where they are. Nothing is assumed
about the sources: they may be incomplete or hostile. Only regular files of at most `LARGEST` bytes are read, and a
record is written under the id that follows from its settings, never under a name that was given.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import tarfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from aol.runs.record import FILE, LARGEST, DamagedRunError, Run, content_of, decode
from aol.runs.store import Store, refuse_old_format
from aol.runs.validate import get_valid, problem, settings_of

# What reading an incomplete or damaged archive raises; the last two come from headers with absurd numbers.
_BROKEN = (tarfile.TarError, EOFError, OSError, zlib.error, lzma.LZMAError, ValueError, OverflowError)
_PACKED: Mapping[bytes, Callable[[Path], io.BufferedIOBase]] = {
    b"\x1f\x8b": gzip.GzipFile,
    b"BZh": bz2.BZ2File,
    b"\xfd7zXZ\0": lzma.LZMAFile,
    b"\x5d\0\0": lzma.LZMAFile,
}


@dataclass
class Gathered:
    """How many runs were new, already there, and not finished; and which files were refused, each with the reason."""

    new: int = 0
    known: int = 0
    unfinished: int = 0
    refused: list[tuple[str, str]] = field(default_factory=list)


@dataclass(frozen=True)
class _File:
    """A file that should be a record: its name in messages, and its content or what is wrong with it."""

    name: str
    content: bytes | DamagedRunError


def gather(sources: Sequence[Path], store: Store) -> Gathered:
    """Copy finished runs into a store, which is locked meanwhile. A complete run that is there is not replaced."""
    for source in sources:
        if not source.exists():
            raise FileNotFoundError(f"{source}: no such folder or file")
        if source.is_dir():
            refuse_old_format(source)
    gathered = Gathered()
    store.prepare()
    with store.lock():
        for source in sources:
            for file in _files(source):
                try:
                    _take(_checked(file), store, gathered)
                except DamagedRunError as error:
                    gathered.refused.append((file.name, str(error)))
    return gathered


def _checked(file: _File) -> Run:
    """Return the run in a file; `DamagedRunError` if there is none that the engine can have written."""
    if isinstance(file.content, DamagedRunError):
        raise file.content
    run = decode(file.content)
    settings = settings_of(run)
    if settings is None:
        raise DamagedRunError("it has no settings of a study")
    if why := problem(run, settings):
        raise DamagedRunError(why)
    return run


def _take(run: Run, store: Store, gathered: Gathered) -> None:
    settings = settings_of(run)
    assert settings is not None
    before = get_valid(store, settings)
    if not run.finished:
        gathered.unfinished += 1
    elif before is not None and before.finished:
        gathered.known += 1
    else:
        store.write(run)
        gathered.new += 1


def _files(source: Path) -> Iterator[_File]:
    """Yield every record in a folder, in an archive, or one file."""
    if source.is_dir():
        paths = sorted(Path(folder, FILE) for folder, *names in os.walk(source) if any(FILE in each for each in names))
        yield from (_file(path) for path in paths)
        if not paths:
            yield _File(str(source), DamagedRunError("there are no runs in it"))
    elif source.is_file() and (opened := _opened(source)) is not None:
        with opened:
            yield from _members(source, opened)
    else:
        yield _file(source)


def _file(path: Path) -> _File:
    try:
        return _File(str(path), content_of(path))
    except DamagedRunError as error:
        return _File(str(path), error)
    except FileNotFoundError:
        return _File(str(path), DamagedRunError("it is a link to nothing"))
    except OSError as error:
        return _File(str(path), DamagedRunError(f"it cannot be read: {error.strerror}"))


def _opened(source: Path) -> io.BufferedIOBase | None:
    """Return the content of a packed file or of a tar archive; None for any other file."""
    try:
        with source.open("rb") as file:
            start = file.read(tarfile.BLOCKSIZE)
    except OSError:
        return None  # reading it will say why
    for magic, unpack in _PACKED.items():
        if start.startswith(magic):
            return unpack(source)
    is_record = start.lstrip().startswith(b"{") or source.suffix == ".json"
    return None if is_record and start[257:262] != b"ustar" else source.open("rb")


class _Bounded:
    """A file for tarfile, without reads that would fill the memory; remembers the last block that was read."""

    def __init__(self, file: io.BufferedIOBase) -> None:
        self._file, self.last = file, b""
        self.tell, self.seek, self.write, self.close = file.tell, file.seek, file.write, file.close

    def read(self, size: int) -> bytes:
        if not 0 <= size <= LARGEST:  # headers of a tar archive may have any size and are read at once
            raise tarfile.ReadError(f"a header of {size:,} bytes")
        self.last = self._file.read(size)
        return self.last

    def seekable(self) -> bool:
        return True


def _members(source: Path, file: io.BufferedIOBase) -> Iterator[_File]:
    """Yield the records of an archive; at the end, if it is damaged, the archive itself."""
    bounded, end = _Bounded(file), -1
    try:
        archive = tarfile.TarFile(fileobj=bounded, mode="r")
        while (member := archive.next()) is not None:
            if archive.offset <= end:
                raise tarfile.ReadError("a member that leads back")
            end = archive.offset
            archive.members = []  # type: ignore[attr-defined]  # or it keeps all of them
            if member.name.rpartition("/")[2] == FILE:
                yield _member(source, archive, member)
        if bounded.last != bytes(tarfile.BLOCKSIZE):  # the end of an archive, which tarfile does not require
            raise tarfile.ReadError("no mark of its end" if len(bounded.last) < tarfile.BLOCKSIZE else "no header")
    except _BROKEN as error:
        if end < 0 and isinstance(file, io.BufferedReader):  # not packed: it can be anything
            why = f"it is neither a run nor an archive of runs ({error})"
        else:
            why = f"the archive is incomplete or damaged ({error}); the runs before the damage were copied"
        yield _File(str(source), DamagedRunError(why))


def _member(source: Path, archive: tarfile.TarFile, member: tarfile.TarInfo) -> _File:
    name = f"{source}: {member.name if member.name.isprintable() else ascii(member.name)}"
    why = ""
    if member.isdir():
        why = "it is a folder"
    elif member.issym() or member.islnk():
        why = "it is a link, and only regular files are copied"
    elif not member.isreg() or member.issparse():
        why = "it is not a regular file"
    elif member.size > LARGEST:
        why = f"it has {member.size:,} bytes; a record has at most {LARGEST:,}"
    if why:
        return _File(name, DamagedRunError(why))
    content = archive.extractfile(member)
    assert content is not None  # which it is for a regular file
    return _File(name, content.read(member.size))
