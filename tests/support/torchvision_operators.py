"""Where the compiled part of torchvision does not load, its two operators are announced by hand.

Only for tests: torchvision built for another PyTorch imports no other way. Nothing of ours calls either.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

OPERATORS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)


def compiled_part_loads() -> bool:
    found = find_spec("torchvision")
    if found is None or found.origin is None:
        raise pytest.UsageError("These tests need torchvision: make test-vision")
    try:
        for part in Path(found.origin).parent.glob("_C*"):
            torch.ops.load_library(part)
    except OSError:
        return False
    return hasattr(torch.ops.torchvision, "nms")


LIBRARY = None  # kept: an operator lives as long as the library that announced it
if not compiled_part_loads():
    LIBRARY = torch.library.Library("torchvision", "DEF")
    for operator in OPERATORS:
        LIBRARY.define(operator)
