"""Records of a fit, which `aol report` reads, and what is logged to the Trainer's own loggers."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
import torch
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

import aol
from aol.plugins.lightning import AgeOfLearning
from aol.records.record import read_run
from tests.support.plugin_checks import check_same_record
from tests.support.recorded_loop import ages_over_time, samples_of
from tests.support.small_lightning import (
    CLASSES,
    DATA,
    IMAGES,
    LABELS,
    SAMPLES,
    Net,
    fitted,
    made_margins,
    sample_ages,
    trainer,
)


class Watched(Net):
    """Hands its validation batches to the record."""

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        self.aging.test(batch[1], self(batch[0]))


def curves(folder: Path) -> pd.DataFrame:
    return aol.load_runs(folder).epochs()


def recorded_loop(folder: Path, signal: str, epochs: int = 3) -> None:
    """Train and record as the README does."""
    ages, model = sample_ages(), Net()
    optimizer, order = model.configure_optimizers(), aol.ShuffledSampler(SAMPLES, seed=2)
    with aol.Recorder(folder, ages) as recorder:
        for _ in range(epochs):
            for index in torch.tensor(list(order)).split(16):
                logits = model(IMAGES[index])
                if signal == "training":
                    ages.observe(index, aol.is_correct(logits, LABELS[index]))
                    recorder.observe(index, logits.detach())
                optimizer.zero_grad()
                aol.weighted_mean(aol.softmax_loss(logits, LABELS[index]), ages.weight(index)).backward()
                optimizer.step()
            with torch.no_grad():
                logits = model(IMAGES)
            if signal == "pass":
                ages.observe(range(SAMPLES), aol.is_correct(logits, LABELS))
                recorder.observe(range(SAMPLES), logits)
            recorder.test(LABELS[:20], logits[:20])
            ages.advance()
            recorder.advance(lr=0.3)


@pytest.mark.parametrize("signal", ["pass", "training"])
def test_the_record_is_that_of_the_plain_loop(signal: str, tmp_path: Path) -> None:
    aging = AgeOfLearning(sample_ages(), signal=signal, recorder=tmp_path / "fit")
    fitting = trainer(aging, num_sanity_val_steps=1)
    validation = DataLoader(torch.utils.data.Subset(DATA, range(20)), batch_size=8)
    fitting.fit(Watched(aging, signal), aging.loader(DATA, batch_size=16, seed=2), validation)
    recorded_loop(tmp_path / "loop", signal)
    check_same_record(tmp_path / "fit", tmp_path / "loop")
    assert ages_over_time(samples_of(tmp_path / "fit")) == ages_over_time(samples_of(tmp_path / "loop"))


def test_a_resumed_fit_goes_on_with_its_record(tmp_path: Path) -> None:
    def fit(folder: str, epochs: int, checkpoint: str | None = None) -> None:
        aging = AgeOfLearning(sample_ages(), recorder=tmp_path / folder)
        saving = ModelCheckpoint(tmp_path / "saved", filename="{epoch}", save_top_k=-1)
        fitting = trainer(aging, saving, max_epochs=epochs, enable_checkpointing=True)
        fitting.fit(Net(aging), aging.loader(DATA, batch_size=16, seed=2), ckpt_path=checkpoint)

    fit("whole", 4)
    fit("parts", 2)
    assert curves(tmp_path / "parts")["epoch"].tolist() == [1, 2]
    fit("parts", 4, str(tmp_path / "saved" / "epoch=1.ckpt"))
    whole, parts = (curves(tmp_path / name).drop(columns=["id", "method", "seconds"]) for name in ("whole", "parts"))
    pd.testing.assert_frame_equal(whole, parts)


def test_a_fit_that_fails_leaves_a_record_that_can_be_resumed(tmp_path: Path) -> None:
    class Failing(Net):
        def on_train_epoch_start(self) -> None:
            if self.current_epoch == 2:
                raise RuntimeError("out of luck")

    aging = AgeOfLearning(sample_ages(), recorder=tmp_path / "run")
    with pytest.raises(RuntimeError, match="out of luck"):
        fitted(aging, Failing(aging))
    assert not read_run(tmp_path / "run").finished
    fitted(aging, max_epochs=1)
    assert curves(tmp_path / "run")["epoch"].tolist() == [1, 2, 3]
    with pytest.raises(ValueError, match="already holds a record"):
        fitted(AgeOfLearning(sample_ages(), recorder=tmp_path / "run"))


def test_a_recorder_or_a_function_that_makes_one_will_do(tmp_path: Path) -> None:
    def named(ages: aol.SampleAges) -> aol.Recorder:
        return aol.Recorder(tmp_path / "named", ages, classes=["a", "b", "c"], images=IMAGES.reshape(-1, 1, 5))

    fitted(AgeOfLearning(sample_ages(), recorder=named))
    assert read_run(tmp_path / "named").classes == ["a", "b", "c"]
    ages = sample_ages()
    with aol.Recorder(tmp_path / "own", ages) as recorder:
        fitted(AgeOfLearning(ages, recorder=recorder))
        assert not read_run(tmp_path / "own").finished
    assert read_run(tmp_path / "own").finished


@pytest.mark.parametrize(
    ("given", "error", "named"),
    [
        ({"ages": aol.ErrorRates(3)}, ValueError, "recorder needs ages"),
        ({"margins": made_margins("error")}, ValueError, "recorder needs ages"),
        ({"ages": sample_ages(), "recorder": 3}, TypeError, "recorder must be a folder"),
    ],
)
def test_what_cannot_be_recorded_is_refused(given: dict, error: type[Exception], named: str, tmp_path: Path) -> None:
    with pytest.raises(error, match=named):
        AgeOfLearning(**{"recorder": tmp_path, **given})


def test_answers_of_classes_that_the_ages_do_not_know_are_refused(tmp_path: Path) -> None:
    few = LABELS.clamp(max=CLASSES - 2)  # the model may name a class that the record has no place for
    aging = AgeOfLearning(aol.SampleAges(few), recorder=tmp_path)
    with pytest.raises(ValueError, match="logits must be"):
        fitted(aging, loader=aging.loader(TensorDataset(IMAGES, few), batch_size=16))


def test_offsets_are_on_record(tmp_path: Path) -> None:
    aging = AgeOfLearning(sample_ages(rho=0.0), margins=made_margins("error"), recorder=tmp_path / "run")
    fitted(aging)
    assert read_run(tmp_path / "run").over_time["offset"][-1] == pytest.approx(aging.margins.offsets.numpy(), rel=1e-5)


# The Trainer's loggers


def test_figures_reach_loggers_early_stopping_and_checkpoints(tmp_path: Path) -> None:
    aging = AgeOfLearning(sample_ages(), margins=made_margins("error"))
    stopping, logger = EarlyStopping("age_mean", patience=99), CSVLogger(tmp_path)
    trainer(aging, stopping, logger=logger).fit(Net(aging), aging.loader(DATA, batch_size=16, seed=2))
    logged = pd.read_csv(Path(logger.log_dir) / "metrics.csv").iloc[-1]
    by_class = [aging.ages.ema[c == LABELS].mean().item() for c in range(CLASSES)]
    assert logged["age_mean"] == pytest.approx(sum(by_class) / CLASSES)
    assert logged["age_oldest_class"] == pytest.approx(max(by_class))
    assert logged["margin_smallest"] == pytest.approx(aging.margins.offsets.min().item())
    assert logged["margin_largest"] == pytest.approx(aging.margins.offsets.max().item())
    assert float(stopping.best_score) <= logged["age_mean"]
