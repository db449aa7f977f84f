"""Files, sizes, checksums and addresses of the built-in data sets.

Each set is described by one `Official`, which finding, checking and downloading use.
"""

from __future__ import annotations

import gzip
import hashlib
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from aol.data.errors import DataError
from aol.data.images import ImageSet, Pair

_CHUNK = 1 << 20


@dataclass(frozen=True)
class Member:
    """One file of an official set: name, bytes and sha256 of its content, uncompressed."""

    name: str
    size: int
    sha256: str


@dataclass(frozen=True)
class Download:
    """One file at an official address, and its size and checksum (`md5:…` or `sha256:…`)."""

    url: str
    name: str
    size: int
    digest: str


@dataclass(frozen=True)
class Official:
    """A named data set: one folder of files. `gzipped`: a member may also be stored as `name.gz`.

    A download is either one archive holding `folder/member` for every member, or one `member.gz` each.
    """

    name: str
    title: str
    folder: str
    members: tuple[Member, ...]
    downloads: tuple[Download, ...]
    load: Callable[[Path], Pair[ImageSet]]
    gzipped: bool = False
    system: tuple[Path, ...] = ()

    def present(self, folder: Path) -> list[Path | None]:
        """Return the file of each member under `folder`, or None where it is missing."""
        return [self.member_file(folder, member.name) for member in self.members]

    def member_file(self, folder: Path, name: str) -> Path | None:
        """Return the file that holds a member, gzipped or not, or None."""
        for candidate in (folder / name, folder / f"{name}.gz") if self.gzipped else (folder / name,):
            if candidate.is_file():
                return candidate
        return None


def digest_of(path: Path, algorithm: str = "sha256") -> str:
    """Hash a file.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "a"
    >>> _ = path.write_bytes(b"aol")
    >>> digest_of(path, "md5")
    'md5:a141472065cc26e1ffce0a359ff3c733'
    """
    found = hashlib.new(algorithm, usedforsecurity=False)
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            found.update(chunk)
    return f"{algorithm}:{found.hexdigest()}"


def member_problem(path: Path, member: Member) -> str | None:
    """Say what is wrong with the file of a member, or None when size and checksum are right."""
    found, size = hashlib.sha256(), 0
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
            while chunk := file.read(_CHUNK):
                found.update(chunk)
                size += len(chunk)
                if size > member.size:
                    break
    except (OSError, EOFError, zlib.error) as reason:
        return f"cannot be read ({reason})"
    if size != member.size:
        found_size = f"{size:,}" if size < member.size else f"more than {member.size:,}"
        return f"{found_size} bytes instead of {member.size:,}"
    if found.hexdigest() != member.sha256:
        return f"sha256 {found.hexdigest()[:12]}… instead of {member.sha256[:12]}…"
    return None


def read_member(official: Official, folder: Path, name: str) -> bytes:
    """Read the content of one member, gzipped or not; a missing or broken file is named."""
    path = official.member_file(folder, name)
    if path is None:
        raise FileNotFoundError(f"{folder / name}: no such file; {official.name} needs it")
    try:
        return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (gzip.BadGzipFile, EOFError, zlib.error) as reason:
        raise DataError(f"{path}: not a whole gzip file ({reason})") from None
