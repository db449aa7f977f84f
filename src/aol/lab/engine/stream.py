"""Training on a stream: one pass over each step's samples; class ages from the samples in memory.

A step: its samples enter the memory → one training pass over them → one clean pass over the memory → ages.
"""

from __future__ import annotations

import torch
from torch import Tensor

from aol import _check, _distributed
from aol.ages import ClassAges
from aol.ages.stream import Threshold
from aol.lab.engine.loop import Loop
from aol.lab.engine.passes import Trained
from aol.lab.engine.run_margins import RunMargins
from aol.lab.settings import Settings, memory_capacity
from aol.memory import KeepAll, KeepLast, Memory, Reservoir
from aol.streams import LimitedAccess, ShiftingTail


class StreamLoop(Loop):
    """Trains R runs, each on its own stream. "train" readings are of the samples in memory, repeats counted."""

    ages: ClassAges

    def _start(self) -> None:
        runs, device = self.runs, self.device
        threshold: list[Threshold] = ["median" if run.threshold is None else run.threshold for run in runs]
        rho = torch.tensor([run.rho for run in runs])
        self.ages = ClassAges(self.num_classes, rho=rho, threshold=threshold, device=device)
        self.ages._warned = True  # the table of the command line says how many thresholds were 0
        self.margins = RunMargins(runs, self.num_classes, None, device)
        self._streams = [_stream(run, self.labels) for run in runs]
        self._memories = [_memory(run, self.labels.numel()) for run in runs]

    def _learn(self) -> tuple[Trained, dict[str, Tensor]]:
        shown = torch.stack([stream[self.epoch] for stream in self._streams])
        for memory, indices in zip(self._memories, shown, strict=True):
            memory.add(indices)
        shown = shown.to(self.device)
        label = self.labels[shown]
        signal = self.settings.signal
        if signal == "before":
            readings = self._evaluate_train(shown)
            self._advance()
        counts = torch.zeros((len(self.runs), self.num_classes), dtype=torch.int64, device=self.device)
        counts.scatter_add_(1, label, torch.ones_like(label))
        age, error = self.ages.class_weight, self.error_rates.class_weight
        by_class = self.weights.by_class(counts, age, error, epoch=self.epoch)
        order = self._orders(by_class.gather(1, label), self.epoch)
        position = shown.gather(1, order)
        weight = by_class.gather(1, self.labels[position]).masked_fill(self.weights.resampled, 1.0)

        self._set_offsets(counts)
        trained = self._train_on(self.pool.gather(1, position), position, weight)
        if signal in ("train", "none"):
            readings = trained.by_class()
        if signal == "eval":
            readings = self._evaluate_train(*self._remembered())
        if signal in ("eval", "train"):
            self._advance()
        if signal != "none":
            readings |= {"age": self.ages.age, "smoothed_age": self.ages.ema}
        return trained, {**readings, "weight": by_class}

    def _remembered(self) -> tuple[Tensor, Tensor]:
        """Return the samples in memory, each once, and how often each is remembered, both `int64 [R, m]`."""
        remembered = torch.stack([memory.counts(self.labels.numel()) for memory in self._memories]).to(self.device)
        known = remembered > 0
        most = int(known.sum(1).max())
        # Remembered samples first; runs with fewer of them are padded with others, which count zero times.
        index = known.to(torch.int8).argsort(dim=1, descending=True, stable=True)[:, :most]
        return index, remembered.gather(1, index)

    def _evaluate_train(self, index: Tensor, times: Tensor | None = None) -> dict[str, Tensor]:
        """Classify samples `index [R, m]`, unaugmented, each counted `times`, and update the ages."""
        evaluated = self._evaluate("train", self.pool.gather(1, index), times, most=self.labels.numel())
        rank, world = _distributed.world()
        mine = index[:, rank::world]
        own_times = None if times is None else times[:, rank::world]
        self._observe_batch(mine, self.labels[mine], evaluated.correct, evaluated.predicted, own_times)
        return {"train_count": evaluated.count, **evaluated.by_class("train")}

    def _train_readings(self, by_class: dict[str, Tensor]) -> dict[str, Tensor | float]:
        return {**super()._train_readings(by_class), "threshold": self.ages.threshold}

    def state_dict(self) -> dict[str, object]:
        """Return networks, optimiser, ages, history and memories."""
        return {**super().state_dict(), "memories": [memory.state_dict() for memory in self._memories]}

    def load_state_dict(self, state: dict[str, object]) -> None:
        """Continue from the state of another loop of the same runs."""
        super().load_state_dict(state)
        saved, size = state.get("memories"), self.labels.numel()
        if not isinstance(saved, list) or len(saved) != len(self._memories):
            raise _check.damaged("the loop", "memories", f"must be {len(self._memories)} memories")
        for memory, one in zip(self._memories, saved, strict=True):
            memory.load_state_dict(one)
            _check.within("memories", memory.indices, size, "samples of the stream")


def _stream(run: Settings, labels: Tensor) -> LimitedAccess | ShiftingTail:
    if run.stream == "access":
        return LimitedAccess(labels, run.fraction, steps=run.epochs, seed=run.seed)
    assert run.imbalance is not None
    return ShiftingTail(labels, run.imbalance, period=run.period, steps=run.epochs, seed=run.seed, profile=run.profile)


def _memory(run: Settings, num_samples: int) -> Memory:
    if capacity := memory_capacity(run.memory):
        return Reservoir(capacity, seed=run.seed)
    return KeepAll(num_samples) if run.memory == "all" else KeepLast()
