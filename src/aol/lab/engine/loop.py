"""The training loop of a group of runs, offline or on a stream; and its history.

A loop trains one group of runs as one network. It writes no files: the caller saves its state between epochs. All
randomness is a function of (seed, epoch), so that such a state is all a resumed run needs.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from aol import _distributed, _seeds, metrics
from aol.ages import SampleAges
from aol.class_ages import ClassAges
from aol.lab.engine.learner import Learner, rate_at
from aol.lab.engine.passes import CleanPass, Readings, Trained, TrainPass
from aol.lab.engine.run_rules import Observers, RunMargins, RunWeights, SampleSignals, StepLosses
from aol.lab.engine.source import AnyPair, FromStorage, input_shape, orders, pool, source_of
from aol.lab.methods import WEIGHTINGS, Inputs
from aol.lab.settings import Settings, memory_capacity
from aol.memory import KeepAll, KeepLast, Memory, Reservoir
from aol.readings import precision
from aol.records.history import SampleHistory
from aol.streams import Arrivals, LimitedAccess, ShiftingTail, Stream
from aol.weights import ErrorRates

_NETWORK = 1_000_008  # this use's place in the path of a seed; above every step of a stream

# Readings by epoch: one number a run.
EPOCH = (
    "epoch", "lr", "seconds", "images_per_second", "train_loss", "train_accuracy", "test_accuracy",
    "validation_accuracy", "threshold", "prequential_g_mean", "prequential_kappa",
    "test_conflict_accuracy", "test_worst_group",
    *(f"test_{name}" for name in metrics.NAMES),
)  # fmt: skip
# By epoch and class: C numbers a run.
CLASS = (
    "age", "smoothed_age", "weight", "train_count", "train_accuracy", "train_loss",
    "train_margin", "test_accuracy", "test_loss", "test_margin", "test_age", "test_precision", "offset",
)  # fmt: skip
# Parts of a loop that its state is made of, where they are there.
_PARTS = (
    "ages", "learner", "history", "test_ages", "error_rates", "margins", "step_losses", "samples", "signals",
)  # fmt: skip


class History:
    """The readings of R runs over E epochs: `[E, R]`, or `[E, R, C]` by class; NaN where not read."""

    def __init__(self, num_runs: int, num_classes: int) -> None:
        self._runs, self._classes = num_runs, num_classes
        self._by_epoch: list[Tensor] = []
        self._by_class: list[Tensor] = []

    def __len__(self) -> int:
        return len(self._by_epoch)

    def add(self, by_epoch: dict[str, Tensor | float], by_class: dict[str, Tensor]) -> None:
        """Add one epoch; readings that are not given are NaN."""
        unknown = torch.full((self._runs, self._classes), math.nan)
        row = [torch.as_tensor(by_epoch.get(name, math.nan), dtype=torch.float64, device="cpu") for name in EPOCH]
        self._by_epoch.append(torch.stack([value.expand(self._runs) for value in row]))
        self._by_class.append(torch.stack([by_class.get(name, unknown).to("cpu", torch.float32) for name in CLASS]))

    def epoch(self, name: str) -> Tensor:
        """Return one reading over time, `float64 [E, R]`."""
        return torch.stack([row[EPOCH.index(name)] for row in self._by_epoch])

    def by_class(self, name: str) -> Tensor:
        """Return one reading by class over time, `float32 [E, R, C]`."""
        return torch.stack([block[CLASS.index(name)] for block in self._by_class])

    def state_dict(self) -> dict[str, Any]:
        """Return all readings as tensors, after the first epoch."""
        return {"by_epoch": torch.stack(self._by_epoch), "by_class": torch.stack(self._by_class)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over the readings of another history."""
        self._by_epoch, self._by_class = list(state["by_epoch"]), list(state["by_class"])


