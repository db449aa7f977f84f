"""Batches that do not count: those by which Lightning tunes, and those that renew the statistics of batch norm."""

from __future__ import annotations

import pytest
import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import BatchSizeFinder, LearningRateFinder, StochasticWeightAveraging
from lightning.pytorch.tuner import Tuner
from torch import nn
from torch.utils.data import DataLoader

import aol
from aol.plugins.lightning import AgeLoader, AgeOfLearning
from tests.support.small_lightning import CLASSES, DATA, Net, fitted, sample_ages, trainer


class Normed(Net):
    """With batch norm, a batch size that can be tuned, and its own loader."""

    def __init__(self, signal: str = "pass", batch_size: int = 4) -> None:
        super().__init__(signal, lr=0.1)
        with torch.random.fork_rng():
            torch.manual_seed(1)
            self.net = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, CLASSES))
        self.batch_size = batch_size

    def train_dataloader(self) -> AgeLoader:
        return AgeOfLearning.of(self).loader(DATA, batch_size=self.batch_size, seed=2)

    def val_dataloader(self) -> list[object]:
        return []


class Watching(Callback):
    """Notes the ages at the start of each epoch."""

    def __init__(self) -> None:
        self.ages: list[list[int]] = []

    def on_train_epoch_start(self, trainer: Trainer, pl_module: Net) -> None:
        self.ages.append(AgeOfLearning.of(pl_module).ages.age.tolist())


@pytest.mark.parametrize("signal", ["pass", "training"])
@pytest.mark.parametrize("options", [{}, {"accumulate_grad_batches": 2}], ids=["", "accumulated"])
@pytest.mark.parametrize("first", [True, False], ids=["swa-first", "ages-first"])
def test_averaged_weights_renew_batch_norm_without_ageing_anything(signal: str, options: dict, first: bool) -> None:
    aging, watching = AgeOfLearning(sample_ages(), signal=signal), Watching()
    averaging = StochasticWeightAveraging(swa_lrs=0.01, swa_epoch_start=1)
    callbacks = [averaging, aging] if first else [aging, averaging]
    trainer(*callbacks, watching, max_epochs=3, **options).fit(Normed(signal, batch_size=16))
    assert len(watching.ages) == 4  # the last one is that of batch norm
    assert aging.ages.epoch == 3
    assert aging.ages.age.tolist() == watching.ages[-1]
    assert watching.ages[-1] != watching.ages[-2]


def test_averaged_weights_take_a_loader_of_ones_own() -> None:
    aging = AgeOfLearning(sample_ages())
    loader = DataLoader(aol.Indexed(DATA), batch_size=16, shuffle=True)
    averaging = StochasticWeightAveraging(swa_lrs=0.01, swa_epoch_start=1)
    fitted(aging, Normed(), loader=loader, callbacks=[averaging])
    assert aging.ages.epoch == 3


TUNERS = {
    "lr_find": lambda tuner, model: tuner.lr_find(model, num_training=20),
    "power": lambda tuner, model: tuner.scale_batch_size(model, max_trials=3, steps_per_trial=2),
    "binsearch": lambda tuner, model: tuner.scale_batch_size(model, mode="binsearch", max_trials=3),
}


@pytest.mark.parametrize("signal", ["pass", "training"])
@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("tune", TUNERS.values(), ids=list(TUNERS))
def test_a_tuned_module_then_trains_as_one_that_had_the_same_settings(tune, parts: int, signal: str) -> None:
    aging, model = AgeOfLearning(sample_ages(), signal=signal), Normed(signal)
    fitting = trainer(aging, accumulate_grad_batches=parts)
    tune(Tuner(fitting), model)
    assert aging.ages.epoch == 0
    assert not aging._balance.observed()
    fitting.fit(model)

    plainly, same = AgeOfLearning(sample_ages(), signal=signal), Normed(signal, model.batch_size)
    same.lr = model.lr
    trainer(plainly, accumulate_grad_batches=parts).fit(same)
    torch.testing.assert_close(model.weights(), same.weights(), rtol=0, atol=0)
    assert aging.ages.age.tolist() == plainly.ages.age.tolist()


@pytest.mark.parametrize(
    "finder", [LearningRateFinder(num_training_steps=20), BatchSizeFinder(max_trials=3, steps_per_trial=2)]
)
def test_callbacks_that_tune_go_with_it(finder: Callback) -> None:
    aging, model = AgeOfLearning(sample_ages()), Normed()
    before = (model.lr, model.batch_size)
    trainer(aging, finder).fit(model)
    assert aging.ages.epoch == 3
    assert (model.lr, model.batch_size) != before
