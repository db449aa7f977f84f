"""Reads the pickles of the official CIFAR files safely: numbers, text, lists and arrays only.

Assumes a file small enough for memory. No class of Python or numpy is ever reached: the four names an array
pickle mentions are answered by the stand-ins below, and any other name is refused.
"""

from __future__ import annotations

import math
import pickle
from pathlib import Path
from typing import NoReturn

import numpy as np
import numpy.typing as npt

from aol.data.errors import DataError

_TYPES = frozenset({"u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f4", "f8"})
_ORDERS = frozenset("<>|=")


def _text(value: object) -> str:
    return value.decode("latin1") if isinstance(value, bytes) else str(value)


class _StoredType:
    """Stands in for numpy.dtype: a type code and a byte order."""

    def __init__(self, code: str | bytes, *_: object) -> None:
        if _text(code) not in _TYPES:
            raise pickle.UnpicklingError(f"array of type {_text(code)!r}")
        self.dtype: np.dtype[np.generic] = np.dtype(_text(code))

    def __setstate__(self, state: tuple[object, ...]) -> None:
        if _text(state[1]) not in _ORDERS:
            raise pickle.UnpicklingError(f"byte order {_text(state[1])!r}")
        self.dtype = np.dtype(_text(state[1]) + self.dtype.str[1:])


class _StoredArray:
    """Stands in for numpy.ndarray: shape, type and bytes, checked against each other."""

    def __init__(self) -> None:
        self.array: npt.NDArray[np.generic] = np.zeros(0, np.uint8)

    def __setstate__(self, state: tuple[object, ...]) -> None:
        _, shape, kind, fortran, content = state
        if not (
            isinstance(shape, tuple)
            and all(type(n) is int and n >= 0 for n in shape)
            and isinstance(kind, _StoredType)
            and isinstance(content, bytes)
            and len(content) == math.prod(shape) * kind.dtype.itemsize
        ):
            raise pickle.UnpicklingError("array whose shape, type and bytes disagree")
        self.array = np.frombuffer(content, kind.dtype).reshape(shape, order="F" if fortran else "C")


def _reconstruct(*_: object) -> _StoredArray:
    return _StoredArray()


def _latin1(text: str, encoding: str) -> bytes:
    # How Python 3 writes bytes in protocol 2; any other codec could unpack a bomb.
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"text in {encoding!r}")
    return text.encode("latin1")


_ADMITTED: dict[tuple[str, str], object] = {
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy", "ndarray"): _StoredArray,
    ("numpy", "dtype"): _StoredType,
    ("_codecs", "encode"): _latin1,
}


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> object:
        if (module, name) not in _ADMITTED:
            raise pickle.UnpicklingError(f"{module}.{name}")
        return _ADMITTED[module, name]

    def persistent_load(self, pid: object) -> NoReturn:
        raise pickle.UnpicklingError("a persistent object")


def _plain(value: object) -> object:
    if isinstance(value, _StoredArray):
        return value.array
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if isinstance(value, dict):
        return {_text(k): _plain(v) for k, v in value.items()}
    if value is None or isinstance(value, int | float | str | bytes):
        return value
    raise pickle.UnpicklingError(f"a {type(value).__name__}")


def read_plain_pickle(path: Path) -> dict[str, object]:
    """Read a pickled dict of numbers, text, lists and arrays; anything else is a `DataError` naming the file.

    >>> import os, tempfile
    >>> path = Path(tempfile.mkdtemp()) / "batch"
    >>> _ = path.write_bytes(pickle.dumps({b"labels": [3, 1], b"data": np.eye(2)}, protocol=2))
    >>> read_plain_pickle(path)["labels"]
    [3, 1]
    >>> _ = path.write_bytes(pickle.dumps({"labels": os.getcwd}))
    >>> read_plain_pickle(path)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    aol.data.errors.DataError: ...batch: refused, it holds more than arrays, lists and text (posix.getcwd)
    """
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file")
    try:
        with path.open("rb") as file:
            value = _plain(_PlainUnpickler(file, encoding="bytes").load())
    except OSError:
        raise
    except Exception as reason:  # a damaged pickle can raise nearly anything; all of it means one thing
        damaged = "truncated" in str(reason) or "invalid load key" in str(reason)
        if isinstance(reason, pickle.UnpicklingError) and not damaged:
            raise DataError(f"{path}: refused, it holds more than arrays, lists and text ({reason})") from None
        raise DataError(f"{path}: not a whole pickle ({type(reason).__name__}: {reason})") from None
    if not isinstance(value, dict):
        raise DataError(f"{path}: a dict was expected in the pickle, not a {type(value).__name__}")
    return value
