"""Training on a stream: one pass over each step's samples; class ages from the samples in memory.

A step: its samples enter the memory → one training pass over them → one clean pass over the memory → ages.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor

from aol.class_ages import ClassAges, Threshold
from aol.lab.engine.loop import Loop
from aol.lab.engine.passes import Trained
from aol.lab.settings import Settings, memory_capacity
from aol.memory import KeepAll, KeepLast, Memory, Reservoir
from aol.streams import LimitedAccess, ShiftingTail


class StreamLoop(Loop):
    """Trains R runs, each on its own stream. "train" readings are of the samples in memory, repeats counted."""

    ages: ClassAges

    def _make_ages(self, rho: Tensor) -> ClassAges:
        self._streams = [_stream(run, self.labels) for run in self.runs]
        self._memories = [_memory(run) for run in self.runs]
        threshold: list[Threshold] = ["median" if run.threshold is None else run.threshold for run in self.runs]
        return ClassAges(self.num_classes, rho=rho, threshold=threshold, device=self.device)

    def fold(self, observed: Tensor) -> None:
        """Fold answers as `Loop` does; the table of the command line says how many thresholds were 0."""
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="The threshold was 0")
            super().fold(observed)

    def _learn(self) -> tuple[Trained, dict[str, Tensor]]:
        shown, signal, size = self._shown(), self.settings.signal, self.labels.numel()
        if signal == "before":
            readings = self.clean_pass(shown, most=size)
            self.fold(shown)

        label = self.labels[shown]
        counts = torch.zeros((len(self.runs), self.num_classes), dtype=torch.int64, device=self.device)
        counts.scatter_add_(1, label, torch.ones_like(label))
        by_class = self.weights.by_class(self.inputs(counts), epoch=self.epoch)
        position = shown.gather(1, self.orders(by_class.gather(1, label)))
        trained = self.train_pass(position, by_class.gather(1, self.labels[position]), counts)

        if signal == "eval":
            readings = self.clean_pass(*self._remembered(), most=size)
        elif signal != "before":
            readings = trained.by_class()
        if signal in ("eval", "train"):
            self.fold(shown)
        if signal != "none":
            readings |= {"age": self.ages.age, "smoothed_age": self.ages.ema}
        return trained, {**readings, "weight": by_class}

    def _shown(self) -> Tensor:
        """Return the samples of this step, `int64 [R, m]`, which enter the memories."""
        shown = torch.stack([stream[self.epoch] for stream in self._streams])
        for memory, indices in zip(self._memories, shown, strict=True):
            memory.add(indices)
        return shown.to(self.device)

    def _remembered(self) -> tuple[Tensor, Tensor]:
        """Return the samples in memory, each once, and how often each is remembered, both `int64 [R, m]`."""
        remembered = torch.stack([memory.counts(self.labels.numel()) for memory in self._memories]).to(self.device)
        known = remembered > 0
        most = int(known.sum(1).max())
        # Remembered samples first; runs with fewer of them are padded with others, which count zero times.
        index = known.to(torch.int8).argsort(dim=1, descending=True, stable=True)[:, :most]
        return index, remembered.gather(1, index)

    def _train_readings(self, by_class: dict[str, Tensor]) -> dict[str, Tensor | float]:
        return {**super()._train_readings(by_class), "threshold": self.ages.threshold}

    def state_dict(self) -> dict[str, Any]:
        """Return networks, optimiser, ages, history and memories."""
        return {**super().state_dict(), "memories": [memory.state_dict() for memory in self._memories]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from the state of another loop of the same runs."""
        super().load_state_dict(state)
        for memory, own in zip(self._memories, state["memories"], strict=True):
            memory.load_state_dict(own)


def _stream(run: Settings, labels: Tensor) -> LimitedAccess | ShiftingTail:
    if run.stream == "access":
        return LimitedAccess(labels, run.fraction, steps=run.epochs, seed=run.seed)
    assert run.imbalance is not None
    return ShiftingTail(labels, run.imbalance, period=run.period, steps=run.epochs, seed=run.seed)


def _memory(run: Settings) -> Memory:
    if capacity := memory_capacity(run.memory):
        return Reservoir(capacity, seed=run.seed)
    return KeepAll() if run.memory == "all" else KeepLast()
