"""A net that Accelerate splits among two processes trains as on one: ages, margins, network and record."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from aol.plugins.skorch import AgeOfLearning, IndexedLoader
from aol.records.record import read_run
from tests.support import ddp_skorch
from tests.support.plugin_checks import check_same_record, check_two_processes_are_one
from tests.support.running import PATIENCE

STEPS = {"rho": 0.0, "margins": "error", "gain": 0.5, "margin_steps": 3}
SETTINGS = [
    {"rho": 0.5},
    {"rho": 0.5, "items": True},
    {"rho": 0.0, "margins": "error", "gain": 0.5},
    STEPS,
    {**STEPS, "rho": 0.5, "margins": "age"},
    {**STEPS, "items": True},
    {**STEPS, "parts": 2},
]


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train all settings here, and once more on two processes."""
    out = tmp_path_factory.mktemp("skorch")
    ddp_skorch.run_all(out, SETTINGS)
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    words = [*launch, ddp_skorch.__file__, str(out), json.dumps(SETTINGS)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE)
    # Some builds of torch now and then abort when a process with DDP over gloo ends, with no line of ours involved.
    assert done.returncode == 0 or "terminate called without an active exception" in done.stderr, done.stderr
    return out


@pytest.mark.parametrize("number", range(len(SETTINGS)), ids=lambda number: str(SETTINGS[number]))
def test_two_processes_train_as_one(outcomes: Path, number: int) -> None:
    folder = outcomes / str(number)
    check_two_processes_are_one(*(torch.load(folder / f"{name}.pt") for name in ("1-0", "2-0", "2-1")))
    check_same_record(folder / "record-2", folder / "record-1")
    one, two = (read_run(folder / name).over_time["train_count"].tolist() for name in ("record-1", "record-2"))
    assert one == two


def test_weights_of_samples_are_refused_in_one_clear_sentence() -> None:
    net = ddp_skorch.made(ddp_skorch.OnCpu(cpu=True), AgeOfLearning(level="sample"))
    with pytest.raises(ValueError, match='level="sample" cannot be used with AccelerateMixin'):
        net.set_params(iterator_train=IndexedLoader).fit(ddp_skorch.X, ddp_skorch.y)
