"""The readings of a group of runs, epoch by epoch.

`epochs.csv` has a row an epoch, `classes.csv` a row an epoch and class.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

from aol.records.files import extend_atomically
from aol.records.tables import cells, table

# By epoch: one number a run.
EPOCH = (
    "epoch", "lr", "seconds", "images_per_second", "train_loss", "train_accuracy", "test_accuracy",
    "validation_accuracy", "averaged_accuracy", "threshold",
)  # fmt: skip
# By epoch and class: C numbers a run.
CLASS = (
    "age", "smoothed_age", "weight", "train_count", "train_accuracy", "train_loss", "train_margin", "test_accuracy",
    "test_loss", "test_margin", "test_age",
)  # fmt: skip


class History:
    """The readings of R runs over E epochs: `[E, R]`, or `[E, R, C]` by class; NaN where not read."""

    def __init__(self, num_runs: int, num_classes: int) -> None:
        self._runs, self._classes = num_runs, num_classes
        self._by_epoch: list[Tensor] = []
        self._by_class: list[Tensor] = []
        self._written: dict[Path, tuple[int, int]] = {}  # by file: its epochs, its bytes

    def __len__(self) -> int:
        return len(self._by_epoch)

    def add(self, by_epoch: dict[str, Tensor | float], by_class: dict[str, Tensor]) -> None:
        """Add one epoch; readings that are not given are NaN."""
        row = torch.full((len(EPOCH), self._runs), math.nan, dtype=torch.float64)
        for name, value in by_epoch.items():
            row[EPOCH.index(name)] = torch.as_tensor(value, dtype=torch.float64, device="cpu")
        block = torch.full((len(CLASS), self._runs, self._classes), math.nan, dtype=torch.float32)
        for name, values in by_class.items():
            block[CLASS.index(name)] = values.to("cpu", torch.float32)
        self._by_epoch.append(row)
        self._by_class.append(block)

    def epoch(self, name: str) -> Tensor:
        """Return one reading over time, `float64 [E, R]`."""
        return torch.stack(self._by_epoch)[:, EPOCH.index(name)]

    def by_class(self, name: str) -> Tensor:
        """Return one reading by class over time, `float32 [E, R, C]`."""
        return torch.stack(self._by_class)[:, CLASS.index(name)]

    def state_dict(self) -> dict[str, object]:
        """Return all readings as tensors."""
        names = {"by_epoch": self._by_epoch, "by_class": self._by_class}
        return {name: torch.stack(rows) if rows else None for name, rows in names.items()}

    def load_state_dict(self, state: dict[str, object]) -> None:
        """Take over the readings of another history."""
        rows = {name: list(value.cpu().unbind()) if isinstance(value, Tensor) else [] for name, value in state.items()}
        self._by_epoch, self._by_class, self._written = rows["by_epoch"], rows["by_class"], {}

    def write(self, folder: Path, run: int, classes: Sequence[str]) -> None:
        """Write the records of one run: what came since they were last written to this folder."""

        def by_epoch(first: int) -> Iterator[Sequence[str]]:
            for row in self._by_epoch[first:]:
                yield cells(row[:, run].tolist())

        def by_class(first: int) -> Iterator[Sequence[str]]:
            for row, block in zip(self._by_epoch[first:], self._by_class[first:], strict=True):
                epoch = str(int(row[0, run]))
                for place, values in enumerate(block[:, run].T.tolist()):
                    yield epoch, str(place), classes[place], *cells(values)

        if self._by_epoch:
            self._extend(folder / "classes.csv", ("epoch", "class", "name", *CLASS), by_class)
            # Last, so that whoever finds it finds the rest.
            self._extend(folder / "epochs.csv", EPOCH, by_epoch)

    def _extend(self, path: Path, head: Sequence[str], rows: Callable[[int], Iterable[Sequence[str]]]) -> None:
        epochs, size = self._written.get(path, (0, 0))
        if not path.is_file() or path.stat().st_size != size:  # not as it was left: again from the start
            epochs, size = 0, 0
        new = table(rows(epochs) if size else itertools.chain((head,), rows(0)))
        extend_atomically(path, size, new)
        self._written[path] = len(self), size + len(new)
