"""A loader for the training loop of a framework: resumes by what was trained on, prefetches the batches of a step."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping

from torch.utils.data import DataLoader, Dataset

from aol import _check
from aol._seal import check_seal, sealed
from aol.plugins._training import Key
from aol.sampling import EpochSampler


class AgeLoader:
    """The batches of a `DataLoader`, with resuming within an epoch and access to the next batches.

    Not a subclass of `DataLoader`, because Lightning would replace its sampler. On resuming, an `EpochSampler`
    continues at its position; with any other sampler the used batches are fetched again and skipped.

    Args:
        batches: the `DataLoader`.
        key: function from a batch to its indices or labels.
        progress: returns the epoch and the number of its batches trained on; None outside of a loop.
    """

    def __init__(
        self, batches: DataLoader[object], key: Callable[[object], Key], progress: Callable[[], tuple[int, int] | None]
    ) -> None:
        self.batches = batches
        self._key, self._progress = key, progress
        self._iterator: Iterator[object] | None = None  # of this name, because Lightning ends its workers by it
        self._ahead: deque[object] = deque()  # fetched, not handed out
        self._keys: deque[tuple[Key, int]] = deque()  # of what was fetched and is not done with
        self._left: float = math.inf  # samples of this pass yet to be fetched, without those that fill it up
        self._begun: tuple[int, int] | None = None  # the progress at which this pass began
        self._skip = self._skipped = 0  # of an order that cannot resume: batches to leave out, and left out

    @property
    def sampler(self) -> Iterable[int]:
        """The sampler; Lightning sets its epoch."""
        return self.batches.sampler

    @property
    def dataset(self) -> Dataset[object]:
        """The data set, as the batches see it."""
        return self.batches.dataset

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[object]:
        # A generator: nothing is drawn before the first batch is asked for, however early the iterator was made.
        if self._iterator is None:
            self.batches._iterator = None  # persistent workers that Lightning has ended
        self._begun, self._left = self._progress(), _share(self.sampler)
        self._ahead.clear()
        self._keys.clear()
        self._iterator = iter(self.batches)
        skip, self._skip = self._skip, 0
        for _ in range(skip):
            next(self._iterator, None)
        self._skipped = skip
        while self._ahead or self._fetch():
            yield self._ahead.popleft()

    def _fetch(self) -> bool:
        if self._iterator is None:
            return False
        for batch in self._iterator:
            key = self._key(batch)
            self._ahead.append(batch)
            self._keys.append((key, int(max(0, min(len(key), self._left)))))
            self._left -= len(key)
            return True
        return False

    def keys(self, number: int) -> list[tuple[Key, int]]:
        """Return the keys of the current batch and of the next ones, up to a number of batches.

        Each comes with the number of real samples; the samples after them are padding.
        """
        while len(self._keys) < number and self._fetch():
            pass
        return list(self._keys)[:number]

    def done(self) -> None:
        """Record that the current batch was trained on."""
        if self._keys:
            self._keys.popleft()

    def state_dict(self) -> dict[str, object]:
        """Return the position, by what was trained on, not by what was fetched."""
        now, begun, sampler = self._progress(), self._begun, self.sampler
        used = now[1] - begun[1] if now and begun and now[0] == begun[0] else None
        if not isinstance(sampler, EpochSampler):
            return sealed({"batches": 0 if used is None else self._skipped + used})
        if used is not None:
            return {"sampler": sampler.state_dict(consumed=used * (self.batches.batch_size or 1))}
        front = {"epoch": now[0] if now else sampler.epoch, "position": 0, "order": None}
        return {"sampler": sealed({**sampler.state_dict(), **front})}

    def load_state_dict(self, state: dict[str, object]) -> None:
        """Continue from the state of another loader with the same settings."""
        if isinstance(self.sampler, EpochSampler):
            self.sampler.load_state_dict(state.get("sampler"))  # type: ignore[arg-type]
        else:
            skip = _check.state_whole("AgeLoader", state, "batches")
            check_seal("AgeLoader", state)
            self._skip = skip


def age_loader(loaders: object) -> AgeLoader | None:
    """Return the one `AgeLoader` in a loader or in nested collections of loaders."""
    found = [each for each in _leaves(loaders) if isinstance(each, AgeLoader)]
    if len(found) > 1:
        raise ValueError(f"AgeOfLearning can follow one loader of its own, not {len(found)}.")
    return found[0] if found else None


def _leaves(loaders: object) -> Iterable[object]:
    if isinstance(loaders, Mapping):
        loaders = list(loaders.values())
    return [leaf for each in loaders for leaf in _leaves(each)] if isinstance(loaders, list | tuple) else [loaders]


def _share(sampler: Iterable[int]) -> float:
    """Return the number of samples of this process in the coming pass, without padding.

    >>> from aol import ShuffledSampler
    >>> _share(ShuffledSampler(5, rank=1, world_size=2)), len(ShuffledSampler(5, rank=1, world_size=2))
    (2, 3)
    """
    if not isinstance(sampler, EpochSampler):
        return math.inf
    begin = sampler._position if sampler._resume else 0
    rank, world = sampler._world()
    return len(range(begin + rank, sampler.num_samples, world))
