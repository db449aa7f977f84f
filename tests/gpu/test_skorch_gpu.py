"""skorch on CUDA, where it is installed: what `make test-skorch` runs on the CPU."""

from __future__ import annotations

import pytest

pytest.importorskip("skorch.callbacks")

from tests.support.skorch_on_a_device import *  # noqa: F403
