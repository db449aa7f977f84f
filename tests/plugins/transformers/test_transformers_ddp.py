"""Accelerate on two processes is one process: ages, losses, network and record."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.support import ddp_transformers
from tests.support.plugin_checks import check_same_record, check_two_processes_are_one, same
from tests.support.running import PATIENCE

SETTINGS = [
    {"signal": "training", "parts": 2},
    {"signal": "pass", "resample": True, "parts": 3},
    {"signal": "training", "classes": True},
    {"signal": "pass", "evaluated": 61},  # does not split evenly: Accelerate shows a sample twice
    {"signal": "training", "stop": 7},
]


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train all settings here, and once more on two processes."""
    out = tmp_path_factory.mktemp("accelerate")
    ddp_transformers.run_all(out, SETTINGS)
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    words = [*launch, ddp_transformers.__file__, str(out), json.dumps(SETTINGS)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE)
    # Some builds of torch now and then abort when a process with DDP over gloo ends, with no line of ours involved.
    assert done.returncode == 0 or "terminate called without an active exception" in done.stderr, done.stderr
    return out


def loaded(out: Path, number: int, name: str) -> dict[str, torch.Tensor]:
    return torch.load(out / str(number) / f"{name}.pt", weights_only=True)


@pytest.mark.parametrize("number", range(len(SETTINGS)), ids=lambda number: str(SETTINGS[number]))
def test_two_processes_train_and_record_as_one(outcomes: Path, number: int) -> None:
    check_two_processes_are_one(*(loaded(outcomes, number, name) for name in ("1-0", "2-0", "2-1")))
    if "stop" not in SETTINGS[number]:
        check_same_record(outcomes / str(number) / "record-2", outcomes / str(number) / "record-1")


def test_two_processes_resume_in_mid_epoch_as_if_they_had_not_stopped(outcomes: Path) -> None:
    for rank in (0, 1):
        whole, again = (loaded(outcomes, len(SETTINGS) - 1, name) for name in (f"2-{rank}", f"2-{rank}-resumed"))
        for key in whole:
            assert same(whole[key], again[key]), key
