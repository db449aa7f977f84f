"""The callback against loops written out: ages, weights, records; other callbacks, stops and checkpoints."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
import torch
from lightning.pytorch import Callback, LightningDataModule
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch import Tensor, nn
from torch.utils.data import DataLoader, Subset

import aol
from aol.plugins.lightning import WatchCallback
from aol.records.record import read_run
from tests.support.plugin_checks import check_same_record, same_state
from tests.support.small_lightning import (
    CLASSES,
    DATA,
    IMAGES,
    LABELS,
    SAMPLES,
    SIZE,
    TEST,
    Net,
    fitted,
    loader,
    sample_ages,
    trainer,
)


def watching(folder: Path, **options) -> WatchCallback:
    return WatchCallback(folder, DATA, TEST, ages=options.pop("ages", None) or sample_ages(), **options)


def plain_loop(folder: Path, ages: aol.SampleAges, order: object) -> Net:
    """Train the same network by hand, with a record."""
    model = Net()
    optimizer = model.configure_optimizers()
    with aol.Watch(folder, DATA, TEST, ages=ages) as watch:
        for _ in range(3):
            for index in torch.tensor(list(order)).split(SIZE):
                loss = aol.weighted_mean(aol.softmax_loss(model(IMAGES[index]), LABELS[index]), ages.weight(index))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                model.losses.append(loss.item())
            watch.epoch(model, lr=0.3)
    return model


@pytest.mark.parametrize(("level", "resample"), [("class", False), ("sample", False), ("sample", True)])
def test_it_trains_and_records_as_the_plain_loop_does(level: str, resample: bool, tmp_path: Path) -> None:
    def order(ages: aol.SampleAges):
        return aol.AgeSampler(ages, seed=2) if resample else aol.ShuffledSampler(SAMPLES, seed=2)

    callback, ages = watching(tmp_path / "fit", ages=sample_ages(level=level)), sample_ages(level=level)
    model = fitted(callback, batches=loader(order(callback.ages)))
    plain = plain_loop(tmp_path / "loop", ages, order(ages))
    assert same_state(callback.ages, ages)
    assert ages.age.max() > 2
    assert model.losses == pytest.approx(plain.losses, abs=1e-6)
    torch.testing.assert_close(model.weights(), plain.weights())
    check_same_record(tmp_path / "fit", tmp_path / "loop")


def test_accumulated_parts_make_the_step_of_one_large_batch(tmp_path: Path) -> None:
    outcomes = []
    for size, parts in ((20, 1), (5, 4)):
        callback = watching(tmp_path / str(parts))
        model = Net(callback.ages, divide_by="count")
        fitted(callback, model, batches=loader(size=size), accumulate_grad_batches=parts)
        outcomes.append((callback.ages, model.weights()))
    (one, whole), (many, split) = outcomes
    assert same_state(one, many)
    torch.testing.assert_close(split, whole)


@pytest.mark.parametrize("precision", ["bf16-mixed", "64-true", "bf16-true"])
def test_other_precisions_train(precision: str, tmp_path: Path) -> None:
    callback = watching(tmp_path)
    model = fitted(callback, precision=precision, max_epochs=2)
    assert callback.ages.epoch == 2
    assert torch.tensor(model.losses).isfinite().all()
    assert callback.ages.age.max() > 1


def test_a_pass_sees_evaluation_mode_and_leaves_every_mode_as_it_was(tmp_path: Path) -> None:
    class Watched(Net):
        def __init__(self, ages: aol.SampleAges) -> None:
            super().__init__(ages)
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

    callback = WatchCallback(tmp_path, DataLoader(DATA, 30), ages=sample_ages())
    model = fitted(callback, Watched(callback.ages))
    assert model.modes == 3 * (4 * [(True, True, True)] + 2 * [(False, False, False)])


def test_a_data_module_other_callbacks_and_a_second_fit_go_with_it(tmp_path: Path) -> None:
    callback = watching(tmp_path / "run")

    class Counting(Callback):
        def on_train_epoch_end(self, trainer, module) -> None:
            epochs.append(callback.ages.epoch)

    class Data(LightningDataModule):
        def train_dataloader(self):
            return DataLoader(aol.Indexed(DATA), batch_size=16, shuffle=True)

        def val_dataloader(self):
            return DataLoader(DATA, batch_size=20)

    epochs: list[int] = []
    others = [Counting(), ModelCheckpoint(tmp_path), EarlyStopping("val_loss", patience=9)]
    model = Net(callback.ages)
    trainer(*others, callback, num_sanity_val_steps=2, enable_checkpointing=True).fit(model, datamodule=Data())
    assert epochs == [0, 1, 2]
    fitted(callback, model, max_epochs=1)
    assert callback.ages.epoch == 4
    assert aol.load_runs(tmp_path / "run").epochs()["epoch"].tolist() == [1, 2, 3, 4]
    fitted(callback, model, fast_dev_run=2)
    assert callback.ages.epoch == 4
    fitted(watching(tmp_path / "run", every=2), max_epochs=5)
    assert read_run(tmp_path / "run-2").epochs.tolist() == [1, 2]


def test_a_fit_that_fails_leaves_a_record_that_can_be_resumed(tmp_path: Path) -> None:
    class Failing(Net):
        def on_train_epoch_start(self) -> None:
            if self.current_epoch == 2:
                raise RuntimeError("out of luck")

    callback = watching(tmp_path / "run")
    with pytest.raises(RuntimeError, match="out of luck"):
        fitted(callback, Failing(callback.ages))
    assert not read_run(tmp_path / "run").finished
    fitted(callback, max_epochs=1)
    assert read_run(tmp_path / "run").epochs.tolist() == [1, 2, 3]


def test_ages_reach_loggers_and_early_stopping(tmp_path: Path) -> None:
    callback, stopping, logger = watching(tmp_path), EarlyStopping("age_mean", patience=99), CSVLogger(tmp_path)
    fitted(callback, others=[stopping], logger=logger)
    logged = pd.read_csv(Path(logger.log_dir) / "metrics.csv").iloc[-1]
    by_class = [callback.ages.ema[c == LABELS].mean().item() for c in range(CLASSES)]
    assert logged["age_mean"] == pytest.approx(sum(by_class) / CLASSES)
    assert logged["age_oldest_class"] == pytest.approx(max(by_class))
    assert float(stopping.best_score) <= logged["age_mean"]


def test_data_in_another_order_than_the_labels_are_refused(tmp_path: Path) -> None:
    mixed = Subset(DATA, torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(0)).tolist())
    callback = WatchCallback(tmp_path, mixed, ages=sample_ages())
    with pytest.raises(ValueError, match="label must be the class of each sample"):
        fitted(callback)
    assert callback.ages.epoch == 0


# Checkpoints


class Save(Callback):
    """Saves a checkpoint in each of these hooks, every time but within an epoch, into files named for the moment."""

    HOOKS = ("on_train_batch_end", "on_validation_start", "on_validation_end", "on_train_epoch_end", "on_train_end")

    def __init__(self, folder: Path) -> None:
        self.folder, self.moments = folder, []
        for hook in self.HOOKS:
            setattr(self, hook, self._saving(hook))

    def _saving(self, hook: str):
        def save(trainer, module, *rest) -> None:
            path = self.folder / f"{len(self.moments)}-{hook}.ckpt"
            if hook != "on_train_batch_end" or rest[-1] == 3:  # Lightning itself resumes plain loaders at an epoch only
                trainer.save_checkpoint(path)
                self.moments.append(path)

        return save


def run(folder: Path, *, before=(), after=(), checkpoint: Path | None = None, **options) -> tuple[WatchCallback, Net]:
    callback = watching(folder)
    model, fitting = Net(callback.ages), trainer(*before, callback, *after, **options)
    batches = loader(aol.AgeSampler(callback.ages, seed=4))
    fitting.fit(model, batches, DataLoader(DATA, batch_size=30), ckpt_path=checkpoint, weights_only=True)
    return callback, model


@pytest.mark.parametrize("place", ["before", "after"])
def test_a_run_resumed_from_any_moment_ends_as_if_it_had_not_stopped(place: str, tmp_path: Path) -> None:
    save = Save(tmp_path)
    whole, model = run(tmp_path / "whole", **{place: [save]})
    assert len(save.moments) == 3 * 4 + 1
    # A callback that saves before this one at the very end leaves the last pass to a run that goes on.
    moments = [path for path in save.moments if path.name != "11-on_train_epoch_end.ckpt" or place == "after"]
    wrong = []
    for moment in moments:
        again, resumed = run(tmp_path / f"again-{moment.stem}", checkpoint=moment)
        if not same_state(again.ages, whole.ages) or not torch.equal(resumed.weights(), model.weights()):
            wrong.append(moment.name)
    assert wrong == []
    if place == "before":
        four, five = (run(tmp_path / "next", max_epochs=4, checkpoint=path) for path in (None, save.moments[-2]))
        assert same_state(four[0].ages, five[0].ages)


def test_a_resumed_run_goes_on_with_its_own_record(tmp_path: Path) -> None:
    run(tmp_path / "run", max_epochs=1)
    saving = ModelCheckpoint(tmp_path / "saved", filename="{epoch}", save_top_k=-1)
    run(tmp_path / "run", max_epochs=2, after=[saving], enable_checkpointing=True)  # in run-2
    run(tmp_path / "run", checkpoint=tmp_path / "saved" / "epoch=1.ckpt")
    run(tmp_path / "whole")
    check_same_record(tmp_path / "run-2", tmp_path / "whole")
    assert read_run(tmp_path / "run").epochs.tolist() == [1]


def test_a_checkpoint_of_other_labels_is_refused(tmp_path: Path) -> None:
    save = Save(tmp_path)
    run(tmp_path / "run", after=[save], max_epochs=1)
    other = WatchCallback(tmp_path / "other", [(x, 0) for x in IMAGES], classes=["a", "b", "c"])
    with pytest.raises(ValueError, match="other labels"):
        trainer(other).fit(Net(other.ages), loader(), ckpt_path=save.moments[0], weights_only=True)
    assert other.ages.epoch == 0
