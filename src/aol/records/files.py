"""Files that are whole or not there, and a folder held by one process."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

_PART = ".part"


class FolderInUseError(RuntimeError):
    """Another process is writing to the folder."""


class UnusableFolderError(ValueError):
    """A path that cannot become the folder of some runs."""


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file so that it is either as before or complete, whatever happens; a full disk is an OSError."""
    extend_atomically(path, 0, content)


def write_if_new(path: Path, content: bytes) -> None:
    """Write a small file, unless that is what it holds: it is asked for again and again and hardly ever changes."""
    try:
        if path.read_bytes() == content:
            return
    except FileNotFoundError:
        pass
    write_atomically(path, content)


def extend_atomically(path: Path, kept: int, content: bytes) -> None:
    """Write `content` behind the first `kept` bytes of a file; like any other it is as before or complete.

    The bytes kept are copied, not written out anew: what was put into words once need not be again. Appending in place
    would leave half a row behind where a process is killed.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=_PART)
    try:
        with os.fdopen(handle, "wb") as file:
            if kept:
                with path.open("rb") as before:
                    file.write(before.read(kept))
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def sweep(folder: Path, name: str = "") -> None:
    """Remove half-written files of a process that was killed, all or those of one name; only for who holds them."""
    for left in folder.glob(f".{name}*{_PART}"):
        left.unlink()


@contextlib.contextmanager
def usable(folder: Path, called: str = "--out") -> Iterator[None]:
    """Say in a sentence why a folder cannot be made or written to; `called` is what the user calls it."""
    try:
        yield
    except (FileExistsError, NotADirectoryError) as error:
        raise UnusableFolderError(f"{called} {folder} is, or lies in, a file and not a folder.") from error
    except PermissionError as error:
        raise UnusableFolderError(f"{called} {folder} cannot be written to: permission denied.") from error
    except OSError as error:
        if error.errno != errno.EROFS:
            raise
        raise UnusableFolderError(f"{called} {folder} cannot be written to: its file system is read-only.") from error


@contextlib.contextmanager
def held(folder: Path, rank: int = 0, *, called: str = "--out") -> Iterator[None]:
    """Hold a folder for this process; another that wants it is refused. A killed process lets go by dying.

    Processes that share the runs of one folder hold it by rank.
    """
    with usable(folder, called):
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / f".lock-{rank}").open("a+")
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise FolderInUseError(
                f"{folder} is in use by another aol process; wait for it, or choose another {called}."
            ) from error
        yield
