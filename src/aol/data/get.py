"""`aol data get`: downloads a built-in data set from its official address.

Assumes the destination can be written to. Every file is checked before it appears under its final name, so
that a stopped or failed download never looks like a data set.
"""

from __future__ import annotations

import os
import shutil
import tarfile
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from aol.data.download import UnreachableError, fetch
from aol.data.errors import DataError
from aol.data.named import cache_folder, official
from aol.data.registry import Download, Official, digest_of, member_problem

Progress = Callable[[str, int, int], None]


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
    root = Path(dest).expanduser().absolute() if dest is not None else cache_folder()
    folder = root / known.folder
    if _whole(known, folder):
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    for download in known.downloads:
        if mirror is not None:
            download = replace(download, url=f"{mirror.rstrip('/')}/{download.name}")
        _obtain(known, download, folder if known.gzipped else root, progress)
    if not known.gzipped:
        archive = root / known.downloads[0].name
        _extract(known, archive, root)
        archive.unlink()
    for member in known.members:
        path = known.member_file(folder, member.name)
        problem = "missing" if path is None else member_problem(path, member)
        if problem is not None:
            raise DataError(f"{path or folder / member.name}: {problem}")
    return folder


def _whole(known: Official, folder: Path) -> bool:
    found = known.present(folder)
    return all(
        path is not None and member_problem(path, member) is None
        for path, member in zip(found, known.members, strict=True)
    )


def _obtain(known: Official, download: Download, folder: Path, progress: Progress | None) -> None:
    target = folder / download.name
    if target.exists() and digest_of(target, download.digest.partition(":")[0]) == download.digest:
        return

    def report(done: int, total: int) -> None:
        if progress is not None:
            progress(download.name, done, total)

    try:
        fetch(download.url, target, size=download.size, digest=download.digest, progress=report)
    except UnreachableError as reason:
        raise UnreachableError(
            f"{reason}; without a network, put {download.name} from {download.url} into {folder} "
            f"and run the same command again"
        ) from None


def _extract(known: Official, archive: Path, root: Path) -> None:
    """Take the expected members, and nothing else, out of an archive; each appears whole or not at all."""
    folder = root / known.folder
    wanted = {f"{known.folder}/{member.name}": member for member in known.members}
    try:
        with tarfile.open(archive, "r:gz") as tar:
            for entry in tar:
                member = wanted.get(entry.name)
                # Names are looked up, never followed: a path with `..`, a link or a device is not expected.
                if member is None or not entry.isfile():
                    continue
                if entry.size != member.size:  # before a byte is unpacked
                    raise DataError(
                        f"{archive}: its member {entry.name}: {entry.size:,} bytes instead of {member.size:,}"
                    )
                source = tar.extractfile(entry)
                if source is None:
                    continue
                part = folder / f"{member.name}.part"
                with source, part.open("wb") as file:
                    shutil.copyfileobj(source, file)
                problem = member_problem(part, member)
                if problem is not None:
                    part.unlink()
                    raise DataError(f"{archive}: its member {entry.name}: {problem}")
                os.replace(part, folder / member.name)
                del wanted[entry.name]
    except (tarfile.TarError, EOFError, zlib.error) as reason:
        raise DataError(f"{archive}: not a whole archive ({reason})") from None
    if wanted:
        raise DataError(f"{archive}: lacks {', '.join(wanted)}")
