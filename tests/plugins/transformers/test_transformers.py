"""The callback beside the plain Trainer and loops written out: ages, records, logs, losses and checkpoints."""

from __future__ import annotations

from pathlib import Path

import datasets
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from transformers import TrainerCallback

import aol
from aol.plugins.transformers import ComputeLoss
from aol.records.previews import read_previews
from aol.records.record import read_run
from tests.support.plugin_checks import check_same_record, same_state
from tests.support.small_transformers import CLASSES, DATA, LABELS, losses, made, network, padded, trained, weights

SGD = {"max_grad_norm": 0.0, "lr_scheduler_type": "constant", "optim": "sgd", "learning_rate": 0.3}


class Answers(TrainerCallback):
    """Predicts everything at the end of each epoch, beside the trainer."""

    def __init__(self) -> None:
        self.right: list[torch.Tensor] = []
        self.logs: list[dict[str, float]] = []

    def on_epoch_end(self, args, state, control, model=None, **kwargs) -> None:
        batch = padded(DATA)
        labels = batch.pop("labels")
        with torch.no_grad():
            self.right.append(model.eval()(**batch)["logits"].argmax(1) == labels)
        model.train()

    def on_log(self, args, state, control, logs=None, **kwargs) -> None:
        self.logs.append(dict(logs))


def test_ages_record_and_logs_are_those_of_a_naive_loop(tmp_path: Path) -> None:
    answers, naive = Answers(), aol.SampleAges(LABELS)
    _, callback = trained(tmp_path / "run", callbacks=[answers], eval_dataset=DATA[:20])
    for right in answers.right:
        naive.observe(range(len(DATA)), right)
        naive.advance()
    assert same_state(callback.ages, naive)
    assert naive.age.max() > 2
    run = read_run(tmp_path / "run")
    assert run.finished
    assert run.curves["train_accuracy"] == pytest.approx([float(right.float().mean()) for right in answers.right])
    assert run.curves["test_accuracy"] == pytest.approx([float(right[:20].float().mean()) for right in answers.right])
    logged = [logs for logs in answers.logs if "age_mean" in logs]
    by_class = [float(naive.ema[c == LABELS].mean()) for c in range(CLASSES)]
    assert len(logged) == 3
    assert logged[-1]["age_mean"] == pytest.approx(sum(by_class) / CLASSES)
    assert logged[-1]["age_oldest_class"] == pytest.approx(max(by_class))


@pytest.mark.parametrize("args", [{}, {"bf16": True, "train_sampling_strategy": "group_by_length"}])
def test_a_trainer_that_is_watched_trains_as_one_that_is_not(args: dict, tmp_path: Path) -> None:
    model = network(dropout=0.2)
    plain, _ = trained(args=args, model=network(dropout=0.2))
    watched, _ = trained(tmp_path, args=args, aged=False, model=model)
    assert losses(watched) == losses(plain)
    assert torch.equal(weights(watched), weights(plain))


def test_a_loss_module_is_the_mean_of_the_step_however_it_is_accumulated(tmp_path: Path) -> None:
    outcomes = []
    for size, parts in ((16, 1), (4, 4)):
        args = {**SGD, "per_device_train_batch_size": size, "gradient_accumulation_steps": parts}
        outcomes.append(trained(compute_loss_func=ComputeLoss(nn.CrossEntropyLoss()), eval_dataset=DATA, args=args)[0])
    whole, split = outcomes
    assert losses(split) == pytest.approx(losses(whole), abs=1e-5)
    torch.testing.assert_close(weights(split), weights(whole), atol=1e-6, rtol=1e-4)
    with torch.no_grad():
        batch = padded(DATA)
        labels = batch.pop("labels")
        expected = F.cross_entropy(whole.model.eval()(**batch).logits, labels)
    assert whole.evaluate()["eval_loss"] == pytest.approx(expected.item(), abs=1e-5)


def test_labels_of_tokens_are_flattened_and_ignored_ones_not_counted() -> None:
    logits, labels = torch.randn(2, 3, 5), torch.tensor([[1, -100, 2], [4, 0, -100]])
    loss = ComputeLoss(nn.CrossEntropyLoss())({"logits": logits}, labels, num_items_in_batch=8)
    expected = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum") / 8
    assert loss.item() == pytest.approx(expected.item(), abs=1e-6)


@pytest.mark.parametrize("remove", [True, False])
def test_rows_of_datasets_with_other_columns_give_the_same_ages_and_texts(remove: bool, tmp_path: Path) -> None:
    features = {} if not remove else {"text": [f"text {i}" for i in range(len(DATA))]}
    rows = datasets.Dataset.from_list(DATA)
    for name, column in features.items():
        rows = rows.add_column(name, column)
    _, ours = trained(tmp_path / "rows", data=rows, args={"remove_unused_columns": remove})
    _, plain = trained(tmp_path / "list")
    assert same_state(ours.ages, plain.ages)
    if remove:
        assert read_previews(tmp_path / "rows").texts[3] == "text 3"


