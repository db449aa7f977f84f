"""The callback against loops written out: weights, margins, accumulation, signals, classes and streams."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from lightning.pytorch import LightningDataModule
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor, nn
from torch.utils.data import DataLoader, Subset, TensorDataset

import aol
from aol.plugins.lightning import AgeOfLearning
from tests.support.plugin_checks import same_state
from tests.support.small_lightning import (
    CLASSES,
    DATA,
    IMAGES,
    LABELS,
    SAMPLES,
    Net,
    Scheduled,
    Stream,
    fitted,
    made_margins,
    plain_loop,
    rate,
    sample_ages,
    trainer,
)

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


@pytest.mark.parametrize(("batch_size", "parts"), [(10, 2), (5, 4), (5, 3)])
def test_accumulated_parts_make_the_step_of_one_large_batch(batch_size: int, parts: int) -> None:
    outcomes = []
    for size, number in ((batch_size * parts, 1), (batch_size, parts)):
        aging = AgeOfLearning(sample_ages())
        loader = aging.loader(DATA, batch_size=size, seed=2)
        outcomes.append(
            (aging, fitted(aging, Net(aging, divide_by="count"), loader=loader, accumulate_grad_batches=number))
        )
    (whole, one), (split, many) = outcomes
    assert same_state(whole.ages, split.ages)
    assert whole.ages.age.max() > 1
    torch.testing.assert_close(many.weights(), one.weights())


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
        def __init__(self, aging: AgeOfLearning) -> None:
            super().__init__(aging)
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
    model = fitted(aging, Watched(aging))
    assert model.modes == 3 * (4 * [(True, True, True)] + 4 * [(False, False, False)])
    assert not model.frozen.training


def test_the_clean_pass_gives_the_modes_back_when_an_answer_fails() -> None:
    def broken(module, batch):
        raise RuntimeError("no answer")

    aging = AgeOfLearning(sample_ages(), answer=broken)
    model = Net(aging)
    with pytest.raises(RuntimeError, match="no answer"):
        fitted(aging, model)
    assert all(part.training for part in model.modules())
    assert aging.ages.epoch == 0


@pytest.mark.parametrize("own", [False, True])
def test_the_clean_pass_looks_at_the_set_without_augmentation(own: bool) -> None:
    seen = []

    def watched(module, batch):
        x, y, index = batch
        seen.append(x)
        return module(x), y, index

    noisy = TensorDataset(torch.zeros_like(IMAGES), LABELS)
    aging = AgeOfLearning(sample_ages(), clean=DATA, answer=watched)
    loader = DataLoader(aol.Indexed(noisy), batch_size=16) if own else aging.loader(noisy, batch_size=16)
    fitted(aging, loader=loader, max_epochs=1)
    assert torch.equal(torch.cat(seen), IMAGES)


def test_answers_of_training_are_those_of_the_batches_as_they_came() -> None:
    aging, ages = AgeOfLearning(sample_ages(), signal="training"), sample_ages()
    model = fitted(aging, signal="training")
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


# Margins


def margin_loop(margins: aol.Margins, ages: aol.SampleAges | None, every: int | None) -> Tensor:
    """Train with margins as the README does, with a clean pass, or moved by training answers every few steps."""
    model, order, largest, step = Net(), aol.ShuffledSampler(SAMPLES, seed=2), 0.0, 0
    optimizer = model.configure_optimizers()
    for _ in range(3):
        for index in torch.tensor(list(order)).split(16):
            lr = 0.3 * rate(step)
            largest, step = max(largest, lr), step + 1
            optimizer.param_groups[0]["lr"] = lr
            logits, label = model(IMAGES[index]), LABELS[index]
            if every is not None:
                margins.observe(label, logits.detach().softmax(1))
            weight = torch.ones(len(index)) if ages is None else ages.weight(index)
            optimizer.zero_grad()
            aol.weighted_mean(aol.softmax_loss(logits, label, offset=margins.offsets), weight).backward()
            optimizer.step()
            if every is not None and step % every == 0:
                margins.advance(scale=lr / largest)
        if every is None:
            with torch.no_grad():
                logits = model(IMAGES)
            margins.observe(LABELS, logits.softmax(1))
            margins.advance(scale=lr / largest)
            if ages is not None:
                ages.observe(range(SAMPLES), aol.is_correct(logits, LABELS))
                ages.advance()
    return model.weights()


@pytest.mark.parametrize("kind", ["error", "probability"])
@pytest.mark.parametrize("aged", [False, True])
def test_margins_follow_the_clean_pass_and_the_learning_rate(kind: str, aged: bool) -> None:
    margins, ages = made_margins(kind), sample_ages() if aged else None
    aging = AgeOfLearning(sample_ages() if aged else None, margins=made_margins(kind))
    model = fitted(aging, Scheduled(aging), loader=None if aged else aging.loader(DATA, batch_size=16, seed=2))
    weights = margin_loop(margins, ages, None)
    torch.testing.assert_close(aging.margins.offsets, margins.offsets)
    torch.testing.assert_close(model.weights(), weights)
    assert margins.offsets.abs().max() > 0.1


def test_margins_move_every_few_steps_by_the_answers_in_training() -> None:
    aging, margins = (
        AgeOfLearning(margins=made_margins("probability"), signal="training", every=3),
        made_margins("probability"),
    )
    model = fitted(aging, Scheduled(aging, "training"))
    weights = margin_loop(margins, None, 3)
    assert aging.margins.epoch == 4
    torch.testing.assert_close(aging.margins.offsets, margins.offsets)
    torch.testing.assert_close(model.weights(), weights)


# Classes and streams


def test_ages_of_classes_follow_an_iterable_stream_by_optimiser_steps(tmp_path: Path) -> None:
    def run(checkpoint: str | None = None):
        aging = AgeOfLearning(aol.ClassAges(CLASSES, rho=0.5), signal="training", every=2)
        model = Net(aging, "training", divide_by="count")
        saving = ModelCheckpoint(tmp_path, every_n_train_steps=1, save_top_k=-1, filename="{step}")
        fitting = trainer(aging, saving, enable_checkpointing=True, accumulate_grad_batches=2, max_epochs=2)
        fitting.fit(model, DataLoader(Stream(), batch_size=10), ckpt_path=checkpoint)
        return aging.ages, model

    ages, model = run()
    naive, other = aol.ClassAges(CLASSES, rho=0.5), Net()
    optimizer = other.configure_optimizers()
    for step in range(6):
        shown = torch.arange(20) + step % 3 * 20
        logits = other(IMAGES[shown])
        naive.observe(LABELS[shown], logits.argmax(1) == LABELS[shown])
        optimizer.zero_grad()
        (aol.softmax_loss(logits, LABELS[shown]) * naive.weight(LABELS[shown])).mean().backward()
        optimizer.step()
        if step % 2 == 1:
            naive.advance()
    assert ages.epoch == naive.epoch == 3
    assert torch.equal(ages.age, naive.age)
    torch.testing.assert_close(model.weights(), other.weights())

    again, resumed = run(str(tmp_path / "step=3.ckpt"))  # at the end of an epoch: a stream cannot skip
    assert torch.equal(again.ema, ages.ema)
    assert torch.equal(resumed.weights(), model.weights())


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
            return self.aging.loader(Subset(DATA, now.tolist()), batch_size=8)

    memory = aol.Reservoir(20, seed=0)
    aging = AgeOfLearning(aol.ClassAges(CLASSES), clean=lambda: Subset(DATA, memory.indices.tolist()))
    model = Net(aging)
    fitting = trainer(aging, max_epochs=4, reload_dataloaders_every_n_epochs=1)
    fitting.fit(model, datamodule=Steps(aging, memory))
    assert aging.ages.epoch == 4
    assert sum(map(len, model.seen)) == sum(map(len, shown))
    kept = memory.indices
    with torch.no_grad():
        right = model(IMAGES[kept]).argmax(1) == LABELS[kept]
    for c in range(CLASSES):
        assert aging.ages.accuracy[c] == pytest.approx(right[LABELS[kept] == c].double().mean().item())


def test_error_rates_serve_as_a_rival() -> None:
    aging = AgeOfLearning(aol.ErrorRates(CLASSES))
    fitted(aging)
    assert aging.ages.epoch == 3
