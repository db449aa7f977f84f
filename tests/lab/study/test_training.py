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
from tests.support.tiny_studies import RUNS, SHORT, told, unlike, work_left, written

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


def test_a_group_that_was_killed_continues_from_its_checkpoint(tmp_path: Path) -> None:
    study, log = written(tmp_path), tmp_path / "log"
    begun(study, tmp_path)
    assert status_of(forked(words(study, tmp_path), log=log)) == 0
    assert "Continuing 3 runs after epoch" in log.read_text()


def test_a_second_process_is_refused_while_one_trains(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study = written(tmp_path)
    with Store(tmp_path).lock():
        assert main(words(study, tmp_path)) != 0
    assert "in use by another aol process" in capsys.readouterr().err
    assert Store(tmp_path).ids() == []


def test_a_damaged_record_is_reported_and_its_run_done_again(
    straight: tuple[Path, float], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "damaged"
    shutil.copytree(straight[0], out)
    study, victims = written(out), sorted((out / "runs").glob("*/run.json"))[:2]
    victims[0].write_bytes(victims[0].read_bytes()[:300])
    victims[1].write_bytes(victims[1].read_bytes().replace(b'"trained_together":', b'"trained_together":1'))
    assert main(["study", "status", study, "--out", str(out), "--json"]) == 0
    found = said(capsys)
    assert (found["complete"], found["missing"]) == (RUNS - 2, 2)
    whys = {own["run"]: own["why"] for own in found["damaged"]}  # type: ignore[attr-defined]
    assert whys == {
        victims[0].parent.name: "it is incomplete or not JSON",
        victims[1].parent.name: "its checksum does not match its content",
    }
    assert main(words(study, out)) == 0
    heard = capsys.readouterr()
    assert f"{victims[0]} is damaged and its run is trained again: it is incomplete or not JSON." in heard.err
    assert told(out).keys() == told(straight[0]).keys()


def test_a_study_with_a_time_limit_stops_cleanly_and_goes_on(
    straight: tuple[Path, float], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wanted, seconds = straight
    study = written(tmp_path)
    stops = 0
    for _ in range(100):
        limit = ["--minutes", str(seconds / 5 / 60), "--checkpoint-seconds", "1000", "--json"]
        assert main(words(study, tmp_path, *limit)) == 0
        found = said(capsys)
        if found["complete"] < RUNS:
            assert found["stopped"]
            stops += 1
        elif stops > 1:
            break
        else:  # it was quicker than the first time: again from the start, with less patience
            shutil.rmtree(tmp_path)
            stops, seconds, study = 0, seconds / 2, written(tmp_path)
    assert stops > 1
    assert unlike(tmp_path, wanted) == []


def test_a_study_that_is_asked_to_end_keeps_what_it_has(tmp_path: Path) -> None:
    study = written(tmp_path)
    child = forked(words(study, tmp_path, "--checkpoint-seconds", "1000"))
    while not list(tmp_path.glob("work/*/group.json")):
        time.sleep(0.002)
    os.kill(child, signal.SIGTERM)
    assert status_of(child) == 143
    assert len(list(tmp_path.glob("work/*/checkpoint.pt"))) == 1
    log = tmp_path / "log"
    assert status_of(forked(words(study, tmp_path), log=log)) == 0
    assert "Continuing 3 runs after epoch" in log.read_text()


def test_a_checkpoint_that_cannot_be_used_costs_its_epochs_and_nothing_else(
    straight: tuple[Path, float], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = written(tmp_path)
    checkpoint = begun(study, tmp_path)
    checkpoint.write_bytes(checkpoint.read_bytes()[:1000])
    assert main(words(study, tmp_path)) == 0
    assert "runs start again from the first epoch" in capsys.readouterr().err
    assert unlike(tmp_path, straight[0]) == []


def _memory_for(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let loops of more runs than that ask for more memory than there is."""
    real = group_training.make_loop

    def make_loop(stack: Sequence[Settings], *given: object, **named: object) -> Loop:
        if len(stack) > most:
            torch.empty(10**15)
        return real(stack, *given, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(group_training, "make_loop", make_loop)


def test_a_group_too_large_for_memory_is_halved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _memory_for(2, monkeypatch)
    assert main(words(written(tmp_path), tmp_path, "--together", "7")) == 0
    heard = capsys.readouterr().err
    assert "7 runs together do not fit into memory: trying 4 together." in heard
    assert "4 runs together do not fit into memory: trying 2 together." in heard
    assert max(record.trained_together for record in Store(tmp_path)) == 2
    assert len(told(tmp_path)) == RUNS


def test_a_run_too_large_for_memory_is_said_and_the_others_are_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _memory_for(0, monkeypatch)
    part = ["--only", "imbalance=20", "--only", "method=none"]
    assert main(words(written(tmp_path), tmp_path, *part, "--json")) == 1
    found = said(capsys)
    assert (found["complete"], found["missing"], len(found["untrained"])) == (0, 3, 3)  # type: ignore[arg-type]
    assert work_left(tmp_path) == []


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
