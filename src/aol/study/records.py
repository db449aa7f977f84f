"""What is kept of a run, once and for good: a small file under the run's own id, with a checksum.

A record that cannot be trusted (cut short, changed, of other settings than its name says, or with what no run of its
settings can have written) is reported and never used.
Assumes nothing about who wrote it: records come from other processes and other machines.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import stat
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TypeAlias

from aol.engine.settings import Settings
from aol.records.files import sweep, usable, write_atomically
from aol.study.faults import fault

Numbers: TypeAlias = list[float | None]

CURVES = ("test_accuracy", "validation_accuracy", "averaged_accuracy", "train_accuracy", "train_loss")
BY_CLASS = (
    "test_accuracy", "age", "mean_age", "weight", "train_count", "train_loss", "train_margin", "test_loss",
    "test_margin", "test_age",
)  # fmt: skip
# The most bytes of a record. Most have some 10 kB; 8,000 classes kept over 300 epochs have 20 MB.
LARGEST = 32 * 2**20
_FORMAT = 1
_NESTED = "it is nested too deeply for a record"


class DamagedRecordError(ValueError):
    """A record that must not be used; the message says why."""


@dataclass(frozen=True)
class Record:
    """What is kept of one run.

    Args:
        settings: all of them; `settings.run_id` names the record.
        curves: by epoch, one number for each of the run's epochs, None where nothing was read: "test_accuracy",
            "train_accuracy", "train_loss" and, where they were asked for, "validation_accuracy", "averaged_accuracy".
        by_class: readings of the last epoch, a number a class: "test_accuracy", "age" (smoothed), "weight",
            "train_count", "train_loss", "train_margin", "test_loss", "test_margin", "test_age"; and "mean_age", the
            unsmoothed age averaged over all epochs (not where samples arrive: there it cannot be told).
        versions: of aol, torch and Python, and the device.
        seconds: time of training, over the number of runs trained together.
        trained_together: how many runs were trained as one.
        failed_at_epoch: the epoch, counted from one, whose loss was not finite; None if all went well.
        over_time: readings by class of every epoch, `[epoch][class]`, where the study keeps them: "age", unsmoothed.
    """

    settings: Settings
    curves: dict[str, Numbers]
    by_class: dict[str, Numbers]
    versions: dict[str, str]
    seconds: float
    trained_together: int
    failed_at_epoch: int | None = None
    over_time: dict[str, list[Numbers]] = field(default_factory=dict)

    @property
    def run_id(self) -> str:
        """The record's name."""
        return self.settings.run_id


def rounded(values: Iterable[float], digits: int = 6) -> Numbers:
    """Return numbers with so many significant digits, None for those that are not finite.

    >>> rounded([0.123456789, float("nan"), 7.0])
    [0.123457, None, 7.0]
    """
    return [float(f"{value:.{digits}g}") if math.isfinite(value) else None for value in values]


def encoded(record: Record) -> bytes:
    """Return a record as the text of its file: one line of JSON with its checksum."""
    content = {"format": _FORMAT, "id": record.run_id, **asdict(record)}
    content["settings"] = record.settings.as_dict()
    return (
        json.dumps({**content, "sha256": _checksum(content)}, separators=(",", ":"), allow_nan=False) + "\n"
    ).encode()


def decoded(content: bytes, run_id: str) -> Record:
    """Return the record of a file; one that is not exactly what was written is a `DamagedRecordError`."""
    found = _verified(content)
    if found.pop("format", None) != _FORMAT:
        raise DamagedRecordError("it is of another format")
    named = found.pop("id", None)
    try:
        record = Record(**{**found, "settings": Settings(**found["settings"])})  # type: ignore[arg-type]
    except (TypeError, ValueError, KeyError) as error:
        raise DamagedRecordError(f"this version of aol cannot read it: {str(error).rstrip('.')}") from error
    if not named == record.run_id == run_id:
        raise DamagedRecordError(f"its settings are those of {record.run_id}, not of {run_id}")
    if wrong := fault(found, record.settings):
        raise DamagedRecordError(wrong)
    return record


