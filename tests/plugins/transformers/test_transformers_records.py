"""Records of a training, which `aol report` reads, and what is logged to where `report_to` says."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import TrainerCallback

import aol
from aol.records.record import read_run
from tests.support.recorded_loop import ages_over_time, samples_of
from tests.support.small_transformers import CLASSES, DATA, LABELS, made, made_margins, padded, sample_ages, trained


class Watching(TrainerCallback):
    """Predicts everything at the end of each epoch, beside the trainer."""

    def __init__(self) -> None:
        self.logits: list[torch.Tensor] = []
        self.logs: list[dict[str, float]] = []

    def on_epoch_end(self, args, state, control, model=None, **kwargs) -> None:
        batch = padded(DATA)
        batch.pop("labels")
        with torch.no_grad():
            self.logits.append(model.eval()(**batch)["logits"])
        model.train()

    def on_log(self, args, state, control, logs=None, **kwargs) -> None:
        self.logs.append(dict(logs))


EVALUATED = {"eval_strategy": "epoch", "per_device_eval_batch_size": 7}


@pytest.mark.parametrize("loss_only", [False, True])
def test_the_record_holds_training_and_evaluation_of_each_epoch(loss_only: bool, tmp_path: Path) -> None:
    watching, ages = Watching(), sample_ages()
    args = {**EVALUATED, "prediction_loss_only": loss_only}
    trained(ages, args=args, recorder=tmp_path / "run", eval_dataset=DATA[:20], callbacks=[watching])
    run = read_run(tmp_path / "run")
    assert run.finished
    assert run.epochs.tolist() == [1, 2, 3]
    right = [(logits.argmax(1) == LABELS).float() for logits in watching.logits]
    assert run.curves["train_accuracy"] == pytest.approx([float(each.mean()) for each in right])
    assert run.curves["test_accuracy"] == pytest.approx([float(each[:20].mean()) for each in right])
    losses = [[float(aol.softmax_loss(z, LABELS)[c == LABELS].mean()) for c in range(CLASSES)] for z in watching.logits]
    assert run.over_time["train_loss"] == pytest.approx(torch.tensor(losses).numpy(), rel=1e-4)
    assert ages_over_time(samples_of(tmp_path / "run"))[-1] == ages.age.tolist()


def test_answers_of_training_batches_are_recorded(tmp_path: Path) -> None:
    trained(sample_ages(), signal="training", recorder=tmp_path / "run")
    assert read_run(tmp_path / "run").over_time["train_count"].sum(1).tolist() == [len(DATA)] * 3


def test_a_resumed_training_goes_on_with_its_record(tmp_path: Path) -> None:
    args = {"output_dir": str(tmp_path / "out"), "save_strategy": "epoch", **EVALUATED}

    def train(folder: str, checkpoint: str | None = None) -> None:
        trained(sample_ages(), args=args, recorder=tmp_path / folder, eval_dataset=DATA[:20], checkpoint=checkpoint)

    train("whole")
    whole = read_run(tmp_path / "whole")

    class Stopping(TrainerCallback):
        def on_epoch_end(self, args, state, control, **kwargs) -> None:
            control.should_training_stop = state.epoch == 2

    trained(sample_ages(), args=args, recorder=tmp_path / "parts", eval_dataset=DATA[:20], callbacks=[Stopping()])
    assert read_run(tmp_path / "parts").epochs.tolist() == [1, 2]
    train("parts", str(tmp_path / "out" / "checkpoint-8"))
    parts = read_run(tmp_path / "parts")
    for name in whole.curves.keys() - {"seconds"}:
        assert parts.curves[name] == pytest.approx(whole.curves[name], rel=1e-4), name


def test_a_training_that_fails_leaves_a_record_that_can_be_resumed(tmp_path: Path) -> None:
    class Failing(TrainerCallback):
        def on_epoch_begin(self, args, state, control, **kwargs) -> None:
            if state.epoch == 2:
                raise RuntimeError("out of luck")

    trainer = made(sample_ages(), recorder=tmp_path / "run", callbacks=[Failing()])
    with pytest.raises(RuntimeError, match="out of luck"):
        trainer.train()
    assert not read_run(tmp_path / "run").finished
    aol.Recorder(tmp_path / "run", sample_ages(), resume=True).close()


def test_evaluation_outside_of_training_is_not_recorded(tmp_path: Path) -> None:
    trainer = trained(sample_ages(), recorder=tmp_path / "run", eval_dataset=DATA[:20])
    trainer.evaluate()
    assert "test_accuracy" not in read_run(tmp_path / "run").curves


def test_figures_are_logged_after_every_epoch() -> None:
    watching, ages, margins = Watching(), sample_ages(), made_margins("error")
    trained(ages, margins=margins, callbacks=[watching])
    logged = [logs for logs in watching.logs if "age_mean" in logs]
    assert len(logged) == 3
    by_class = [ages.ema[c == LABELS].mean() for c in range(CLASSES)]
    figures = {
        "age_mean": float(sum(by_class)) / CLASSES,
        "age_oldest_class": float(max(by_class)),
        "margin_smallest": float(margins.offsets.min()),
        "margin_largest": float(margins.offsets.max()),
    }
    assert {name: logged[-1][name] for name in figures} == pytest.approx(figures)
    silent = trained(sample_ages(), args={"logging_strategy": "no"})
    assert not any("age_mean" in logs for logs in silent.state.log_history)
