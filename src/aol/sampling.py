"""Samplers: shuffled, or with replacement by weight; the same order on any number of processes.

The order is a function of (seed, epoch, weights). Processes split it; the state holds the position in it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sized
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.utils.data import Sampler

from aol import _check, _distributed, _seeds
from aol._seal import check_seal, sealed
from aol.ages import SampleAges

_PART = 1 << 20  # indices converted at once
_BLOCK = 1 << 20  # draws at once
_PARTS, _STEPS = 1 << 24, 8  # of a ladder of weights, and rungs climbed before a search


def draw(weight: Tensor, num_samples: int, *, generator: torch.Generator) -> Tensor:
    r"""Return indices drawn with replacement, `int64 [n]`, or `[R, n]` for weights `[R, N]`.

    .. math:: P(i) = w_i / \sum_j w_j

    Probabilities are float64, and N is not limited (`torch.multinomial`: 2^24). A weight of zero is never drawn.

    >>> draw(torch.tensor([0.0, 1.0, 0.0]), 4, generator=torch.Generator())
    tensor([1, 1, 1, 1])
    """
    number = _check.whole("num_samples", num_samples, 1)
    given = _check.real("weight", weight)
    if given.dim() == 1 and given.numel() and given.device.type == "cpu":
        return draw_in_blocks(torch.split(given, _BLOCK), given.numel(), number, generator=generator)
    known = _check.finite("weight", given)
    if known.dim() > 2:
        raise ValueError(f"weight must be [N] or [R, N], not {list(known.shape)}.")
    ladder = known.cumsum(-1)
    top, below = _ends(ladder)
    point = torch.rand((*known.shape[:-1], number), dtype=torch.float64, device=known.device, generator=generator)
    return torch.searchsorted(ladder, torch.minimum(point * top, below), right=True)


def _ends(ladder: Tensor) -> tuple[Tensor, Tensor]:
    """Return the sum of all weights, and the largest number below it."""
    top = ladder[..., -1:]
    if not bool((top > 0).all()) or not bool(torch.isfinite(top).all()):
        raise ValueError("weight must have a finite sum above zero.")
    # Rounding may lift a point to the total, beyond the last sample.
    return top, torch.nextafter(top, torch.zeros_like(top))


def draw_in_blocks(
    weights: Iterable[Tensor], size: int, number: int, *, generator: torch.Generator, dtype: torch.dtype = torch.int64
) -> Tensor:
    """Return what `draw` does, of weights `[N]` on the CPU that come in blocks: in 8 bytes per weight, and the draws.

    A table has the first rung of each of K equal parts of the ladder (Chen and Asau, 1974); from there a point climbs a
    few steps, instead of a search in log N. Rungs and points are put into parts by the same arithmetic, so that
    rounding cannot separate them wrongly.

    >>> draw_in_blocks([torch.tensor([0.0, 1.0]), torch.tensor([0.0])], 3, 4, generator=torch.Generator())
    tensor([1, 1, 1, 1])
    """
    ladder = _ladder(weights, size)
    top, below = _ends(ladder)
    parts, small = min(size, _PARTS), torch.int32 if size < 2**31 else torch.int64
    rungs = torch.zeros(parts, dtype=small, device="cpu")
    for block in torch.split(ladder, _BLOCK):
        part = _part(block, top, parts)
        counts = torch.bincount(part - part[0])  # they increase
        rungs[part[0] : part[0] + len(counts)] += counts
    first = rungs.cumsum(0, dtype=small).sub_(rungs)
    found = torch.empty(number, dtype=dtype, device="cpu")
    for block in torch.split(found, _BLOCK):
        point = torch.rand(block.numel(), dtype=torch.float64, device="cpu", generator=generator)
        point = torch.minimum(point * top, below)
        # By NumPy, whose take is several times as fast as torch's on a CPU.
        rung = first.numpy().take(_part(point, top, parts).numpy()).astype(np.int64)
        block.copy_(torch.from_numpy(_climbed(ladder.numpy(), point.numpy(), rung)))
    return found


def _ladder(weights: Iterable[Tensor], size: int) -> Tensor:
    """Return the sums of the first 1, 2, ... N weights, `float64 [N]`."""
    ladder = torch.empty(size, dtype=torch.float64, device="cpu")
    place = 0
    for block in weights:
        part = ladder[place : place + block.numel()]
        part.copy_(_check.finite("weight", block))
        if place:
            part[0] += ladder[place - 1]  # in the order of one sum over all
        part.cumsum_(0)
        place += part.numel()
    return ladder


def _part(value: Tensor, top: Tensor, parts: int) -> Tensor:
    return (value / top * parts).to(torch.int64).clamp_(max=parts - 1)


def _climbed(
    ladder: npt.NDArray[np.float64], point: npt.NDArray[np.float64], rung: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """Return the first rung above each point, from a rung at or below it; after a few steps by a search."""
    above = ladder.take(rung) <= point
    rung += above
    left = np.flatnonzero(above)
    for _ in range(_STEPS):
        left = left[ladder.take(rung.take(left)) <= point.take(left)]
        if not left.size:
            return rung
        rung[left] += 1
    rung[left] = np.searchsorted(ladder, point[left], side="right")
    return rung


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
        self._indices = indices
        self._over = False

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
        self.num_samples = _check.whole("num_samples", num_samples, 1)
        self.seed = _seeds.seed(seed)
        self.even = even
        if (rank is None) != (world_size is None):
            raise ValueError("rank and world_size must be given together.")
        self._place = None
        if rank is not None and world_size is not None:
            self._place = _check.whole("rank", rank, 0), _check.whole("world_size", world_size, 1)
            if rank >= world_size:
                raise ValueError(f"rank must lie in 0 to world_size - 1 = {world_size - 1}, not {rank}.")
        self.epoch = 0
        self._begun = 0  # start of the current pass in the global order
        self._position = 0  # number of samples of the global order returned so far
        self._order: Tensor | None = None  # never modified: states share it
        self._hashed: tuple[Tensor | None, str] = None, ""
        self._resume = False
        # Epoch, start and order of the last pass, once it has ended: a loader that prefetches may still work on it.
        self._over: tuple[int, int, Tensor] | None = None

    @abstractmethod
    def _draw(self) -> Tensor:
        """Return the order of this epoch, `int64 [num_samples]`."""

    def _size(self) -> int:
        """Return the number of samples that an order is of."""
        return self.num_samples

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
        most = -(-self.num_samples // world)
        return most if self.even else len(range(rank, self.num_samples, world))

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
        handed = 0
        mine = left[rank::world]
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
        # By reference: a loader that saves its state every step must not copy or hash the order every step.
        order = order if position else None
        state = sealed({**self._settings(), "epoch": epoch, "position": position, "order": self._digest(order)})
        return {**state, "order": order}

    def _digest(self, order: Tensor | None) -> str | None:
        """Return a hash of an order, computed once."""
        if order is not None and self._hashed[0] is not order:
            self._hashed = order, _check.fingerprint(order)
        return None if order is None else self._hashed[1]

    def load_state_dict(self, state: dict[str, object]) -> None:
        """Continue from the state of another sampler with the same settings."""
        what = type(self).__name__
        _check.same_settings(what, self._settings(), state)
        epoch = _check.state_whole(what, state, "epoch")
        position = _check.state_whole(what, state, "position", self.num_samples)
        order = None
        if position:
            given, places = state.get("order"), _check.Bounds(0, self._size() - 1)
            kind = torch.int64 if isinstance(given, Tensor) and given.dtype == torch.int64 else torch.int32
            order = _check.state_tensor(what, state, "order", (self.num_samples,), kind, torch.device("cpu"), places)
        check_seal(what, {**state, "order": self._digest(order)})
        self.epoch, self._position, self._begun, self._order = epoch, position, position, order
        self._resume, self._over = position > 0, None


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
        self._given = weights
        if not callable(weights):
            self._given = _check.finite(self._named, self._weights()).clone()  # the caller's may change
            if not bool(self._given.any()):
                raise ValueError("weights must have a sum above zero.")
        if num_samples is None:
            num_samples = self._size()
        super().__init__(num_samples, seed=seed, even=even, rank=rank, world_size=world_size)

    def _weights(self) -> Tensor:
        return self._one_each(self._given() if callable(self._given) else self._given)

    def _one_each(self, weights: _check.Numbers) -> Tensor:
        found = _check.real(self._named, weights).cpu()
        if found.dim() != 1:
            raise ValueError(
                f"{self._named} must give one weight per sample, not {list(found.shape)}; for runs use aol.draw."
            )
        return found

    def _blocks(self) -> Iterator[Tensor]:
        """Yield the weights in order."""
        yield from torch.split(self._weights(), _BLOCK)

    def _size(self) -> int:
        return sum(block.numel() for block in self._blocks())

    def _draw(self) -> Tensor:
        size = self._size()
        small = torch.int32 if size < 2**31 else torch.int64
        return draw_in_blocks(self._blocks(), size, self.num_samples, generator=self._generator(), dtype=small)


@runtime_checkable
class Weighted(Protocol):
    """What a sampler needs of ages: the number of samples and their weights."""

    num_samples: int

    @property
    def weights(self) -> Tensor:
        """The weights, `float [N]`."""


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
        if not isinstance(ages, Weighted) and (not callable(ages) or isinstance(ages, nn.Module)):
            raise TypeError(f"ages must be SampleAges or a function that returns weights, not {_check.shown(ages)}.")
        self._ages = ages
        super().__init__(self._of_ages, num_samples=num_samples, seed=seed, even=even, rank=rank, world_size=world_size)
        if isinstance(ages, Weighted):
            next(self._blocks(), None)  # so that wrong ages are refused at once

    def _size(self) -> int:
        return self._ages.num_samples if isinstance(self._ages, SampleAges) else super()._size()

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
