"""Avalanche on CUDA, where it is installed: what `make test-avalanche` runs on the CPU."""

from __future__ import annotations

import pytest

pytest.importorskip("avalanche.training")

from tests.support.avalanche_on_a_device import *  # noqa: F403