def test_a_pass_sees_evaluation_mode_and_the_set_it_is_given(tmp_path: Path) -> None:
    modes, shown = [], []
    model = network(dropout=0.3)
    model.bert.encoder.eval()

    def watched(module, args, kwargs) -> None:
        modes.append((module.training, torch.is_grad_enabled()))
        shown.append(len(kwargs["input_ids"]))

    model.register_forward_pre_hook(watched, with_kwargs=True)
    other = [{**row, "input_ids": row["input_ids"][::-1]} for row in DATA]
    _, callback = trained(tmp_path, model=model, train_set=other, args={"num_train_epochs": 1})
    assert modes == [(True, True)] * 4 + [(False, False)] * 3
    assert shown == [16, 16, 16, 12, 25, 25, 10]
    with torch.no_grad():
        batch = padded(other)
        labels = batch.pop("labels")
        right = model.eval()(**batch).logits.argmax(1) == labels
    assert torch.equal(callback.ages.age, torch.where(right, 1, 2).int())


def test_a_new_model_of_model_init_has_made_no_errors_yet(tmp_path: Path) -> None:
    trainer, callback = trained(
        tmp_path / "run", model_init=lambda: network(), aged=False, args={"num_train_epochs": 2}
    )
    first = callback.ages.age
    trainer.train()
    assert callback.ages.epoch == 2
    assert torch.equal(callback.ages.age, first)
    check_same_record(tmp_path / "run-2", tmp_path / "run")


# Checkpoints: four steps an epoch, the last one shorter; two micro-batches a step. Dropout: random states matter too.

PARTS = {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 2}


def run(folder: Path, out: Path, checkpoint: Path | bool | None = None, callbacks=(), **args):
    args = {**PARTS, "output_dir": str(out), "save_strategy": "steps", "save_steps": 1, **args}
    checkpoint = str(checkpoint) if isinstance(checkpoint, Path) else checkpoint
    options = {"model": network(dropout=0.2), "callbacks": list(callbacks), "checkpoint": checkpoint}
    trainer, callback = trained(folder, eval_dataset=DATA[:20], args=args, **options)
    return callback.ages, trainer


def test_a_run_resumed_from_any_step_ends_as_if_it_had_not_stopped(tmp_path: Path) -> None:
    ages, whole = run(tmp_path / "record", tmp_path / "whole")
    assert (ages.epoch, whole.state.global_step) == (3, 12)
    wrong = []
    for step in (1, 3, 4, 8, 11):  # 4 and 8 are the last ones of their epochs
        checkpoint = tmp_path / "whole" / f"checkpoint-{step}"
        again, resumed = run(tmp_path / f"record-at-{step}", tmp_path / "again", checkpoint, save_strategy="no")
        if not (same_state(again, ages) and torch.equal(weights(resumed), weights(whole))):
            wrong.append(step)
        if losses(resumed) != losses(whole):
            wrong.append(-step)
    assert wrong == []


def test_a_stop_within_an_epoch_goes_on_in_it_with_its_own_record(tmp_path: Path) -> None:
    constant = {"lr_scheduler_type": "constant"}
    ages, whole = run(tmp_path / "whole", tmp_path / "first", **constant)
    run(tmp_path / "parts", tmp_path / "other", num_train_epochs=1)
    stopped, _ = run(tmp_path / "parts", tmp_path / "short", max_steps=6, **constant)
    assert stopped.epoch == 1
    again, resumed = run(tmp_path / "parts", tmp_path / "short", True, **constant)
    assert same_state(again, ages)
    assert losses(resumed) == losses(whole)
    check_same_record(tmp_path / "parts-2", tmp_path / "whole")
    assert read_run(tmp_path / "parts").epochs.tolist() == [1]


def test_checkpoints_that_know_no_ages_or_other_labels(tmp_path: Path) -> None:
    trained(args={"output_dir": str(tmp_path / "plain"), "save_strategy": "epoch"})
    _, callback = trained(tmp_path / "run", checkpoint=str(tmp_path / "plain" / "checkpoint-8"))
    assert callback.ages.epoch == 1
    run(tmp_path / "record", tmp_path / "whole", num_train_epochs=1)
    other = [{**row, "label": (row["label"] + 1) % 3} for row in DATA]
    with pytest.raises(ValueError, match="other labels"):
        trained(tmp_path / "other", data=other, checkpoint=str(tmp_path / "whole" / "checkpoint-3"), args=PARTS)


def test_a_training_that_fails_leaves_a_record_that_the_next_one_continues(tmp_path: Path) -> None:
    class Failing(TrainerCallback):
        def on_epoch_begin(self, args, state, control, **kwargs) -> None:
            if state.epoch == 2:
                raise RuntimeError("out of luck")

    failing = Failing()
    trainer, callback = made(tmp_path / "run", callbacks=[failing])
    with pytest.raises(RuntimeError, match="out of luck"):
        trainer.train()
    assert not read_run(tmp_path / "run").finished
    trainer.remove_callback(failing)
    trainer.train()
    assert callback.ages.epoch == 5
    assert read_run(tmp_path / "run").epochs.tolist() == [1, 2, 3, 4, 5]
