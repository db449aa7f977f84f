"""Runs from elsewhere: other stores, single runs and tar archives, each record checked before it is copied.

Only the record of a run (`run.json`) is copied; samples, pictures and networks stay where they are. Nothing is assumed
about the sources: they may be incomplete or hostile. Only regular files of at most `LARGEST` bytes are read, and a
record is written under the id that follows from its settings, never under a name that was given.
"""

from __future__ import annotations

import lzma
import os
import tarfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from aol.lab.train.validate import get_valid, problem, settings_of
from aol.records.record import FILE, LARGEST, DamagedRunError, content_of, decode
from aol.records.store import Store

# What reading an incomplete or damaged archive raises; the last two come from headers with absurd numbers.
_BROKEN = (tarfile.TarError, EOFError, OSError, zlib.error, lzma.LZMAError, ValueError, OverflowError)
_File = tuple[str, bytes | DamagedRunError]  # its name in messages, and its content or what is wrong with it


@dataclass
class Gathered:
    """How many runs were new, already there, and not finished; and which files were refused, each with the reason."""

    new: int = 0
    known: int = 0
    unfinished: int = 0
    refused: list[tuple[str, str]] = field(default_factory=list)


def gather(sources: Sequence[Path], store: Store) -> Gathered:
    """Copy finished runs into a store, which is locked meanwhile. A complete run that is there is not replaced."""
    for source in sources:
        if not source.exists():
            raise FileNotFoundError(f"{source}: no such folder or file")
    gathered = Gathered()
    store.prepare()
    with store.lock():
        for source in sources:
            for name, content in _files(source):
                try:
                    _take(content, store, gathered)
                except DamagedRunError as error:
                    gathered.refused.append((name, str(error)))
    return gathered


def _take(content: bytes | DamagedRunError, store: Store, gathered: Gathered) -> None:
    """Write the run in a file; `DamagedRunError` if there is none that the engine can have written."""
    if isinstance(content, DamagedRunError):
        raise content
    run = decode(content)
    settings = settings_of(run)
    if settings is None:
        raise DamagedRunError("it has no settings of a study")
    if why := problem(run, settings):
        raise DamagedRunError(why)
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
            yield str(source), DamagedRunError("there are no runs in it")
    elif source.is_file() and source.suffix != ".json":
        yield from _members(source)
    else:
        yield _file(source)


def _file(path: Path) -> _File:
    try:
        return str(path), content_of(path.parent)
    except DamagedRunError as error:
        return str(path), error
    except FileNotFoundError:
        return str(path), DamagedRunError("it is a link to nothing")


def _members(source: Path) -> Iterator[_File]:
    """Yield the records of an archive, read from start to end; if it is damaged, at last the archive itself."""
    last = b""

    class Header(tarfile.TarInfo):
        @classmethod
        def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Header:
            nonlocal last
            last = bytes(buf)
            found = super().frombuf(buf, encoding, errors)
            if found.size < 0 or (found.size > LARGEST and not found.isreg()):  # which would be read at once
                raise ValueError(f"a header of {found.size:,} bytes")
            return found

    try:
        with tarfile.open(source, tarinfo=Header) as archive:
            for member in archive:
                archive.members = []  # type: ignore[attr-defined]  # or it keeps all of them
                if member.name.rpartition("/")[2] == FILE:
                    yield _member(source, archive, member)
        if last != bytes(tarfile.BLOCKSIZE):  # the end of an archive, which tarfile does not require
            raise tarfile.ReadError("no mark of its end" if len(last) < tarfile.BLOCKSIZE else "no header")
    except _BROKEN as error:
        reason = str(error).split(":\n")[0]  # without what each way to unpack it says
        why = f"it is not a complete archive of runs ({reason}); the runs before the damage were copied"
        yield str(source), DamagedRunError(why)


def _member(source: Path, archive: tarfile.TarFile, member: tarfile.TarInfo) -> _File:
    name = f"{source}: {member.name if member.name.isprintable() else ascii(member.name)}"
    if member.issym() or member.islnk():
        return name, DamagedRunError("it is a link, and only regular files are copied")
    if not member.isreg() or member.issparse():
        return name, DamagedRunError("it is a folder" if member.isdir() else "it is not a regular file")
    if member.size > LARGEST:
        return name, DamagedRunError(f"it has {member.size:,} bytes; a record has at most {LARGEST:,}")
    content = archive.extractfile(member)
    assert content is not None  # which it is for a regular file
    return name, content.read(member.size)
