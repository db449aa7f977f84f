"""One hypothesis profile for all: the same examples every time, so that nothing flakes, and no deadline.

And the device that tests of any device get: here the CPU, in `tests/gpu` CUDA.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings

settings.register_profile(
    "aol", max_examples=100, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("aol")

ROOT = Path(__file__).parents[1]
# Programs that tests start import `aol` and `tests.support` as the tests do.
os.environ["PYTHONPATH"] = os.pathsep.join(
    [str(ROOT / "src"), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
)
# What a user has done is remembered outside the runs.
_state_home = tempfile.TemporaryDirectory(prefix="aol-state-")  # deleted at exit
os.environ["XDG_STATE_HOME"] = _state_home.name
torch.set_num_threads(1)  # the threads of OpenMP do not outlive a fork, and a copy of this process waits for them

HOSTS = ("loop", "lightning", "transformers")
pytest.register_assert_rewrite("tests.support.wide_margins", *(f"tests.support.{host}_on_a_device" for host in HOSTS))


@pytest.fixture(autouse=True)
def same_environment_afterwards() -> Iterator[None]:
    """Undo what frameworks leave behind.

    Lightning leaves LOCAL_RANK. A later Trainer concludes that all processes were started, and waits for them.
    """
    before = dict(os.environ)
    yield
    for name in (before.keys() | os.environ.keys()) - {"PYTEST_CURRENT_TEST"}:
        if name not in before:
            del os.environ[name]
        elif os.environ.get(name) != before[name]:
            os.environ[name] = before[name]


@pytest.fixture
def device() -> str:
    return "cpu"
