"""Writes the files of a packed set atomically: a file is either complete or as it was before."""

from __future__ import annotations

import os
import zlib
from pathlib import Path

import numpy as np
import numpy.typing as npt


def read_back(path: Path, rows: npt.NDArray[np.void]) -> None:
    """Compare what was written with its index; raise an error if they differ."""
    with path.open("rb") as file:
        for row in rows:
            if zlib.crc32(file.read(int(row["length"]))) != int(row["crc32"]):
                raise OSError(f"{path}: what was written reads back differently")


def write_index(path: Path, rows: npt.NDArray[np.void]) -> int:
    """Write the index of a shard atomically and return its checksum."""
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("wb") as file:
        np.save(file, rows, allow_pickle=False)
        file.flush()
        os.fsync(file.fileno())
    found = zlib.crc32(temporary.read_bytes())
    os.replace(temporary, path)
    return found


def write_whole(path: Path, content: bytes) -> None:
    """Write a file atomically: it is either complete or as it was before."""
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
