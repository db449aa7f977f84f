"""The training loop of a group of runs: passes, folding of answers, readings, history, state; and its scenarios.

A loop trains one group of runs as one network. It writes no files: the caller saves its state between epochs. All
randomness is a function of (seed, epoch), so that such a state is all a resumed run needs.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from aol import _distributed, _seeds
from aol.ages import SampleAges
from aol.class_ages import ClassAges, Threshold
from aol.lab.engine.history import History
from aol.lab.engine.learner import Learner, rate_at
from aol.lab.engine.passes import CleanPass, Readings, Trained, TrainPass
from aol.lab.engine.run_margins import RunMargins
from aol.lab.engine.run_weights import RunWeights, SampleSignals
from aol.lab.engine.samples import orders, pool
from aol.lab.engine.source import AnyPair, shape_of, sources
from aol.lab.engine.step_losses import StepLosses
from aol.lab.engine.stored_source import FromStorage
from aol.lab.methods import WEIGHTINGS, Inputs
from aol.lab.settings import Settings, memory_capacity
from aol.memory import KeepAll, KeepLast, Memory, Reservoir
from aol.metrics import class_metrics, g_mean, kappa_of_counts
from aol.readings import precision
from aol.records.history import SampleHistory
from aol.streams import Arrivals, LimitedAccess, ShiftingTail
from aol.weights import ErrorRates

_NETWORK = 1_000_008  # this use's place in the path of a seed; above every step of a stream


class Loop(ABC):
    """Trains one group of runs, epoch by epoch. A scenario makes the ages and says what an epoch is (`_learn`)."""

    samples: SampleHistory | None = None  # the answers to each sample, where they are kept
    signals: SampleSignals | None = None  # for weights by sample, where a run needs them
    work = 0  # images of this epoch so far through each network, a training step counted thrice
    whole = 1 << 40  # about how many there are in an epoch, once that is known
    on_batch: Callable[[], None] | None = None  # called when a batch was issued; it must not wait for the device

    def __init__(
        self,
        runs: Sequence[Settings],
        pair: AnyPair,
        *,
        device: torch.device,
        workers: int | None = None,
        keep_samples: bool = False,
    ) -> None:
        self.runs, self.settings, self.device = list(runs), runs[0], device
        self.classes, self.num_classes = pair.classes, pair.num_classes
        self.keep_samples = keep_samples
        self._read(pair, workers)
        shape = shape_of(pair, self.settings.image_size)
        self.learner = Learner(runs, num_classes=self.num_classes, shape=shape, device=device)
        self.weights = RunWeights(runs, device)
        self.history = History(len(runs), self.num_classes)
        rho = torch.tensor([run.rho for run in runs])
        self.error_rates = ErrorRates(self.num_classes, rho=rho, device=device)
        self.test_ages = SampleAges(self.test.labels, num_classes=self.num_classes, rho=rho, device=device)
        self.ages: SampleAges | ClassAges = self._make_ages(rho)
        come_back = isinstance(self.ages, SampleAges)
        self.margins = RunMargins(runs, self.num_classes, self.labels if come_back else None, device)
        losses = StepLosses(runs, self.num_classes, device)
        self.step_losses = losses if losses.any else None
        if self.margins.any or losses.offsets_any:
            self.learner.offset = torch.zeros(len(runs), self.num_classes, device=device)
        self._train_pass: TrainPass | None = None
        self._clean_pass: CleanPass | None = None  # over what was trained on
        self._held_out_pass = self._pass_over(self._validation, self.held_out)
        self._test_pass = self._pass_over(self.test, self._every, keep=self.keep_samples)
        self.test_answers: Tensor | None = None  # as `answer` gives them, [4, R, T]; of one process alone
        self.epoch = 0
        self.failed = [0] * len(runs)  # the first epoch, counted from one, whose loss was not finite; 0: none

    def _read(self, pair: AnyPair, workers: int | None) -> None:
        """Open the images, and choose each run's samples."""
        s, device, runs = self.settings, self.device, self.runs
        how: dict[str, Any] = {"image_size": s.image_size, "normalisation": s.normalisation, "augment": s.augment}
        how |= {"workers": workers, "device": device}
        self.train, self.test = sources(pair, **how)
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
            own = replace(pair, train=pair.validation, test=pair.validation)  # type: ignore[arg-type]
            self._validation = sources(own, **how)[1]
            self.held_out = torch.arange(self._validation.labels.numel(), device=device)
        self.labels = self.train.labels[self.pool[0]]  # [n]: the same in all runs, because pools are ordered by class
        self.counts = torch.bincount(self.labels, minlength=self.num_classes)  # samples of each class, [C]
        self._every = torch.arange(self.test.labels.numel(), device=device)

    @abstractmethod
    def _make_ages(self, rho: Tensor) -> SampleAges | ClassAges:
        """Make the ages, and what else this kind of loop needs."""

    @abstractmethod
    def _learn(self) -> tuple[Trained, dict[str, Tensor]]:
        """Train for one epoch and update the ages; return readings by class."""

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
            kappa = kappa_of_counts(trained.right, trained.count, trained.answered)
            by_epoch["prequential_g_mean"] = g_mean(trained.right / trained.count).masked_fill(other, torch.nan)
            by_epoch["prequential_kappa"] = kappa.masked_fill(other, torch.nan)
        if (self.epoch + 1) % self.settings.eval_every == 0 or self.epoch + 1 == self.settings.epochs:
            by_epoch |= self._test_readings(by_class)
        for row, finite in enumerate((trained.loss.isfinite() & self._finite).tolist()):
            if not finite and not self.failed[row]:
                self.failed[row] = self.epoch + 1
        seconds = time.perf_counter() - start
        by_epoch |= {"seconds": seconds, "images_per_second": trained.images * len(self.runs) / seconds}
        self.history.add(by_epoch, by_class)
        self.epoch += 1

    def close(self) -> None:
        """End the processes that decode images; another epoch would start them again."""
        for source in (self.train, self.test, self._validation):
            if isinstance(source, FromStorage):
                source.close()

    # What an epoch is made of: weights and order, a training pass, a clean pass, folding

    def inputs(self, counts: Tensor) -> Inputs:
        """Return what weights are computed from; `counts` of the classes, `[C]` or `[R, C]`."""
        ages = self.ages if isinstance(self.ages, SampleAges) else None
        return Inputs(self.runs, counts, self.ages.class_weight, self.error_rates.class_weight, ages, self.signals)

    def train_pass(self, position: Tensor, weight: Tensor, counts: Tensor) -> Trained:
        """Train on the samples at `position [R, m]` of the pool, in that order; `counts` of their classes."""
        s = self.settings
        if s.retrain and self.epoch >= s.epochs - s.retrain and not self.learner.retrains:
            self.learner.retrain(begins=self.epoch == s.epochs - s.retrain)
            self._train_pass = None  # another step
        if self._train_pass is None:
            observes = s.signal == "train" or self.margins.in_training
            self._train_pass = TrainPass(
                self.learner,
                self.train,
                num_classes=self.num_classes,
                size=position.shape[1],
                observe=self._observe_step if observes else None,
                observed=self._observed_tensors,
                losses=self.step_losses,
                mixes=any(run.mixup for run in self.runs) and not self.learner.retrains,
            )
        self.whole = 4 * position.shape[1] + self._every.numel() + self.held_out.shape[-1]
        weight = weight.masked_fill(self.weights.resampled, 1.0)
        number, base = self._train_pass.number, s.lr
        self._rates = [rate_at(s, self.epoch * number + step, number) for step in range(number)]
        self._set_offsets(counts)
        place, seeds = self.pool.gather(1, position), [run.seed for run in self.runs]
        steps = self._train_pass.steps(place, position, weight, rates=self._rates, epoch=self.epoch, seeds=seeds)
        with self._seeded():
            for step, images in enumerate(steps, 1):
                self._count(3 * images)
                last = step == number
                if last and self.learner.offset is not None:
                    self._used_offset = self.learner.offset.clone()  # before margins move: what training ended with
                # Margins move after the last step, too: no answers wait for the next epoch, which may be that of a
                # resumed run.
                if self.margins.step(step, self._rates[step - 1] / base if base else 1.0, last=last):
                    self._set_offsets(counts)
        return self._train_pass.result()

    def clean_pass(
        self, position: Tensor, times: Tensor | None = None, *, most: int | None = None
    ) -> dict[str, Tensor]:
        """Classify the samples at `position [R, m]` of the pool, unaugmented, each counted `times`; observe answers.

        `most`: the most samples of any such pass, where their number changes.
        """
        if self._clean_pass is None:
            self._clean_pass = CleanPass(
                self.learner,
                self.train,
                num_classes=self.num_classes,
                size=most or position.shape[1],
                shared=False,
                keep=self.keep_samples or any(WEIGHTINGS[run.weighting].needs_loss for run in self.runs),
                observe=partial(self.margins.observe_logits, self.margins.in_clean_pass),
                observed=self.margins.pending,
            )
        readings = self._evaluate(self._clean_pass, self.pool.gather(1, position), times)
        rank, world = _distributed.world()
        mine = position[:, rank::world]
        own_times = None if times is None else times[:, rank::world]
        label = self.labels[mine]
        self._observe_ages(mine, label, readings.correct, own_times)
        self.margins.observe(self.margins.in_clean_pass, mine, label, readings.predicted, own_times)
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
        self.error_rates.advance()
        base = self.settings.lr
        self.margins.advance(rate_at(self.settings, 1000 * self.epoch + 999, 1000) / base if base else 1.0)
        if self.signals is not None:
            self.signals.advance(observed, self.ages.age, epoch=self.epoch)

    # Parts of these

    def _pass_over(self, source: Any, index: Tensor, *, keep: bool = False) -> CleanPass:
        size, shared = index.shape[-1], index.dim() == 1
        return CleanPass(self.learner, source, num_classes=self.num_classes, size=size, shared=shared, keep=keep)

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
            self.on_batch()

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

    def _observe_step(self, position: Tensor, label: Tensor, right: Tensor, predicted: Tensor, logits: Tensor) -> None:
        """Update margins with the answers of a training step, and ages and error rates if these are their signal."""
        if self.settings.signal == "train":
            self._observe_ages(position, label, right)
        self.margins.observe(self.margins.in_training, position, label, predicted)
        self.margins.observe_logits(self.margins.in_training, label, logits)

    def _observe_ages(self, position: Tensor, label: Tensor, right: Tensor, times: Tensor | None = None) -> None:
        """Update ages and error rates with answers `[R, B]`."""
        if isinstance(self.ages, SampleAges):
            self.ages.observe(position, right)
        else:
            self.ages.observe(label, right, times=times)
        self.error_rates.observe(label, right, times=times)

    def _observed_tensors(self) -> Iterator[Tensor]:
        """Yield the tensors that `_observe_step` changes."""
        yield from self.error_rates.pending()
        yield from self.ages.pending()
        yield from self.margins.pending()

    def _set_offsets(self, counts: Tensor) -> None:
        """Set the offsets of the logits for the coming training steps."""
        if self.learner.offset is not None:
            self.learner.offset.copy_(self.margins.offsets(counts))

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
        for name, values in class_metrics(accuracy, precision=share, counts=self.counts.cpu()).items():
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
        names = (
            "ages",
            "learner",
            "history",
            "test_ages",
            "error_rates",
            "margins",
            "step_losses",
            "samples",
            "signals",
        )
        return {name: state for name in names if (state := getattr(self, name)) is not None}

    def state_dict(self) -> dict[str, Any]:
        """Return networks, optimiser, ages and history."""
        states = {name: state.state_dict() for name, state in self._states().items()}
        own = {"runs": [run.run_id for run in self.runs], "keep_samples": self.keep_samples}
        return {**own, "epoch": self.epoch, "failed": list(self.failed), **states}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from the state of another loop of the same runs; after an error, this loop must not be used."""
        if state["runs"] != [run.run_id for run in self.runs]:
            raise ValueError("The state is of other runs, or of the same in another order.")
        for name, mine in self._states().items():
            mine.load_state_dict(state[name])
        self.epoch, self.failed = state["epoch"], list(state["failed"])


class OfflineLoop(Loop):
    """Trains on the whole set every epoch or, in the scenario "arrival", on the part of it that arrives.

    An epoch: weights from the ages so far → order → one training pass → one clean pass over the same samples → ages.
    """

    ages: SampleAges

    def _make_ages(self, rho: Tensor) -> SampleAges:
        runs, s, size = self.runs, self.settings, self.labels.numel()
        arrives = s.scenario == "arrival"
        absent = "grow" if arrives else "keep"
        if self.keep_samples:
            self.samples = SampleHistory(len(runs), size, absent=absent, device=self.device)
        if any(WEIGHTINGS[run.weighting].remembers for run in runs):
            self.signals = SampleSignals(runs, size, self.device)
        self._arrivals = [Arrivals(self.labels, s.fraction, steps=s.epochs, seed=run.seed) for run in runs if arrives]
        how: dict[str, Any] = {"rho": rho, "fuse": s.fuse, "absent": absent, "device": self.device}
        return SampleAges(self.labels, num_classes=self.num_classes, **how)

    def _learn(self) -> tuple[Trained, dict[str, Tensor]]:
        signal = self.settings.signal
        here = torch.arange(self.labels.numel(), device=self.device).expand(len(self.runs), -1)  # [R, m]
        if self._arrivals:
            here = torch.stack([arrivals[self.epoch] for arrivals in self._arrivals]).to(self.device)
        if signal == "before":
            readings = self.clean_pass(here)
            self.fold(here)

        inputs = self.inputs(self.counts)
        by_class = self.weights.by_class(inputs, epoch=self.epoch)
        by_sample = self.weights.by_sample(by_class, inputs, self.labels, epoch=self.epoch)
        position = here.gather(1, orders(self.runs, by_sample.gather(1, here), self.epoch))
        trained = self.train_pass(position, by_sample.gather(1, position), self.counts)

        if signal == "eval":
            readings = self.clean_pass(here)
            self.fold(here)
        elif signal != "before":
            readings = trained.by_class()
        if signal == "train":
            self.fold(position)
        if signal != "none":
            readings |= {"age": self.ages.mean_age, "smoothed_age": self.ages.class_age}
        if self.samples is not None:
            if signal == "train":  # only whether answers were right is known here
                self.samples.observe(position, None)
            self.samples.advance(self.ages.age)
        return trained, {**readings, "weight": self.weights.mean_by_class(by_class, by_sample, self.labels)}


class StreamLoop(Loop):
    """Trains R runs, each on its own stream. "train" readings are of the samples in memory, repeats counted.

    A step: its samples enter the memory → one training pass over them → one clean pass over the memory → ages.
    """

    ages: ClassAges

    def _make_ages(self, rho: Tensor) -> ClassAges:
        self._streams = [_stream(run, self.labels) for run in self.runs]
        self._memories = [_memory(run) for run in self.runs]
        threshold: list[Threshold] = ["median" if run.threshold is None else run.threshold for run in self.runs]
        return ClassAges(self.num_classes, rho=rho, threshold=threshold, device=self.device)

    def _learn(self) -> tuple[Trained, dict[str, Tensor]]:
        signal, size = self.settings.signal, self.labels.numel()
        samples = torch.stack([stream[self.epoch] for stream in self._streams])
        for memory, indices in zip(self._memories, samples, strict=True):
            memory.add(indices)
        shown = samples.to(self.device)  # [R, m]
        if signal == "before":
            readings = self.clean_pass(shown, most=size)
            self.fold(shown)

        label = self.labels[shown]
        counts = torch.zeros((len(self.runs), self.num_classes), dtype=torch.int64, device=self.device)
        counts.scatter_add_(1, label, torch.ones_like(label))
        by_class = self.weights.by_class(self.inputs(counts), epoch=self.epoch)
        position = shown.gather(1, orders(self.runs, by_class.gather(1, label), self.epoch))
        trained = self.train_pass(position, by_class.gather(1, self.labels[position]), counts)

        if signal == "eval":
            readings = self.clean_pass(*self._remembered(), most=size)
        elif signal != "before":
            readings = trained.by_class()
        if signal in ("eval", "train"):
            self.fold(shown)
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

    def state_dict(self) -> dict[str, Any]:
        """Return networks, optimiser, ages, history and memories."""
        return {**super().state_dict(), "memories": [memory.state_dict() for memory in self._memories]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from the state of another loop of the same runs."""
        super().load_state_dict(state)
        for memory, own in zip(self._memories, state["memories"], strict=True):
            memory.load_state_dict(own)


def _stream(run: Settings, labels: Tensor) -> LimitedAccess | ShiftingTail:
    if run.stream == "access":
        return LimitedAccess(labels, run.fraction, steps=run.epochs, seed=run.seed)
    assert run.imbalance is not None
    return ShiftingTail(labels, run.imbalance, period=run.period, steps=run.epochs, seed=run.seed)


def _memory(run: Settings) -> Memory:
    if capacity := memory_capacity(run.memory):
        return Reservoir(capacity, seed=run.seed)
    return KeepAll() if run.memory == "all" else KeepLast()
