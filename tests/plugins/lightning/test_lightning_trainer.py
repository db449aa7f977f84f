"""Whatever else a Trainer does, and what it is refused: data modules, other callbacks, stops, loaders, bad input."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from lightning.pytorch import Callback, LightningDataModule
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from torch import Tensor
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
    Stream,
    fitted,
    made_margins,
    plain_loop,
    sample_ages,
    trainer,
)

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
    answered = []

    def right(module, batch):
        answered.append(len(batch[0]))
        return aol.is_correct(module(batch[0]), batch[1])

    aging = AgeOfLearning(sample_ages(), answer=right)
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


def test_a_compiled_module_trains_alike_and_is_compiled_once() -> None:
    aging, ages = AgeOfLearning(sample_ages()), sample_ages()

    class Compiled(Net):
        def training_step(self, batch, batch_idx):
            x, y, index = batch
            return AgeOfLearning.of(self).weighted_mean(aol.softmax_loss(self(x), y), index)

    torch._dynamo.reset()
    with torch._dynamo.config.patch(error_on_recompile=True):  # ages change every epoch, and are no part of the graph
        model = torch.compile(Compiled(), backend="aot_eager")
        trainer(aging).fit(model, aging.loader(DATA, batch_size=20, seed=2))
    plain_loop(ages, aol.ShuffledSampler(SAMPLES, seed=2), batch_size=20)
    assert same_state(aging.ages, ages)


def test_a_loader_of_ones_own_has_its_clean_set_indexed() -> None:
    aging, ages = AgeOfLearning(sample_ages(), clean=DATA), sample_ages()
    loader = DataLoader(aol.Indexed(DATA), batch_size=16, sampler=aol.ShuffledSampler(SAMPLES, seed=2))
    fitted(aging, loader=loader)
    plain_loop(ages, aol.ShuffledSampler(SAMPLES, seed=2))
    assert same_state(aging.ages, ages)


def test_a_checkpoint_of_a_training_without_ages_is_taken_with_a_warning(tmp_path: Path) -> None:
    class Plain(Net):
        def training_step(self, batch, batch_idx):
            return aol.softmax_loss(self(batch[0]), batch[1]).mean()

    saving = trainer(max_epochs=1)
    saving.fit(Plain(), DataLoader(DATA, batch_size=16))
    saving.save_checkpoint(tmp_path / "plain.ckpt")
    aging = AgeOfLearning(sample_ages())
    with pytest.warns(UserWarning, match="holds no ages of AgeOfLearning"):
        trainer(aging, max_epochs=3).fit(Net(), aging.loader(DATA, batch_size=16), ckpt_path=tmp_path / "plain.ckpt")
    assert aging.ages.epoch == 2


# Bad input


def test_batches_without_an_index_are_refused_before_the_label_is_taken_for_one() -> None:
    model = Net()
    with pytest.raises(ValueError, match=r"Batches must carry the index of each sample, \(x, y, index\)"):
        fitted(AgeOfLearning(sample_ages()), model, loader=DataLoader(DATA, batch_size=16))
    assert model.losses == []


def in_another_order() -> Subset:
    return Subset(DATA, torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(0)).tolist())


@pytest.mark.parametrize("made", [lambda: {"ages": sample_ages()}, lambda: {"margins": made_margins("age")}])
def test_data_in_another_order_than_the_labels_are_refused_at_the_first_batch(made) -> None:
    aging, model = AgeOfLearning(**made()), Net()
    with pytest.raises(ValueError, match=r"label must be the class of each sample.* another order"):
        fitted(aging, model, loader=aging.loader(in_another_order(), batch_size=16))
    assert not model.losses


def test_a_clean_set_in_another_order_is_refused_too() -> None:
    with pytest.raises(ValueError, match="label must be the class of each sample"):
        fitted(AgeOfLearning(sample_ages(), clean=in_another_order()))


def test_other_data_in_a_second_fit_are_compared_again() -> None:
    aging = AgeOfLearning(sample_ages())
    fitted(aging, max_epochs=1)
    with pytest.raises(ValueError, match="label must be the class of each sample"):
        fitted(aging, loader=aging.loader(in_another_order(), batch_size=16))


def test_labels_that_are_no_single_class_are_not_compared() -> None:
    soft = torch.nn.functional.one_hot(LABELS, CLASSES).float().flip(0)
    fitted(AgeOfLearning(sample_ages(), clean=DATA), loader=DataLoader(aol.Indexed(TensorDataset(IMAGES, soft)), 16))


class Mistaken(Net):
    """Hands the labels where the index should be."""

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        x, y, _ = batch
        aging, logits = AgeOfLearning.of(self), self(x)
        if self.signal == "training":
            aging.observe(y, aol.is_correct(logits, y))
        return aging.weighted_mean(aol.softmax_loss(logits, y), y)


@pytest.mark.parametrize("signal", ["pass", "training"])
def test_a_label_in_place_of_the_index_is_refused(signal: str) -> None:
    with pytest.raises(ValueError, match="key must be the index of each sample"):
        fitted(AgeOfLearning(sample_ages(), signal=signal), Mistaken(signal))


def test_labels_handed_to_observe_are_compared() -> None:
    class Careful(Net):
        def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
            x, y, index = batch
            logits = self(x)
            AgeOfLearning.of(self).observe(index, aol.is_correct(logits, y), label=y)
            return aol.softmax_loss(logits, y).mean()

    fitted(AgeOfLearning(sample_ages(), signal="training"), Careful("training"))
    aging = AgeOfLearning(sample_ages(), signal="training")
    with pytest.raises(ValueError, match="label must be the class of each sample"):
        fitted(aging, Careful("training"), loader=aging.loader(in_another_order(), batch_size=16))


def test_a_clean_set_of_another_size_is_refused() -> None:
    aging = AgeOfLearning(sample_ages(), clean=torch.utils.data.Subset(DATA, range(10)))
    with pytest.raises(ValueError, match="ages must have the 10 samples of the training set, not 60"):
        fitted(aging)


def test_a_mean_in_place_of_losses_is_refused() -> None:
    class Mean(Net):
        def training_step(self, batch, batch_idx):
            x, y, index = batch
            return AgeOfLearning.of(self).weighted_mean(aol.softmax_loss(self(x), y).mean(), index)

    with pytest.raises(ValueError, match="loss must hold one number a sample"):
        fitted(AgeOfLearning(sample_ages()), Mean())


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
        (
            lambda: AgeOfLearning(sample_ages()).loader(DATA, resample=True, sampler=aol.ShuffledSampler(DATA)),
            ValueError,
            "resample cannot go with a sampler",
        ),
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


def test_a_stream_has_nothing_to_pass_over_which_is_said_before_training() -> None:
    aging, model = AgeOfLearning(aol.ClassAges(CLASSES)), Net()
    with pytest.raises(ValueError, match="clean must be a map-style data set"):
        fitted(aging, model, loader=aging.loader(Stream(), batch_size=10))
    assert model.losses == []


def test_a_module_without_the_callback_is_told() -> None:
    with pytest.raises(ValueError, match="must have AgeOfLearning among its callbacks"):
        trainer().fit(Net(), DataLoader(aol.Indexed(DATA), batch_size=8))


def test_a_part_of_a_batch_cannot_be_weighed_under_accumulation() -> None:
    class Half(Net):
        def training_step(self, batch, batch_idx):
            return super().training_step([each[:2] for each in batch], batch_idx)

    aging = AgeOfLearning(sample_ages())
    loader = aging.loader(DATA, batch_size=8)
    with pytest.raises(ValueError, match="key must be that of the whole batch, 8, not 2"):
        fitted(aging, Half(), loader=loader, accumulate_grad_batches=2)


def test_a_module_that_hands_over_no_answers_is_told() -> None:
    with pytest.raises(ValueError, match="Nothing was observed"):
        fitted(AgeOfLearning(sample_ages(), signal="training"), Net("pass"))


def test_a_callback_without_a_trainer_says_so() -> None:
    aging = AgeOfLearning(sample_ages())
    with pytest.raises(ValueError, match="must be among the callbacks"):
        aging.weighted_mean(torch.ones(2), torch.tensor([0, 1]))
