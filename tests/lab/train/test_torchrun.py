"""Two processes that share every batch of a network against one."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from aol.records.record import Run, read_run
from aol.records.store import Store, find_runs
from tests.support.running import aol, forked, free_port, status_of, told, wait_for
from tests.support.tiny_runs import PLAIN

pytestmark = pytest.mark.usefixtures("_loaded")


def processes(words: list[str], world: int = 2, logs: Path | None = None) -> list[int]:
    """Start what torchrun would start; what rank K says on standard error goes to `logs/K`."""
    port = free_port()
    children = []
    for rank in range(world):
        place = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1"}

        def before(place: dict[str, str] = place) -> None:
            torch.set_num_threads(1)
            os.environ.update({**place, "MASTER_PORT": port})

        children.append(forked(words, before, None if logs is None else logs / str(rank)))
    return children


def in_parallel(*words: str | Path) -> list[int]:
    return [status_of(child) for child in processes([str(word) for word in words])]


def alone(*words: str | Path) -> int:
    return status_of(forked([str(word) for word in words]))


def networks(out: Path) -> dict[str, dict[str, torch.Tensor]]:
    return {str(path.relative_to(out)): load_file(path) for path in out.rglob("network*.safetensors")}


def records(out: Path) -> list[Run]:
    return [read_run(folder) for folder in find_runs(out)]


# 545 samples in batches of 101: the last one has 40, and an odd batch is shared unevenly by two.
LAYER_NORM = ["--net", PLAIN, "--batch-size", "101", "--lr", "0.02", "--warmup", "0"]
SHARED = {
    "both divisors": ["train", "--epochs", "3", "--weighting", "aol", "--divide-by", "weight,count", "--keep-samples"],
    "sigmoid, resampled": [
        *("train", "--epochs", "3", "--weighting", "aol", "--loss", "sigmoid", "--mechanism", "resample")
    ],
    "sets of samples": ["train", "--epochs", "3", "--weighting", "old,sample-loss", "--after", "1", "--factor", "9"],
    "margins": ["train", "--epochs", "4", "--margin", "counts,age,error", "--gain", "0.5"],
    "margins of a stream": ["stream", "--steps", "4", "--margin", "age,error", "--gain", "0.5", "--signal", "before"],
    "losses that learn in every step": [
        *("train", "--epochs", "3", "--margin", "counts-seen,probability-seen", "--margin-steps", "2"),
        *("--weighting", "none,aol-seen"),
    ],
    "the head alone": ["train", "--epochs", "4", "--retrain", "2"],
    "arrival": ["train", "--epochs", "3", "--weighting", "aol", "--level", "sample", "--fraction", "0.5"],
    "reservoir": ["stream", "--steps", "3", "--weighting", "aol", "--memory", "reservoir:300"],
}


@pytest.mark.parametrize("kind", SHARED)
def test_two_processes_that_share_every_batch_train_the_network_of_one(kind: str, tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    assert alone(*SHARED[kind], *LAYER_NORM, "--out", one, "--together", "1") == 0
    assert in_parallel(*SHARED[kind], *LAYER_NORM, "--out", two) == [0, 0]
    mine, theirs = networks(one), networks(two)
    assert mine.keys() == theirs.keys()
    assert len(mine) >= 1
    for name, state in mine.items():
        for key, value in state.items():
            torch.testing.assert_close(theirs[name][key], value, rtol=1e-5, atol=2e-6, msg=f"{name} {key}")
    for before, after in zip(records(one), records(two), strict=True):
        for name in ("age", "smoothed_age", "train_count", "train_accuracy", "test_accuracy", "test_age"):
            np.testing.assert_array_equal(before.over_time[name], after.over_time[name], name)
        if before.settings["margin"] != "none":
            off = 1e-6 if "seen" in before.settings["margin"] else 0.0  # of sums in float32
            np.testing.assert_allclose(before.over_time["offset"], after.over_time["offset"], rtol=1e-6, atol=off)
            assert np.abs(before.over_time["offset"][-1]).max() > 0.01
        np.testing.assert_allclose(before.over_time["weight"], after.over_time["weight"], rtol=4e-5)
        np.testing.assert_allclose(before.curves["train_loss"], after.curves["train_loss"], rtol=1e-5, atol=1e-6)
    for path in one.rglob("samples.safetensors"):
        mine_kept, their_kept = load_file(path), load_file(two / path.relative_to(one))
        for name in ("age", "right", "prediction", "times"):
            assert torch.equal(mine_kept[name], their_kept[name]), name
        for name in ("ema", "confidence", "top", "other", "mean_confidence", "mean_other"):
            torch.testing.assert_close(their_kept[name], mine_kept[name], rtol=1e-4, atol=1e-5, msg=name)


def test_a_batch_norm_network_trains_and_resumes_data_parallel(tmp_path: Path) -> None:
    words = ["train", "--epochs", "6", "--weighting", "aol", "--seed", "0,1", "--checkpoint-seconds", "0", "--resume"]
    assert in_parallel(*words, "--out", tmp_path / "straight") == [0, 0]
    children = processes([*words, "--out", str(tmp_path / "killed")])
    wait_for(tmp_path / "killed")
    for child in children:
        os.kill(child, signal.SIGKILL)
        status_of(child)
    assert in_parallel(*words, "--out", tmp_path / "killed") == [0, 0]
    assert told(tmp_path / "killed") == told(tmp_path / "straight")
    states = networks(tmp_path / "straight")
    assert len(states) == 2
    assert all(bool(value.isfinite().all()) for state in states.values() for value in state.values())


def test_what_the_first_process_refuses_ends_all_of_them(tmp_path: Path) -> None:
    words = ["train", "--epochs", "1", "--out", str(tmp_path / "out")]
    (tmp_path / "out").mkdir()
    with Store(tmp_path / "out").lock():
        ranks = processes(words, logs=tmp_path)
        assert [status_of(rank) for rank in ranks] == [1, 1]
    for rank in ("0", "1"):
        assert "is in use by another aol process" in (tmp_path / rank).read_text()
    assert in_parallel(*words) == [0, 0]


def test_both_processes_stop_where_one_is_asked_to(tmp_path: Path) -> None:
    words = ["train", "--epochs", "4000", "--out", str(tmp_path)]
    first, second = processes(words)
    wait_for(tmp_path, "work/*/group.json")
    time.sleep(0.5)
    os.kill(second, signal.SIGTERM)
    assert (status_of(first), status_of(second)) == (143, 143)
    assert list(tmp_path.glob("work/*/checkpoint.pt"))


def test_runs_begun_together_by_one_process_are_not_taken_over_by_two(tmp_path: Path) -> None:
    words = ["train", "--epochs", "400", "--seed", "0,1", "--checkpoint-seconds", "0", "--out", str(tmp_path)]
    child = forked(words)
    wait_for(tmp_path)
    os.kill(child, signal.SIGKILL)
    status_of(child)
    assert in_parallel(*words, "--resume") == [2, 2]


def test_torchrun_prints_one_json_object_for_all_its_processes(tmp_path: Path) -> None:
    by = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    said = aol("train", "--epochs", "1", "--json", "--out", tmp_path, by=by)
    assert said.status == 0, said.err
    assert len(json.loads(said.out)["runs"]) == 1


def test_a_process_that_is_killed_ends_the_other_with_one_sentence(tmp_path: Path) -> None:
    words = ["train", "--epochs", "4000", "--checkpoint-seconds", "0", "--out", str(tmp_path / "out")]
    first, second = processes(words, logs=tmp_path)
    wait_for(tmp_path / "out")
    os.kill(first, signal.SIGKILL)
    assert (status_of(first), status_of(second)) == (-signal.SIGKILL, 1)
    said = (tmp_path / "1").read_text()
    assert "the process of rank 1 lost its connection to the other 1" in said
    assert "gloo" not in said
    assert said.count("\n") == 1
