"""The readings of a group of runs, epoch by epoch."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from aol import metrics

# By epoch: one number a run.
EPOCH = (
    "epoch", "lr", "seconds", "images_per_second", "train_loss", "train_accuracy", "test_accuracy",
    "validation_accuracy", "threshold", "prequential_g_mean", "prequential_kappa",
    "test_conflict_accuracy", "test_worst_group",
    *(f"test_{name}" for name in metrics.NAMES),
)  # fmt: skip
# By epoch and class: C numbers a run.
CLASS = (
    "age", "smoothed_age", "weight", "train_count", "train_accuracy", "train_loss",
    "train_margin", "test_accuracy", "test_loss", "test_margin", "test_age", "test_precision", "offset",
)  # fmt: skip


class History:
    """The readings of R runs over E epochs: `[E, R]`, or `[E, R, C]` by class; NaN where not read."""

    def __init__(self, num_runs: int, num_classes: int) -> None:
        self._runs, self._classes = num_runs, num_classes
        self._by_epoch: list[Tensor] = []
        self._by_class: list[Tensor] = []

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
        return torch.stack([row[EPOCH.index(name)] for row in self._by_epoch])

    def by_class(self, name: str) -> Tensor:
        """Return one reading by class over time, `float32 [E, R, C]`."""
        return torch.stack([block[CLASS.index(name)] for block in self._by_class])

    def state_dict(self) -> dict[str, Any]:
        """Return all readings as tensors; None before the first epoch."""
        names = {"by_epoch": self._by_epoch, "by_class": self._by_class}
        return {name: torch.stack(rows) if rows else None for name, rows in names.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over the readings of another history."""
        self._by_epoch, self._by_class = (
            [] if state[name] is None else list(state[name]) for name in ("by_epoch", "by_class")
        )
