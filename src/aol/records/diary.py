"""The diary of one run: `epochs.csv` and `classes.csv`, whose columns may come and go while it is written.

Knows numbers and files. `epochs.csv` is written last: what it does not know of has not happened.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from aol.records.files import write_atomically
from aol.records.tables import DamagedRecordsError, Floats, cells, read_classes, read_epochs, table

EPOCHS, CLASSES = "epochs.csv", "classes.csv"


class Diary:
    """Readings by epoch, and by epoch and class.

    >>> diary = Diary(["cat", "dog"])
    >>> diary.add(1, {"test_accuracy": 0.5}, {"age": np.array([1.0, 2.0])})
    >>> diary.epochs, diary.curves("test_accuracy")
    ([1], array([0.5]))
    """

    def __init__(self, classes: Sequence[str]) -> None:
        self.classes = list(classes)
        self.epochs: list[int] = []
        self._curves: list[Mapping[str, float]] = []
        self._by_class: list[Mapping[str, Floats]] = []
        self._columns: list[str] = []
        self._text: list[bytes] = []  # of classes.csv, by epoch: a thousand classes are slow to write out again

    def add(self, epoch: int, curves: Mapping[str, float], by_class: Mapping[str, Floats]) -> None:
        """Note an epoch: numbers by name, and C numbers by name."""
        self.epochs.append(epoch)
        self._curves.append(curves)
        self._by_class.append(by_class)

    def cut(self, epoch: int) -> None:
        """Forget what came after an epoch."""
        kept = sum(each <= epoch for each in self.epochs)
        for rows in (self.epochs, self._curves, self._by_class, self._text):
            del rows[kept:]

    def curves(self, name: str) -> Floats:
        """Return one reading by epoch, `float64 [E]`, NaN where it was not taken."""
        return np.array([row.get(name, np.nan) for row in self._curves], dtype=np.float64)

    def total(self, name: str) -> list[int]:
        """Return the sum over epochs of a count by class."""
        found = [row[name] for row in self._by_class if name in row]
        return np.nansum([np.zeros(len(self.classes)), *found], axis=0).astype(int).tolist()  # type: ignore[no-any-return]

    def write(self, folder: Path) -> None:
        """Write both tables."""
        columns = list(dict.fromkeys(name for row in self._by_class for name in row))
        if columns != self._columns:
            self._columns, self._text = columns, []
        for place in range(len(self._text), len(self.epochs)):
            self._text.append(self._rows(place))
        head = table([("epoch", "class", "name", *columns)])
        write_atomically(folder / CLASSES, b"".join([head, *self._text]))
        names = list(dict.fromkeys(name for row in self._curves for name in row))
        rows = [[str(epoch), *cells(row.get(name, np.nan) for name in names)] for epoch, row in self._pairs()]
        write_atomically(folder / EPOCHS, table([["epoch", *names], *rows]))

    def _pairs(self) -> Sequence[tuple[int, Mapping[str, float]]]:
        return list(zip(self.epochs, self._curves, strict=True))

    def _rows(self, place: int) -> bytes:
        unknown = np.full(len(self.classes), np.nan)
        values = np.stack([unknown, *(self._by_class[place].get(name, unknown) for name in self._columns)], axis=1)
        epoch = str(self.epochs[place])
        return table([epoch, str(c), name, *cells(values[c, 1:])] for c, name in enumerate(self.classes))


def read_diary(folder: Path, classes: Sequence[str]) -> Diary:
    """Read the diary of a run to go on with it; an empty one where there is none."""
    diary = Diary(classes)
    if not (folder / EPOCHS).is_file():
        return diary
    curves = read_epochs(folder / EPOCHS)
    names, by_class = read_classes(folder / CLASSES)
    epochs = curves.pop("epoch").astype(int).tolist()
    known = by_class.pop("epoch")[:, 0].astype(int).tolist()
    if names != diary.classes:
        raise DamagedRecordsError(f"{folder} holds records of other classes: choose another folder.")
    if known[: len(epochs)] != epochs:
        raise DamagedRecordsError(f"{folder}: {EPOCHS} and {CLASSES} do not fit together.")
    for place, epoch in enumerate(epochs):
        row = {name: float(values[place]) for name, values in curves.items()}
        diary.add(epoch, row, {name: values[place] for name, values in by_class.items()})
    return diary
