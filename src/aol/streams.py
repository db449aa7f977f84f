"""Index sets over time. A step is a function of (seed, step) alone, so that a stream can start anywhere.

Streams hand out indices into the labels they were given, ascending, as `int64` tensors.
"""

from __future__ import annotations

import numbers
from abc import ABC, abstractmethod
from collections.abc import Iterator

import torch
from torch import Tensor

from aol import _check, _seeds
from aol.longtail import keep_per_class, long_tail_counts


class Stream(ABC):
    """What every stream can do: iterate from the start, look at any step, stop and go on anywhere.

    `stream[t]` is step t. After `load_state_dict` the next iteration goes on behind the last step handed out; later
    ones start from the front again.
    """

    def __init__(self, labels: _check.Integers, *, steps: int, seed: int) -> None:
        found, self.num_classes = _check.labels(labels, None, torch.device("cpu"))
        self._labels = found
        self.num_samples = found.numel()
        self.steps = _check.whole("steps", steps, 1)
        self.seed = _seeds.seed(seed)
        self.step = 0
        self._resume = False

    @abstractmethod
    def _indices(self, step: int) -> Tensor:
        """Return the indices of one step."""

    def __len__(self) -> int:
        return self.steps

    def __getitem__(self, step: int) -> Tensor:
        return self._indices(self._step(step))

    def _step(self, step: object) -> int:
        """Return a step as counted from the front."""
        if isinstance(step, bool) or not isinstance(step, numbers.Integral):
            raise TypeError(f"step must be a whole number, not {_check.shown(step)}.")
        found = int(step)
        if not -self.steps <= found < self.steps:
            raise IndexError(f"step must lie in 0 to {self.steps - 1}, not {found}.")
        return found % self.steps

    def __iter__(self) -> Iterator[Tensor]:
        start = self.step if self._resume else 0
        self._resume = False
        self.step = start
        for step in range(start, self.steps):
            self.step = step + 1
            yield self._indices(step)

    def counts(self, step: int) -> Tensor:
        """Return how many samples of each class a step shows, `int64 [C]`."""
        return torch.bincount(self._labels[self[step]], minlength=self.num_classes)

    def _settings(self) -> dict[str, object]:
        settings = {
            "kind": type(self).__name__,
            "num_samples": self.num_samples,
            "num_classes": self.num_classes,
        }
        return {**settings, "steps": self.steps, "seed": self.seed}

    def state_dict(self) -> dict[str, object]:
        """Return how many steps were handed out, with the settings they depend on."""
        return {**self._settings(), "step": self.step}

    def load_state_dict(self, state: dict[str, object]) -> None:
        """Go on where another stream of the same settings stood."""
        what = type(self).__name__
        _check.same_settings(what, self._settings(), state)
        step = _check.state_whole(what, state, "step")
        if step > self.steps:
            raise ValueError(f"This state of {what} is damaged: 'step' must be at most {self.steps}, not {step}.")
        self.step, self._resume = step, True


class LimitedAccess(Stream):
    """Each step shows a uniform part of the set, without replacement: a stream that never shows all at once.

    Args:
        labels: the class of each sample.
        fraction: the part that each step shows, in (0, 1]; `round(N * fraction)` samples, at least one.
        steps: how many steps there are.
        seed: with the step it fixes what is shown.

    >>> stream = LimitedAccess([0] * 40, 0.05, steps=3)
    >>> [len(step) for step in stream]
    [2, 2, 2]
    """

    def __init__(self, labels: _check.Integers, fraction: float, *, steps: int, seed: int = 0) -> None:
        super().__init__(labels, steps=steps, seed=seed)
        self.fraction = _check.number("fraction", fraction, 0.0, 1.0, open_below=True)

    def _indices(self, step: int) -> Tensor:
        size = max(1, round(self.num_samples * self.fraction))
        return _seeds.permutation(self.num_samples, self.seed, step)[:size].sort().values

    def _settings(self) -> dict[str, object]:
        return {**super()._settings(), "fraction": self.fraction}


class Arrivals(LimitedAccess):
    """Each epoch a uniform part of the training set arrives; the rest is absent. For `SampleAges(absent="grow")`.

    Arguments as for `LimitedAccess`: what differs is what is made of a step, not how it is drawn.

    >>> len(Arrivals([0, 1] * 50, 0.1, steps=200)[0])
    10
    """


class ShiftingTail(Stream):
    """A long tail whose head moves: every `period` steps another order of the classes, every step another subset.

    Args:
        labels: the class of each sample of a pool, best a balanced one. Its smallest class gives the head's size.
        imbalance: the head over the tail, 1 or more.
        period: steps between two orders of the classes.
        steps: how many steps there are.
        seed: fixes orders and subsets.
        profile: "exp" or "step", as for `long_tail_counts`.

    >>> stream = ShiftingTail(torch.arange(400) % 4, 10, period=2, steps=4)
    >>> [stream.counts(step).tolist() for step in range(4)]
    [[46, 21, 10, 100], [46, 21, 10, 100], [100, 21, 10, 46], [100, 21, 10, 46]]
    """

    def __init__(
        self,
        labels: _check.Integers,
        imbalance: float,
        *,
        period: int,
        steps: int,
        seed: int = 0,
        profile: str = "exp",
    ) -> None:
        super().__init__(labels, steps=steps, seed=seed)
        self.period = _check.whole("period", period, 1)
        smallest = int(torch.bincount(self._labels, minlength=self.num_classes).min())
        if smallest == 0:
            raise ValueError(f"labels must hold every class from 0 to {self.num_classes - 1}.")
        self._labels_digest = _check.fingerprint(self._labels)
        self._by_rank = long_tail_counts(smallest, self.num_classes, imbalance, profile)
        self.imbalance, self.profile = float(imbalance), profile

    def ranks(self, step: int) -> Tensor:
        """Return each class's rank at a step, 0 for the head, `int64 [C]`."""
        turn = self._step(step) // self.period
        return _seeds.permutation(self.num_classes, self.seed, 0, turn)

    def _indices(self, step: int) -> Tensor:
        counts = self._by_rank[self.ranks(step)]
        return keep_per_class(self._labels, counts, _seeds.generator(self.seed, 1, step))

    def _settings(self) -> dict[str, object]:
        shape = {
            "labels": self._labels_digest,
            "imbalance": self.imbalance,
            "period": self.period,
            "profile": self.profile,
        }
        return {**super()._settings(), **shape}
