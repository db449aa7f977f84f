"""What offline, arrival and stream training share: epochs, readings, history, state.

A loop trains one group of runs as one network. It writes no files: the caller saves its state between epochs. All
randomness is a function of (seed, epoch), so that such a state is all a resumed run needs.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from aol import _check, _distributed, _seeds
from aol.ages import ClassAges, SampleAges
from aol.lab.data.images import Shortcut, split_per_class
from aol.lab.data.nuisance import stratified
from aol.lab.engine.history import History
from aol.lab.engine.learner import Learner, rate_at
from aol.lab.engine.passes import CleanPass, ObserveLogits, Readings, Trained, TrainPass
from aol.lab.engine.run_margins import RunMargins
from aol.lab.engine.run_weights import RunWeights
from aol.lab.engine.sample_signals import SampleSignals
from aol.lab.engine.source import AnyPair, shape_of, sources
from aol.lab.engine.stored_source import FromStorage
from aol.lab.engine.weighting import WEIGHTINGS
from aol.lab.settings import Settings, WrongSettingsError
from aol.longtail import long_tail
from aol.margins import Margins
from aol.metrics import class_metrics
from aol.readings import precision
from aol.records.history import SampleHistory
from aol.sampling import draw, shuffle
from aol.weights import ErrorRates

# Places of the two uses in the path of a seed; above every step of a stream.
_ORDER, _NETWORK = 1_000_001, 1_000_008


class Loop(ABC):
    """Trains one group of runs, epoch by epoch."""

    ages: SampleAges | ClassAges
    margins: RunMargins
    samples: SampleHistory | None = None  # the answers to each sample, where they are kept
    signals: SampleSignals | None = None  # for weights by sample, where a run needs them
    work = 0  # images of this epoch so far through each network, a training step counted thrice
    on_batch: Callable[[], None] | None = None  # called when a batch was issued; it must not wait for the device

    def __init__(
        self,
        runs: Sequence[Settings],
        pair: AnyPair,
        *,
        device: torch.device,
        workers: int | None = None,
        keep_samples: bool = False,
        stacking: str = "grouped",
    ) -> None:
        self.runs, self.settings, self.device = list(runs), runs[0], device
        self.classes, self.num_classes = pair.classes, pair.num_classes
        self.keep_samples = keep_samples
        self._keeps_answers = keep_samples or any(WEIGHTINGS[run.weighting].needs_loss for run in runs)
        s = self.settings
        shape = shape_of(pair, s.image_size)
        make_sources = partial(
            sources,
            image_size=s.image_size,
            normalisation=s.normalisation,
            augment=s.augment,
            workers=workers,
            device=device,
        )
        self.train, self.test = make_sources(pair)
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
            self._validation = make_sources(own)[1]
            self.held_out = torch.arange(self._validation.labels.numel(), device=device)
        self.labels = self.train.labels[self.pool[0]]  # [n]: the same in all runs, because pools are ordered by class
        self.counts = torch.bincount(self.labels, minlength=self.num_classes)  # samples of each class, [C]
        self.learner = Learner(runs, num_classes=self.num_classes, shape=shape, device=device, stacking=stacking)
        self.weights = RunWeights(runs, device)
        self.history = History(len(runs), self.num_classes)
        rho = torch.tensor([run.rho for run in runs])
        self.error_rates = ErrorRates(self.num_classes, rho=rho, device=device)
        self.test_ages = SampleAges(self.test.labels, num_classes=self.num_classes, rho=rho, device=device)
        self._train_pass: TrainPass | None = None
        self._clean_passes: dict[str, CleanPass] = {}
        self.epoch = 0
        self.failed = [0] * len(runs)  # the first epoch, counted from one, whose loss was not finite; 0: none
        self._start()

    @abstractmethod
    def _start(self) -> None:
        """Make the ages and margins, and what else this kind of loop needs."""

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
        if self.margins.any:
            by_class["offset"] = self._used_offset
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
        if trained.seconds is not None and trained.waited is not None:
            by_epoch |= {"train_seconds": trained.seconds, "data_seconds": trained.waited}
        speed = trained.images * len(self.runs) / seconds
        self.history.add({**by_epoch, "seconds": seconds, "images_per_second": speed}, by_class)
        self.epoch += 1

    def close(self) -> None:
        """End the processes that decode images; another epoch would start them again."""
        for source in (self.train, self.test, self._validation):
            if isinstance(source, FromStorage):
                source.close()

    @abstractmethod
    def _learn(self) -> tuple[Trained, dict[str, Tensor]]:
        """Train for one epoch and update the ages; return readings by class."""

    def _train_readings(self, by_class: dict[str, Tensor]) -> dict[str, Tensor | float]:
        count, accuracy = by_class["train_count"], by_class["train_accuracy"]
        return {"train_accuracy": (count * accuracy).nansum(1) / count.sum(1)}

    def _test_readings(self, by_class: dict[str, Tensor]) -> dict[str, Tensor | float]:
        every = torch.arange(self.test.labels.numel(), device=self.device)
        readings = self._evaluate("test", every)
        rank, world = _distributed.world()
        self.test_ages.observe(every[rank::world], readings.correct)
        self.test_ages.advance()
        on_test = {**readings.by_class("test"), "test_precision": precision(readings.sums)}
        by_class |= {**on_test, "test_age": self.test_ages.class_age}
        accuracy, share = (on_test[name].cpu() for name in ("test_accuracy", "test_precision"))
        by_epoch: dict[str, Tensor | float] = {"test_accuracy": readings.accuracy}
        for name, values in class_metrics(accuracy, precision=share, counts=self.counts.cpu()).items():
            by_epoch[f"test_{name}"] = values
        if self.conflicting is not None:
            by_epoch |= self._group_readings(readings.correct)
        if self.learner.has_average:
            by_epoch["averaged_accuracy"] = self._evaluate("averaged", every).accuracy
        if self.held_out.numel():
            by_epoch["validation_accuracy"] = self._evaluate("validation", self.held_out).accuracy
        return by_epoch

    def _group_readings(self, correct: Tensor) -> dict[str, Tensor | float]:
        """Return the accuracy on conflicting test samples, and that of the worst group; this process has `correct`."""
        assert self.conflicting is not None
        rank, world = _distributed.world()
        group = (2 * self.test.labels + self.conflicting)[rank::world].expand_as(correct)
        sums = torch.zeros((2, len(self.runs), 2 * self.num_classes), dtype=torch.float64, device=self.device)
        sums.scatter_add_(2, group.expand(2, -1, -1), torch.stack((correct, torch.ones_like(correct))).to(sums.dtype))
        right, count = _distributed.total(sums)
        conflict = right[:, 1::2].sum(1) / count[:, 1::2].sum(1)
        return {"test_conflict_accuracy": conflict, "test_worst_group": (right / count).nan_to_num(1.0).amin(1)}

    def _evaluate(self, what: str, index: Tensor, times: Tensor | None = None, *, most: int | None = None) -> Readings:
        """Evaluate on "train" (samples trained on), "validation", "test", or "averaged" (test, averaged networks)."""
        if what not in self._clean_passes:
            source = {"train": self.train, "validation": self._validation}.get(what, self.test)
            self._clean_passes[what] = CleanPass(
                self.learner,
                source,
                num_classes=self.num_classes,
                size=most or index.shape[-1],
                shared=index.dim() == 1,
                averaged=what == "averaged",
                keep=what == "train" and self._keeps_answers,
                observe_logits=self._logits_observer(self.margins.per_epoch) if what == "train" else None,
                observed=self.margins.pending if what == "train" else tuple,
                issued=self._count,
            )
        readings = self._clean_passes[what](index, times)
        self._finite &= readings.sums[2].isfinite().all(1)  # the last step may diverge while its own loss is finite
        return readings

    def _count(self, images: int) -> None:
        """Count work that was given to the device."""
        self.work += images
        if self.on_batch is not None:
            self.on_batch()

    def _train_on(self, place: Tensor, position: Tensor, weight: Tensor) -> Trained:
        """Take one pass over `place [R, m]` in that order, with `weight [R, m]`."""
        s = self.settings
        if self._train_pass is None:
            margins = self._margins_of_steps()
            self._train_pass = TrainPass(
                self.learner,
                self.train,
                num_classes=self.num_classes,
                size=place.shape[1],
                observe=self._observe_step if s.signal == "train" or margins else None,
                observe_logits=self._logits_observer(margins),
                observed=self._observed_tensors,
                issued=self._end_step,
            )
        steps = self._train_pass.steps
        rates = [rate_at(s, self.epoch * steps + step, steps) for step in range(steps)]
        self._step, self._rates = 0, rates
        seeds = [run.seed for run in self.runs]
        with self._seeded():
            return self._train_pass(place, position, weight, rates=rates, epoch=self.epoch, seeds=seeds)

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

    def _end_step(self, images: int) -> None:
        """Count a training step that was given to the device, and move the margins if it is their turn."""
        self._count(3 * images)
        self._step += 1
        rate, base = self._rates[self._step - 1], self.settings.lr
        last = self._step == len(self._rates)
        if last and self.learner.offset is not None:
            self._used_offset = self.learner.offset.clone()  # before margins move: what training ended with
        # Margins move after the last step, too: no answers wait for the next epoch, which may be that of a resumed run.
        if self.margins.step(self._step, rate / base if base else 1.0, last=last):
            self._set_offsets(self._counted)

    def _margins_of_steps(self) -> Mapping[str, Margins]:
        """Return the margins that observe training steps."""
        return self.margins.controllers if self.settings.signal == "train" else self.margins.per_step

    def _logits_observer(self, margins: Mapping[str, Margins]) -> ObserveLogits | None:
        soft = any(each.signal == "probability" for each in margins.values())
        return partial(self.margins.observe_logits, margins) if soft else None

    def _observe_step(self, position: Tensor, label: Tensor, right: Tensor, predicted: Tensor) -> None:
        """Update margins with the answers of a training step, and ages and error rates if these are their signal."""
        if self.settings.signal == "train":
            self._observe_ages(position, label, right)
        self.margins.observe(self._margins_of_steps(), position, label, predicted)

    def _observe_batch(
        self, position: Tensor, label: Tensor, right: Tensor, predicted: Tensor, times: Tensor | None = None
    ) -> None:
        """Update ages and error rates with answers of a clean pass, and margins that move once an epoch."""
        self._observe_ages(position, label, right, times)
        self.margins.observe(self.margins.per_epoch, position, label, predicted, times)

    def _observe_ages(self, position: Tensor, label: Tensor, right: Tensor, times: Tensor | None = None) -> None:
        """Update ages and error rates with answers `[R, B]`."""
        if isinstance(self.ages, SampleAges):
            self.ages.observe(position, right)
        else:
            self.ages.observe(label, right, times=times)
        self.error_rates.observe(label, right, times=times)

    def _advance(self) -> None:
        """End the epoch of ages, error rates and margins; margins move as fast as the network learns."""
        self.ages.advance()
        self.error_rates.advance()
        self.margins.advance(self._rate_share())

    def _rate_share(self) -> float:
        """Return the learning rate at the end of this epoch, as a share of the base rate."""
        return rate_at(self.settings, 1000 * self.epoch + 999, 1000) / self.settings.lr if self.settings.lr else 1.0

    def _set_offsets(self, counts: Tensor) -> None:
        """Set the offsets of the logits for the coming training steps."""
        if not self.margins.any:
            return
        self._counted = counts
        offsets = self.margins.offsets(counts)
        if self.learner.offset is None:
            self.learner.offset = torch.zeros_like(offsets)
        self.learner.offset.copy_(offsets)

    def _observed_tensors(self) -> Iterator[Tensor]:
        """Yield the tensors that `_observe_step` and `_observe_batch` change."""
        yield from self.error_rates.pending()
        yield from self.ages.pending()
        yield from self.margins.pending()

    def _orders(self, weight: Tensor, epoch: int) -> Tensor:
        """Return the order of each run's m samples: shuffled, or drawn by `weight [R, m]` where it resamples."""
        size = weight.shape[1]

        def generator(run: Settings) -> torch.Generator:
            return _seeds.generator(run.seed, _ORDER, epoch, device=self.device)

        shuffled: dict[int, Tensor] = {}  # one order a seed: hundreds of runs have few seeds
        rows = []
        for run, own in zip(self.runs, weight, strict=True):
            if _resamples(run, epoch):
                rows.append(draw(own, size, generator=generator(run)))
            else:
                if run.seed not in shuffled:
                    shuffled[run.seed] = shuffle(size, generator=generator(run))
                rows.append(shuffled[run.seed])
        return torch.stack(rows)

    def _states(
        self,
    ) -> dict[
        str, SampleAges | ClassAges | ErrorRates | Learner | History | SampleHistory | SampleSignals | RunMargins
    ]:
        optional = {"samples": self.samples, "signals": self.signals}
        kept = {name: state for name, state in optional.items() if state is not None}
        return {
            **kept,
            "ages": self.ages,
            "learner": self.learner,
            "history": self.history,
            "test_ages": self.test_ages,
            "error_rates": self.error_rates,
            "margins": self.margins,
        }

    def state_dict(self) -> dict[str, object]:
        """Return networks, optimiser, ages and history."""
        states: dict[str, object] = {name: state.state_dict() for name, state in self._states().items()}
        stacking = self.learner.stacking
        return {**self._identity(), "stacking": stacking, "epoch": self.epoch, "failed": list(self.failed), **states}

    def _identity(self) -> dict[str, object]:
        return {"runs": [run.run_id for run in self.runs], "keep_samples": self.keep_samples}

    def load_state_dict(self, state: dict[str, object]) -> None:
        """Continue from the state of another loop of the same runs; after an error, this loop must not be used."""
        if state.get("keep_samples") != self.keep_samples:
            raise ValueError("These runs were started with another choice of --keep-samples; use the same one.")
        what = "the loop"
        _check.same_settings(what, self._identity(), state)
        epoch = _check.state_whole(what, state, "epoch", self.settings.epochs)
        failed = state.get("failed")
        if not isinstance(failed, list) or len(failed) != len(self.runs):
            raise _check.damaged(what, "failed", f"must be a list of {len(self.runs)} epochs")
        self.failed = [_check.state_whole(what, {"failed": each}, "failed", epoch) for each in failed]
        for name, mine in self._states().items():
            mine.load_state_dict(_check.state_part(what, state, name))
        counted = {"history": len(self.history)}
        if self.settings.signal != "none":
            counted |= {"ages": self.ages.epoch, "error_rates": self.error_rates.epoch}
        if self.samples is not None:
            counted["samples"] = len(self.samples)
        for name, epochs in counted.items():
            if epochs != epoch:
                raise _check.damaged(what, name, f"must be of {epoch} epochs, not {epochs}")
        self.epoch = epoch


