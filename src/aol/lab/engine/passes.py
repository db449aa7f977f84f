"""One pass over samples, to train or to evaluate. Batches are read from buffers that hold the whole pass, at a cursor.

The tensors of a batch thus keep their memory, as a CUDA graph needs, and an epoch never waits for the device.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import repeat

import torch
from torch import Tensor

from aol import _distributed
from aol.lab.engine.learner import Learner
from aol.lab.engine.run_rules import Observers, StepLosses
from aol.lab.engine.source import FromStorage, Source, mixtures
from aol.losses import loss_total
from aol.readings import SUMS, add_readings, answers, means
from aol.records.history import ANSWER, answer

# The most images, and pixels, of all runs together in one evaluation batch. On a CPU, feature maps of 16 channels then
# have 4 MiB, and stay cached.
_EVALUATION_BATCH = {"cpu": (4096, 1 << 16), "cuda": (65536, 1 << 26)}
_STREAMED_BATCH = 256  # the most images of an evaluation batch that is decoded meanwhile: the first one is there sooner
_WARM_UPS = 3  # calls before a capture: kernels are compiled, optimiser buffers created


class Captured:
    """A function that is captured once as a CUDA graph and then replayed.

    Everything that `work` reads and writes must keep its memory between calls, and nothing in it may wait for the
    device. `touched` returns the tensors it changes; they are restored after the warm-up calls before the capture.
    """

    def __init__(
        self, work: Callable[[], None], *, device: torch.device, touched: Callable[[], Iterable[Tensor]]
    ) -> None:
        self._work, self._touched, self._device = work, touched, device
        self._graph: torch.cuda.CUDAGraph | None = None

    def __call__(self) -> None:
        """Call the function once."""
        if self._graph is None:
            self._graph = self._record()
        self._graph.replay()

    def _record(self) -> torch.cuda.CUDAGraph:
        with torch.cuda.device(self._device):
            side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            side.wait_stream(torch.cuda.current_stream())
            # Random numbers are put back, too, so that a resumed run draws the same ones after its own warm-up.
            with torch.random.fork_rng(devices=[self._device]), torch.cuda.stream(side):
                for _ in range(_WARM_UPS):
                    with restored(self._touched):
                        self._work()
            torch.cuda.current_stream().wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            # Threads that move decoded images into pinned memory may allocate it meanwhile.
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                self._work()
        return graph


@contextmanager
def restored(tensors: Callable[[], Iterable[Tensor]]) -> Iterator[None]:
    """Restore the values of tensors afterwards; those created in between become zero, as new optimiser buffers are."""
    before = {tensor.data_ptr(): (tensor, tensor.detach().clone()) for tensor in tensors() if tensor.numel()}
    yield
    with torch.no_grad():
        for tensor in tensors():
            if tensor.numel():
                _, old = before.get(tensor.data_ptr(), (tensor, None))
                tensor.zero_() if old is None else tensor.copy_(old)


class _Pass(ABC):
    """What training and clean passes share: the cursor, and on CUDA a captured step for each size of a batch."""

    def __init__(self, learner: Learner, source: Source, observers: Observers | None) -> None:
        self._learner, self._source, self._observers, self._device = learner, source, observers, learner.device
        self._rank, self._world = _distributed.world()
        self._captures = self._device.type == "cuda"
        self._captured: dict[int, Captured] = {}
        self._shown: Tensor | None = None  # the images of a captured step, where they come from storage
        self._cursor = self._zeros((), torch.int64)

    def _zeros(self, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.zeros(shape, dtype=dtype, device=self._device)

    def _next(self, size: int, images: Tensor | None = None) -> None:
        """Work on the next batch; `images [1, B, C, H, W]` where they come from storage."""
        if not self._captures:
            self._work(size, images)
            return
        if images is not None:
            if self._shown is None:  # the first batch is the largest
                self._shown = torch.empty_like(images)
            images = self._shown[:, :size].copy_(images)
        if size not in self._captured:
            work = partial(self._work, size, images)
            self._captured[size] = Captured(work, device=self._device, touched=self._touched)
        self._captured[size]()

    @abstractmethod
    def _work(self, size: int, images: Tensor | None) -> None:
        """Work on the batch at the cursor, and move the cursor."""

    def _touched(self) -> Iterator[Tensor]:
        """Yield the tensors that `_work` changes."""
        yield self._cursor
        yield from () if self._observers is None else self._observers.pending()


@dataclass(frozen=True)
class Trained:
    """Results of a training pass: mean loss `[R]`, images a run, and `[R, C]` right answers, samples and answers."""

    loss: Tensor
    right: Tensor
    count: Tensor
    answered: Tensor
    images: int


class TrainPass(_Pass):
    """Trains for one pass over m samples a run, `size`, the same in every pass: all `steps`, then `result`.

    `losses` are those that learn from every batch; `mixes` says whether runs mix images.
    """

    def __init__(
        self, learner: Learner, source: Source, observers: Observers | None,
        *, size: int, losses: StepLosses | None = None, mixes: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(learner, source, observers)
        self._step_losses, self._size = losses, size
        self._captures &= self._world == 1  # communication cannot be captured
        runs, batch = len(learner.runs), learner.settings.batch_size
        self._mine, self._real = share(size, batch, self._rank, self._world, learner.device)
        self._share = -(-batch // self._world)
        shape = (runs, self._mine.numel())
        self._place, self._position = self._zeros(shape, torch.int64), self._zeros(shape, torch.int64)
        self._weight = self._zeros(shape)
        self.number = -(-size // batch)  # of optimiser steps
        self._rates = self._zeros((self.number,))
        self._partner = self._zeros(shape, torch.int64) if mixes else None
        self._shares = self._zeros((runs, self.number))
        self._step = self._zeros((), torch.int64)
        self._losses = self._zeros((runs,), torch.float64)
        self._sums = self._zeros((3, runs, learner.num_classes), torch.float64)

    def steps(
        self, place: Tensor, position: Tensor, weight: Tensor, *, rates: Sequence[float], epoch: int
    ) -> Iterator[int]:
        """Train on `place [R, m]`, indices into the data set, in that order; observers get `position`.

        Yields after each training step how many images it had in all processes.
        """
        self._place.copy_(place[:, self._mine])
        self._position.copy_(position[:, self._mine])
        self._weight.copy_(weight[:, self._mine] * self._real)
        self._rates.copy_(torch.tensor(rates))
        if self._partner is not None:
            partner, shares = mixtures(self._learner.runs, self._real.cpu(), self._share, epoch)
            self._partner.copy_(partner)
            self._shares.copy_(shares)
        for tally in (self._cursor, self._step, self._losses, self._sums):
            tally.zero_()
        seeds, left = [run.seed for run in self._learner.runs], self._mine.numel()
        streamed: Iterator[Tensor | None] = repeat(None)
        if isinstance(self._source, FromStorage):
            streamed = self._source.train(place, self._mine, batch=self._share, epoch=epoch, seeds=seeds)
        else:
            self._source.prepare(self._size, self._mine, epoch=epoch, seeds=seeds)
        for images, start in zip(streamed, range(0, left, self._share), strict=False):  # up to the end of the stream
            size = min(self._share, left - start)
            self._next(size, images)
            yield size * self._world

    def result(self) -> Trained:
        """Return what came of the pass, of all processes."""
        self._learner.broadcast_buffers()
        sums, losses = _distributed.total(self._sums), _distributed.total(self._losses)
        right, count, answered = sums.clone()
        return Trained(losses / self._world / self.number, right, count, answered, self._size)

    def _touched(self) -> Iterator[Tensor]:
        yield from (self._step, self._losses, self._sums)
        yield from self._learner.tensors()
        yield from () if self._step_losses is None else self._step_losses.buffers()
        yield from super()._touched()

    def _work(self, size: int, images: Tensor | None) -> None:
        at = self._cursor + torch.arange(size, device=self._device)
        place, weight = self._place.index_select(1, at), self._weight.index_select(1, at)
        label = self._source.labels[place]
        if images is None:
            assert not isinstance(self._source, FromStorage)
            images = self._source.augmented(place, at)
        real = self._real.index_select(0, at)
        mixed = total = None
        if self._partner is not None:
            partner, share = self._partner.index_select(1, at), self._shares.index_select(1, self._step[None])
            images, weight, other = _mix(partner - self._cursor, share, images, weight, label)
            mixed = other, share
        if self._step_losses is not None:
            self._step_losses.before(label[:, real] if self._world > 1 else label, self._learner.offset)
            weight = self._step_losses.weighted(weight, label, mixed)
        if self._world > 1:  # the divisor of each run's losses, over all processes
            by_count = loss_total(real.to(weight.dtype).expand_as(weight))
            total = torch.where(self._learner.by_count, by_count, loss_total(weight))
        rate = self._rates.index_select(0, self._step[None])[0]
        loss, logits = self._learner.step(images, label, weight, rate, total, mixed)
        predicted, known = answers(logits)
        right = (predicted == label) & known
        self._losses += loss
        counted = real.to(torch.float64).expand(label.shape)
        by_class = torch.stack((label, label, predicted))
        self._sums.scatter_add_(2, by_class, torch.stack((right * counted, counted, known * counted)))
        position = self._position.index_select(1, at)
        if self._world > 1:  # padding does not count
            position, label, right, predicted = (t[:, real] for t in (position, label, right, predicted))
            logits, mixed = logits[:, real], mixed and (mixed[0][:, real], mixed[1])
        if self._step_losses is not None:
            self._step_losses.after(label, right, logits, mixed)
        if self._observers is not None:
            self._observers.step(position, label, right, predicted, logits)
        self._cursor += size
        self._step += 1


def _mix(partner: Tensor, share: Tensor, images: Tensor, weight: Tensor, label: Tensor) -> tuple[Tensor, ...]:
    """Return mixed images, their weights, and their other labels, by `partner [R, B]` in the batch, `share [R, 1]`."""
    runs = torch.arange(len(partner), device=partner.device)[:, None]
    mixed = torch.lerp(images[runs, partner], images, share[..., None, None, None])
    return mixed, torch.lerp(weight.gather(1, partner), weight, share), label.gather(1, partner)


def share(size: int, batch: int, rank: int, world: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return one process's part of an order, as places in it, and which of them count: processes share every batch.

    Where a batch cannot be shared evenly, its first place is repeated and does not count.

    >>> [share(5, 4, rank, 2, torch.device("cpu"))[0].tolist() for rank in (0, 1)]
    [[0, 2, 4], [1, 3, 4]]
    """
    places, real = [], []
    for start in range(0, size, batch):
        stop = min(start + batch, size)
        own = torch.arange(start + rank, stop + rank, world)
        real.append(own < stop)
        places.append(own.where(real[-1], start))
    return torch.cat(places).to(device), torch.cat(real).to(device)


