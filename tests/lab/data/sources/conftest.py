"""Sets of Hugging Face datasets, made up on the disk, and networks of timm; nothing is downloaded."""

from __future__ import annotations

import os
from importlib.util import find_spec

if find_spec("torchvision"):  # which timm imports
    import tests.support.torchvision_operators  # noqa: F401 (so that it can be imported)

os.environ["HF_HUB_OFFLINE"] = "1"
