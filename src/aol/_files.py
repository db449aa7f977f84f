"""Files that are replaced as a whole, and a folder with one writer."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

_PART = ".part"


class FolderInUseError(RuntimeError):
    """Another process is writing to the folder."""


class UnusableFolderError(ValueError):
    """A path that cannot be made or written to."""


def read_regular(path: Path, most: int) -> bytes:
    """Return the content of a regular file of at most so many bytes; OSError for a pipe, which may never end."""
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file")
    if status.st_size > most:
        raise OSError(errno.EFBIG, f"it has {status.st_size:,} bytes; the largest allowed is {most:,}")
    return path.read_bytes()


def read_json(path: Path, most: int = 64 * 2**20) -> Any:
    """Return what a JSON file holds; ValueError if it is not JSON, or nested too deeply."""
    try:
        return json.loads(read_regular(path, most))
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def write_atomically(path: Path, content: bytes) -> None:
    """Replace a file as a whole: after a crash it has the old content or the new one. A full disk is an OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=_PART)
    except OSError as error:  # it names the temporary file
        raise OSError(error.errno, error.strerror, str(path)) from error
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def write_if_changed(path: Path, content: bytes) -> None:
    """Write a small file unless it already has this content."""
    with contextlib.suppress(FileNotFoundError):
        if path.is_file() and path.stat().st_size == len(content) and path.read_bytes() == content:
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
    except OSError as error:
        if error.errno not in (errno.EROFS, errno.EACCES, errno.EPERM):
            raise
        why = "read-only file system" if error.errno == errno.EROFS else "permission denied"
        raise UnusableFolderError(f"{called} {folder} cannot be written to: {why}.") from error


@contextlib.contextmanager
def locked(folder: Path, *, called: str = "--out") -> Iterator[None]:
    """Hold a folder for this process, by its file `.lock`; a killed process releases it."""
    with usable(folder, called):
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / ".lock")
        try:
            lock.acquire(timeout=0)
        except Timeout as error:
            raise FolderInUseError(
                f"{folder} is in use by another aol process: wait for it to finish, or choose another {called}."
            ) from error
    try:
        yield
    finally:
        lock.release()
