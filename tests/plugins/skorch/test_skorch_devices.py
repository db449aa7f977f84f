"""skorch, here on the CPU; `tests/gpu` runs the same on CUDA."""

from __future__ import annotations

import pytest
import torch

from aol.plugins.skorch import _weighted
from tests.support import pretended_device as pretended
from tests.support.skorch_on_a_device import *  # noqa: F403


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_weights_go_to_a_pretended_device_without_waiting(reduction: str) -> None:
    with pretended.pretended_device():
        loss, weight = torch.tensor([1.0, 3.0]).cuda(), torch.tensor([1.5, 0.5])
        with pretended.no_waiting():
            found = _weighted(loss, weight, reduction)
        assert found.tolist() == {"mean": 1.5, "sum": 3.0, "none": [1.5, 1.5]}[reduction]
