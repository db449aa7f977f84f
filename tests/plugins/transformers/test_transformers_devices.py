"""The Trainer of Transformers, here on the CPU; `tests/gpu` runs the same on CUDA."""

from __future__ import annotations

from tests.support.transformers_on_a_device import *  # noqa: F403
