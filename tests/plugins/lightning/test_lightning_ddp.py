"""Two processes are one: the same ages on both and as on one, the same steps, and a checkpoint in mid-epoch."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.support import ddp_lightning
from tests.support.plugin_checks import check_same_record, check_two_processes_are_one, same
from tests.support.running import PATIENCE, environment

SETTINGS = [
    {"signal": "pass", "resample": True, "parts": 3},
    {"signal": "training", "parts": 2},
    {"signal": "pass", "classes": True},
    {"signal": "training", "resample": True, "stop": 7},
]
PROGRAM = Path(ddp_lightning.__file__)


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train all settings here, and by a program of its own, which Lightning starts again for the second process."""
    out = tmp_path_factory.mktemp("ddp")
    ddp_lightning.run_all(out, 1, SETTINGS)
    words = [sys.executable, str(PROGRAM), str(out), "2", json.dumps(SETTINGS)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE, env=environment())
    # Some builds of torch now and then abort when a process with DDP over gloo ends, with no line of ours involved.
    assert done.returncode == 0 or "terminate called without an active exception" in done.stderr, done.stderr
    return out


def loaded(out: Path, number: int, name: str) -> dict[str, torch.Tensor]:
    """Return an outcome: "2-1" is that of the second of two processes."""
    return torch.load(out / str(number) / f"{name}.pt", weights_only=True)


@pytest.mark.parametrize("number", range(len(SETTINGS)), ids=lambda number: str(SETTINGS[number]))
def test_two_processes_train_and_record_as_one(outcomes: Path, number: int) -> None:
    check_two_processes_are_one(*(loaded(outcomes, number, name) for name in ("1-0", "2-0", "2-1")))
    if "stop" not in SETTINGS[number]:
        check_same_record(outcomes / str(number) / "record-2", outcomes / str(number) / "record-1")


def test_two_processes_resume_in_mid_epoch_as_if_they_had_not_stopped(outcomes: Path) -> None:
    number = len(SETTINGS) - 1
    assert SETTINGS[number]["stop"] % 5  # five steps an epoch: it stopped in the middle of one
    for rank in (0, 1):
        whole, again = (loaded(outcomes, number, name) for name in (f"2-{rank}", f"2-{rank}-resumed"))
        assert same(whole["losses"][-len(again["losses"]) :], again["losses"])
        for key in whole.keys() - {"losses"}:
            assert same(whole[key], again[key]), key
