"""Streams: one set of indices per step, ascending, which depends only on (seed, step): they can start anywhere."""

from __future__ import annotations

import numbers
from abc import ABC, abstractmethod
from collections.abc import Iterator

import torch
from torch import Tensor

from aol import _check, _seeds
from aol.longtail import keep_per_class, long_tail_counts


class Stream(ABC):
    """Base class: `stream[t]` is step t. After `load_state_dict` the next iteration continues after the last step."""

    def __init__(self, labels: _check.Integers, *, steps: int, seed: int) -> None:
        label, self.num_classes = _check.labels(labels, None)
        self._labels = label.to("cpu", torch.int64, copy=True)
        self.num_samples = label.numel()
        self.steps = _check.whole("steps", steps, 1)
        self.seed = _check.whole("seed", seed, 0)
        self.step = 0
        self._resume = False

    @abstractmethod
    def _indices(self, step: int) -> Tensor:
        """Return the indices of one step."""

    def _permutation(self, size: int, *path: int) -> Tensor:
        return torch.randperm(size, generator=_seeds.generator(self.seed, *path), device="cpu")

    def __len__(self) -> int:
        return self.steps

    def __getitem__(self, step: int) -> Tensor:
        return self._indices(self._step(step))

    def _step(self, step: object) -> int:
        if isinstance(step, bool) or not isinstance(step, numbers.Integral):
            raise TypeError(f"step must be a whole number, not {_check.shown(step)}.")
        if not -self.steps <= int(step) < self.steps:
            raise IndexError(f"step must lie in 0 to {self.steps - 1}, not {step}.")
        return int(step) % self.steps

    def __iter__(self) -> Iterator[Tensor]:
        self.step, self._resume = self.step if self._resume else 0, False
        for step in range(self.step, self.steps):
            self.step = step + 1
            yield self._indices(step)

    def counts(self, step: int) -> Tensor:
        """Return the class counts of a step, `int64 [C]`."""
        return torch.bincount(self._labels[self[step]], minlength=self.num_classes)

    def _settings(self) -> dict[str, object]:
        names = ("num_samples", "num_classes", "steps", "seed")
        return {"kind": type(self).__name__, **{name: getattr(self, name) for name in names}}

    def state_dict(self) -> dict[str, object]:
        """Return the number of steps so far, and the settings."""
        return {**self._settings(), "step": self.step}

    def load_state_dict(self, state: dict[str, object]) -> None:
        """Continue from the state of another stream with the same settings."""
        _check.same_settings(self._settings(), state)
        self.step, self._resume = min(_check.state_value(state, "step", 0), self.steps), True


class LimitedAccess(Stream):
    """Each step shows a uniform random part of the set, without replacement.

    Args:
        labels: the classes of the samples.
        fraction: the part that a step shows, in (0, 1]; `round(N * fraction)` samples, at least one.
        steps: number of steps.
        seed: of the samples.

    >>> stream = LimitedAccess([0] * 40, 0.05, steps=3)
    >>> [len(step) for step in stream]
    [2, 2, 2]
    """

    def __init__(self, labels: _check.Integers, fraction: float, *, steps: int, seed: int = 0) -> None:
        super().__init__(labels, steps=steps, seed=seed)
        self.fraction = _check.number("fraction", fraction, 0.0, 1.0, open_below=True)

    def _indices(self, step: int) -> Tensor:
        size = max(1, round(self.num_samples * self.fraction))
        return self._permutation(self.num_samples, step)[:size].sort().values

    def _settings(self) -> dict[str, object]:
        return {**super()._settings(), "fraction": self.fraction}


class Arrivals(LimitedAccess):
    """In every epoch a uniform random part of the training set arrives. For `SampleAges(absent="grow")`.

    Arguments as in `LimitedAccess`.

    >>> len(Arrivals([0, 1] * 50, 0.1, steps=200)[0])
    10
    """


class ShiftingTail(Stream):
    """A long tail that shifts: a new order of classes every `period` steps, a new subset every step.

    Args:
        labels: the classes of the samples, preferably balanced. The smallest class gives the size of the head.
        imbalance: size of the head over size of the tail, 1 or more.
        period: steps between two orders of the classes.
        steps: number of steps.
        seed: of orders and subsets.

    >>> stream = ShiftingTail(torch.arange(400) % 4, 10, period=2, steps=4)
    >>> [stream.counts(step).tolist() for step in range(4)]
    [[46, 21, 10, 100], [46, 21, 10, 100], [100, 21, 10, 46], [100, 21, 10, 46]]
    """

    def __init__(self, labels: _check.Integers, imbalance: float, *, period: int, steps: int, seed: int = 0) -> None:
        super().__init__(labels, steps=steps, seed=seed)
        self.period = _check.whole("period", period, 1)
        smallest = int(torch.bincount(self._labels, minlength=self.num_classes).min())
        if smallest == 0:
            raise ValueError(f"labels must hold every class from 0 to {self.num_classes - 1}.")
        self._digest = _check.fingerprint(self._labels)
        self._by_rank = long_tail_counts(smallest, self.num_classes, imbalance)
        self.imbalance = float(imbalance)

    def ranks(self, step: int) -> Tensor:
        """Return the ranks of the classes in a step, 0 for the head, `int64 [C]`."""
        turn = self._step(step) // self.period
        return self._permutation(self.num_classes, 0, turn)

    def _indices(self, step: int) -> Tensor:
        counts = self._by_rank[self.ranks(step)]
        return keep_per_class(self._labels, counts, _seeds.generator(self.seed, 1, step))

    def _settings(self) -> dict[str, object]:
        return {**super()._settings(), "labels": self._digest, "imbalance": self.imbalance, "period": self.period}
