"""Accelerate on two processes is one process: ages, losses and network, whatever the set splits into."""

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

SPLIT = {"accelerator_config": {"split_batches": True}, "per_device_train_batch_size": 12}
SETTINGS = [
    {"signal": "pass"},
    {"signal": "pass", "samples": 61, "parts": 2},  # does not split evenly: Accelerate shows a few samples twice
    {"signal": "training", "samples": 67},
    {"signal": "training", "samples": 67, "args": {"accelerator_config": {"dispatch_batches": True}}},
    {"signal": "training", "samples": 67, "args": SPLIT},
    {"signal": "training", "samples": 50, "args": {"dataloader_drop_last": True}},
    {"signal": "pass", "samples": 53, "resample": True, "parts": 3},
    {"signal": "training", "samples": 61, "classes": True},
    {"signal": "training", "samples": 61, "classes": True, "iterable": True, "args": {"max_steps": 18}},
    {"signal": "pass", "classes": True, "divide_by": "count"},
    {"signal": "pass", "evaluated": 61},
    {"signal": "pass", "samples": 61, "parts": 2, "margins": "age"},
    {"signal": "training", "samples": 61, "classes": True, "margins": "pairs"},
    {"signal": "training", "samples": 61, "margins": "age", "stop": 7},
    {"signal": "training", "samples": 61, "stop": 7},
    {"signal": "pass", "samples": 61, "resample": True, "stop": 7},
]
RESUMED = [number for number, setting in enumerate(SETTINGS) if "stop" in setting]


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
def test_two_processes_train_as_one(outcomes: Path, number: int) -> None:
    check_two_processes_are_one(*(loaded(outcomes, number, name) for name in ("1-0", "2-0", "2-1")))


@pytest.mark.parametrize("number", RESUMED, ids=lambda number: str(SETTINGS[number]))
def test_two_processes_resume_in_mid_epoch_as_if_they_had_not_stopped(outcomes: Path, number: int) -> None:
    for rank in (0, 1):
        whole, again = (loaded(outcomes, number, name) for name in (f"2-{rank}", f"2-{rank}-resumed"))
        for key in whole:
            assert same(whole[key], again[key]), key


RECORDED = [number for number, setting in enumerate(SETTINGS) if "stop" not in setting]


@pytest.mark.parametrize("number", RECORDED, ids=lambda number: str(SETTINGS[number]))
def test_two_processes_write_one_record(outcomes: Path, number: int) -> None:
    check_same_record(outcomes / str(number) / "record-2", outcomes / str(number) / "record-1")
