"""A plain loop, here on the CPU; `tests/gpu` runs the same on CUDA."""

from __future__ import annotations

from tests.support.loop_on_a_device import *  # noqa: F403
