"""Runs on a real Ray cluster of this machine, whose workers are killed; and a worker's part without one."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from aol.lab.data import open_data
from aol.lab.engine.source import AnyPair
from aol.lab.settings import Settings, WrongSettingsError
from aol.lab.train.folder import new_group
from aol.lab.train.group_training import Context, ExecutionOptions
from aol.lab.train.progress import Progress
from aol.lab.train.ray import train_task
from aol.records.store import Store
from tests.support.running import PATIENCE, aol, environment
from tests.support.tiny_sets import image_folder
from tests.support.tiny_studies import RUNS, SHORT, told, work_left, written

on_a_cluster = pytest.mark.skipif(find_spec("ray") is None, reason="ray is not installed: make test-ray runs these")
LONG = SHORT.replace("epochs = 6", "epochs = 15").replace("imbalance = [20, 5]", "imbalance = [20]")
OPTIONS = ExecutionOptions(torch.device("cpu"), checkpoint_seconds=0.0)


def digits(_: Sequence[Settings]) -> dict[str, AnyPair]:
    return {"digits": open_data("digits")}


def task(store: Store, seconds: float | None, *, noted: bool = True) -> tuple[bool, list[str]]:
    """A worker's part: two runs, of which the planner has noted that they begin."""
    group = new_group([Settings(epochs=3, batch_size=128, seed=seed) for seed in range(2)], store)
    if noted:
        group.folder.mkdir(parents=True, exist_ok=True)
        (group.folder / "group.json").write_text("{}")
    return train_task(group, Context(store, {}, OPTIONS, Progress()), seconds, "cpu", digits)


def test_a_worker_writes_records_and_continues_where_another_stopped(tmp_path: Path) -> None:
    store = Store(tmp_path)
    assert task(store, 0.0) == (False, [])
    assert [(len(run.epochs), run.finished) for run in store] == [(1, False)] * 2
    assert task(store, None) == (True, ["Continuing 2 runs after epoch 1."])
    assert [(len(run.epochs), run.finished) for run in store] == [(3, True)] * 2


def test_a_worker_that_does_not_see_the_folder_says_so(tmp_path: Path) -> None:
    with pytest.raises(WrongSettingsError, match="all machines must share --out"):
        task(Store(tmp_path), None, noted=False)


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def reachable(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1.0).close()
    except OSError:
        return False
    return True


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """The address of a cluster of two cores, reached from this machine alone and with a token made for it.

    It is a process group of its own, ended as such: `ray stop` would end the clusters of others, too.
    """
    port = free_port()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "token")
        patch.setenv("RAY_AUTH_TOKEN", secrets.token_hex(32))
        words = ["start", "--head", "--block", f"--port={port}", "--node-ip-address=127.0.0.1", "--num-cpus=2"]
        command = [sys.executable, "-m", "ray.scripts.scripts", *words, "--include-dashboard=false"]
        head = subprocess.Popen(
            [*command, "--disable-usage-stats"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=environment(),
            start_new_session=True,
        )
        try:
            end = time.monotonic() + PATIENCE
            while not reachable(port):
                assert head.poll() is None, "the cluster did not start"
                assert time.monotonic() < end, "the cluster took too long to start"
                time.sleep(0.1)
            yield f"127.0.0.1:{port}"
        finally:
            head.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                head.wait(30)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(head.pid, signal.SIGKILL)
            head.wait()


def trainers(out: Path) -> set[int]:
    """Return the ids of the worker processes, once a group has a checkpoint."""
    if not list(out.glob("work/*/checkpoint.pt")):
        return set()
    found = set()
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if place.read_bytes().startswith(b"ray::train_task"):
                found.add(int(place.parent.name))
    return found


def started(study: str, out: Path, address: str) -> subprocess.Popen[str]:
    words = ["study", "run", study, "--out", str(out), "--together", "3", "--checkpoint-seconds", "0", "--ray", address]
    command = [sys.executable, "-m", "aol", *words]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(), cwd=out.parent
    )


@on_a_cluster
def test_workers_killed_in_the_middle_lose_nothing(tmp_path: Path, address: str) -> None:
    study = written(tmp_path, LONG)
    process = started(study, tmp_path / "ray", address)
    killed: set[int] = set()
    while len(killed) < 2 and process.poll() is None:
        for pid in trainers(tmp_path / "ray") - killed:
            os.kill(pid, signal.SIGKILL)
            killed.add(pid)
        time.sleep(0.01)
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, err
    assert len(killed) >= 2
    assert process.pid not in killed
    assert "runs after epoch" in err
    assert len(told(tmp_path / "ray")) == RUNS // 2
    assert work_left(tmp_path / "ray") == []
    local = aol("study", "run", study, "--out", tmp_path / "local", "--together", "3")
    assert local.status == 0, local.err
    assert told(tmp_path / "ray") == told(tmp_path / "local")


@on_a_cluster
def test_what_a_killed_planner_began_is_finished_without_the_cluster(tmp_path: Path, address: str) -> None:
    study = written(tmp_path, LONG)
    process = started(study, tmp_path / "ray", address)
    while not trainers(tmp_path / "ray"):
        assert process.poll() is None
        time.sleep(0.01)
    process.kill()
    process.communicate()
    rest = aol("study", "run", study, "--out", tmp_path / "ray", "--together", "3")
    assert rest.status == 0, rest.err
    assert "runs after epoch" in rest.err
    assert len(told(tmp_path / "ray")) == RUNS // 2


@on_a_cluster
def test_what_a_worker_raises_is_said_in_a_line(tmp_path: Path, address: str) -> None:
    photos = image_folder(tmp_path / "photos")
    damaged = next((photos / "train").rglob("*.JPEG"))
    damaged.write_bytes(b"no image")
    text = SHORT.replace("epochs = 6", 'epochs = 1\ndata = "photos"\nimage_size = 32\nlr = 0.01')
    study = written(tmp_path, text.replace("imbalance = [20, 5]", 'imbalance = ["none"]').replace("0.1\n", "0.0\n"))
    words = ("--only", "rho=0.2", "--out", tmp_path / "out", "--data", f"photos={photos}", "--ray", address)
    said = aol("study", "run", study, *words)
    assert said.status == 1
    assert str(damaged) in said.err.splitlines()[-1]
    assert "Traceback" not in said.err
    assert list(Store(tmp_path / "out")) == []


@on_a_cluster
def test_a_new_cluster_is_made_where_none_is_named(tmp_path: Path) -> None:
    words = ["--epochs", "2", "--seed", "0-2", "--together", "2", "--out", tmp_path / "out"]
    done = aol("train", *words, "--ray", "--json")
    assert done.status == 0, done.err
    assert len(json.loads(done.out)["runs"]) == 3
    assert "ray" not in json.loads((tmp_path / "out" / "request.json").read_text())["options"]
    assert "3/3 runs complete" in aol("resume", tmp_path / "out").out or not work_left(tmp_path / "out")


@on_a_cluster
def test_a_cluster_that_is_not_there_is_said_in_a_line(tmp_path: Path) -> None:
    done = aol("study", "run", written(tmp_path), "--out", tmp_path / "out", "--ray", "127.0.0.1:9")
    assert done.status == 2, done.err
    assert done.err.startswith("aol: --ray 127.0.0.1:9: there is no cluster: ")
    assert done.err.count("\n") == 1
