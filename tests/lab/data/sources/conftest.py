"""Sets of torchvision and of Hugging Face datasets, made up on the disk; nothing is downloaded."""

from __future__ import annotations

import os

import tests.support.torchvision_operators  # noqa: F401 (so that torchvision can be imported)

os.environ["HF_HUB_OFFLINE"] = "1"
