"""Whatever else a Trainer does, and what it is refused: data modules, other callbacks, stops, loaders, bad input."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from lightning.pytorch import Callback, LightningDataModule
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from lightning.pytorch.tuner import Tuner
from torch.utils.data import DataLoader, Subset

import aol
from aol.plugins.lightning import AgeOfLearning
from tests.support.plugin_checks import same_state
from tests.support.small_lightning import (
    CLASSES,
    DATA,
    SAMPLES,
    Net,
    Stream,
    fitted,
    plain_loop,
    sample_ages,
    trainer,
)

# What a Trainer does


def test_a_data_module_other_callbacks_and_a_sanity_check_go_with_it(tmp_path: Path) -> None:
    aging = AgeOfLearning(sample_ages())

    class Counting(Callback):
        def on_train_epoch_end(self, trainer, module) -> None:
            epochs.append(aging.ages.epoch)

    class Data(LightningDataModule):
        def train_dataloader(self):
            return aging.loader(DATA, batch_size=16, num_workers=1, persistent_workers=True)

        def val_dataloader(self):
            return DataLoader(DATA, batch_size=20)

    epochs: list[int] = []
    others = [Counting(), ModelCheckpoint(tmp_path), EarlyStopping("val_loss", patience=9)]
    fitting = trainer(*others, aging, num_sanity_val_steps=2, enable_checkpointing=True)
    fitting.fit(Net(aging), datamodule=Data())
    assert epochs == [0, 1, 2]
    assert aging.ages.epoch == 3
    fitting.fit_loop.max_epochs = 4
    fitting.fit(Net(aging), datamodule=Data())
    assert aging.ages.epoch == 4


def test_a_second_fit_goes_on_with_the_ages() -> None:
    aging = AgeOfLearning(sample_ages())
    loader, model = aging.loader(DATA, batch_size=16, num_workers=1, persistent_workers=True), Net(aging)
    fitted(aging, model, loader=loader, max_epochs=2)
    before = aging.ages.age
    fitted(aging, model, loader=loader, max_epochs=1)
    assert aging.ages.epoch == 3
    assert ((aging.ages.age == 1) | (aging.ages.age == before + 1)).all()
    # The second Trainer counts its epochs from zero, and so does the order.
    assert model.seen[8:] == model.seen[:4]


def test_fast_dev_run_is_fast() -> None:
    answered = []

    def watched(module, batch):
        answered.append(len(batch[0]))
        x, y, index = batch
        return module(x), y, index

    aging = AgeOfLearning(sample_ages(), answer=watched)
    model = fitted(aging, fast_dev_run=2)
    assert len(model.seen) == 2
    assert answered == [16, 16]
    assert aging.ages.epoch == 1


def test_limited_batches_are_the_front_of_each_epochs_order() -> None:
    aging = AgeOfLearning(sample_ages(), signal="training")
    model = fitted(aging, signal="training", limit_train_batches=2)
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
        fitted(aging, Fail(aging))
    assert aging.ages.epoch == 1
    fitted(aging, max_epochs=2)
    assert aging.ages.epoch == 3


def test_batches_of_another_form_will_do() -> None:
    items = [{"x": x, "y": y} for x, y in DATA]

    class Mapped(Net):
        def training_step(self, batch, batch_idx):
            return super().training_step([batch["x"], batch["y"], batch["index"]], batch_idx)

    def answer(module, batch):
        return module(batch["x"]), batch["y"], batch["index"]

    aging, ages = AgeOfLearning(sample_ages(), answer=answer), sample_ages()
    fitted(aging, Mapped(aging), loader=aging.loader(items, batch_size=16, seed=2))
    plain_loop(ages, aol.ShuffledSampler(SAMPLES, seed=2))
    assert same_state(aging.ages, ages)


def test_a_loader_of_ones_own_will_do() -> None:
    aging, ages = AgeOfLearning(sample_ages()), sample_ages()
    loader = DataLoader(aol.Indexed(DATA), batch_size=16, sampler=aol.ShuffledSampler(SAMPLES, seed=2))
    fitted(aging, loader=loader)
    plain_loop(ages, aol.ShuffledSampler(SAMPLES, seed=2))
    assert same_state(aging.ages, ages)


def test_one_of_several_loaders_may_be_aged() -> None:
    class Two(Net):
        def training_step(self, batch, batch_idx):
            return super().training_step(batch["aged"], batch_idx)

    aging, ages = AgeOfLearning(sample_ages(), clean=aol.Indexed(DATA)), sample_ages()
    loaders = {"aged": aging.loader(DATA, batch_size=16, seed=2), "other": DataLoader(DATA, batch_size=30)}
    fitted(aging, Two(aging), loader=loaders)
    plain_loop(ages, aol.ShuffledSampler(SAMPLES, seed=2))
    assert same_state(aging.ages, ages)


def test_a_learning_rate_finder_leaves_the_ages_as_they_are() -> None:
    aging, ages = AgeOfLearning(sample_ages(), signal="training"), sample_ages()
    model, loader = Net(aging, "training"), aging.loader(DATA, batch_size=16, seed=2)
    model.lr = 0.1
    Tuner(trainer(aging)).lr_find(model, loader, num_training=5)
    assert same_state(aging.ages, ages)
    assert not model.aging.ages.weight(range(SAMPLES)).ne(1).any()


def test_a_compiled_module_trains_alike_and_is_compiled_once() -> None:
    aging, ages = AgeOfLearning(sample_ages()), sample_ages()

    class Compiled(Net):
        def training_step(self, batch, batch_idx):
            x, y, index = batch
            return aol.weighted_mean(aol.softmax_loss(self(x), y), aging.weight(index))

    torch._dynamo.reset()
    with torch._dynamo.config.patch(error_on_recompile=True):  # ages change every epoch, and are no part of the graph
        model = torch.compile(Compiled(aging), backend="aot_eager")
        trainer(aging).fit(model, aging.loader(DATA, batch_size=20, seed=2))
    plain_loop(ages, aol.ShuffledSampler(SAMPLES, seed=2), batch_size=20)
    assert same_state(aging.ages, ages)


# Bad input


def in_another_order() -> Subset:
    return Subset(DATA, torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(0)).tolist())


@pytest.mark.parametrize("signal", ["pass", "training"])
def test_data_in_another_order_than_the_labels_are_refused(signal: str) -> None:
    aging = AgeOfLearning(sample_ages(), signal=signal)
    with pytest.raises(ValueError, match="label must be the class of each sample"):
        fitted(aging, signal=signal, loader=aging.loader(in_another_order(), batch_size=16))
    assert aging.ages.epoch == 0


def test_a_clean_set_of_another_size_is_refused() -> None:
    aging = AgeOfLearning(sample_ages(), clean=Subset(DATA, range(10)))
    with pytest.raises(ValueError, match="ages must have the 10 samples of the training set, not 60"):
        fitted(aging)


def test_batches_without_an_index_are_refused() -> None:
    class Plain(Net):
        def training_step(self, batch, batch_idx):
            return aol.softmax_loss(self(batch[0]), batch[1]).mean()

    aging = AgeOfLearning(sample_ages())
    with pytest.raises(ValueError, match="Batches must carry the index of each sample"):
        fitted(aging, Plain(aging), loader=DataLoader(DATA, batch_size=16))


def test_observing_beside_the_clean_pass_is_refused() -> None:
    with pytest.raises(ValueError, match='observe is for signal="training"'):
        fitted(AgeOfLearning(sample_ages()), signal="training")


def test_a_stream_has_nothing_to_pass_over_which_is_said_before_training() -> None:
    aging = AgeOfLearning(aol.ClassAges(CLASSES))
    model = Net(aging)
    with pytest.raises(ValueError, match="clean must be a map-style data set"):
        fitted(aging, model, loader=DataLoader(Stream(), batch_size=10))
    assert model.losses == []


@pytest.mark.parametrize(
    ("call", "error", "named"),
    [
        (lambda: AgeOfLearning(), TypeError, "ages or margins must be given"),
        (lambda: AgeOfLearning([1, 2]), TypeError, "ages must be SampleAges"),
        (lambda: AgeOfLearning(margins=3), TypeError, "margins must be an aol.Margins"),
        (lambda: AgeOfLearning(aol.SampleAges([0, 1], rho=[0.1, 0.5])), ValueError, "must be of one run"),
        (lambda: AgeOfLearning(sample_ages(), signal="loss"), ValueError, "signal must be one of"),
        (lambda: AgeOfLearning(sample_ages(), every=0), ValueError, "every must be a whole number of 1 or more"),
        (lambda: AgeOfLearning(aol.SampleAges([0, 1])).loader(DATA), ValueError, "ages must have the 60 samples"),
        (lambda: AgeOfLearning(sample_ages()).loader(Stream()), TypeError, "dataset must be map-style"),
        (lambda: AgeOfLearning(aol.ClassAges(3)).loader(DATA, resample=True), TypeError, "ages must be SampleAges"),
        (lambda: AgeOfLearning(sample_ages(), every=1).loader(DATA, resample=True), ValueError, "every cannot go with"),
    ],
)
def test_bad_input_gets_one_clear_sentence(call, error: type[Exception], named: str) -> None:
    with pytest.raises(error, match=named) as caught:
        call()
    assert str(caught.value).endswith(".")
