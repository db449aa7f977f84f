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

Plain = int | float | bool | str | bytes | None | list["Plain"] | dict["Plain", "Plain"] | npt.NDArray[np.generic]

_TYPES = frozenset({"u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f4", "f8"})


class _StoredType:
    """Stands in for numpy.dtype: a type code and a byte order."""

    def __init__(self, code: str | bytes, *_: object) -> None:
        text = code.decode("latin1") if isinstance(code, bytes) else code
        if text not in _TYPES:
            raise pickle.UnpicklingError(f"array of type {text!r}")
        self.code, self.order = text, "="

    def __setstate__(self, state: tuple[object, ...]) -> None:
        order = state[1].decode("latin1") if isinstance(state[1], bytes) else state[1]
        if order not in ("<", ">", "|", "="):
            raise pickle.UnpicklingError(f"byte order {order!r}")
        self.order = str(order)

    def dtype(self) -> np.dtype[np.generic]:
        return np.dtype(self.order + self.code)


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
            and len(content) == math.prod(shape) * kind.dtype().itemsize
        ):
            raise pickle.UnpicklingError("array whose shape, type and bytes disagree")
        flat = np.frombuffer(content, kind.dtype())
        self.array = flat.reshape(shape, order="F" if fortran else "C")


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


def _plain(value: object) -> Plain:
    if isinstance(value, _StoredArray):
        return value.array
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if isinstance(value, dict):
        return {_key(k): _plain(v) for k, v in value.items()}
    if value is None or isinstance(value, int | float | str | bytes):
        return value
    raise pickle.UnpicklingError(f"a {type(value).__name__}")


def _key(key: object) -> str:
    return key.decode("latin1") if isinstance(key, bytes) else str(key)


def read_plain_pickle(path: Path) -> dict[str, Plain]:
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
    try:
        with path.open("rb") as file:
            value = _plain(_PlainUnpickler(file, encoding="bytes").load())
    except pickle.UnpicklingError as reason:
        if "truncated" in str(reason) or "invalid load key" in str(reason):
            raise DataError(f"{path}: not a whole pickle ({reason})") from None
        raise DataError(f"{path}: refused, it holds more than arrays, lists and text ({reason})") from None
    except FileNotFoundError:
        raise FileNotFoundError(f"{path}: no such file") from None
    except OSError:
        raise
    except Exception as reason:  # a damaged pickle can raise nearly anything; all of it means one thing
        raise DataError(f"{path}: not a whole pickle ({type(reason).__name__}: {reason})") from None
    if not isinstance(value, dict):
        raise DataError(f"{path}: a dict was expected in the pickle, not a {type(value).__name__}")
    return {str(k): v for k, v in value.items()}
