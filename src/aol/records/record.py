"""The record of one run: what it was, and what was measured, in one file that is replaced as a whole.

`run.json` is a JSON object with a checksum. Numbers by epoch and by class are lists; readings by epoch *and* class are
compressed arrays (see `compact`). Nothing is assumed about who wrote a file: whatever is read is checked first.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import platform
import re
import subprocess
import warnings
import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import lru_cache, partial
from itertools import chain
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Any, TypeAlias, get_args, get_origin, get_type_hints

import numpy as np
import numpy.typing as npt

from aol._files import read_regular, write_atomically
from aol._values import printable, shown
from aol._version import __version__

if TYPE_CHECKING:
    import torch

Json: TypeAlias = "str | float | int | bool | list[Json] | dict[str, Json] | None"
Only: TypeAlias = Mapping[str, Collection[str]]  # names of readings by their kind: curves, by_class, over_time
Value: TypeAlias = str | float | int | bool | None
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Matrix = npt.NDArray[np.float32]

FILE = "run.json"
PACKED = "runs.jsonl"  # of a store: the records of many runs, line by line
_FIRST = re.compile(rb'\{"format":\d+,"id":"([0-9a-f]{1,64})"')
FORMAT = 3
LARGEST = 96 * 2**20  # bytes of a record: 8,000 classes over 300 epochs, every reading, take about 70 MB
_LARGEST_NUMBER = 1e300
MOST_SETTINGS = 1000  # of a run: they are columns of the frame
_ROOM = 16 * 2**20  # bytes that readings by epoch and class of any record may take; else at most 16 times its file
_CHECKSUM = b',"sha256":"'  # the last item of the file: the hash of everything before it


class DamagedRunError(ValueError):
    """A record that must not be used; the message names the file and says why."""


@dataclass
class Run:
    """What is kept of one run. E epochs are done, of C classes; NaN where nothing was measured, None where unknown."""

    id: str  # of a run of the engine it follows from the settings
    method: str  # what was done about the imbalance, in a few words; the same for all seeds
    seed: int | None
    settings: dict[str, Value]
    classes: list[str]
    counts: list[int] | None  # training samples by class
    epochs: Ints  # the epochs that are done, counted from one, int64 [E]
    curves: dict[str, Floats] = field(default_factory=dict)  # by epoch, float64 [E]: test_accuracy, train_loss …
    # By class, of the last epoch, float64 [C]: test_accuracy, age, weight …; over all: mean_age.
    by_class: dict[str, Floats] = field(default_factory=dict)
    over_time: dict[str, Matrix] = field(default_factory=dict)  # by epoch and class, float32 [E, C]
    planned: int | None = None  # how many epochs there will be
    finished: bool = False
    failed_at_epoch: int | None = None  # in which the loss was not finite
    seconds: float | None = None  # of training, divided by the number of runs trained together
    trained_together: int = 1  # how many runs were trained as one network
    stacking: str | None = None  # how they became one: grouped or alone (in 0.2 also others)
    versions: dict[str, str] = field(default_factory=dict)  # as `versions` returns them
    command: str | None = None  # what to type to repeat the run
    data: str | None = None  # the data set's name or folder, where `aol` can open it
    baseline: str | None = None  # the method of the runs that this one is compared with

    def first(self, epochs: int) -> Run:
        """Return the record as it was after so many epochs."""
        if epochs >= len(self.epochs):
            return self
        over_time = {name: values[:epochs] for name, values in self.over_time.items()}
        curves = {name: values[:epochs] for name, values in self.curves.items()}
        by_class = by_class_of(over_time) if epochs else {}
        return replace(self, epochs=self.epochs[:epochs], curves=curves, by_class=by_class, over_time=over_time)


_ARRAYS = ("epochs", "curves", "by_class", "over_time")  # JSON has the other fields as they are


def by_class_of(readings: Mapping[str, Matrix | Floats]) -> dict[str, Floats]:
    """Return the readings by class of a record from those over time `[E, C]`: the last epoch's, and the mean age."""
    by_class = {name: values[-1].astype(np.float64) for name, values in readings.items()}
    return by_class | ({"mean_age": nan_mean(readings["age"].astype(np.float64))} if "age" in readings else {})


