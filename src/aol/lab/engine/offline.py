"""Offline training, and training where only a part of the set arrives each epoch (arrival).

An epoch: weights from the ages so far → order → one training pass → one clean pass over the same samples → ages.
"""

from __future__ import annotations

import torch
from torch import Tensor

from aol import _distributed
from aol.ages import SampleAges
from aol.lab.engine.clean_sample import CleanSample, standard_error
from aol.lab.engine.loop import Loop
from aol.lab.engine.passes import Trained
from aol.lab.engine.run_margins import RunMargins
from aol.lab.engine.sample_signals import SampleSignals
from aol.lab.engine.weighting import WEIGHTINGS, SampleInputs
from aol.records.history import ANSWER, SampleHistory
from aol.streams import Arrivals


class OfflineLoop(Loop):
    """Trains on the whole set every epoch or, in the scenario "arrival", on what arrives."""

    ages: SampleAges

    def _start(self) -> None:
        runs, s, device = self.runs, self.settings, self.device
        arrives = s.scenario == "arrival"
        self.ages = SampleAges(
            self.labels,
            num_classes=self.num_classes,
            rho=torch.tensor([run.rho for run in runs]),
            fuse=s.fuse,
            absent="grow" if arrives else "keep",
            device=device,
        )
        self.margins = RunMargins(runs, self.num_classes, self.labels, device)
        if self.keep_samples:
            self.samples = SampleHistory(len(runs), self.labels.numel(), absent=self.ages.absent, device=device)
        if any(WEIGHTINGS[run.weighting].remembers for run in runs):
            self.signals = SampleSignals(runs, self.labels.numel(), device)
        self._sampling = None if s.clean_part == 1.0 else CleanSample(self.labels, s.clean_part)
        self._arrivals = [Arrivals(self.labels, s.fraction, steps=s.epochs, seed=run.seed) for run in runs if arrives]

    def _learn(self) -> tuple[Trained, dict[str, Tensor]]:
        here = self._here(self.epoch)
        signal = self.settings.signal
        if signal == "before":
            readings = self._evaluate_train(here)
            self._fold(here)
        by_class, by_sample = self._weigh()
        position = here.gather(1, self._orders(by_sample.gather(1, here), self.epoch))
        weight = by_sample.gather(1, position).masked_fill(self.weights.resampled, 1.0)
        place = self.pool.gather(1, position)

        self._set_offsets(self.counts)
        trained = self._train_on(place, position, weight)
        if signal in ("train", "none"):
            readings = trained.by_class()
        if signal == "eval":
            seen = here if self._sampling is None else self._sampling.draw(self.runs, self.epoch)
            readings = self._evaluate_train(seen)
        if signal in ("eval", "train"):
            self._fold(seen if signal == "eval" else position)
        if signal != "none":
            readings |= {"age": self.ages.mean_age, "smoothed_age": self.ages.class_age}
        if self.samples is not None:
            if signal == "train":  # only whether answers were right is known here
                self.samples.observe(position, None)
            self.samples.advance(self.ages.age)
        return trained, {**readings, "weight": self.weights.mean_by_class(by_class, by_sample, self.labels)}

    def _fold(self, observed: Tensor) -> None:
        """Fold what was observed, of the samples at these positions, into ages and all that is remembered of them."""
        self._advance()
        if self.signals is not None:
            self.signals.advance(observed, self.ages.age, epoch=self.epoch)

    def _here(self, epoch: int) -> Tensor:
        """Return the positions of an epoch's samples, `int64 [R, m]`."""
        if self._arrivals:
            return torch.stack([arrivals[epoch] for arrivals in self._arrivals]).to(self.device)
        return torch.arange(self.labels.numel(), device=self.device).expand(len(self.runs), -1)

    def _weigh(self) -> tuple[Tensor, Tensor]:
        age, error = self.ages.class_weight, self.error_rates.class_weight
        by_class = self.weights.by_class(self.counts, age, error, epoch=self.epoch)
        inputs = SampleInputs(self.ages, self.signals, self.runs)
        return by_class, self.weights.by_sample(by_class, inputs, self.labels, epoch=self.epoch)

    def _evaluate_train(self, here: Tensor) -> dict[str, Tensor]:
        """Classify what was trained on, unaugmented, and update the ages."""
        evaluated = self._evaluate("train", self.pool.gather(1, here))
        rank, world = _distributed.world()
        mine = here[:, rank::world]
        self._observe_batch(mine, self.labels[mine], evaluated.correct, evaluated.predicted)
        if self.samples is not None:
            self.samples.observe(mine, evaluated.answers)
        if self.signals is not None and evaluated.answers is not None:
            self.signals.observe(here, evaluated.answers[ANSWER.index("confidence")])
        readings = {"train_count": evaluated.count, **evaluated.by_class("train")}
        if self._sampling is not None:
            readings["train_accuracy_error"] = standard_error(readings["train_accuracy"], evaluated.count, self.counts)
        return readings

    def _train_readings(self, by_class: dict[str, Tensor]) -> dict[str, Tensor | float]:
        if self._sampling is None:
            return super()._train_readings(by_class)
        share = by_class["train_count"] / by_class["train_count"].sum(1, keepdim=True)
        error = (share * by_class["train_accuracy_error"]).nan_to_num().square().sum(1).sqrt()
        return {"train_accuracy": (share * by_class["train_accuracy"]).nansum(1), "train_accuracy_error": error}
