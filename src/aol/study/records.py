"""What is kept of a run, once and for good: a small file under the run's own id, with a checksum.

A record that cannot be trusted (cut short, changed, of other settings than its name says) is reported and never used.
Assumes nothing about who wrote it: records come from other processes and other machines.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TypeAlias

from aol.engine.settings import Settings
from aol.records.files import write_atomically

Numbers: TypeAlias = list[float | None]

CURVES = ("test_accuracy", "validation_accuracy", "averaged_accuracy", "train_accuracy", "train_loss")
BY_CLASS = (
    "test_accuracy", "age", "mean_age", "weight", "train_count", "train_loss", "train_margin", "test_loss",
    "test_margin", "test_age",
)  # fmt: skip
_FORMAT = 1


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
            unsmoothed age averaged over all epochs (offline alone: elsewhere it is not there).
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
    try:
        found = json.loads(content)
    except ValueError as error:
        raise DamagedRecordError("it is cut short or no JSON") from error
    if not isinstance(found, dict):
        raise DamagedRecordError("it is no record")
    given = found.pop("sha256", None)
    if given != _checksum(found):
        raise DamagedRecordError("its checksum does not fit its content")
    if found.pop("format", None) != _FORMAT:
        raise DamagedRecordError("it is of another format")
    named = found.pop("id", None)
    try:
        record = Record(**{**found, "settings": Settings(**found["settings"])})
    except (TypeError, ValueError, KeyError) as error:
        raise DamagedRecordError(f"this version of aol cannot read it: {error}") from error
    if not named == record.run_id == run_id:
        raise DamagedRecordError(f"its settings are those of {record.run_id}, not of {run_id}")
    return record


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
            content = self.path(run_id).read_bytes()
        except FileNotFoundError:
            return None
        except IsADirectoryError as error:
            raise DamagedRecordError("it is a folder") from error
        return decoded(content, run_id)

    def put(self, record: Record) -> None:
        """Write a record, whole or not at all, over whatever is there under its id."""
        write_atomically(self.path(record.run_id), encoded(record))

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
