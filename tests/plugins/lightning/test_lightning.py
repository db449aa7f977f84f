"""The callback against loops written out: weights, accumulation, signals, orders; and whatever else a Trainer does."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest
import torch
from lightning.pytorch import LightningDataModule
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import aol.plugins.lightning
from aol.plugins.lightning import AgeOfLearning
from tests.support.plugin_checks import same_state
from tests.support.small_lightning import (
    CLASSES,
    DATA,
    IMAGES,
    LABELS,
    SAMPLES,
    Net,
    Stream,
    fitted,
    plain_loop,
    sample_ages,
    trainer,
)


def test_a_missing_framework_is_called_by_the_name_of_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("lightning", "lightning.pytorch", "pytorch_lightning"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ModuleNotFoundError, match="needs lightning, which"):
        runpy.run_path(str(aol.plugins.lightning.__file__))


# Training


@pytest.mark.parametrize("level", ["class", "sample"])
@pytest.mark.parametrize("resample", [False, True])
def test_it_trains_as_the_plain_loop_does(level: str, resample: bool) -> None:
    aging, ages = AgeOfLearning(sample_ages(level=level)), sample_ages(level=level)
    model = fitted(aging, loader=aging.loader(DATA, batch_size=16, seed=2, resample=resample))
    order = aol.AgeSampler(ages, seed=2) if resample else aol.ShuffledSampler(SAMPLES, seed=2)
    weights, losses = plain_loop(ages, order)
    assert same_state(aging.ages, ages)
    assert ages.age.max() > 2
    assert model.losses == pytest.approx(losses, abs=1e-6)
    torch.testing.assert_close(model.weights(), weights)


@pytest.mark.parametrize("divide_by", ["weight", "count"])
@pytest.mark.parametrize(("batch_size", "parts"), [(8, 2), (4, 4), (5, 3)])
def test_accumulated_parts_make_the_step_of_one_large_batch(batch_size: int, parts: int, divide_by: str) -> None:
    outcomes = []
    for size, number in ((batch_size * parts, 1), (batch_size, parts)):
        aging = AgeOfLearning(sample_ages(), divide_by=divide_by)
        loader = aging.loader(DATA, batch_size=size, seed=2)
        outcomes.append((aging, fitted(aging, loader=loader, accumulate_grad_batches=number)))
    (whole, one), (split, many) = outcomes
    assert same_state(whole.ages, split.ages)
    torch.testing.assert_close(many.weights(), one.weights())
    # The mean over the parts of a step is the loss of the whole one.
    steps = torch.tensor(many.losses[:parts]).mean()
    assert steps.item() == pytest.approx(one.losses[0], abs=1e-6)


def test_a_mean_of_means_would_be_another_step() -> None:
    """The same run with the divisor of each part alone: the test above can fail."""

    class MeanOfMeans(AgeOfLearning):
        def weighted_mean(self, loss, key):
            return aol.weighted_mean(loss, self.weight(key))

    exact, other = AgeOfLearning(sample_ages()), MeanOfMeans(sample_ages())
    one = fitted(exact, loader=exact.loader(DATA, batch_size=4), accumulate_grad_batches=4)
    two = fitted(other, loader=other.loader(DATA, batch_size=4), accumulate_grad_batches=4)
    assert (one.weights() - two.weights()).abs().max() > 1e-3


def test_accumulation_ends_where_limit_train_batches_ends_the_epoch() -> None:
    """7 of 15 batches, by threes: the last step has one batch, which Lightning divides by three nevertheless."""
    aging, ages = AgeOfLearning(sample_ages()), sample_ages()
    loader = aging.loader(DATA, batch_size=4, seed=2)
    model = fitted(aging, loader=loader, accumulate_grad_batches=3, limit_train_batches=7)

    naive = Net()
    optimizer = naive.configure_optimizers()
    order = aol.ShuffledSampler(SAMPLES, seed=2)
    for epoch in range(3):
        order.set_epoch(epoch)
        shown = torch.tensor(list(order))[:28]
        for step in (shown[:12], shown[12:24], shown[24:]):
            optimizer.zero_grad()
            aol.weighted_mean(aol.softmax_loss(naive(IMAGES[step]), LABELS[step]), ages.weight(step)).backward()
            optimizer.step()
        with torch.no_grad():
            ages.observe(range(SAMPLES), aol.is_correct(naive(IMAGES), LABELS))
        ages.advance()
    assert same_state(aging.ages, ages)
    torch.testing.assert_close(model.weights(), naive.weights())


@pytest.mark.parametrize("precision", ["bf16-mixed", "64-true", "bf16-true"])
def test_other_precisions_train(precision: str) -> None:
    aging = AgeOfLearning(sample_ages())
    model = fitted(aging, precision=precision)
    assert aging.ages.epoch == 3
    assert torch.tensor(model.losses).isfinite().all()
    assert aging.ages.age.max() > 1


# Signals


def test_the_clean_pass_sees_evaluation_mode_and_leaves_every_mode_as_it_was() -> None:
    class Watched(Net):
        def __init__(self) -> None:
            super().__init__()
            self.net.insert(1, nn.Dropout(0.5))
            self.frozen = nn.BatchNorm1d(5).eval()
            self.modes: list[tuple[bool, bool, bool]] = []

        def forward(self, x: Tensor) -> Tensor:
            self.modes.append((self.net[1].training, torch.is_grad_enabled(), self.trainer.training))
            return self.net(x)

        def on_train_epoch_end(self) -> None:
            assert self.net[1].training
            assert not self.frozen.training
            assert self.trainer.training

    aging = AgeOfLearning(sample_ages())
    model = fitted(aging, Watched())
    assert model.modes == 3 * (4 * [(True, True, True)] + 4 * [(False, False, False)])
    assert not model.frozen.training


def test_the_clean_pass_gives_the_modes_back_when_an_answer_fails() -> None:
    def broken(module, batch):
        raise RuntimeError("no answer")

    aging = AgeOfLearning(sample_ages(), answer=broken)
    model = Net()
    with pytest.raises(RuntimeError, match="no answer"):
        fitted(aging, model)
    assert all(part.training for part in model.modules())
    assert aging.ages.epoch == 0


def test_the_clean_pass_looks_at_the_set_without_augmentation() -> None:
    noisy = TensorDataset(torch.zeros_like(IMAGES), LABELS)
    seen = []

    def right(module, batch):
        seen.append(batch[0])
        return aol.is_correct(module(batch[0]), batch[1])

    aging = AgeOfLearning(sample_ages(), clean=DATA, answer=right)
    fitted(aging, loader=aging.loader(noisy, batch_size=16), max_epochs=1)
    assert torch.equal(torch.cat(seen), IMAGES)


def test_answers_of_training_are_those_of_the_batches_as_they_came() -> None:
    aging, ages = AgeOfLearning(sample_ages(), signal="training"), sample_ages()
    model = fitted(aging)
    naive = Net()
    optimizer = naive.configure_optimizers()
    for batch in range(12):
        index = torch.tensor(model.seen[batch])
        logits = naive(IMAGES[index])
        ages.observe(index, logits.argmax(1) == LABELS[index])
        optimizer.zero_grad()
        aol.weighted_mean(aol.softmax_loss(logits, LABELS[index]), ages.weight(index)).backward()
        optimizer.step()
        if batch % 4 == 3:
            ages.advance()
    assert same_state(aging.ages, ages)


def test_observing_beside_the_clean_pass_is_refused() -> None:
    with pytest.raises(ValueError, match='observe is for signal="training"'):
        fitted(AgeOfLearning(sample_ages()), Net("training"))


# Classes and streams


def test_ages_of_classes_follow_an_iterable_stream_by_optimiser_steps(tmp_path: Path) -> None:
    def run(checkpoint: str | None = None):
        aging = AgeOfLearning(aol.ClassAges(CLASSES, rho=0.5), signal="training", every=2)
        model = Net("training")
        saving = ModelCheckpoint(tmp_path, every_n_train_steps=1, save_top_k=-1, filename="{step}")
        fitting = trainer(aging, saving, enable_checkpointing=True, accumulate_grad_batches=2, max_epochs=2)
        fitting.fit(model, aging.loader(Stream(), batch_size=10), ckpt_path=checkpoint)
        return aging.ages, model

    ages, model = run()
    naive, other = aol.ClassAges(CLASSES, rho=0.5), Net()
    optimizer = other.configure_optimizers()
    for step in range(6):
        shown = torch.arange(20) + step % 3 * 20
        logits = other(IMAGES[shown])
        naive.observe(LABELS[shown], logits.argmax(1) == LABELS[shown])
        optimizer.zero_grad()
        aol.weighted_mean(aol.softmax_loss(logits, LABELS[shown]), naive.weight(LABELS[shown])).backward()
        optimizer.step()
        if step % 2 == 1:
            naive.advance()
    assert ages.epoch == naive.epoch == 3
    assert torch.equal(ages.age, naive.age)
    torch.testing.assert_close(model.weights(), other.weights())

    for step in range(1, 6):
        again, resumed = run(str(tmp_path / f"step={step}.ckpt"))
        assert torch.equal(again.ema, ages.ema)
        assert torch.equal(resumed.weights(), model.weights())


def test_an_epoch_in_which_a_stream_shows_nothing_is_no_step() -> None:
    class Once(Stream):
        shown = False

        def __iter__(self):
            left, self.shown = () if self.shown else super().__iter__(), True
            return iter(left)

    aging = AgeOfLearning(aol.ClassAges(CLASSES), signal="training")
    model = fitted(aging, loader=aging.loader(Once(), batch_size=10))
    assert len(model.seen) == 6
    assert aging.ages.epoch == 1


def test_a_stream_whose_part_changes_each_epoch_ages_classes_on_a_memory() -> None:
    stream = aol.ShiftingTail(LABELS, imbalance=4, period=2, steps=4)
    shown = list(stream)

    class Steps(LightningDataModule):
        def __init__(self, aging: AgeOfLearning, memory: aol.Reservoir) -> None:
            super().__init__()
            self.aging, self.memory = aging, memory

        def train_dataloader(self):
            now = shown[self.trainer.current_epoch]
            self.memory.add(now)
            return self.aging.loader(torch.utils.data.Subset(DATA, now.tolist()), batch_size=8)

    memory = aol.Reservoir(20, seed=0)
    aging = AgeOfLearning(aol.ClassAges(CLASSES), clean=lambda: torch.utils.data.Subset(DATA, memory.indices.tolist()))
    model = Net()
    fitting = trainer(aging, max_epochs=4, reload_dataloaders_every_n_epochs=1)
    fitting.fit(model, datamodule=Steps(aging, memory))
    assert aging.ages.epoch == 4
    assert [sum(map(len, model.seen))] == [sum(map(len, shown))]
    kept = memory.indices
    with torch.no_grad():
        right = model(IMAGES[kept]).argmax(1) == LABELS[kept]
    for c in range(CLASSES):
        assert aging.ages.accuracy[c] == pytest.approx(right[LABELS[kept] == c].double().mean().item())


def test_error_rates_serve_as_a_rival() -> None:
    aging = AgeOfLearning(aol.ErrorRates(CLASSES))
    fitted(aging)
    assert aging.ages.epoch == 3
