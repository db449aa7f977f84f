"""The callback against loops written out: weights, accumulation, signals, orders; and whatever else a Trainer does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from lightning.pytorch import Callback, LightningDataModule
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from small_lightning import (
    CLASSES,
    DATA,
    IMAGES,
    LABELS,
    SAMPLES,
    Net,
    plain_loop,
    same_state,
    sample_ages,
    trainer,
)
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import aol
from aol.plugins.lightning import AgeOfLearning


def fitted(aging: AgeOfLearning, model: Net | None = None, *, loader=None, callbacks=(), **options) -> Net:
    model = model or Net(aging.signal)
    loader = aging.loader(DATA, batch_size=16, seed=2) if loader is None else loader
    trainer(aging, *callbacks, **options).fit(model, loader)
    return model


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
    """7 of 15 batches, by threes: the last step of an epoch is one batch, which Lightning divides by three nevertheless."""
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
    aging, seen = AgeOfLearning(sample_ages(), clean=DATA), []
    aging._answer = lambda module, batch: (seen.append(batch[0]), aol.is_correct(module(batch[0]), batch[1]))[1]
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


class Stream(IterableDataset):
    """Samples in the order of their numbers, without a length."""

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return iter(zip(IMAGES, LABELS, strict=True))


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
    aging = AgeOfLearning(
        aol.ClassAges(CLASSES), clean=lambda: torch.utils.data.Subset(DATA, memory.indices.tolist())
    )
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


# What a Trainer does


class Counting(Callback):
    def __init__(self) -> None:
        self.epochs: list[int] = []

    def on_train_epoch_end(self, trainer, module) -> None:
        self.epochs.append(AgeOfLearning.of(module).ages.epoch)


def test_a_data_module_other_callbacks_and_a_sanity_check_go_with_it(tmp_path: Path) -> None:
    class Data(LightningDataModule):
        def train_dataloader(self):
            return AgeOfLearning.of(self).loader(DATA, batch_size=16, num_workers=1, persistent_workers=True)

        def val_dataloader(self):
            return DataLoader(DATA, batch_size=20)

    aging, counting = AgeOfLearning(sample_ages()), Counting()
    others = [counting, ModelCheckpoint(tmp_path), EarlyStopping("val_loss", patience=9)]
    fitting = trainer(*others, aging, num_sanity_val_steps=2, enable_checkpointing=True)
    fitting.fit(Net(), datamodule=Data())
    assert counting.epochs == [0, 1, 2]
    assert aging.ages.epoch == 3
    fitting.fit_loop.max_epochs = 4
    fitting.fit(Net(), datamodule=Data())
    assert aging.ages.epoch == 4


def test_a_second_fit_goes_on_with_the_ages() -> None:
    aging = AgeOfLearning(sample_ages())
    loader, model = aging.loader(DATA, batch_size=16, num_workers=1, persistent_workers=True), Net()
    fitted(aging, model, loader=loader, max_epochs=2)
    before = aging.ages.age
    fitted(aging, model, loader=loader, max_epochs=1)
    assert aging.ages.epoch == 3
    assert ((aging.ages.age == 1) | (aging.ages.age == before + 1)).all()
    # The second Trainer counts its epochs from zero, and so does the order.
    assert model.seen[8:] == model.seen[:4]


def test_fast_dev_run_is_fast() -> None:
    aging, answered = AgeOfLearning(sample_ages()), []
    aging._answer = lambda module, batch: (answered.append(len(batch[0])), aol.is_correct(module(batch[0]), batch[1]))[1]
    model = fitted(aging, fast_dev_run=2)
    assert len(model.seen) == 2
    assert answered == [16, 16]
    assert aging.ages.epoch == 1


def test_limited_batches_are_the_front_of_each_epochs_order() -> None:
    aging = AgeOfLearning(sample_ages(), signal="training")
    model = fitted(aging, limit_train_batches=2)
    order = aol.ShuffledSampler(SAMPLES, seed=2)
    expected = []
    for epoch in range(3):
        order.set_epoch(epoch)
        expected += [index.tolist() for index in torch.tensor(list(order)).split(16)[:2]]
    assert model.seen == expected


def test_an_early_stop_in_mid_epoch_still_folds_the_epoch() -> None:
    class Stop(Callback):
        def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx) -> None:
            trainer.should_stop = trainer.current_epoch == 1 and batch_idx == 1

    aging = AgeOfLearning(sample_ages())
    model = fitted(aging, callbacks=[Stop()])
    assert len(model.seen) == 6
    assert aging.ages.epoch == 2


def test_an_interrupted_fit_does_not_fold_and_a_new_one_starts_clean() -> None:
    class Fail(Net):
        def training_step(self, batch, batch_idx):
            if self.trainer.global_step == 5:
                raise RuntimeError("down")
            return super().training_step(batch, batch_idx)

    aging = AgeOfLearning(sample_ages())
    with pytest.raises(RuntimeError, match="down"):
        fitted(aging, Fail())
    assert aging.ages.epoch == 1
    fitted(aging, max_epochs=2)
    assert aging.ages.epoch == 3


def test_mappings_and_a_key_of_their_own_will_do() -> None:
    items = [{"x": x, "y": y} for x, y in DATA]

    class Mapped(Net):
        def training_step(self, batch, batch_idx):
            return super().training_step([batch["x"], batch["y"], batch["index"]], batch_idx)

    def right(module, batch):
        return aol.is_correct(module(batch["x"]), batch["y"])

    aging, ages = AgeOfLearning(sample_ages(), answer=right), sample_ages()
    fitted(aging, Mapped(), loader=aging.loader(items, batch_size=16, seed=2))
    plain_loop(ages, aol.ShuffledSampler(SAMPLES, seed=2))
    assert same_state(aging.ages, ages)


def test_samples_may_have_ids_of_their_own() -> None:
    names = [f"img-{i}" for i in range(SAMPLES)]
    items = [(x, y, name) for (x, y), name in zip(DATA, names, strict=True)]

    class Named(Net):
        def training_step(self, batch, batch_idx):
            x, y, key = batch
            return AgeOfLearning.of(self).weighted_mean(aol.softmax_loss(self(x), y), key)

    aging, ages = AgeOfLearning(sample_ages(ids=names)), sample_ages()
    loader = aging.loader(items, batch_size=4, seed=2)
    fitted(aging, Named(), loader=loader, accumulate_grad_batches=4)
    plain_loop(ages, aol.ShuffledSampler(SAMPLES, seed=2))
    assert torch.equal(aging.ages.age, ages.age)


def test_a_loader_of_ones_own_will_do_without_accumulation() -> None:
    aging, ages = AgeOfLearning(sample_ages()), sample_ages()
    loader = DataLoader(aol.Indexed(DATA), batch_size=16, sampler=aol.ShuffledSampler(SAMPLES, seed=2))
    fitted(aging, loader=loader)
    plain_loop(ages, aol.ShuffledSampler(SAMPLES, seed=2))
    assert same_state(aging.ages, ages)


def test_one_of_several_loaders_may_be_aged() -> None:
    class Two(Net):
        def training_step(self, batch, batch_idx):
            return super().training_step(batch["aged"], batch_idx)

    def right(module, batch):
        return aol.is_correct(module(batch[0]), batch[1])

    aging, ages = AgeOfLearning(sample_ages(), answer=right), sample_ages()
    loaders = {"aged": aging.loader(DATA, batch_size=4, seed=2), "other": DataLoader(DATA, batch_size=30)}
    fitted(aging, Two(), loader=loaders, accumulate_grad_batches=4)
    plain_loop(ages, aol.ShuffledSampler(SAMPLES, seed=2))
    assert same_state(aging.ages, ages)


def test_the_trainer_of_pytorch_lightning_takes_it_too(tmp_path: Path) -> None:
    import pytorch_lightning as old

    class Old(old.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = Net().net
            self.weights_seen: list[Tensor] = []

        def forward(self, x):
            return self.net(x)

        def training_step(self, batch, batch_idx):
            x, y, index = batch
            return AgeOfLearning.of(self).weighted_mean(aol.softmax_loss(self(x), y), index)

        def configure_optimizers(self):
            return Net.configure_optimizers(self)

        lr = 0.3

    def run(checkpoint=None, **options):
        aging, model = AgeOfLearning(sample_ages()), Old()
        fitting = old.Trainer(
            callbacks=[aging, old.callbacks.ModelCheckpoint(tmp_path, every_n_train_steps=6, save_top_k=-1)],
            max_epochs=3,
            accelerator="cpu",
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        loader = aging.loader(DATA, batch_size=16, seed=2)
        fitting.fit(model, loader, ckpt_path=checkpoint)
        return aging.ages, model

    ages, naive = run()[0], sample_ages()
    plain_loop(naive, aol.ShuffledSampler(SAMPLES, seed=2))
    assert same_state(ages, naive)
    (path,) = tmp_path.glob("*step=6.ckpt")
    assert same_state(run(str(path))[0], naive)


# Bad input


@pytest.mark.parametrize(
    ("call", "error", "named"),
    [
        (lambda: AgeOfLearning([1, 2]), TypeError, "ages must be SampleAges"),
        (lambda: AgeOfLearning(aol.SampleAges([0, 1], rho=[0.1, 0.5])), ValueError, "ages must be of one run"),
        (lambda: AgeOfLearning(sample_ages(), signal="loss"), ValueError, "signal must be one of"),
        (lambda: AgeOfLearning(sample_ages(), every=0), ValueError, "every must be a whole number of 1 or more"),
        (lambda: AgeOfLearning(sample_ages(), divide_by="sum"), ValueError, "divide_by must be one of"),
        (lambda: AgeOfLearning(aol.SampleAges([0, 1])).loader(DATA), ValueError, "ages must have the 60 samples"),
        (lambda: AgeOfLearning(sample_ages()).loader(Stream()), TypeError, "dataset must be map-style"),
        (lambda: AgeOfLearning(sample_ages()).loader(5), TypeError, "dataset must be map-style"),
        (lambda: AgeOfLearning(aol.ClassAges(3)).loader(DATA, resample=True), TypeError, "ages must be SampleAges"),
    ],
)
def test_bad_input_gets_one_clear_sentence(call, error: type[Exception], named: str) -> None:
    with pytest.raises(error, match=named) as caught:
        call()
    assert str(caught.value).endswith(".")


@pytest.mark.parametrize(
    ("options", "make", "named"),
    [
        ({"accumulate_grad_batches": 2}, lambda: DataLoader(aol.Indexed(DATA), batch_size=8), "needs the loader of"),
        ({"overfit_batches": 2}, None, "cannot keep to overfit_batches"),
        ({}, lambda: DataLoader([{"x": 1.0}], batch_size=1), "key must say where batches hold it"),
    ],
)
def test_a_trainer_that_cannot_be_followed_is_refused(options: dict, make, named: str) -> None:
    class Asking(Net):
        def training_step(self, batch, batch_idx):
            aging = AgeOfLearning.of(self)
            return super().training_step(batch if isinstance(batch, list) else [0, 0, aging._key(batch)], batch_idx)

    with pytest.raises(ValueError, match=named):
        fitted(AgeOfLearning(sample_ages()), Asking(), loader=make and make(), **options)


def test_a_stream_has_nothing_to_pass_over() -> None:
    aging = AgeOfLearning(aol.ClassAges(CLASSES))
    with pytest.raises(ValueError, match="clean must be a map-style data set"):
        fitted(aging, loader=aging.loader(Stream(), batch_size=10))


def test_a_module_without_the_callback_is_told() -> None:
    with pytest.raises(ValueError, match="must have AgeOfLearning among its callbacks"):
        trainer().fit(Net(), DataLoader(aol.Indexed(DATA), batch_size=8))


def test_a_part_of_a_batch_cannot_be_weighed_under_accumulation() -> None:
    class Half(Net):
        def training_step(self, batch, batch_idx):
            return super().training_step([each[:2] for each in batch], batch_idx)

    with pytest.raises(ValueError, match="key must be that of the whole batch, 8, not 2"):
        aging = AgeOfLearning(sample_ages())
        fitted(aging, Half(), loader=aging.loader(DATA, batch_size=8), accumulate_grad_batches=2)
