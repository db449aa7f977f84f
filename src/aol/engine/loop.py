"""What offline, arrival and stream training have in common: an epoch after the other, readings, records, state.

A loop trains one stack of runs. It knows nothing of folders: whoever drives it saves its state between two epochs. All
randomness is a function of (seed, epoch), so that a state taken between epochs is all that a resumed run needs.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from aol import _check, _distributed, _seeds
from aol.ages import SampleAges
from aol.data.images import split_per_class
from aol.engine.clean import Readings, clean_pass
from aol.engine.history import History
from aol.engine.learner import Learner, rate_at
from aol.engine.settings import Settings
from aol.engine.source import AnyPair, Source, shape_of, sources
from aol.engine.weighting import Weighting
from aol.longtail import long_tail
from aol.losses import loss_total
from aol.sampling import draw
from aol.weights import ErrorRates

_ORDER = 1  # the place of this use in the path of a seed
Observe = Callable[[Tensor, Tensor, Tensor], None]


@dataclass(frozen=True)
class Trained:
    """What one training pass says: the mean loss `[R]`, right answers and samples by class `[R, C]`, the last rate."""

    loss: Tensor
    right: Tensor
    count: Tensor
    rate: float
    images: int


class Loop(ABC):
    """One stack of runs on its way through its epochs."""

    def __init__(
        self,
        runs: Sequence[Settings],
        pair: AnyPair,
        *,
        device: torch.device,
        workers: int = 0,
        keep_samples: bool = False,
    ) -> None:
        self.runs, self.settings, self.device = list(runs), runs[0], device
        self.classes, self.num_classes = pair.classes, pair.num_classes
        self.keep_samples = keep_samples
        s = self.settings
        shape = shape_of(pair, s.image_size)
        self.train, self.test = sources(
            pair,
            image_size=s.image_size,
            normalisation=s.normalisation,
            augment=s.augment,
            workers=workers,
            device=device,
        )
        labels = self.train.labels.cpu()
        pools = [pool(run, labels) for run in runs]
        self.pool = torch.stack([kept for kept, _ in pools]).to(device)  # [R, n]: places in the data set
        self.held_out = torch.stack([held for _, held in pools]).to(device)  # [R, v]: for validation
        self.labels = self.train.labels[self.pool[0]]  # [n]: the same in all runs, as a pool is ordered by class
        self.learner = Learner(runs, num_classes=self.num_classes, shape=shape, device=device)
        self.weighting = Weighting(runs, device)
        self.history = History(len(runs), self.num_classes)
        rho = torch.tensor([run.rho for run in runs])
        self.error_rates = ErrorRates(self.num_classes, rho=rho, device=device)
        self.test_ages = SampleAges(self.test.labels, num_classes=self.num_classes, rho=rho, device=device)
        self.epoch = 0
        self.failed = [0] * len(runs)  # the epoch, counted from one, whose loss was not finite; zero while all is well

    @property
    def done(self) -> bool:
        """Whether all epochs are over, or no run is left that is worth going on with."""
        return self.epoch >= self.settings.epochs or all(self.failed)

    def run_epoch(self) -> None:
        """Train for one epoch, read what is to be read, write it down and move on."""
        start = time.perf_counter()
        self._finite = torch.ones(len(self.runs), dtype=torch.bool, device=self.device)
        trained, by_class = self._learn()
        by_epoch: dict[str, Tensor | float] = {
            "epoch": self.epoch + 1,
            "lr": trained.rate,
            "train_loss": trained.loss,
            **self._train_readings(by_class),
        }
        if (self.epoch + 1) % self.settings.eval_every == 0 or self.epoch + 1 == self.settings.epochs:
            by_epoch |= self._test_readings(by_class)
        for row, finite in enumerate((trained.loss.isfinite() & self._finite).tolist()):
            if not finite and not self.failed[row]:
                self.failed[row] = self.epoch + 1
        seconds = time.perf_counter() - start
        speed = trained.images * len(self.runs) / seconds
        self.history.add({**by_epoch, "seconds": seconds, "images_per_second": speed}, by_class, self._sample_ages())
        self.epoch += 1

    @abstractmethod
    def _learn(self) -> tuple[Trained, dict[str, Tensor]]:
        """Do one epoch's training and age what is to be aged; return readings by class."""

    def _train_readings(self, by_class: dict[str, Tensor]) -> dict[str, Tensor | float]:
        count, accuracy = by_class["train_count"], by_class["train_accuracy"]
        return {"train_accuracy": (count * accuracy).nansum(1) / count.sum(1)}

    def _sample_ages(self) -> Tensor | None:
        """Return the ages of all samples, `[R, n]`, where they are to be kept."""
        return None

    def _read(self, source: Source, index: Tensor, *, times: Tensor | None = None, averaged: bool = False) -> Readings:
        """Take a clean pass; what the last step spoilt, whose own loss was still finite, shows in its losses."""
        found = clean_pass(self.learner, source, index, num_classes=self.num_classes, times=times, averaged=averaged)
        self._finite &= found.loss.isfinite().all(1)
        return found

    def _test_readings(self, by_class: dict[str, Tensor]) -> dict[str, Tensor | float]:
        every = torch.arange(self.test.labels.numel(), device=self.device)
        readings = self._read(self.test, every)
        rank, world = _distributed.world()
        self.test_ages.observe(every[rank::world], readings.correct)
        self.test_ages.advance()
        by_class |= {
            "test_accuracy": readings.class_accuracy,
            "test_loss": readings.class_loss,
            "test_margin": readings.class_margin,
            "test_age": self.test_ages.class_age,
        }
        found: dict[str, Tensor | float] = {"test_accuracy": readings.accuracy}
        if self.learner.has_average:
            found["averaged_accuracy"] = self._read(self.test, every, averaged=True).accuracy
        if self.held_out.numel():
            found["validation_accuracy"] = self._read(self.train, self.held_out).accuracy
        return found

    def _train_on(self, place: Tensor, weight: Tensor, observe: Observe | None) -> Trained:
        """Take one pass over `place [R, m]` in that order, with `weight [R, m]`.

        `observe(part, label, right)`, where given, hears of each batch: its places in the order, labels, and answers.
        """
        s, size = self.settings, place.shape[1]
        rank, world = _distributed.world()
        steps = -(-size // s.batch_size)
        mine, real = _share(size, s.batch_size, rank, world, self.device)
        share = -(-s.batch_size // world)
        own, own_weight = place[:, mine], weight[:, mine] * real
        sums = torch.zeros((2, len(self.runs), self.num_classes), dtype=torch.float64, device=self.device)
        losses = torch.zeros(len(self.runs), dtype=torch.float64, device=self.device)
        rate = 0.0
        seeds = [run.seed for run in self.runs]
        for step, images in enumerate(self.train.train(place, mine, batch=share, epoch=self.epoch, seeds=seeds)):
            part = slice(step * share, step * share + images.shape[1])
            rate = rate_at(s, self.epoch * steps + step, steps)
            label = self.train.labels[own[:, part]]
            total = self._total(own_weight[:, part], real[part]) if world > 1 else None
            loss, right = self.learner.step(images, label, own_weight[:, part], rate, total)
            losses += loss
            counted = real[part].to(torch.float64).expand(len(self.runs), -1)
            sums.scatter_add_(2, label.expand(2, -1, -1), torch.stack((right * counted, counted)))
            if observe is not None:
                observe(mine[part][real[part]], label[:, real[part]], right[:, real[part]])
        self.learner.agree()
        sums, losses = _distributed.total(sums), _distributed.total(losses)
        return Trained(losses / world / steps, sums[0], sums[1], rate, size)

    def _total(self, weight: Tensor, real: Tensor) -> Tensor:
        """Return what each run's losses are divided by, over all processes."""
        by_count = loss_total(real.to(weight.dtype).expand_as(weight))
        return torch.where(self.learner.by_count, by_count, loss_total(weight))

    def _orders(self, weight: Tensor) -> Tensor:
        """Return each run's order of `weight [R, m]`'s places: shuffled, or drawn by weight where it resamples."""
        rows = []
        for run, own in zip(self.runs, weight, strict=True):
            generator = _seeds.generator(run.seed, _ORDER, self.epoch, device=self.device)
            if run.mechanism == "resample":
                rows.append(draw(own, own.numel(), generator=generator))
            else:
                rows.append(torch.randperm(own.numel(), generator=generator, device=self.device))
        return torch.stack(rows)

    def _states(self) -> dict[str, SampleAges | ErrorRates | Learner | History]:
        return {
            "learner": self.learner,
            "history": self.history,
            "test_ages": self.test_ages,
            "error_rates": self.error_rates,
        }

    def state_dict(self) -> dict[str, object]:
        """Return everything: networks, optimiser, ages, records."""
        states: dict[str, object] = {name: state.state_dict() for name, state in self._states().items()}
        return {**self._identity(), "epoch": self.epoch, "failed": list(self.failed), **states}

    def _identity(self) -> dict[str, object]:
        return {"runs": [run.run_id for run in self.runs], "keep_samples": self.keep_samples}

    def load_state_dict(self, state: dict[str, object]) -> None:
        """Go on where another loop of the same runs stood."""
        if state.get("keep_samples") != self.keep_samples:
            raise ValueError("These runs were begun with the other choice of --keep-samples: repeat it.")
        _check.same_settings("loop", self._identity(), state)
        for name, mine in self._states().items():
            mine.load_state_dict(state[name])  # type: ignore[arg-type]
        self.epoch = int(state["epoch"])  # type: ignore[call-overload]
        self.failed = list(state["failed"])  # type: ignore[call-overload]


def pool(run: Settings, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return a run's training samples, ordered by class, and those held out for validation, as places in the data."""
    kept, held = torch.arange(labels.numel()), torch.empty(0, dtype=torch.int64)
    if run.validation:
        kept, held = split_per_class(labels, run.validation, seed=run.seed)
    shifting = run.scenario == "stream" and run.stream == "shifting"  # such a stream makes its own long tails
    if run.imbalance is not None and not shifting:
        kept = kept[long_tail(labels[kept], run.imbalance, profile=run.profile, seed=run.seed)]
    return kept[labels[kept].argsort(stable=True)], held


def _share(size: int, batch: int, rank: int, world: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the places of an order that one process shows, and which of them are real: each batch is shared out.

    A batch that cannot be shared evenly is filled up with its own first places, which then count for nothing.

    >>> [_share(5, 4, rank, 2, torch.device("cpu"))[0].tolist() for rank in (0, 1)]
    [[0, 2, 4], [1, 3, 4]]
    >>> _share(5, 4, 1, 2, torch.device("cpu"))[1].tolist()
    [True, True, False]
    """
    places, real = [], []
    for start in range(0, size, batch):
        own = torch.arange(start + rank, min(start + batch, size), world)
        most = -(-(min(start + batch, size) - start) // world)
        places.append(torch.cat((own, torch.full((most - own.numel(),), start))))
        real.append(torch.arange(most) < own.numel())
    return torch.cat(places).to(device), torch.cat(real).to(device)