@dataclass(frozen=True)
class Readings:
    """Results of a clean pass over n samples: which were `correct`, and the `predicted` classes, `[R, n]`.

    `sums` are those of `aol.readings` by class, `float64 [5, R, C]`; `answers` has each answer in full, if kept.
    """

    correct: Tensor
    predicted: Tensor
    sums: Tensor
    answers: Tensor | None = None

    @property
    def accuracy(self) -> Tensor:
        """The accuracy of each run, `[R]`."""
        return self.sums[1].sum(1) / self.sums[0].sum(1)

    def by_class(self, split: str) -> dict[str, Tensor]:
        """Return accuracy, loss and margin of each class, `[R, C]`, NaN where there was no sample, by their names."""
        return {f"{split}_{name}": value for name, value in means(self.sums).items()}


class CleanPass(_Pass):
    """Classifies samples in evaluation mode, unaugmented, and sums readings by class: all `steps`, then `result`.

    `size` is the most samples of a pass; `shared` says whether all runs have the same, `keep` whether the answer to
    each sample is returned, too.
    """

    def __init__(
        self, learner: Learner, source: Source, observers: Observers | None = None,
        *, size: int, shared: bool, keep: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(learner, source, observers)
        runs, own = len(learner.runs), -(-size // self._world)
        images, pixels = _EVALUATION_BATCH[learner.device.type]
        most = max(16, min(images, pixels // source.area) // runs)
        if isinstance(source, FromStorage):
            most = min(most, _STREAMED_BATCH)
        self._batch = min(most, max(1, own))
        self._fixed = learner.device.type == "cuda"  # a graph has one batch size: the last batch is padded
        shape = (runs, -(-own // self._batch) * self._batch)
        self._index = self._zeros(shape[1:] if shared else shape, torch.int64)
        self._times = self._zeros(shape, torch.float64)
        self._correct, self._predicted = self._zeros(shape, torch.bool), self._zeros(shape, torch.int64)
        self._sums = self._zeros((SUMS, runs, learner.num_classes), torch.float64)
        self._answers = self._zeros((len(ANSWER), runs, shape[1] if keep else 0))
        self._given = 0

    def steps(self, index: Tensor, times: Tensor | None = None) -> Iterator[int]:
        """Classify `index [n]`, common to all runs, or `[R, n]`: indices into the data set.

        `times [R, n]`: how often each counts in the sums (zero: padding); by default once. Yields after each batch how
        many images it had in all processes, which share the samples.
        """
        index = index[..., self._rank :: self._world]
        self._given = size = index.shape[-1]
        self._index[..., :size] = index
        self._index[..., size:] = 0
        self._times[:, :size] = 1.0 if times is None else times[:, self._rank :: self._world].to(torch.float64)
        self._times[:, size:] = 0.0
        self._cursor.zero_()
        self._sums.zero_()
        if isinstance(self._source, FromStorage):
            for images in self._source.clean(index, batch=self._batch):
                self._work(images.shape[-4], images)
                yield images.shape[-4] * self._world
            return
        for start in range(0, size, self._batch):
            left = min(self._batch, size - start)
            self._next(self._batch if self._fixed else left)
            yield left * self._world

    def result(self) -> Readings:
        """Return readings: sums over all processes, but `correct` only of the own share, `index[..., rank::world]`."""
        correct, predicted, every = (
            part[..., : self._given].clone() for part in (self._correct, self._predicted, self._answers)
        )
        sums = _distributed.total(self._sums).clone()
        return Readings(correct, predicted, sums, every if every.numel() else None)

    def _touched(self) -> Iterator[Tensor]:
        yield from (self._sums, self._correct, self._predicted, self._answers)
        yield from super()._touched()

    def _work(self, size: int, images: Tensor | None) -> None:
        at = self._cursor + torch.arange(size, device=self._device)
        index = self._index.index_select(-1, at)
        if images is None:
            assert not isinstance(self._source, FromStorage)
            images = self._source.plain(index)
        logits = self._learner.predict(images)
        label = self._source.labels[index].expand(logits.shape[0], -1)
        times = self._times.index_select(1, at)
        right, predicted = add_readings(self._sums, logits, label, times)
        if self._observers is not None:
            self._observers.batch(label, logits, times)
        self._correct.index_copy_(1, at, right)
        self._predicted.index_copy_(1, at, predicted)
        if self._answers.numel():
            self._answers.index_copy_(2, at, answer(logits, label))
        self._cursor += size
