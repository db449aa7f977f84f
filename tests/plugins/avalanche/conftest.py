"""Avalanche imports torchvision."""

from __future__ import annotations

import tests.support.torchvision_operators  # noqa: F401 (so that torchvision can be imported)
