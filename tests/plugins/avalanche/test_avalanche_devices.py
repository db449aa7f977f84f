"""Avalanche, here on the CPU; `tests/gpu` runs the same on CUDA."""

from __future__ import annotations

from tests.support.avalanche_on_a_device import *  # noqa: F403