class Loop:
    """Trains one group of runs, epoch by epoch: on the whole set, on what arrives of it, or each on its own stream."""

    samples: SampleHistory | None = None  # the answers to each sample, where they are kept
    signals: SampleSignals | None = None  # for weights by sample, where a run needs them
    error_rates: ErrorRates | None = None  # where a run needs them
    step_losses: StepLosses | None = None
    test_answers: Tensor | None = None  # as `answer` gives them, [4, R, T]; of one process alone
    work = 0  # images of this epoch so far through each network, a training step counted thrice
    whole = 1 << 40  # about how many there are in an epoch, once that is known
    on_batch: Callable[[float], None] | None = None  # takes the share of the epoch that was given to the device

    def __init__(
        self,
        runs: Sequence[Settings],
        pair: AnyPair,
        *,
        device: torch.device,
        workers: int | None = None,
        keep_samples: bool = False,
    ) -> None:
        s = self.settings = runs[0]
        self.runs, self.device, self.keep_samples = list(runs), device, keep_samples
        self.classes, self.num_classes = pair.classes, pair.num_classes
        self._read(pair, workers)
        self.learner = Learner(runs, num_classes=self.num_classes, shape=input_shape(s, pair), device=device)
        self.history = History(len(runs), self.num_classes)
        self.epoch = 0
        self.failed = [0] * len(runs)  # the first epoch, counted from one, whose loss was not finite; 0: none
        # Streams and arrivals say which samples are there; none: all are.
        self._streams = [_stream(run, self.labels) for run in runs if s.scenario != "offline"]
        self._memories = [_memory(run) for run in runs if s.scenario == "stream"]
        self._make_states(torch.tensor([run.rho for run in runs]))
        self._train_pass: TrainPass | None = None
        self._clean_pass: CleanPass | None = None  # over what was trained on
        size, shared = self.held_out.shape[-1], self.held_out.dim() == 1
        self._held_out_pass = CleanPass(self.learner, self._validation, size=size, shared=shared)
        self._test_pass = CleanPass(self.learner, self.test, size=len(self._every), shared=True, keep=keep_samples)

    def _read(self, pair: AnyPair, workers: int | None) -> None:
        """Open the images, and choose each run's samples."""
        s, device, runs = self.settings, self.device, self.runs
        how: dict[str, Any] = {"run": s, "workers": workers, "device": device}
        self.train = source_of(pair, pair.train, augment=s.augment, **how)
        self.test = source_of(pair, pair.test, augment=False, **how)
        self.conflicting: Tensor | None = None  # bool [T]: test samples whose nuisance is that of another class
        if s.nuisance != "none" and pair.shortcut is not None:
            self.conflicting = pair.shortcut.test.to(device)
        labels = self.train.labels.cpu()
        # Of what may differ between the runs of a group, only the seed matters here, and runs share few seeds.
        pools = {seed: pool(run, labels, pair.shortcut) for seed, run in {run.seed: run for run in runs}.items()}
        self.pool = torch.stack([pools[run.seed][0] for run in runs]).to(device)  # [R, n]: places in the data set
        self.held_out = torch.stack([pools[run.seed][1] for run in runs]).to(device)  # [R, v]: for validation
        self._validation = self.train
        if pair.validation is not None and (not s.validation or s.changes_data):
            # A split of the set's own: [v], the same for all runs.
            self._validation = source_of(pair, pair.validation, augment=False, **how)
            self.held_out = torch.arange(self._validation.labels.numel(), device=device)
        self.labels = self.train.labels[self.pool[0]]  # [n]: the same in all runs, because pools are ordered by class
        self.counts = torch.bincount(self.labels, minlength=self.num_classes)  # samples of each class, [C]
        self._every = torch.arange(self.test.labels.numel(), device=device)

    def _make_states(self, rho: Tensor) -> None:
        """Make what learns from answers: ages, and what else a run needs."""
        runs, s, device, size = self.runs, self.settings, self.device, self.labels.numel()
        how: dict[str, Any] = {"num_classes": self.num_classes, "rho": rho, "device": device}
        self.ages: SampleAges | ClassAges
        if s.scenario == "stream":
            thresholds = ["median" if run.threshold is None else run.threshold for run in runs]
            self.ages = ClassAges(threshold=thresholds, **how)
        else:
            absent = "grow" if s.scenario == "arrival" else "keep"
            self.ages = SampleAges(self.labels, fuse=s.fuse, absent=absent, **how)
            if self.keep_samples:
                self.samples = SampleHistory(len(runs), size, absent=absent, device=device)
        if any(WEIGHTINGS[run.weighting].remembers for run in runs):
            self.signals = SampleSignals(runs, size, device)
        if any(run.weighting == "error" for run in runs):
            self.error_rates = ErrorRates(**how)
        self.test_ages = SampleAges(self.test.labels, **how)
        self.weights = RunWeights(runs, device)
        self.margins = RunMargins(runs, self.num_classes, None if s.scenario == "stream" else self.labels, device)
        self._observers = Observers(self.ages, self.error_rates, self.margins, s.signal == "train")
        if any(name.endswith("-seen") for run in runs for name in (run.weighting, run.margin)):
            self.step_losses = StepLosses(runs, self.num_classes, device)
        if self.margins.any or (self.step_losses is not None and self.step_losses.offsets_any):
            self.learner.offset = torch.zeros(len(runs), self.num_classes, device=device)

    @property
    def done(self) -> bool:
        """Whether all epochs are over, or every run has diverged."""
        return self.epoch >= self.settings.epochs or all(self.failed)

    def run_epoch(self) -> None:
        """Train for one epoch, evaluate, and add the readings to the history."""
        start = time.perf_counter()
        self.work = 0
        self._finite = torch.ones(len(self.runs), dtype=torch.bool, device=self.device)
        trained, by_class = self._learn()
        if self.learner.offset is not None:
            by_class["offset"] = self._used_offset
        if self.step_losses is not None:
            by_class["weight"] = by_class["weight"] * self.step_losses.class_weight()
        by_epoch = self._train_readings(trained, by_class)
        if (self.epoch + 1) % self.settings.eval_every == 0 or self.epoch + 1 == self.settings.epochs:
            by_epoch |= self._test_readings(by_class)
        for row, finite in enumerate((trained.loss.isfinite() & self._finite).tolist()):
            if not finite and not self.failed[row]:
                self.failed[row] = self.epoch + 1
        seconds = time.perf_counter() - start
        by_epoch |= {"seconds": seconds, "images_per_second": trained.images * len(self.runs) / seconds}
        self.history.add(by_epoch, by_class)
        self.epoch += 1

    def _learn(self) -> tuple[Trained, dict[str, Tensor]]:
        """Train for one epoch; return readings by class.

        Samples arrive, and enter the memory of a stream → weights from the ages so far → order → a training pass → a
        clean pass over the same samples or, on a stream, over its memory → ages.
        """
        signal = self.settings.signal
        here = self._arrived()
        if signal == "before":
            readings = self.clean_pass(here)
            self.fold(here)

        counts = self.counts
        if self._memories:  # of what this step of the stream shows
            counts = torch.zeros((len(self.runs), self.num_classes), dtype=torch.int64, device=self.device)
            counts.scatter_add_(1, self.labels[here], torch.ones_like(here))
        age, ages = self.ages.class_weight, self.ages if isinstance(self.ages, SampleAges) else None
        error = torch.ones_like(age) if self.error_rates is None else self.error_rates.class_weight
        inputs = Inputs(self.runs, counts, age, error, ages, self.signals)
        by_class = self.weights.by_class(inputs, epoch=self.epoch)
        by_sample, recorded = self.weights.by_sample(by_class, inputs, self.labels, epoch=self.epoch)
        position = here.gather(1, orders(self.runs, by_sample.gather(1, here), self.epoch))
        trained = self.train_pass(position, by_sample.gather(1, position), counts)

        if signal == "eval":
            readings = self.clean_pass(*(self._remembered() if self._memories else (here,)))
            self.fold(here)
        elif signal != "before":
            readings = {"train_count": trained.count, "train_accuracy": trained.right / trained.count}
        if signal == "train":
            self.fold(position)
        if signal != "none":
            names = ("age", "ema") if ages is None else ("mean_age", "class_age")
            readings |= {"age": getattr(self.ages, names[0]), "smoothed_age": getattr(self.ages, names[1])}
        if self.samples is not None:
            if signal == "train":  # only whether answers were right is known here
                self.samples.observe(position, None)
            self.samples.advance(self.ages.age)
        return trained, {**readings, "weight": recorded}

    def _arrived(self) -> Tensor:
        """Return the samples of this epoch, `int64 [R, m]`, as places in the pool; streams remember them."""
        if not self._streams:
            return torch.arange(self.labels.numel(), device=self.device).expand(len(self.runs), -1)
        arrived = [stream[self.epoch] for stream in self._streams]
        for memory, indices in zip(self._memories, arrived, strict=False):  # none of arrivals
            memory.add(indices)
        return torch.stack(arrived).to(self.device)

    def _remembered(self) -> tuple[Tensor, Tensor]:
        """Return the samples in memory, each once, and how often each is remembered, both `int64 [R, m]`."""
        remembered = torch.stack([memory.counts(self.labels.numel()) for memory in self._memories]).to(self.device)
        known = remembered > 0
        most = int(known.sum(1).max())
        # Remembered samples first; runs with fewer of them are padded with others, which count zero times.
        index = known.to(torch.int8).argsort(dim=1, descending=True, stable=True)[:, :most]
        return index, remembered.gather(1, index)

    def close(self) -> None:
        """End the processes that decode images; another epoch would start them again."""
        for source in (self.train, self.test, self._validation):
            if isinstance(source, FromStorage):
                source.close()

    # What an epoch is made of: a training pass, a clean pass, folding

    def train_pass(self, position: Tensor, weight: Tensor, counts: Tensor) -> Trained:
        """Train on the samples at `position [R, m]` of the pool, in that order; `counts` of their classes."""
        s = self.settings
        if s.retrain and self.epoch >= s.epochs - s.retrain and not self.learner.retrains:
            self.learner.retrain(begins=self.epoch == s.epochs - s.retrain)
            self._train_pass = None  # another step
        if self._train_pass is None:
            mixes = any(run.mixup for run in self.runs) and not self.learner.retrains
            how: dict[str, Any] = {"size": position.shape[1], "losses": self.step_losses, "mixes": mixes}
            observers = self._observers if s.signal == "train" or self.margins.in_training else None
            self._train_pass = TrainPass(self.learner, self.train, observers, **how)
        self.whole = 4 * position.shape[1] + self._every.numel() + self.held_out.shape[-1]
        weight = weight.masked_fill(self.weights.resampled, 1.0)
        number, base = self._train_pass.number, s.lr
        self._rates = [rate_at(s, self.epoch * number + step, number) for step in range(number)]
        self._set_offsets(counts)
        place = self.pool.gather(1, position)
        with self._seeded():
            steps = self._train_pass.steps(place, position, weight, rates=self._rates, epoch=self.epoch)
            for step, images in enumerate(steps, 1):
                self._count(3 * images)
                last = step == number
                if last and self.learner.offset is not None:
                    self._used_offset = self.learner.offset.clone()  # before margins move: what training ended with
                # Margins move after the last step, too: no answers wait for the next epoch, which may be that of a
                # resumed run.
                if self.margins.advance(self._rates[step - 1] / base if base else 1.0, steps=step, last=last):
                    self._set_offsets(counts)
        return self._train_pass.result()

    def clean_pass(self, position: Tensor, times: Tensor | None = None) -> dict[str, Tensor]:
        """Classify the samples at `position [R, m]` of the pool, unaugmented, each counted `times`; observe answers."""
        if self._clean_pass is None:
            keep = self.keep_samples or any(WEIGHTINGS[run.weighting].needs_loss for run in self.runs)
            most = self.labels.numel() if self._memories else position.shape[1]
            how: dict[str, Any] = {"size": most, "shared": False, "keep": keep}
            self._clean_pass = CleanPass(self.learner, self.train, self._observers, **how)
        readings = self._evaluate(self._clean_pass, self.pool.gather(1, position), times)
        rank, world = _distributed.world()
        mine = position[:, rank::world]
        own_times = None if times is None else times[:, rank::world]
        label = self.labels[mine]
        self._observers.observe(mine, label, readings.correct, own_times)
        self.margins.observe(label, readings.predicted, mine, training=False, times=own_times)
        if self.samples is not None:
            self.samples.observe(mine, readings.answers)
        if self.signals is not None and readings.answers is not None:
            self.signals.observe(position, readings.answers[1])
        return {"train_count": readings.sums[0], **readings.by_class("train")}

    def fold(self, observed: Tensor) -> None:
        """Fold the answers to the samples at these positions into ages, rates, and all that is remembered of them.

        Margins move as fast as the network learns: by the learning rate at the end of this epoch.
        """
        self.ages.advance()
        if self.error_rates is not None:
            self.error_rates.advance()
        base = self.settings.lr
        self.margins.advance(rate_at(self.settings, 1000 * self.epoch + 999, 1000) / base if base else 1.0)
        if self.signals is not None:
            self.signals.advance(observed, self.ages.age, epoch=self.epoch)

    # Parts of these

    def _evaluate(self, clean: CleanPass, index: Tensor, times: Tensor | None = None) -> Readings:
        for images in clean.steps(index, times):
            self._count(images)
        readings = clean.result()
        self._finite &= readings.sums[2].isfinite().all(1)  # the last step may diverge while its own loss is finite
        return readings

    def _count(self, images: int) -> None:
        """Count work that was given to the device."""
        self.work += images
        if self.on_batch is not None:
            self.on_batch(min(1.0, self.work / self.whole))

    @contextmanager
    def _seeded(self) -> Iterator[None]:
        """Seed the global generators for this epoch, and restore them: dropout draws from them (and runs alone)."""
        seed = _seeds.generator(self.settings.seed, _NETWORK, self.epoch, _distributed.world()[0]).initial_seed()
        gpu = [self.device] if self.device.type == "cuda" else []
        with torch.random.fork_rng(devices=gpu):
            torch.default_generator.manual_seed(seed)
            for device in gpu:
                with torch.cuda.device(device):
                    torch.cuda.manual_seed(seed)
            yield

    def _set_offsets(self, counts: Tensor) -> None:
        """Set the offsets of the logits for the coming training steps."""
        if self.learner.offset is not None:
            self.learner.offset.copy_(self.margins.offsets(counts))

    def _train_readings(self, trained: Trained, by_class: dict[str, Tensor]) -> dict[str, Tensor | float]:
        count, accuracy = by_class["train_count"], by_class["train_accuracy"]
        by_epoch: dict[str, Tensor | float] = {
            "epoch": self.epoch + 1,
            "lr": self._rates[-1],
            "train_loss": trained.loss,
            "train_accuracy": (count * accuracy).nansum(1) / count.sum(1),
        }
        if isinstance(self.ages, ClassAges):
            by_epoch["threshold"] = self.ages.threshold
            # Samples that are drawn by weight, or mixed, are not those of the stream.
            other = self.weights.resampled[:, 0] | torch.tensor([run.mixup > 0 for run in self.runs]).to(self.device)
            kappa = metrics.kappa_of_counts(trained.right, trained.count, trained.answered)
            geometric = metrics.g_mean(trained.right / trained.count)
            by_epoch["prequential_g_mean"] = geometric.masked_fill(other, torch.nan)
            by_epoch["prequential_kappa"] = kappa.masked_fill(other, torch.nan)
        return by_epoch

    def _test_readings(self, by_class: dict[str, Tensor]) -> dict[str, Tensor | float]:
        """Return readings on the test set and the held-out samples; add those by class."""
        readings = self._evaluate(self._test_pass, self._every)
        rank, world = _distributed.world()
        self.test_answers = readings.answers if world == 1 else None
        self.test_ages.observe(self._every[rank::world], readings.correct)
        self.test_ages.advance()
        on_test = {**readings.by_class("test"), "test_precision": precision(readings.sums)}
        by_class |= {**on_test, "test_age": self.test_ages.class_age}
        accuracy, share = (on_test[name].cpu() for name in ("test_accuracy", "test_precision"))
        by_epoch: dict[str, Tensor | float] = {"test_accuracy": readings.accuracy}
        for name, values in metrics.class_metrics(accuracy, precision=share, counts=self.counts.cpu()).items():
            by_epoch[f"test_{name}"] = values
        if self.conflicting is not None:  # a group: a class with its own nuisance, or with another one
            group = (2 * self.test.labels + self.conflicting)[rank::world].expand_as(readings.correct)
            sums = torch.zeros((2, len(self.runs), 2 * self.num_classes), dtype=torch.float64, device=self.device)
            seen = torch.stack((readings.correct, torch.ones_like(readings.correct))).to(sums.dtype)
            right, count = _distributed.total(sums.scatter_add_(2, group.expand(2, -1, -1), seen))
            by_epoch["test_conflict_accuracy"] = right[:, 1::2].sum(1) / count[:, 1::2].sum(1)
            by_epoch["test_worst_group"] = (right / count).nan_to_num(1.0).amin(1)
        if self.held_out.numel():
            by_epoch["validation_accuracy"] = self._evaluate(self._held_out_pass, self.held_out).accuracy
        return by_epoch

    # State

    def _states(self) -> dict[str, Any]:
        return {name: state for name in _PARTS if (state := getattr(self, name)) is not None}

    def state_dict(self) -> dict[str, Any]:
        """Return networks, optimiser, ages and history."""
        states = {name: state.state_dict() for name, state in self._states().items()}
        own = {"runs": [run.run_id for run in self.runs], "keep_samples": self.keep_samples}
        memories = [memory.state_dict() for memory in self._memories]
        return {**own, "epoch": self.epoch, "failed": list(self.failed), "memories": memories, **states}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from the state of another loop of the same runs; after an error, this loop must not be used."""
        if state["runs"] != [run.run_id for run in self.runs]:
            raise ValueError("The state is of other runs, or of the same in another order.")
        for name, mine in self._states().items():
            mine.load_state_dict(state[name])
        for memory, stored in zip(self._memories, state.get("memories", []), strict=True):
            memory.load_state_dict(stored)
        self.epoch, self.failed = state["epoch"], list(state["failed"])


def _stream(run: Settings, labels: Tensor) -> Stream:
    if run.scenario == "arrival":
        return Arrivals(labels, run.fraction, steps=run.epochs, seed=run.seed)
    if run.stream == "access":
        return LimitedAccess(labels, run.fraction, steps=run.epochs, seed=run.seed)
    assert run.stream == "shifting"
    assert run.imbalance is not None
    return ShiftingTail(labels, run.imbalance, period=run.period, steps=run.epochs, seed=run.seed)


def _memory(run: Settings) -> Memory:
    if capacity := memory_capacity(run.memory):
        return Reservoir(capacity, seed=run.seed)
    return KeepAll() if run.memory == "all" else KeepLast()
