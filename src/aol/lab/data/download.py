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
from collections.abc import Callable, Sequence
from pathlib import Path

from aol._files import open_part
from aol.lab.data.errors import DataError
from aol.lab.data.named import Download, Official, official, search_folders

Progress = Callable[[str, int, int], None]
_CHUNK = 1 << 16
_ROUNDS = 3  # tries of each address
_PAUSE = 1.0  # seconds between two rounds


class UnreachableError(OSError):
    """The address could not be reached, or the transfer broke off."""


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
    addresses = (mirror,) if mirror else known.addresses
    for download in known.downloads:
        target = (folder if known.gzipped else root) / download.name
        if not target.exists() or _md5(target) != download.md5:
            _fetch([f"{each.rstrip('/')}/{download.name}" for each in addresses], download, target, progress)
    if not known.gzipped:
        _extract(known, root / known.downloads[0].name, folder)
    for path, problem in known.state(folder):
        if problem is not None:
            raise DataError(f"{path}: {problem}")
    if not known.gzipped:
        (root / known.downloads[0].name).unlink()
    return folder


def _md5(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def _fetch(urls: Sequence[str], download: Download, target: Path, progress: Progress | None) -> None:
    """Fetch a file from the first address that has it, in three rounds, and check it; what came before is kept."""
    part = target.with_name(f"{target.name}.part")
    if part.is_symlink() or (part.exists() and part.stat().st_size > download.size):
        part.unlink()  # planted, and would be followed; or of another file
    reasons: list[object] = []
    left = [*urls] * _ROUNDS
    while left and not (part.exists() and part.stat().st_size >= download.size):
        url = left.pop(0)
        if len(reasons) >= len(urls):
            time.sleep(_PAUSE)
        try:
            _transfer(url, part, download.size, progress)
            reasons.append("the transfer broke off")
        except urllib.error.HTTPError as answer:
            reasons.append(f"the server answered {answer.code} {answer.reason}")
            if answer.code < 500:  # it would say so again
                left = [each for each in left if each != url]
        except (OSError, http.client.HTTPException) as failure:
            if getattr(failure, "errno", None) == errno.ENOSPC:
                raise OSError(errno.ENOSPC, f"no space left for {part}") from None
            reasons.append(getattr(failure, "reason", failure))
    if not part.exists() or part.stat().st_size < download.size:
        raise UnreachableError(
            f"{urls[0]} could not be fetched ({reasons[0]}); run the same command again to continue. Without a "
            f"network, first put {download.name} from {urls[-1]} into {target.parent}"
        )
    if (found := _md5(part)) != download.md5:
        part.unlink()
        raise DataError(f"{urls[0]}: the file fetched has md5 {found}, not {download.md5}; it was removed")
    part.replace(target)


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
    """Take the expected members, and nothing else, out of an archive of the right checksum."""
    wanted = {f"{known.folder}/{member.name}": folder / member.name for member in known.members}
    with tarfile.open(archive, "r:gz") as tar:
        for entry in tar:
            source = tar.extractfile(entry) if entry.name in wanted and entry.isfile() else None
            if source is None:
                continue
            path = wanted[entry.name]
            part = path.with_name(f"{path.name}.part")
            with source, open_part(part) as file:
                shutil.copyfileobj(source, file)
            part.replace(path)
