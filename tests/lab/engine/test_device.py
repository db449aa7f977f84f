"""Memory that tensors free on a CPU is kept for the next ones."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest
import torch

from aol.lab.engine import device
from aol.lab.settings import WrongSettingsError

_FAULTS = """
import resource, torch
from aol.lab.engine.device import usable_device
usable_device("cpu")
def step():
    return [torch.ones(5 << 20) for _ in range(10)]  # 200 MiB
step(), step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(3):
    step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the settings are those of glibc")
def test_a_step_faults_no_page_in_that_the_step_before_had() -> None:
    done = subprocess.run([sys.executable, "-c", _FAULTS], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 5_000  # 3 × 200 MiB in pages of 4 KiB are 153,600


def test_a_process_without_a_gpu_of_its_own_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def one_gpu(size: int, *, device: torch.device) -> None:
        asked.append(device)
        raise RuntimeError("CUDA error: invalid device ordinal\nand more")

    monkeypatch.setenv("LOCAL_RANK", "3")
    monkeypatch.setattr(torch, "empty", one_gpu)
    with pytest.raises(WrongSettingsError, match="--device cuda cannot be used here: CUDA error: invalid"):
        device.usable_device("cuda")
    assert asked == [torch.device("cuda:3")]
