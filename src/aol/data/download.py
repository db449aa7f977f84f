"""Downloads one file over HTTP: with progress, resumable, checked before it gets its final name.

Assumes the folder of `dest` can be written to. The partial file is `dest.part`; `dest` itself is always complete.
"""

from __future__ import annotations

import http.client
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

from aol.data.errors import DataError
from aol.data.registry import digest_of

Progress = Callable[[int, int], None]
_CHUNK = 1 << 16
_TRIES = 3


class UnreachableError(OSError):
    """The address could not be reached, or the transfer failed repeatedly."""


def _request(url: str, start: int) -> urllib.request.Request:
    headers = {"User-Agent": "aol"}
    if start:
        headers["Range"] = f"bytes={start}-"
    return urllib.request.Request(url, headers=headers)


def _transfer(url: str, part: Path, size: int, progress: Progress | None, timeout: float) -> None:
    """Add what is missing to `part`; a server that ignores Range starts the file over."""
    start = part.stat().st_size if part.exists() else 0
    with urllib.request.urlopen(_request(url, start), timeout=timeout) as answer:
        resumed = start > 0 and answer.status == 206
        done = start if resumed else 0
        with part.open("ab" if resumed else "wb") as file:
            while chunk := answer.read(_CHUNK):
                file.write(chunk)
                done += len(chunk)
                if progress is not None:
                    progress(done, size)
                if done > size:
                    return
            file.flush()
            os.fsync(file.fileno())


def fetch(
    url: str,
    dest: Path,
    *,
    size: int,
    digest: str,
    progress: Progress | None = None,
    timeout: float = 30.0,
    pause: float = 1.0,
) -> Path:
    """Fetch `url` to `dest`, resuming `dest.part`; `digest` is `md5:…` or `sha256:…`.

    `progress(done, size)` is called with bytes. An interrupted transfer is resumed, three tries in all;
    then `UnreachableError` is raised and the partial file is kept. It is removed if its checksum is wrong.

    >>> fetch("http://127.0.0.1:9/none", Path("none"), size=1, digest="md5:0", pause=0)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    aol.data.download.UnreachableError: http://127.0.0.1:9/none could not be fetched (...)
    """
    part = dest.with_name(dest.name + ".part")
    reason: object = "the transfer broke off"
    for attempt in range(_TRIES):
        if part.exists() and part.stat().st_size > size:
            part.unlink()
        if part.exists() and part.stat().st_size == size:
            break
        if attempt:
            time.sleep(pause)
        try:
            _transfer(url, part, size, progress, timeout)
        except urllib.error.HTTPError as answer:
            reason = f"the server answered {answer.code} {answer.reason}"
            if answer.code == 416:  # the server's file is shorter than what we hold: start over
                part.unlink(missing_ok=True)
            elif answer.code < 500:
                break
        except urllib.error.URLError as failure:
            reason = failure.reason
        except (OSError, http.client.HTTPException) as failure:
            if part.parent.exists() and isinstance(failure, OSError) and failure.errno == 28:
                raise OSError(28, f"no space left for {part}") from None
            reason = failure or type(failure).__name__
    if not part.exists() or part.stat().st_size != size:
        raise UnreachableError(f"{url} could not be fetched ({reason})")
    found = digest_of(part, digest.partition(":")[0])
    if found != digest:
        part.unlink()
        raise DataError(f"{url}: the file fetched has checksum {found}, not {digest}; it was removed")
    os.replace(part, dest)
    return dest
