"""Samplers: shuffled, or with replacement by weight; the same order on any number of processes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sized
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils.data import Sampler

from aol import _check, _distributed, _seeds

if TYPE_CHECKING:
    from aol.ages import SampleAges

_AT_ONCE = 1 << 20  # indices converted to Python numbers


def draw(weight: Tensor, num_samples: int, *, generator: torch.Generator) -> Tensor:
    r"""Return indices drawn with replacement, `int64 [n]`, or `[R, n]` for weights `[R, N]`.

    .. math:: P(i) = w_i / \sum_j w_j

    Probabilities are float64, and N is not limited (`torch.multinomial`: 2^24). A weight of zero is never drawn.

    >>> draw(torch.tensor([0.0, 1.0, 0.0]), 4, generator=torch.Generator())
    tensor([1, 1, 1, 1])
    """
    number, weight = _check.whole("num_samples", num_samples, 1), _check.finite("weight", weight)
    if weight.dim() > 2:
        raise ValueError(f"weight must be [N] or [R, N], not {list(weight.shape)}.")
    ladder = weight.cumsum(-1)
    top = ladder[..., -1:].clone()
    if not bool(((top > 0) & torch.isfinite(top)).all()):
        raise ValueError("weight must have a finite sum above zero.")
    point = torch.rand((*weight.shape[:-1], number), dtype=torch.float64, device=weight.device, generator=generator)
    # Rounding may lift a point to the total, beyond the last sample.
    below = torch.nextafter(top, torch.zeros_like(top))
    return torch.searchsorted(ladder, torch.minimum(point.mul_(top), below, out=point), right=True)


class Pass(Iterator[int]):
    """One pass over an order; torchdata saves whether it has ended, as the sampler may be in the next epoch already."""

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
        even: True gives every process equally many samples, as DDP needs, by repeating the first ones; False repeats
            none, as an exact evaluation needs.
        rank, world_size: this process and the number of processes; by default from `torch.distributed`.

    Process r of W takes the positions r, r + W, r + 2W, ...: W batches of size B equal one batch of size W × B.

    A complete pass increases the epoch; `set_epoch` sets it. A pass that is stopped starts over, or continues after its
    last sample, on any number of processes, where its `state_dict` is loaded. With workers that prefetch, use
    torchdata's `StatefulDataLoader`.
    """

    def __init__(
        self,
        num_samples: int,
        *,
        seed: int = 0,
        even: bool = True,
        rank: int | None = None,
        world_size: int | None = None,
    ) -> None:
        self.num_samples, self.seed = _check.whole("num_samples", num_samples, 1), _check.whole("seed", seed, 0)
        self.even = even
        if (rank is None) != (world_size is None):
            raise ValueError("rank and world_size must be given together.")
        self._place = None
        if world_size is not None:
            world = _check.whole("world_size", world_size, 1)
            self._place = _check.whole("rank", rank, 0, world - 1), world
        self._start_at(0)

    def _start_at(self, epoch: int, position: int = 0, order: Tensor | None = None) -> None:
        """Continue at a position of the global order of an epoch; without an order, draw it then."""
        self._epoch, self._order = epoch, order  # the order is never modified: states share it
        self._position, self._ended = position, False
        self._loaded = order is not None  # the next pass continues; otherwise it starts over

    @property
    def epoch(self) -> int:
        """The number of complete passes, or the epoch that was set."""
        return self._epoch + self._ended

    @abstractmethod
    def _draw(self) -> Tensor:
        """Return the order of this epoch, `int64 [num_samples]`."""

    def _generator(self) -> torch.Generator:
        return _seeds.generator(self.seed, self.epoch)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next pass; if it equals the epoch of a loaded state, the position is kept."""
        epoch = _check.whole("epoch", epoch, 0)
        if self._ended or epoch != self._epoch:
            self._start_at(epoch)

    def __len__(self) -> int:
        rank, world = self._place or _distributed.world()
        return -(-self.num_samples // world) if self.even else len(range(rank, self.num_samples, world))

    def __iter__(self) -> Pass:
        return Pass(self._pass())

    def _pass(self) -> Iterator[int]:
        if not self._loaded:
            self._start_at(self.epoch, 0, self._draw())
        self._loaded = False
        rank, world = self._place or _distributed.world()
        order, position = self._order, self._position
        assert order is not None
        left = order[position:]
        if self.even and left.numel() % world:
            missing = world - left.numel() % world
            left = torch.cat((left, order.repeat(-(-missing // order.numel()))[:missing]))
        for part in left[rank::world].split(_AT_ONCE):  # type: ignore[no-untyped-call]
            for index in part.tolist():
                self._position = position = min(position + world, self.num_samples)
                yield int(index)
        self._position, self._ended = self.num_samples, True

    def _settings(self) -> dict[str, object]:
        return {"kind": type(self).__name__, "num_samples": self.num_samples, "seed": self.seed}

    def state_dict(self) -> dict[str, object]:
        """Return the epoch and the position."""
        epoch, position = (self.epoch, 0) if self._ended else (self._epoch, self._position)
        # By reference: a loader that saves its state every step must not copy the order every step.
        return {**self._settings(), "epoch": epoch, "position": position, "order": self._order if position else None}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from the state of another sampler with the same settings."""
        _check.same_settings(self._settings(), state)
        epoch, position, order = _check.state_value(state, "epoch", 0), _check.state_value(state, "position", 0), None
        if position:
            like = torch.empty(self.num_samples, dtype=torch.int64, device="meta")
            order = _check.state_value(state, "order", like).to("cpu", copy=True)
        self._start_at(epoch, position, order)


