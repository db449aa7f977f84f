"""Accelerate on two processes is one process: ages, losses and network, whatever the set splits into."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

PROGRAM = Path(__file__).parent / "ddp_transformers.py"
SAVED = {"save_strategy": "steps", "save_steps": 7}
SETTINGS = [
    {"signal": "pass"},
    {"signal": "pass", "samples": 61, "parts": 2},  # does not split evenly: Accelerate shows a few samples twice
    {"signal": "training", "samples": 67},
    {"signal": "training", "samples": 50, "args": {"dataloader_drop_last": True}},
    {"signal": "pass", "samples": 53, "resample": True, "parts": 3},
    {"signal": "training", "samples": 61, "classes": True},
    {"signal": "pass", "classes": True, "divide_by": "count"},
    {"signal": "training", "samples": 61, "args": SAVED},
    {"signal": "pass", "samples": 61, "resample": True, "args": SAVED},
]
RESUMED = [number for number, setting in enumerate(SETTINGS) if setting.get("args") is SAVED]


def train(out: Path, processes: int, settings: list[dict]) -> None:
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    words = [*launch, str(PROGRAM), str(out), json.dumps(settings)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=280)
    # Some builds of torch now and then abort when a process with DDP over gloo ends, with no line of ours involved.
    assert done.returncode == 0 or "terminate called without an active exception" in done.stderr, done.stderr


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("accelerate")
    train(out, 1, SETTINGS)
    again = [{**SETTINGS[number], "step": 7} for number in RESUMED]
    train(out, 2, SETTINGS)
    for place, number in enumerate(RESUMED):
        (out / "again").mkdir(exist_ok=True)
        (out / "again" / str(place)).symlink_to(out / str(number))
    train(out / "again", 2, again)
    return out


def loaded(out: Path, number: int, name: str) -> dict[str, torch.Tensor]:
    return torch.load(out / str(number) / f"{name}.pt", weights_only=True)


def same(first: torch.Tensor, second: torch.Tensor) -> bool:
    return torch.equal(first.nan_to_num(-1.0), second.nan_to_num(-1.0))


@pytest.mark.parametrize("number", range(len(SETTINGS)), ids=lambda number: str(SETTINGS[number]))
def test_two_processes_train_as_one(outcomes: Path, number: int) -> None:
    one, two, other = (loaded(outcomes, number, name) for name in ("1-0", "2-0", "2-1"))
    for key in ("age", "ema"):
        assert same(two[key], other[key])
        assert same(one[key], two[key])
    assert one["ema"].nan_to_num(0.0).max() > 1
    torch.testing.assert_close(one["losses"], two["losses"], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(one["weights"], two["weights"], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("number", RESUMED, ids=lambda number: str(SETTINGS[number]))
def test_two_processes_resume_in_mid_epoch_as_if_they_had_not_stopped(outcomes: Path, number: int) -> None:
    for rank in (0, 1):
        whole, again = (loaded(outcomes, number, name) for name in (f"2-{rank}", f"2-{rank}-resumed"))
        for key in ("age", "ema", "weights", "losses"):
            assert same(whole[key], again[key]), key
