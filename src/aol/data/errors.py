"""Errors of data: one sentence that names the file or the argument.

Optional packages are imported by `need`, which says how to install a missing one.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType


class DataError(ValueError):
    """Data that cannot be trained on: the message names the file and what is wrong with it.

    >>> raise DataError("cat/3.png: not an image")
    Traceback (most recent call last):
    ...
    aol.data.errors.DataError: cat/3.png: not an image
    """


def need(module: str, *, package: str, extra: str, why: str) -> ModuleType:
    """Import an optional module, or say in one sentence what to install.

    >>> need("zlib", package="zlib", extra="images", why="checksums").crc32(b"aol")
    271917598
    >>> need("no_such_module", package="nosuch", extra="images", why="decoding")
    Traceback (most recent call last):
    ...
    ModuleNotFoundError: decoding needs nosuch, which is not installed: pip install '.[images]' in a checkout of aol
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as missing:
        if missing.name is not None and missing.name.split(".")[0] != module.split(".")[0]:
            raise  # the package is there but one of its own requirements is not: say that instead
        raise ModuleNotFoundError(
            f"{why} needs {package}, which is not installed: pip install '.[{extra}]' in a checkout of aol",
            name=missing.name,
        ) from None