def _verified(content: bytes) -> dict[str, object]:
    """Return what a file says, if its checksum fits."""
    try:
        found = json.loads(content)
    except RecursionError as error:
        raise DamagedRecordError(_NESTED) from error
    except ValueError as error:
        raise DamagedRecordError("it is cut short or no JSON") from error
    if not isinstance(found, dict):
        raise DamagedRecordError("it is no record")
    given = found.pop("sha256", None)
    try:
        fits = given == _checksum(found)
    except RecursionError as error:
        raise DamagedRecordError(_NESTED) from error
    except ValueError as error:  # NaN, Infinity and 1e999 are read, and never written
        raise DamagedRecordError("it has a number that is not finite") from error
    if not fits:
        raise DamagedRecordError("its checksum does not fit its content")
    return found


def content_of(path: Path) -> bytes:
    """Return the bytes of a record's file; what cannot be a record is a `DamagedRecordError`, and is not read."""
    try:
        found = path.stat()
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise DamagedRecordError("it is a link to itself") from error
    if stat.S_ISDIR(found.st_mode):
        raise DamagedRecordError("it is a folder")
    if not stat.S_ISREG(found.st_mode):  # to read from a pipe would be to wait
        raise DamagedRecordError("it is no regular file")
    check_size(found.st_size)
    return path.read_bytes()


def check_size(size: int) -> None:
    """Refuse so many bytes if no record has as many."""
    if size > LARGEST:
        raise DamagedRecordError(f"it has {size:,} bytes, and a record at most {LARGEST:,}")


def _checksum(content: object) -> str:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


class Store:
    """The records of a folder, `FOLDER/records/ID.json`. Reading makes no folder; several processes may write.

    >>> import tempfile
    >>> store = Store(tempfile.mkdtemp())
    >>> store.get("0123456789ab") is None, list(store), store.damaged()
    (True, [], [])
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)

    def path(self, run_id: str) -> Path:
        """Return where the record of a run lies, or would lie."""
        return self.folder / "records" / f"{run_id}.json"

    def get(self, run_id: str) -> Record | None:
        """Return a run's record; None where there is none, or one that is damaged."""
        try:
            return self.read(run_id)
        except DamagedRecordError:
            return None

    def read(self, run_id: str) -> Record | None:
        """Return a run's record or None; a damaged one is a `DamagedRecordError` that says why."""
        try:
            content = content_of(self.path(run_id))
        except FileNotFoundError:
            return None
        return decoded(content, run_id)

    def prepare(self) -> None:
        """Make the folder; one that cannot be written to is an `UnusableFolderError`, before any work is done."""
        records = self.folder / "records"
        with usable(self.folder):
            records.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=records).close()  # a folder that is there says nothing of writing

    def put(self, record: Record) -> None:
        """Write a record, whole or not at all, over whatever is there under its id; a folder is moved aside."""
        path = self.path(record.run_id)
        if path.is_dir() and not path.is_symlink():
            os.replace(path, tempfile.mkdtemp(prefix=f"{path.name}.", dir=path.parent))
        write_atomically(path, encoded(record))

    def sweep(self, run_id: str) -> None:
        """Remove what a process left that was killed while it wrote this record; only for who holds the run."""
        sweep(self.folder / "records", f"{run_id}.json")

    def ids(self) -> list[str]:
        """Return the ids of all records, damaged ones too, in order."""
        return sorted(path.stem for path in (self.folder / "records").glob("*.json"))

    def __iter__(self) -> Iterator[Record]:
        """Yield every record that is whole."""
        for run_id in self.ids():
            record = self.get(run_id)
            if record is not None:
                yield record

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def damaged(self, among: Sequence[str] | None = None) -> list[tuple[Path, str]]:
        """Return the files that are no whole records, each with the reason; of these ids, or of all."""
        found = []
        for run_id in self.ids() if among is None else among:
            try:
                self.read(run_id)
            except DamagedRecordError as error:
                found.append((self.path(run_id), str(error)))
        return found
