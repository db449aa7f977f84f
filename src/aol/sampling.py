"""Samplers: shuffled, or with replacement by weight; the same order on any number of processes.

The order is a function of (seed, epoch, weights). Processes split it; the state holds the position in it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sized
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.utils.data import Sampler

from aol import _check, _distributed, _seeds

_PART = 1 << 20  # indices converted at once


def draw(weight: Tensor, num_samples: int, *, generator: torch.Generator) -> Tensor:
    r"""Return indices drawn with replacement, `int64 [n]`, or `[R, n]` for weights `[R, N]`.

    .. math:: P(i) = w_i / \sum_j w_j

    Probabilities are float64, and N is not limited (`torch.multinomial`: 2^24). A weight of zero is never drawn.

    >>> draw(torch.tensor([0.0, 1.0, 0.0]), 4, generator=torch.Generator())
    tensor([1, 1, 1, 1])
    """
    number, known = _check.whole("num_samples", num_samples, 1), _check.finite("weight", weight)
    if known.dim() > 2:
        raise ValueError(f"weight must be [N] or [R, N], not {list(known.shape)}.")
    ladder = known.cumsum(-1)
    top = ladder[..., -1:].clone()
    if not bool((top > 0).all()) or not bool(torch.isfinite(top).all()):
        raise ValueError("weight must have a finite sum above zero.")
    point = torch.rand((*known.shape[:-1], number), dtype=torch.float64, device=known.device, generator=generator)
    # Rounding may lift a point to the total, beyond the last sample.
    below = torch.nextafter(top, torch.zeros_like(top))
    return torch.searchsorted(ladder, torch.minimum(point.mul_(top), below, out=point), right=True)


def shuffle(num_samples: int, *, generator: torch.Generator) -> Tensor:
    """Return every index once in random order, `int64 [n]`, on the generator's device.

    >>> shuffle(4, generator=torch.Generator().manual_seed(1))
    tensor([1, 3, 2, 0])
    """
    return torch.randperm(num_samples, generator=generator, device=generator.device)


class Pass(Iterator[int]):
    """One pass over an order, with a state of its own: whether it has ended.

    torchdata saves sampler states while the last batch is prefetched. The sampler may then be in the next epoch
    already, and only the pass knows that it has ended.
    """

    def __init__(self, indices: Iterator[int]) -> None:
        self._indices, self._over = indices, False

    def __next__(self) -> int:
        for index in self._indices:
            return index
        self._over = True
        raise StopIteration

    def state_dict(self) -> dict[str, object]:
        """Return whether the pass has ended; the sampler has the position."""
        return {"over": self._over}

    def load_state_dict(self, state: dict[str, object]) -> None:
        """End immediately if the other pass had ended."""
        if state["over"]:
            self._indices, self._over = iter(()), True


class EpochSampler(Sampler[int], ABC):
    """Base class of samplers: splits an order among processes, counts epochs, and resumes anywhere.

    Args:
        num_samples: the length of an epoch, over all processes.
        seed: the order depends on the seed and the epoch.
        even: True gives every process equally many samples, as DDP needs, by repeating the first ones; False gives each
            sample once, as an exact evaluation needs.
        rank, world_size: this process and the number of processes; by default from `torch.distributed`.

    Process r of W takes the positions r, r + W, r + 2W, ...: W batches of size B equal one batch of size W × B.

    The epoch increases after each complete pass; `set_epoch` sets it. A pass that is stopped starts over, unless its
    `state_dict` is loaded: then the next pass continues after the last sample, on any number of processes. If a loader
    prefetches, pass the number of used samples to `state_dict`, or use torchdata's `StatefulDataLoader`.
    """

    def __init__(
        self, num_samples: int, *, seed: int, even: bool = True, rank: int | None = None, world_size: int | None = None
    ) -> None:
        self.num_samples, self.seed, self.even = _check.whole("num_samples", num_samples, 1), _seeds.seed(seed), even
        if (rank is None) != (world_size is None):
            raise ValueError("rank and world_size must be given together.")
        self._place = None
        if world_size is not None:
            world = _check.whole("world_size", world_size, 1)
            self._place = _check.whole("rank", rank, 0, world - 1), world
        self.epoch = 0
        self._begun = 0  # start of the current pass in the global order
        self._position = 0  # number of samples of the global order returned so far
        self._order: Tensor | None = None  # never modified: states share it
        self._resume = False
        # Epoch, start and order of the last pass, once it has ended: a loader that prefetches may still work on it.
        self._over: tuple[int, int, Tensor] | None = None

    @abstractmethod
    def _draw(self) -> Tensor:
        """Return the order of this epoch, `int64 [num_samples]`."""

    def _generator(self) -> torch.Generator:
        return _seeds.generator(self.seed, self.epoch)

    def _world(self) -> tuple[int, int]:
        return self._place or _distributed.world()

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next pass; if it equals the epoch of a loaded state, the position is kept."""
        epoch = _check.whole("epoch", epoch, 0)
        self._over = None
        if epoch != self.epoch:
            self.epoch, self._position, self._begun, self._order, self._resume = epoch, 0, 0, None, False

    def __len__(self) -> int:
        rank, world = self._world()
        return -(-self.num_samples // world) if self.even else len(range(rank, self.num_samples, world))

    def __iter__(self) -> Pass:
        return Pass(self._pass())

    def _pass(self) -> Iterator[int]:
        if not self._resume or self._order is None:
            small = torch.int32 if self.num_samples < 2**31 else torch.int64
            self._position, self._order = 0, self._draw().to(small)
        self._resume, self._over = False, None
        self._begun = self._position
        rank, world = self._world()
        order, begun = self._order, self._begun
        left = order[begun:]
        if self.even and left.numel() % world:
            missing = world - left.numel() % world
            left = torch.cat((left, order.repeat(-(-missing // order.numel()))[:missing]))
        handed, mine = 0, left[rank::world]
        for start in range(0, mine.numel(), _PART):
            for index in mine[start : start + _PART].tolist():
                handed += 1
                self._position = min(begun + handed * world, self.num_samples)
                yield int(index)
        self._over = self.epoch, begun, order
        self.epoch += 1
        self._position, self._begun, self._order = 0, 0, None

    def _settings(self) -> dict[str, object]:
        return {"kind": type(self).__name__, "num_samples": self.num_samples, "seed": self.seed}

    def state_dict(self, *, consumed: int | None = None) -> dict[str, object]:
        """Return the epoch and the position.

        `consumed`: number of samples that this process has used of the current pass; a resumed pass counts from zero.
        """
        epoch, position, order = self.epoch, self._position, self._order
        if consumed is not None:
            world = self._world()[1]
            used, returned = _check.whole("consumed", consumed, 0) * world, position - self._begun
            if self._over is None:
                if used > returned and position < self.num_samples:  # at the end, a last batch may be smaller
                    raise ValueError(
                        f"consumed must be at most {returned // world}, the samples that this pass has returned, "
                        f"not {consumed}; do not count those before a resume."
                    )
                position = min(self._begun + used, self.num_samples)
            elif self._over[1] + used < self.num_samples:
                epoch, position, order = self._over[0], self._over[1] + used, self._over[2]
        # By reference: a loader that saves its state every step must not copy the order every step.
        return {**self._settings(), "epoch": epoch, "position": position, "order": order if position else None}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from the state of another sampler with the same settings."""
        what, order = type(self).__name__, None
        _check.same_settings(what, self._settings(), state)
        epoch, position = (_check.state_value(what, state, name, 0) for name in ("epoch", "position"))
        if position:
            small = torch.int32 if self.num_samples < 2**31 else torch.int64
            order = _check.state_value(what, state, "order", torch.empty(self.num_samples, dtype=small, device="meta"))
            order = order.to("cpu", copy=True)
        self.epoch, self._position, self._begun, self._order = epoch, position, position, order
        self._resume, self._over = position > 0, None


@runtime_checkable
class Weighted(Protocol):
    """What a sampler needs of ages: the weights of their samples."""

    @property
    def weights(self) -> Tensor:
        """The weights, `float [N]`."""


class WeightedSampler(EpochSampler):
    r"""Draws samples with replacement by weight, on any number of processes, resumable, for any number of samples.

    .. math:: P(i) = w_i / \sum_j w_j

    Args:
        weights: the weight of each sample, `[N]`, zero or more; or a function that returns them, which is called at the
            start of each epoch.
        num_samples: draws per epoch, over all processes; by default N.
        seed, even, rank, world_size: see `EpochSampler`.

    >>> list(WeightedSampler([0.0, 3.0, 1.0], num_samples=8, seed=1))
    [1, 2, 1, 2, 2, 1, 2, 1]
    >>> [list(WeightedSampler([0.0, 3.0, 1.0], num_samples=8, seed=1, rank=r, world_size=2)) for r in (0, 1)]
    [[1, 1, 2, 2], [2, 2, 1, 1]]
    """

    _named = "weights"  # the argument, in messages

    def __init__(
        self,
        weights: _check.Numbers | Callable[[], Tensor],
        *,
        num_samples: int | None = None,
        seed: int = 0,
        even: bool = True,
        rank: int | None = None,
        world_size: int | None = None,
    ) -> None:
        self._given = weights if callable(weights) else _check.finite(self._named, weights).clone()
        if not callable(weights) and not bool(self._weights().any()):
            raise ValueError("weights must have a sum above zero.")
        number = self._weights().numel() if num_samples is None else num_samples
        super().__init__(number, seed=seed, even=even, rank=rank, world_size=world_size)

    def _weights(self) -> Tensor:
        weights = _check.real(self._named, self._given() if callable(self._given) else self._given).cpu()
        if weights.dim() != 1:
            wanted = "one weight per sample"
            raise ValueError(f"{self._named} must give {wanted}, not {list(weights.shape)}; for runs use aol.draw.")
        return weights

    def _draw(self) -> Tensor:
        return draw(self._weights(), self.num_samples, generator=self._generator())


class AgeSampler(WeightedSampler):
    """A `WeightedSampler` that reads the weights of ages at the start of each epoch.

    Args:
        ages: `SampleAges` (weights by its `level`), or a function that returns weights `[N]`.
        num_samples, seed, even, rank, world_size: see `WeightedSampler`.

    >>> from aol import SampleAges
    >>> ages = SampleAges([0, 0, 0, 1], rho=0.5)
    >>> for _ in range(20):
    ...     ages.observe([0, 1, 2, 3], [True, True, True, False])
    ...     ages.advance()
    >>> list(AgeSampler(ages, num_samples=8, seed=1)).count(3)
    8
    """

    _named = "ages"

    def __init__(
        self,
        ages: Weighted | Callable[[], Tensor],
        *,
        num_samples: int | None = None,
        seed: int = 0,
        even: bool = True,
        rank: int | None = None,
        world_size: int | None = None,
    ) -> None:
        self._ages = ages
        if not isinstance(ages, Weighted) and (not callable(ages) or isinstance(ages, torch.nn.Module)):
            raise TypeError(f"ages must be SampleAges or a function that returns weights, not {_check.shown(ages)}.")
        super().__init__(self._of_ages, num_samples=num_samples, seed=seed, even=even, rank=rank, world_size=world_size)
        if isinstance(ages, Weighted):
            self._weights()  # so that wrong ages are refused at once

    def _of_ages(self) -> Tensor:
        return self._ages.weights if isinstance(self._ages, Weighted) else self._ages()


class ShuffledSampler(EpochSampler):
    """Every sample once per epoch, in a new random order.

    Args:
        data: a data set or anything else with a length, or that length.
        seed, even, rank, world_size: see `EpochSampler`.

    >>> sampler = ShuffledSampler(5, seed=0)
    >>> first, second = list(sampler), list(sampler)
    >>> sorted(first) == sorted(second) == [0, 1, 2, 3, 4], first == second
    (True, False)
    """

    def __init__(
        self,
        data: Sized | int,
        *,
        seed: int = 0,
        even: bool = True,
        rank: int | None = None,
        world_size: int | None = None,
    ) -> None:
        size = len(data) if isinstance(data, Sized) else data
        super().__init__(size, seed=seed, even=even, rank=rank, world_size=world_size)

    def _draw(self) -> Tensor:
        return shuffle(self.num_samples, generator=self._generator())
