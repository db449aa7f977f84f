"""A device that cannot be used is named."""

from __future__ import annotations

import pytest
import torch

from aol.lab.engine import device
from aol.lab.settings import WrongSettingsError


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
