"""The Trainer of Transformers on CUDA, where it is installed: what `make test-trainers` runs on the CPU."""

from __future__ import annotations

import pytest

pytest.importorskip("transformers.trainer")

from tests.support.transformers_on_a_device import *  # noqa: F403
