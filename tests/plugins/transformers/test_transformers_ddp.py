"""Accelerate on two processes is one process: ages, losses, network and record."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import torch

from tests.support import ddp_transformers
from tests.support.plugin_checks import check_same_record, check_two_processes_are_one
from tests.support.running import PATIENCE


def test_two_processes_train_and_record_as_one(tmp_path: Path) -> None:
    ddp_transformers.run(tmp_path)
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    words = [*launch, ddp_transformers.__file__, str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE)
    # Some builds of torch now and then abort when a process with DDP over gloo ends, with no line of ours involved.
    assert done.returncode == 0 or "terminate called without an active exception" in done.stderr, done.stderr
    check_two_processes_are_one(*(torch.load(tmp_path / f"{name}.pt") for name in ("1-0", "2-0", "2-1")))
    check_same_record(tmp_path / "record-2", tmp_path / "record-1")
