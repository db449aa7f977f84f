"""Files that are replaced as a whole, and a folder with one writer."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from filelock import FileLock, Timeout

_PART = ".part"
_TURN = 5.0  # seconds to wait for processes that lock other parts of a folder at the same moment
# Without O_NONBLOCK, to open a pipe would be to wait.
_READ = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)


class FolderInUseError(RuntimeError):
    """Another process is writing to the folder."""


class UnusableFolderError(ValueError):
    """A path that cannot be made or written to."""


class NotRegularError(OSError):
    """A device, a pipe or anything else that may never end, or a file that is too large, in the place of a file."""


def open_regular(path: Path, most: int | None = None) -> BinaryIO:
    """Open a regular file to read, of at most so many bytes; `NotRegularError` if it is not one."""
    handle = os.open(path, _READ)
    try:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode):
            raise NotRegularError(errno.EINVAL, "it is not a regular file")
        if most is not None and found.st_size > most:
            raise NotRegularError(errno.EFBIG, f"it has {found.st_size:,} bytes; the largest allowed is {most:,}")
        return os.fdopen(handle, "rb")
    except BaseException:
        os.close(handle)
        raise


def read_regular(path: Path, most: int) -> bytes:
    """Return the content of a regular file of at most so many bytes."""
    with open_regular(path, most) as file:
        return file.read(min(most, os.fstat(file.fileno()).st_size))  # of `most` bytes, all would be allocated


def read_json(path: Path, most: int = 256 * 2**20) -> Any:
    """Return what a JSON file holds; ValueError if it is not JSON, or nested too deeply."""
    try:
        return json.loads(read_regular(path, most))
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def unpacked(content: bytes, most: int) -> bytes:
    """Return what gzip or zlib made smaller; ValueError if it is damaged, or more than so many bytes.

    >>> unpacked(zlib.compress(bytes(1000)), 10)
    Traceback (most recent call last):
    ...
    ValueError: more than 10 bytes
    """
    try:
        unpack = zlib.decompressobj(wbits=47)  # either kind
        found = unpack.decompress(content, most + 1)
    except zlib.error as error:
        raise ValueError(str(error)) from error
    if len(found) > most:
        raise ValueError(f"more than {most:,} bytes")
    if not unpack.eof:
        raise ValueError("it is incomplete")
    return found


def open_part(path: Path, *, append: bool = False) -> BinaryIO:
    """Open a file to be renamed when it is whole; a link in its place is removed, not followed."""
    if path.is_symlink() or (path.exists() and not path.is_file()):
        path.unlink()
    how = os.O_APPEND if append else os.O_TRUNC
    how |= os.O_WRONLY | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
    return os.fdopen(os.open(path, how, 0o644), "ab" if append else "wb")


def write_atomically(path: Path, content: bytes) -> None:
    """Replace a file as a whole: after a crash it has the old content or the new one. A full disk is an OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=_PART)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)
        raise
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    if os.name == "nt":  # a folder cannot be opened there
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_if_changed(path: Path, content: bytes) -> None:
    """Write a small file unless it already has this content."""
    with contextlib.suppress(FileNotFoundError, NotRegularError):
        if read_regular(path, len(content)) == content:
            return
    write_atomically(path, content)


def remove_partial_files(folder: Path) -> None:
    """Remove temporary files of a process that was killed while writing; only for the holder of the folder's lock."""
    for left in folder.glob(f".*{_PART}"):
        left.unlink(missing_ok=True)


@contextlib.contextmanager
def usable(folder: Path, called: str = "--out") -> Iterator[None]:
    """Explain in one sentence why a folder cannot be made or written to; `called` names the argument."""
    try:
        yield
    except (FileExistsError, NotADirectoryError) as error:
        raise UnusableFolderError(f"{called} {folder} is, or is inside, a file and not a folder.") from error
    except PermissionError as error:
        raise UnusableFolderError(f"{called} {folder} cannot be written to: permission denied.") from error
    except OSError as error:
        if error.errno != errno.EROFS:
            raise
        raise UnusableFolderError(f"{called} {folder} cannot be written to: read-only file system.") from error


@contextlib.contextmanager
def locked(folder: Path, part: str = "", *, called: str = "--out") -> Iterator[None]:
    """Hold a folder, or one named part of it, for this process. A killed process releases it.

    Processes that train different parts of one folder (`--shard`) lock one part each, named "I-of-DIVISION". Whoever
    locks the whole folder is refused while a part is locked, and the other way round. So is a part of another division:
    it would have runs of several parts.
    """
    with usable(folder, called), contextlib.ExitStack() as locks:
        folder.mkdir(parents=True, exist_ok=True)
        whole = folder / ".lock"
        if part:
            first = acquire(folder, whole, called, _TURN)  # until the part is held: nobody locks the whole in between
            try:
                for other in folder.glob(".lock-*"):
                    if other.name.rpartition("-of-")[2] != part.rpartition("-of-")[2]:
                        acquire(folder, other, called).release()
                locks.callback(acquire(folder, folder / f".lock-{part}", called).release)
            finally:
                first.release()
        else:
            for path in (whole, *sorted(folder.glob(".lock-*"))):
                locks.callback(acquire(folder, path, called).release)
        held = locks.pop_all()
    with held:
        yield


def is_locked(path: Path) -> bool:
    """Return whether any process, this one included, holds the lock file at `path`."""
    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        return True
    lock.release()
    return False


def acquire(folder: Path, path: Path, called: str, patience: float = 0) -> FileLock:
    """Lock a folder or file by the lock file at `path`; `called` names the argument that chose it.

    If another process has it, wait for at most `patience` seconds.
    """
    if path.is_symlink() or (path.exists() and not path.is_file()):
        raise UnusableFolderError(f"{called} {folder} cannot be locked: {path} is not a regular file. Remove it.")
    lock = FileLock(path)
    try:
        lock.acquire(timeout=patience)
    except Timeout as error:
        raise FolderInUseError(
            f"{folder} is in use by another aol process: wait for it to finish, or choose another {called}."
        ) from error
    return lock
