"""A run that stops at any hook and goes on from its checkpoint ends as the one that never stopped: ages and weights."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import OnExceptionCheckpoint
from torch.utils.data import DataLoader

import aol
from aol.plugins.lightning import AgeOfLearning
from tests.support.plugin_checks import same_state
from tests.support.small_lightning import DATA, Net, made_margins, sample_ages, trainer

EPOCHS, BATCH = 3, 16  # 60 samples: 4 batches, the last one of 12


class Save(Callback):
    """Saves a checkpoint in each of these hooks, every time, into files named for the moment.

    Not in `on_train_epoch_start`: resumed from there, Lightning 2.6 by itself leaves out an epoch.
    """

    HOOKS = ("on_train_batch_end", "on_validation_start", "on_validation_end", "on_train_epoch_end", "on_train_end")

    def __init__(self, folder: Path) -> None:
        self.folder, self.moments = folder, []
        for hook in self.HOOKS:
            setattr(self, hook, self._saving(hook))

    def _saving(self, hook: str):
        def save(trainer, module, *rest) -> None:
            path = self.folder / f"{len(self.moments)}-{hook}.ckpt"
            trainer.save_checkpoint(path)
            self.moments.append(path)

        return save


def run(
    signal: str, resample: bool, *, before=(), after=(), checkpoint: Path | None = None, workers: int = 0, **options
):
    aging = AgeOfLearning(sample_ages(), margins=made_margins("probability"), signal=signal)
    model = Net(aging, signal)
    loader = aging.loader(DATA, batch_size=BATCH, resample=resample, seed=4, num_workers=workers)
    fitting = trainer(*before, aging, *after, **{"max_epochs": EPOCHS, **options})
    fitting.fit(model, loader, DataLoader(DATA, batch_size=30), ckpt_path=checkpoint, weights_only=True)
    return aging, model


def differ(first, second) -> bool:
    """Return whether the second run, resumed, came out otherwise than the first, whole one."""
    (whole, model), (again, resumed) = first, second
    return not (
        same_state(again.ages, whole.ages)
        and same_state(again.margins, whole.margins)
        and torch.equal(resumed.weights(), model.weights())
        and resumed.seen == model.seen[len(model.seen) - len(resumed.seen) :]
    )


@pytest.mark.parametrize(
    ("signal", "resample", "place"),
    [
        ("pass", False, "before"),
        ("pass", True, "after"),
        ("training", False, "after"),
        ("training", True, "before"),
    ],
)
def test_a_run_resumed_from_any_moment_ends_as_if_it_had_not_stopped(
    signal: str, resample: bool, place: str, tmp_path: Path
) -> None:
    save = Save(tmp_path)
    whole = run(signal, resample, **{place: [save]})
    assert len(save.moments) == EPOCHS * (4 + 2 + 1) + 1
    # A callback that saves before this one at the very end leaves the last fold to a run that goes on.
    moments = [each for each in save.moments if each.name != "20-on_train_epoch_end.ckpt" or place == "after"]
    wrong = [moment.name for moment in moments if differ(whole, run(signal, resample, checkpoint=moment))]
    assert wrong == []


def test_a_finished_run_that_goes_on_folds_what_its_checkpoint_left_open(tmp_path: Path) -> None:
    save = Save(tmp_path)
    run("pass", True, before=[save])
    (last,) = tmp_path.glob("20-on_train_epoch_end.ckpt")
    assert not differ(run("pass", True, max_epochs=4), run("pass", True, max_epochs=4, checkpoint=last))


@pytest.mark.parametrize("options", [{"max_steps": 10, "max_epochs": -1}, {"accumulate_grad_batches": 2}])
def test_it_resumes_in_mid_epoch_by_steps_and_between_accumulated_ones(options: dict, tmp_path: Path) -> None:
    save = Save(tmp_path)
    whole = run("training", True, after=[save], **options)
    batches = [each for each in save.moments if "batch_end" in each.name]
    chosen = batches[1:9:2]  # not in the middle of an accumulated step, whose gradients no checkpoint keeps
    assert len(chosen) == 4
    wrong = [each.name for each in chosen if differ(whole, run("training", True, checkpoint=each, **options))]
    assert wrong == []


def test_it_resumes_by_what_was_used_where_workers_fetch_ahead(tmp_path: Path) -> None:
    save = Save(tmp_path)
    whole = run("pass", True, after=[save], workers=1, max_epochs=2)
    for moment in (save.moments[1], save.moments[3]):
        assert not differ(whole, run("pass", True, checkpoint=moment, workers=1, max_epochs=2))


@pytest.mark.parametrize("step", [0, 3, 6])
def test_what_an_exception_leaves_behind_resumes(step: int, tmp_path: Path) -> None:
    class Fail(Net):
        def training_step(self, batch, batch_idx):
            loss = super().training_step(batch, batch_idx)
            if self.trainer.global_step == step:
                raise RuntimeError("down")
            return loss

    aging = AgeOfLearning(sample_ages(), margins=made_margins("probability"))
    loader = aging.loader(DATA, batch_size=BATCH, resample=True, seed=4)
    fitting = trainer(aging, OnExceptionCheckpoint(tmp_path), enable_checkpointing=True, limit_val_batches=0)
    with pytest.raises(RuntimeError, match="down"):
        fitting.fit(Fail(aging), loader)
    again = run("pass", True, checkpoint=tmp_path / "on_exception.ckpt", limit_val_batches=0)
    assert not differ(run("pass", True, limit_val_batches=0), again)


def test_a_checkpoint_of_other_labels_is_refused(tmp_path: Path) -> None:
    save = Save(tmp_path)
    run("pass", False, after=[save], max_epochs=1)
    zeros = aol.SampleAges(torch.zeros(60, dtype=torch.int64), num_classes=3)
    other = AgeOfLearning(zeros, margins=made_margins("probability"))
    loader = other.loader(DATA, batch_size=BATCH)
    with pytest.raises(ValueError, match="other labels"):
        trainer(other).fit(Net(other), loader, ckpt_path=save.moments[0], weights_only=True)
    assert other.ages.epoch == 0
    lone = AgeOfLearning(sample_ages())
    with pytest.raises(ValueError, match="This state must hold ages, as given here"):
        trainer(lone).fit(Net(lone), loader, ckpt_path=save.moments[0], weights_only=True)