def _resamples(run: Settings, epoch: int) -> bool:
    """Whether a run draws its samples; before its `start` all are shown once, as in deferred re-sampling."""
    return run.mechanism == "resample" and epoch >= run.first_weighted_epoch


def pool(run: Settings, labels: Tensor, shortcut: Shortcut | None = None) -> tuple[Tensor, Tensor]:
    """Return a run's training samples, ordered by class, and those held out for validation, as places in the data.

    A set with a `shortcut` has a validation split of its own. Its conflicts have their share in `run.samples`, too.
    """
    kept, held = torch.arange(labels.numel()), torch.empty(0, dtype=torch.int64)
    if shortcut is not None:
        kept = shortcut.kept
    elif run.validation:
        kept, held = split_per_class(labels, run.validation, seed=run.seed)
    if run.samples is not None:
        if run.samples > len(kept):
            raise WrongSettingsError(f"samples must be at most {len(kept)}, all of {run.data}, not {run.samples}.")
        strata = 2 * labels[kept] + (0 if shortcut is None else shortcut.train[kept].to(torch.int64))
        kept = kept[stratified(strata, run.samples, seed=run.seed)]
        here, known = (int(torch.bincount(each).count_nonzero()) for each in (labels[kept], labels))
        if run.imbalance is not None and here < known:
            raise WrongSettingsError(f"samples must be enough for one of every class of {run.data}, not {run.samples}.")
    shifting = run.scenario == "stream" and run.stream == "shifting"  # such a stream makes its own long tails
    if run.imbalance is not None and not shifting:
        kept = kept[long_tail(labels[kept], run.imbalance, profile=run.profile, seed=run.seed)]
    return kept[labels[kept].argsort(stable=True)], held
