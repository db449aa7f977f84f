"""Two processes are one: the same ages on both and as on one, the same steps, and a checkpoint in mid-epoch.

Sets that do not split evenly too: the sample that fills up the last round neither ages nor weighs twice.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import small_lightning  # sets where gloo listens
import torch

SETTINGS = [
    {"signal": "pass"},
    {"signal": "pass", "resample": True, "parts": 3},
    {"signal": "training", "parts": 2},
    {"signal": "training", "resample": True},
    {"signal": "pass", "classes": True},
    {"signal": "training", "ids": True},
    {"signal": "pass", "uneven": True},
    {"signal": "training", "uneven": True, "parts": 2},
    {"signal": "training", "resample": True, "stop": 7},
]
PROGRAM = Path(__file__).parent / "ddp_lightning.py"
assert small_lightning.SAMPLES % 2 == 0


def train(out: Path, processes: int, settings: list[dict]) -> None:
    """Run a program of its own, which Lightning starts again for the second process."""
    words = [sys.executable, str(PROGRAM), str(out), str(processes), json.dumps(settings)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=240)
    # Some builds of torch now and then abort when a process with DDP over gloo ends, with no line of ours involved.
    assert done.returncode == 0 or "terminate called without an active exception" in done.stderr, done.stderr


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("ddp")
    train(out, 1, SETTINGS)
    train(out, 2, SETTINGS)
    return out


def same(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Return whether two tensors hold the same, also where there is no value."""
    return torch.equal(first.nan_to_num(-1.0), second.nan_to_num(-1.0))


def loaded(out: Path, number: int, processes: int, rank: int = 0) -> dict[str, torch.Tensor]:
    return torch.load(out / str(number) / f"{processes}-{rank}.pt", weights_only=True)


@pytest.mark.parametrize("number", range(len(SETTINGS)), ids=lambda number: str(SETTINGS[number]))
def test_both_processes_hold_the_same_ages(outcomes: Path, number: int) -> None:
    first, second = (loaded(outcomes, number, 2, rank) for rank in (0, 1))
    assert same(first["age"], second["age"])
    assert same(first["ema"], second["ema"])
    assert same(first["weights"], second["weights"])
    assert first["age"].max() > 1


@pytest.mark.parametrize("number", range(len(SETTINGS)), ids=lambda number: str(SETTINGS[number]))
def test_two_processes_train_as_one(outcomes: Path, number: int) -> None:
    one, two = (loaded(outcomes, number, processes) for processes in (1, 2))
    assert same(one["age"], two["age"])
    assert same(one["ema"], two["ema"])
    torch.testing.assert_close(one["weights"], two["weights"])
    if not SETTINGS[number].get("ids"):
        torch.testing.assert_close(one["losses"], two["losses"])


def test_two_processes_resume_in_mid_epoch_as_if_they_had_not_stopped(outcomes: Path) -> None:
    number = len(SETTINGS) - 1
    assert SETTINGS[number]["stop"] % 5  # five steps an epoch: it stopped in the middle of one
    whole = [loaded(outcomes, number, 2, rank) for rank in (0, 1)]
    again = {**SETTINGS[number], "stop": None, "resume": True}
    (outcomes / "again").mkdir()
    (outcomes / "again" / "0").symlink_to(outcomes / str(number))  # where its checkpoint lies
    train(outcomes / "again", 2, [again])
    for rank in (0, 1):
        found = loaded(outcomes, number, 2, rank)
        assert found["losses"].numel() == 15 - SETTINGS[number]["stop"]
        for key in ("age", "ema", "weights"):
            assert same(found[key], whole[rank][key])
