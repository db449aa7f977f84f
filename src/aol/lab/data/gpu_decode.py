"""JPEG decoding on a CUDA device: nvJPEG, through torchvision where it is installed.

Values differ from Pillow's by a few grey levels, mostly where colours change within two pixels: JPEG leaves the
rounding of its transform and the interpolation of colours to the decoder.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from functools import cache
from importlib import import_module

import torch
from torch import Tensor


@cache
def can_decode(device: torch.device) -> bool:
    """Return whether a device decodes JPEGs: a CUDA device, and a torchvision with nvJPEG."""
    if device.type != "cuda":
        return False
    from PIL import Image

    buffer = io.BytesIO()
    Image.new("RGB", (48, 32)).save(buffer, "JPEG")
    try:
        (image,) = decode_jpegs([torch.frombuffer(bytearray(buffer.getvalue()), dtype=torch.uint8)], device)
    except (ImportError, RuntimeError, OSError, AttributeError):
        return False
    return image.shape == (3, 32, 48)


def decode_jpegs(encoded: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    """Decode files, uint8 [bytes] on the CPU, to uint8 [3, H, W] on the device."""
    vision = import_module("torchvision.io")
    # It decodes on a stream of its own, which does not wait for what still reads the memory that it may reuse.
    torch.cuda.current_stream(device).synchronize()
    images: list[Tensor] = vision.decode_jpeg(list(encoded), mode=vision.ImageReadMode.RGB, device=device)
    return images