class WeightedSampler(EpochSampler):
    r"""Draws samples with replacement by weight, on any number of processes, resumable, for any number of samples.

    .. math:: P(i) = w_i / \sum_j w_j

    Args:
        weights: of the samples, `[N]`, zero or more; or a function that returns them, called at the start of an epoch.
        num_samples: draws per epoch, over all processes; by default N.
        seed, even, rank, world_size: see `EpochSampler`.

    >>> list(WeightedSampler([0.0, 3.0, 1.0], num_samples=8, seed=1))
    [1, 2, 1, 2, 2, 1, 2, 1]
    >>> list(WeightedSampler([0.0, 3.0, 1.0], num_samples=8, seed=1, rank=0, world_size=2))
    [1, 1, 2, 2]
    """

    _named = "weights"  # the argument, in messages

    def __init__(
        self, weights: _check.Numbers | Callable[[], Tensor], *, num_samples: int | None = None, **options: Any
    ) -> None:
        self._given = weights if callable(weights) else _check.finite(self._named, weights).clone()
        known = self._weights()
        if not callable(weights) and not bool(known.any()):
            raise ValueError("weights must have a sum above zero.")
        super().__init__(known.numel() if num_samples is None else num_samples, **options)

    def _weights(self) -> Tensor:
        weights = _check.real(self._named, self._given() if callable(self._given) else self._given).cpu()
        if weights.dim() != 1:
            shape = list(weights.shape)
            raise ValueError(f"{self._named} must give one weight per sample, not {shape}; for runs use aol.draw.")
        return weights

    def _draw(self) -> Tensor:
        return draw(self._weights(), self.num_samples, generator=self._generator())


class AgeSampler(WeightedSampler):
    """A `WeightedSampler` that reads the weights of ages at the start of every epoch.

    Args:
        ages: `SampleAges` (weights by its `level`), or a function that returns weights `[N]`.
        num_samples, seed, even, rank, world_size: see `WeightedSampler`.

    >>> from aol import SampleAges
    >>> sorted(AgeSampler(SampleAges([0, 0, 1]), num_samples=6, seed=1))
    [0, 1, 2, 2, 2, 2]
    """

    _named = "ages"

    def __init__(self, ages: SampleAges | Callable[[], Tensor], **options: Any) -> None:
        weights = partial(getattr, ages, "weights") if hasattr(ages, "weights") else ages
        if not callable(weights) or isinstance(weights, torch.nn.Module):
            raise TypeError(f"ages must be SampleAges or a function that returns weights, not {_check.shown(ages)}.")
        super().__init__(weights, **options)


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

    def __init__(self, data: Sized | int, **options: Any) -> None:
        super().__init__(len(data) if isinstance(data, Sized) else data, **options)

    def _draw(self) -> Tensor:
        return torch.randperm(self.num_samples, generator=self._generator(), device="cpu")