def nan_mean(values: Sequence[Floats] | Floats | Matrix) -> Floats:
    """Return the mean over the first dimension without NaNs; of nothing it is NaN."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return np.asarray(np.nanmean(values, axis=0))


def numbers(values: npt.ArrayLike, digits: int = 7) -> list[Json]:
    """Return numbers as JSON has them, with so many significant digits; None for those not finite, or above 1e300."""
    flat = np.asarray(values, dtype=np.float64).tolist()
    return [float(f"{value:.{digits}g}") if abs(value) <= _LARGEST_NUMBER else None for value in flat]


def compact(values: npt.ArrayLike, *, level: int = 6) -> str:
    """Return an array as text: float32 with 16 significant bits, bytes grouped by place, zlib, base64.

    The relative error is below 2 ** -16, and whole numbers up to 65,536 are exact.

    >>> expand(compact([[1.0, 2.5], [float("nan"), 100.0]]), (2, 2)).tolist()
    [[1.0, 2.5], [nan, 100.0]]
    """
    exact = np.ascontiguousarray(values, dtype="<f4")
    bits = np.where(np.isfinite(exact), exact, np.float32(np.nan)).view("<u4")
    rounded = np.where(np.isfinite(exact), (bits + 0x7F + ((bits >> 8) & 1)) & 0xFFFFFF00, bits).astype("<u4")
    planes = rounded.view(np.uint8).reshape(-1, 4).T.tobytes()
    return base64.b64encode(zlib.compress(planes, level)).decode()


def expand(text: str, shape: tuple[int, int]) -> Matrix:
    """Return the array that `compact` made into text; ValueError if it is not of this shape."""
    size, unpack = 4 * shape[0] * shape[1], zlib.decompressobj()
    try:
        planes = unpack.decompress(base64.b64decode(text, validate=True), size + 1)
    except (ValueError, zlib.error) as error:
        raise ValueError(f"it cannot be decompressed: {error}") from error
    if len(planes) != size or not unpack.eof:
        raise ValueError(f"it is not of the shape {list(shape)}")
    return np.frombuffer(planes, np.uint8).reshape(4, -1).T.copy().view("<f4").reshape(shape).astype(np.float32)


def encode(run: Run) -> bytes:
    """Return a record as the content of its file."""
    level = 6 if run.finished else 1  # what is soon written again is compressed quickly
    content: dict[str, object] = {
        "format": FORMAT,
        **{name: value for name, value in vars(run).items() if name not in _ARRAYS},
        "epochs": np.asarray(run.epochs, dtype=np.int64).tolist(),
    }
    for kind, as_json in (("curves", numbers), ("by_class", numbers), ("over_time", partial(compact, level=level))):
        known = {name: values for name, values in getattr(run, kind).items() if not np.isnan(values).all()}
        content[kind] = {name: as_json(values) for name, values in known.items()}
    # ASCII: a path that is not valid UTF-8 becomes an escape, which is read back as it was.
    body = json.dumps(content, separators=(",", ":"), allow_nan=False).encode()
    return body[:-1] + _CHECKSUM + hashlib.sha256(body).hexdigest().encode() + b'"}\n'


def decode(content: bytes, only: Only | None = None) -> Run:
    """Return the record that a file holds, with `only` some readings; `DamagedRunError` says what is wrong with it."""
    head, _, tail = content.rstrip().rpartition(_CHECKSUM)
    try:
        given = json.loads(head + b"}" if head else content)
    except (ValueError, RecursionError) as error:
        raise DamagedRunError("it is incomplete or not JSON") from error
    _require(isinstance(given, dict) and "format" in given, "it is not the record of a run")
    version = given.pop("format")
    _require(version == FORMAT, f"it has format {shown(version)} of another version of aol; this one reads {FORMAT}")
    digest = hashlib.sha256(head + b"}").hexdigest()
    _require(tail == f'{digest}"}}'.encode(), "its checksum does not match its content")
    _check(given)
    shape = (len(given["epochs"]), len(given["classes"]))
    size = 4 * shape[0] * shape[1] * len(given["over_time"])
    _require(size <= max(_ROOM, 16 * len(content)), "its readings by epoch and class would be far larger than its file")
    for kind, names in (only or {}).items():
        given[kind] = {name: values for name, values in given[kind].items() if name in names}
    given["curves"], given["by_class"] = _floats(given, "curves", shape[0]), _floats(given, "by_class", shape[1])
    for name, text in given["over_time"].items():
        try:
            given["over_time"][name] = values = expand(text, shape)
        except ValueError as error:
            raise DamagedRunError(f"over_time, {name}: {error}") from error
        _require(not (why := impossible(name, values)), f"over_time, {name}: {why}")
    given["settings"] = {printable(name): value for name, value in given["settings"].items()}
    given["epochs"] = np.asarray(given["epochs"], dtype=np.int64)
    return Run(**given | {"method": printable(given["method"]), "classes": list(map(printable, given["classes"]))})


def _require(fits: bool, text: str) -> None:
    if not fits:
        raise DamagedRunError(text)


def _types(hint: Any) -> tuple[set[type], set[type]]:
    """Return the types of a field, and those of its items."""
    hints = get_args(hint) if isinstance(hint, UnionType) else (hint,)
    items = [item for one in hints for item in get_args(one)[-1:]]
    types = {get_origin(one) or one for one in hints}
    return types | ({int} if float in types else set()), {one for item in items for one in get_args(item) or (item,)}


# By the name of a value in JSON: its types, and those of its items.
_TYPES = {name: _types(hint) for name, hint in get_type_hints(Run).items()} | {
    "epochs": ({list}, {int}), "curves": ({dict}, {list}), "by_class": ({dict}, {list}), "over_time": ({dict}, {str}),
}  # fmt: skip
MOST = {int: 2**63 - 1, float: _LARGEST_NUMBER}


def _check(given: dict[str, Any]) -> None:
    """Raise if any value is not of the type that `encode` writes: everything after this relies on the types."""
    if wrong := _TYPES.keys() ^ given.keys():
        raise DamagedRunError(f"it has no {min(wrong)!r}, or should not have it")
    for name, (types, of_items) in _TYPES.items():
        value = given[name]
        items = list(value.values() if isinstance(value, dict) else value if isinstance(value, list) else ())
        fits = type(value) in types and set(map(type, items)) <= of_items
        fits = fits and all(abs(item) <= MOST[type(item)] for item in (value, *items) if type(item) in MOST)
        _require(fits, f"{name} has a value of another type or size than aol writes")
    epochs, counts, classes = given["epochs"], given["counts"], given["classes"]
    _require(len(given["settings"]) <= MOST_SETTINGS, f"settings are more than {MOST_SETTINGS}")
    _require(bool(given["id"] and given["method"] and classes), "id, method and classes must not be empty")
    _require(given["id"].isprintable(), "id must be text without control characters")
    increasing = epochs == sorted(set(epochs)) and (not epochs or (epochs[0] >= 1 and epochs[-1] <= 10**12))
    _require(increasing, "epochs must be whole numbers from 1 to 10 ** 12 that increase")
    counted = counts is None or (len(counts) == len(classes) and min(counts) >= 0)
    _require(counted, "counts must be whole numbers of 0 or more, one a class")


def _floats(given: dict[str, Any], kind: str, size: int) -> dict[str, Floats]:
    """Return lists of possible numbers as arrays, None as NaN."""
    lists: dict[str, list[Any]] = given[kind]
    fits = set(map(len, lists.values())) <= {size}  # of all at once, which is faster
    fits = fits and set(map(type, chain.from_iterable(lists.values()))) <= {int, float, type(None)}
    _require(fits, f"{kind} must be {size} numbers each")
    try:
        table = np.array(list(lists.values()), dtype=np.float64).reshape(len(lists), size)
    except OverflowError as error:
        raise DamagedRunError(f"it has a number above {_LARGEST_NUMBER}") from error
    ends = np.fmin.reduce(table, 1, initial=0.0).tolist(), np.fmax.reduce(table, 1, initial=0.0).tolist()
    for name, low, high in zip(lists, *ends, strict=True):
        _require(-_LARGEST_NUMBER <= low <= high <= _LARGEST_NUMBER, f"it has a number above {_LARGEST_NUMBER}")
        _require(not (why := _outside(name, low, high)), f"{kind}, {name}: {why}")
    return dict(zip(lists, table, strict=True))


def impossible(name: str, values: Floats | Matrix) -> str:
    """Return what values of this name must be, if they are not; else an empty text."""
    return _outside(name, np.fmin.reduce(values, None, initial=0.0), np.fmax.reduce(values, None, initial=0.0))


def _outside(name: str, low: float, high: float) -> str:
    if (name.endswith("accuracy") or name == "test_precision") and (low < 0.0 or high > 1.0):
        return "must be a fraction from 0 to 1"
    if name.rpartition("_")[2] in ("age", "weight", "count", "seconds") and low < 0.0:
        return "must be 0 or more"
    return ""


def write_run(folder: Path, run: Run) -> None:
    """Write a run's record into its folder."""
    write_atomically(folder / FILE, encode(run))


