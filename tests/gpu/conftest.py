"""Tests that need a CUDA device: `make test-gpu`. Elsewhere they are not collected.

What runs on the CPU too lies beside those tests, in files called `HOST_on_a_device.py`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch

collect_ignore_glob = [] if torch.cuda.is_available() else ["test_*.py"]


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    """Undo what hosts leave behind.

    Lightning leaves LOCAL_RANK, which Accelerate takes for one of many processes; Accelerate leaves TF32 on.
    """
    environment, short = dict(os.environ), torch.backends.cuda.matmul.allow_tf32
    yield
    os.environ.clear()
    os.environ.update(environment)
    torch.backends.cuda.matmul.allow_tf32 = short


@pytest.fixture
def device() -> str:
    return "cuda"
