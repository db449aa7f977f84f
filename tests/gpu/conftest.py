"""Tests that need a CUDA device: `make test-gpu`. Elsewhere they are not collected.

What runs on the CPU too lies beside those tests, in files called `HOST_on_a_device.py`.
"""

from __future__ import annotations

import pytest
import torch

collect_ignore_glob = [] if torch.cuda.is_available() else ["test_*.py"]


@pytest.fixture
def device() -> str:
    return "cuda"
