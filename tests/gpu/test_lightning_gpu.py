"""Lightning on CUDA, where it is installed: what `make test-trainers` runs on the CPU."""

from __future__ import annotations

import pytest

pytest.importorskip("lightning.pytorch")

from tests.support.lightning_on_a_device import *  # noqa: F403
