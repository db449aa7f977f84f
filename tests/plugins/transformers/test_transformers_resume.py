"""A run that goes on from any of its checkpoints ends as the one that never stopped: ages, losses and network."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import aol
from aol.plugins import transformers as plugin
from tests.support.plugin_checks import same_state
from tests.support.small_transformers import losses, made, made_margins, network, sample_ages, trained, weights

# Four steps an epoch, the last one shorter; two micro-batches a step. Dropout, so that random states matter too.
ARGS = {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 2, "save_total_limit": None}


def run(signal: str, resample: bool, out: Path, checkpoint: Path | bool | None = None, **options):
    args = {**ARGS, "output_dir": str(out), "save_strategy": "steps", "save_steps": 1, **options}
    ages = sample_ages()
    trainer = trained(
        ages,
        model=network(dropout=0.2),
        signal=signal,
        resample=resample,
        args=args,
        checkpoint=str(checkpoint) if isinstance(checkpoint, Path) else checkpoint,
    )
    return ages, trainer


@pytest.mark.parametrize(("signal", "resample"), [("pass", False), ("pass", True), ("training", True)])
def test_a_run_resumed_from_any_step_ends_as_if_it_had_not_stopped(signal: str, resample: bool, tmp_path: Path) -> None:
    ages, whole = run(signal, resample, tmp_path / "whole")
    assert (ages.epoch, whole.state.global_step) == (3, 12)
    wrong = []
    for step in (1, 3, 4, 6, 8, 11):  # 4 and 8 are the last ones of their epochs
        checkpoint = tmp_path / "whole" / f"checkpoint-{step}"
        again, resumed = run(signal, resample, tmp_path / "again", checkpoint, save_strategy="no")
        same = same_state(again, ages) and torch.equal(weights(resumed), weights(whole))
        if not same or losses(resumed) != losses(whole) or resumed.seen != whole.seen[step:]:
            wrong.append(step)
    assert wrong == []


def test_checkpoints_of_epochs_resume_after_the_fold(tmp_path: Path) -> None:
    ages, whole = run("pass", True, tmp_path / "whole", save_strategy="epoch")
    for step in (4, 8):
        checkpoint = tmp_path / "whole" / f"checkpoint-{step}"
        assert torch.load(checkpoint / "ages.pt", weights_only=True)["open"] is False
        again, resumed = run("pass", True, tmp_path / "again", checkpoint, save_strategy="no")
        assert same_state(again, ages)
        assert losses(resumed) == losses(whole)


def test_ages_that_advance_by_steps_resume(tmp_path: Path) -> None:
    def one(out: Path, checkpoint: str | None = None, **options):
        ages = aol.ClassAges(3, rho=0.5)
        args = {**ARGS, "output_dir": str(out), "save_strategy": "steps", "save_steps": 1, **options}
        return ages, trained(ages, signal="training", every=3, args=args, checkpoint=checkpoint)

    ages, whole = one(tmp_path / "whole")
    assert ages.epoch == 4
    for step in (2, 6, 7):
        again, resumed = one(tmp_path / "again", str(tmp_path / "whole" / f"checkpoint-{step}"), save_strategy="no")
        assert torch.equal(again.ema, ages.ema)
        assert losses(resumed) == losses(whole)


def test_the_last_checkpoint_is_found_and_a_stop_within_an_epoch_goes_on_in_it(tmp_path: Path) -> None:
    ages, whole = run("pass", True, tmp_path / "whole", save_strategy="no", lr_scheduler_type="constant")
    run("pass", True, tmp_path / "short", max_steps=6, lr_scheduler_type="constant")
    again, resumed = run("pass", True, tmp_path / "short", True, lr_scheduler_type="constant")
    assert same_state(again, ages)
    assert losses(resumed) == losses(whole)


def test_a_checkpoint_without_ages_is_taken_with_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = []
    monkeypatch.setattr(plugin.logger, "warning", said.append)
    _, whole = run("pass", False, tmp_path / "whole")
    checkpoint = tmp_path / "whole" / "checkpoint-8"
    (checkpoint / "ages.pt").unlink()
    ages, resumed = run("pass", False, tmp_path / "again", checkpoint, save_strategy="no")
    assert resumed.state.global_step == whole.state.global_step
    assert ages.epoch == 1
    assert said == [f"{checkpoint} holds no ages.pt: the ages go on as they are."]


def test_a_foreign_checkpoint_is_refused(tmp_path: Path) -> None:
    run("pass", False, tmp_path / "whole", num_train_epochs=1)
    checkpoint = tmp_path / "whole" / "checkpoint-3"
    other = aol.SampleAges([0] * 60, num_classes=3)
    foreign = made(other, args={**ARGS, "output_dir": str(tmp_path / "other")})
    with pytest.raises(ValueError, match="other labels"):
        foreign.train(resume_from_checkpoint=str(checkpoint))
    assert other.epoch == 0
    with pytest.raises(ValueError, match="This state must hold ages and margins, as given here"):
        trained(sample_ages(), margins=made_margins("error"), args=ARGS, checkpoint=str(checkpoint))