def read_run(folder: Path, only: Only | None = None) -> Run:
    """Read the record of a run from its folder or packed store; `DamagedRunError` names the file and says why not."""
    try:
        return decode(content_of(folder), only)
    except DamagedRunError as error:
        own, packed = folder / FILE, f"{folder.parent.parent / PACKED}, {folder.name}"
        raise DamagedRunError(f"{own if os.path.lexists(own) else packed}: {error}.") from error


def content_of(folder: Path) -> bytes:
    """Return the bytes of the record in a run's folder, which need not be there if the store is packed."""
    try:
        return read_regular(folder / FILE, LARGEST)
    except (FileNotFoundError, NotADirectoryError):
        if line := packed_runs(folder.parent.parent / PACKED).get(folder.name):
            return line
        raise
    except OSError as error:
        raise DamagedRunError(f"it cannot be read: {error.strerror}") from error


def packed_runs(path: Path) -> dict[str, bytes]:
    """Return the lines of a file of records by the run's id; those that are no records have one name together."""
    state = path.stat() if path.is_file() else None
    return {} if state is None else _lines(path, state.st_mtime_ns, state.st_size)


@lru_cache(maxsize=8)
def _lines(path: Path, changed: int, size: int) -> dict[str, bytes]:
    lines = [(_FIRST.match(line), line) for line in path.read_bytes().splitlines(keepends=True)]
    return {named[1].decode() if named else "a line without a record": line for named, line in lines}


def versions(device: torch.device) -> dict[str, str]:
    """Return what results depend on besides the settings, and when that was."""
    import torch

    name = torch.cuda.get_device_name(device) if device.type == "cuda" else f"{platform.machine()} CPU"
    own = {"aol": __version__, "torch": torch.__version__, "python": platform.python_version(), "device": name}
    own["date"] = datetime.now(UTC).isoformat(timespec="seconds")
    return own | ({"commit": commit} if (commit := _commit()) else {})


@lru_cache(maxsize=1)
def _commit() -> str | None:
    """Return the commit of aol where it runs from a checkout."""
    root = Path(__file__).parents[3]
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        words = ["git", "-C", str(root), "rev-parse", "HEAD"]
        if (root / ".git").exists():
            return subprocess.run(words, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    return None
