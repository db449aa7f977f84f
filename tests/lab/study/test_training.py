"""Studies that are really trained: killed, stopped, damaged, too large; and what is left of them."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from aol.cli import main
from aol.lab.engine.loop import Loop
from aol.lab.settings import Settings
from aol.lab.study import load
from aol.lab.train import group_training
from aol.records.store import Store
from tests.support.running import forked, killed_after, status_of
from tests.support.tiny_sets import image_folder
from tests.support.tiny_studies import RUNS, SHORT, unlike, work_left, written

pytestmark = pytest.mark.usefixtures("_warm")


def words(study: str, out: Path, *more: str) -> list[str]:
    return ["study", "run", study, "--out", str(out), "--together", "3", "--checkpoint-seconds", "0", *more]


def begun(study: str, out: Path) -> Path:
    """Train a study, kill it in the middle of a group, and return that group's checkpoint."""
    while True:
        child = forked(words(study, out))
        while not list(out.glob("work/*/checkpoint.pt")):
            time.sleep(0.002)
        os.kill(child, signal.SIGKILL)
        assert status_of(child) == -signal.SIGKILL
        if left := list(out.glob("work/*/checkpoint.pt")):  # else that group was just complete: the next one
            return left[0]


def said(capsys: pytest.CaptureFixture[str]) -> dict[str, object]:
    return json.loads(capsys.readouterr().out)


@pytest.fixture(scope="module")
def straight(_warm: None, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, float]:
    """A study that was run without a break, and how long that took."""
    out = tmp_path_factory.mktemp("straight")
    start = time.monotonic()
    with pytest.MonkeyPatch.context() as patch:
        from tests.support.tiny_runs import small_networks

        small_networks(patch)
        assert status_of(forked(words(written(out), out))) == 0
    return out, time.monotonic() - start


def test_every_run_of_the_study_is_there_and_nothing_is_done_again(
    straight: tuple[Path, float], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "again"
    shutil.copytree(straight[0], out)
    study = written(out)
    assert {record.id for record in Store(out)} == {run.run_id for run in load(study).all_runs()}
    before = {path: path.stat().st_mtime_ns for path in (out / "runs").glob("*/run.json")}
    assert len(before) == RUNS
    assert work_left(out) == []
    assert main(words(study, out, "--json")) == 0
    found = said(capsys)
    assert (found["complete"], found["trained"], found["missing"]) == (RUNS, 0, 0)
    assert {path: path.stat().st_mtime_ns for path in (out / "runs").glob("*/run.json")} == before


def test_a_study_killed_at_random_moments_ends_as_if_it_had_not_been(
    straight: tuple[Path, float], tmp_path: Path
) -> None:
    wanted, seconds = straight
    moments = random.Random(7)
    killed, study = 0, written(tmp_path)
    while killed < 4:
        if killed_after(moments.uniform(0.05, 0.45) * seconds, words(study, tmp_path)) < 0:
            killed += 1
        else:  # it was quicker than the first time: again from the start, with less patience
            shutil.rmtree(tmp_path)
            killed, seconds, study = 0, seconds / 2, written(tmp_path)
    assert status_of(forked(words(study, tmp_path))) == 0
    assert unlike(tmp_path, wanted) == []
    assert work_left(tmp_path) == []


def _memory_for(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let loops of more runs than that ask for more memory than there is."""
    real = group_training.make_loop

    def make_loop(stack: Sequence[Settings], *given: object, **named: object) -> Loop:
        if len(stack) > most:
            torch.empty(10**15)
        return real(stack, *given, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(group_training, "make_loop", make_loop)


def test_a_group_begun_on_a_larger_device_is_left_to_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    study = written(tmp_path, SHORT.replace("imbalance = [20, 5]", "imbalance = [20]"))
    begun(study, tmp_path)
    with monkeypatch.context() as patch:
        _memory_for(1, patch)
        assert main(words(study, tmp_path, "--together", "1", "--json")) == 1
        found = said(capsys)
    kept = len(found["untrained"])  # type: ignore[arg-type]
    assert kept in (2, 3)
    assert (found["in_progress"], found["complete"]) == (kept, RUNS // 2 - kept)
    assert len(list(tmp_path.glob("work/*/checkpoint.pt"))) == 1
    assert main(words(study, tmp_path, "--json")) == 0
    assert said(capsys)["complete"] == RUNS // 2


def test_a_run_that_diverges_is_recorded_as_such(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study = written(tmp_path, SHORT.replace("epochs = 6", "epochs = 6\nlr = 1e6"))
    assert main(words(study, tmp_path, "--json")) == 1
    found = said(capsys)
    assert found["complete"] == RUNS
    assert len(found["failed"]) == RUNS  # type: ignore[arg-type]
    record = next(iter(Store(tmp_path)))
    assert record.failed_at_epoch is not None
    assert len(record.curves["test_accuracy"]) == len(record.epochs) >= record.failed_at_epoch
    assert main(["study", "status", study, "--out", str(tmp_path)]) == 0
    assert "Diverged: none, seed 3" in capsys.readouterr().out


def test_a_run_without_the_ages_that_a_study_keeps_is_trained_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = SHORT.replace("tries_seeds = 1", "tries_seeds = 0").replace("epochs = 6", "epochs = 2")
    plain = written(tmp_path / "plain", text)
    keeping = written(tmp_path / "keeping", text.replace("tries_seeds", 'keep = ["age"]\ntries_seeds'))
    part = ["--only", "imbalance=20", "--only", "method=none", "--json"]
    assert main(words(plain, tmp_path / "out", *part)) == 0
    assert said(capsys)["trained"] == 2
    store = Store(tmp_path / "out")
    first = next(iter(store))
    store.write(replace(first, over_time={}))  # as converted from aol 0.1.0
    for study, trained in ((plain, 0), (keeping, 1), (keeping, 0)):
        assert main(words(study, tmp_path / "out", *part)) == 0
        assert said(capsys)["trained"] == trained
    for record in store:
        ages = record.over_time["age"]
        assert ages.shape == (2, 10)
        assert record.by_class["mean_age"] == pytest.approx(ages.mean(0), rel=1e-3)


def test_the_large_scale_study_runs_on_a_folder_given_for_its_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    photos = image_folder(tmp_path / "photos")
    part = ["--only", "data=imagenet1k", "--only", "imbalance=10", "--only", "method=none", "--only", "rho=0.1"]
    small = {
        "epochs": "2", "image_size": "32", "net": "resnet32", "batch_size": "4", "memory": "reservoir:20",
        "validation": "0.25",
    }  # fmt: skip
    changed = [word for name, value in small.items() for word in ("--set", f"{name}={value}")]
    given = ["--data", f"imagenet1k={photos}", "--set", "precision=fp32", "--seeds", "1", "--json"]
    assert main(words("large-scale", tmp_path / "out", *part, *changed, *given)) == 0
    assert said(capsys)["trained"] == 1
    assert {record.settings["data"] for record in Store(tmp_path / "out")} == {"imagenet1k"}
    assert {record.trained_together for record in Store(tmp_path / "out")} == {1}
