"""`aol data get`: downloads a built-in data set from its official address, resumably.

Every file is checked before it gets its final name (until then it is `NAME.part`), so that a stopped or failed download
never looks like a data set.
"""

from __future__ import annotations

import errno
import hashlib
import http.client
import os
import shutil
import tarfile
import time
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

from aol._files import open_part
from aol.data.errors import DataError
from aol.data.named import Download, Official, official, search_folders

Progress = Callable[[str, int, int], None]
_CHUNK = 1 << 16
_TRIES = 3


class UnreachableError(OSError):
    """The address could not be reached, or the transfer failed repeatedly."""


def get(
    name: str,
    dest: str | os.PathLike[str] | None = None,
    *,
    progress: Progress | None = None,
    mirror: str | None = None,
) -> Path | None:
    """Download a named set into `dest` (default: the cache folder) and return its folder; None for `digits`.

    `progress(file, done, total)` is called with bytes. `mirror` replaces the official address up to the
    file name. Files that are present and correct are not downloaded again; an archive placed there by hand is used.

    >>> get("digits") is None
    True
    """
    if name == "digits":
        return None
    known = official(name)
    root = search_folders(dest)[0]
    folder = root / known.folder
    if all(problem is None for _, problem in known.state(folder)):
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    for download in known.downloads:
        target = (folder if known.gzipped else root) / download.name
        if target.exists() and digest_of(target, download.digest.partition(":")[0]) == download.digest:
            continue
        _fetch_any([mirror] if mirror else [known.address, known.without_tls], download, target, progress)
    if not known.gzipped:
        archive = root / known.downloads[0].name
        _extract(known, archive, folder)
        archive.unlink()
    for path, problem in known.state(folder):
        if problem is not None:
            raise DataError(f"{path}: {problem}")
    return folder


def _fetch_any(addresses: Sequence[str], download: Download, target: Path, progress: Progress | None) -> None:
    """Fetch a file from the first address that has it; checksums tell what came, whoever sent it."""
    reasons = []
    for address in filter(None, addresses):
        url = f"{address.rstrip('/')}/{download.name}"
        try:
            fetch(url, target, size=download.size, digest=download.digest, progress=progress)
            return
        except UnreachableError as reason:
            reasons.append((reason, url))
    raise UnreachableError(
        f"{reasons[0][0]}; without a network, put {download.name} from {reasons[-1][1]} into {target.parent} "
        f"and run the same command again"
    )


def digest_of(path: Path, algorithm: str = "sha256") -> str:
    """Hash a file.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "a"
    >>> _ = path.write_bytes(b"aol")
    >>> digest_of(path, "md5")
    'md5:a141472065cc26e1ffce0a359ff3c733'
    """
    with path.open("rb") as file:
        found = hashlib.file_digest(file, lambda: hashlib.new(algorithm, usedforsecurity=False))
    return f"{algorithm}:{found.hexdigest()}"


def fetch(
    url: str, dest: Path, *, size: int, digest: str, progress: Progress | None = None, pause: float = 1.0
) -> Path:
    """Fetch `url` to `dest`, resuming `dest.part`; `digest` is `md5:…` or `sha256:…`.

    `progress(name, done, size)` is called with bytes. An interrupted transfer is resumed, three tries in all;
    then `UnreachableError` is raised and the partial file is kept. It is removed if its checksum is wrong.

    >>> fetch("http://127.0.0.1:9/none", Path("none"), size=1, digest="md5:0", pause=0)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    aol.data.download.UnreachableError: http://127.0.0.1:9/none could not be fetched (...)
    """
    part = dest.with_name(dest.name + ".part")
    if part.is_symlink():  # planted: it would be followed
        part.unlink()
    reason: object = "the transfer broke off"
    for attempt in range(_TRIES):
        done = part.stat().st_size if part.exists() else 0
        if done > size:
            part.unlink()
        if done == size:
            break
        if attempt:
            time.sleep(pause)
        try:
            _transfer(url, part, size, progress)
        except urllib.error.HTTPError as answer:
            reason = f"the server answered {answer.code} {answer.reason}"
            if answer.code == 416:  # the server's file is shorter than what we hold: start over
                part.unlink(missing_ok=True)
            elif answer.code < 500:
                break
        except urllib.error.URLError as failure:
            reason = failure.reason
        except (OSError, http.client.HTTPException) as failure:
            if isinstance(failure, OSError) and failure.errno == errno.ENOSPC:
                raise OSError(errno.ENOSPC, f"no space left for {part}") from None
            reason = failure or type(failure).__name__
    if not part.exists() or part.stat().st_size != size:
        raise UnreachableError(f"{url} could not be fetched ({reason})")
    found = digest_of(part, digest.partition(":")[0])
    if found != digest:
        part.unlink()
        raise DataError(f"{url}: the file fetched has checksum {found}, not {digest}; it was removed")
    return part.replace(dest)


def _transfer(url: str, part: Path, size: int, progress: Progress | None) -> None:
    """Add what is missing to `part`; a server that ignores Range starts the file over."""
    done = part.stat().st_size if part.exists() else 0
    headers = {"User-Agent": "aol"} | ({"Range": f"bytes={done}-"} if done else {})
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=30) as answer:
        if answer.status != 206:
            done = 0
        with open_part(part, append=bool(done)) as file:
            while done <= size and (chunk := answer.read(_CHUNK)):
                file.write(chunk)
                done += len(chunk)
                if progress is not None:
                    progress(part.stem, done, size)
            file.flush()
            os.fsync(file.fileno())


def _extract(known: Official, archive: Path, folder: Path) -> None:
    """Take the expected members, and nothing else, out of an archive; each appears whole or not at all."""
    wanted = {f"{known.folder}/{member.name}": member for member in known.members}
    try:
        with tarfile.open(archive, "r:gz") as tar:
            for entry in tar:
                member = wanted.get(entry.name)
                source = tar.extractfile(entry) if member is not None and entry.isfile() else None
                # Names are looked up, never followed: a path with `..`, a link or a device is not expected.
                if member is None or source is None:
                    continue
                if entry.size != member.size:  # before a byte is unpacked
                    raise DataError(
                        f"{archive}: its member {entry.name}: {entry.size:,} bytes instead of {member.size:,}"
                    )
                part = folder / f"{member.name}.part"
                with source, open_part(part) as file:
                    shutil.copyfileobj(source, file)
                if problem := member.problem(part):
                    part.unlink()
                    raise DataError(f"{archive}: its member {entry.name}: {problem}")
                os.replace(part, folder / member.name)
                del wanted[entry.name]
    except (tarfile.TarError, EOFError, zlib.error) as reason:
        raise DataError(f"{archive}: not a whole archive ({reason})") from None
    if wanted:
        raise DataError(f"{archive}: lacks {', '.join(wanted)}")
