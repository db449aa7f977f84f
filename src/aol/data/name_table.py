"""What the records of a packed shard are called where they come from: a JSON list of texts, compressed.

Assumes one table a shard, read as a whole when names are asked for. Neighbouring paths differ by a few letters:
compressed, a path as ImageNet has them takes three to four bytes in place of 36.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from aol.data.errors import DataError

SUFFIX = ".names"
Places: TypeAlias = npt.NDArray[np.int64]


def gathered(index: Sequence[int], ends: Places, read: Callable[[int, Places], list[str]]) -> list[str]:
    """Return the names at positions that are spread over parts; each part is asked once, for some of its rows.

    Part k holds the positions from `ends[k]` to below `ends[k + 1]`.

    >>> gathered([3, 0], np.array([0, 2, 5]), lambda part, rows: [f"{part}:{row}" for row in rows])
    ['1:1', '0:0']
    """
    places = np.asarray(index, dtype=np.int64)
    if places.size and not 0 <= int(places.min()) <= int(places.max()) < int(ends[-1]):
        raise IndexError(f"index must lie in 0 to {int(ends[-1]) - 1}, got {int(places.min())} to {int(places.max())}")
    order = np.argsort(places, kind="stable")
    bounds = np.searchsorted(places[order], ends)
    found = np.empty(len(places), dtype=object)
    for part, (start, end) in enumerate(zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)):
        if start < end:
            mine = order[start:end]
            found[mine] = read(part, places[mine] - ends[part])
    names: list[str] = found.tolist()
    return names


def packed_names(names: Sequence[str]) -> bytes:
    """Return names as the content of a table.

    >>> len(packed_names([f"train/n01440764/n01440764_{number}.JPEG" for number in range(1000)])) < 5000
    True
    """
    return zlib.compress(json.dumps(names, ensure_ascii=False).encode())


def read_names(path: Path, *, records: int, crc32: int) -> list[str]:
    """Read the table of a shard; one that is missing, damaged or of other records is named."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise DataError(f"{path}: no such file; pack the set again for the names of its samples") from None
    if zlib.crc32(content) != crc32:
        raise DataError(f"{path}: damaged, its checksum is not the manifest's; pack the set again")
    try:
        names = json.loads(zlib.decompress(content))
    except (ValueError, zlib.error):
        raise DataError(f"{path}: not a table of names; pack the set again") from None
    if not isinstance(names, list) or len(names) != records or not all(isinstance(name, str) for name in names):
        raise DataError(f"{path}: not the names of {records:,} records; pack the set again")
    return names
