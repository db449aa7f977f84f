"""A plain loop on CUDA: what `tests/test_loop_devices.py` runs on the CPU."""

from __future__ import annotations

from tests.support.loop_on_a_device import *  # noqa: F403
