"""Offline training, and training where only a part of the set arrives each epoch (arrival).

An epoch: weights from the ages so far → order → one training pass → one clean pass over the same samples → ages.
"""

from __future__ import annotations

import torch
from torch import Tensor

from aol.ages import SampleAges
from aol.lab.engine.loop import Loop
from aol.lab.engine.passes import Trained
from aol.lab.engine.run_weights import SampleSignals
from aol.lab.methods import WEIGHTINGS
from aol.records.history import SampleHistory
from aol.streams import Arrivals


class OfflineLoop(Loop):
    """Trains on the whole set every epoch or, in the scenario "arrival", on what arrives."""

    ages: SampleAges

    def _make_ages(self, rho: Tensor) -> SampleAges:
        runs, s = self.runs, self.settings
        arrives = s.scenario == "arrival"
        absent = "grow" if arrives else "keep"
        if self.keep_samples:
            self.samples = SampleHistory(len(runs), self.labels.numel(), absent=absent, device=self.device)
        if any(WEIGHTINGS[run.weighting].remembers for run in runs):
            self.signals = SampleSignals(runs, self.labels.numel(), self.device)
        self._arrivals = [Arrivals(self.labels, s.fraction, steps=s.epochs, seed=run.seed) for run in runs if arrives]
        return SampleAges(
            self.labels, num_classes=self.num_classes, rho=rho, fuse=s.fuse, absent=absent, device=self.device
        )

    def _learn(self) -> tuple[Trained, dict[str, Tensor]]:
        here, signal = self._here(), self.settings.signal
        if signal == "before":
            readings = self.clean_pass(here)
            self.fold(here)

        inputs = self.inputs(self.counts)
        by_class = self.weights.by_class(inputs, epoch=self.epoch)
        by_sample = self.weights.by_sample(by_class, inputs, self.labels, epoch=self.epoch)
        position = here.gather(1, self.orders(by_sample.gather(1, here)))
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

    def _here(self) -> Tensor:
        """Return the positions of this epoch's samples, `int64 [R, m]`."""
        if self._arrivals:
            return torch.stack([arrivals[self.epoch] for arrivals in self._arrivals]).to(self.device)
        return torch.arange(self.labels.numel(), device=self.device).expand(len(self.runs), -1)
