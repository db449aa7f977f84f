"""Encoded image bytes ↔ pixels, with Pillow; an image that cannot be decoded is an error that names its file.

Needs Pillow, imported on first use. Every image becomes RGB; EXIF orientation is ignored, as torchvision does.
"""

from __future__ import annotations

import io
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from aol.data.errors import DataError, need

if TYPE_CHECKING:
    from PIL.Image import Image

EXTENSIONS = (".jpg", ".jpeg", ".png", ".bmp", ".ppm", ".pgm", ".tif", ".tiff", ".webp")


def _pillow() -> ModuleType:
    return need("PIL.Image", package="pillow", extra="images", why="decoding images")


def open_image(encoded: bytes, source: str) -> Image:
    """Decode the whole image with Pillow, as RGB; a damaged one is a `DataError` naming `source`."""
    if not encoded:
        raise DataError(f"{source}: an empty file, not an image")
    pillow = _pillow()
    try:
        image: Image = pillow.open(io.BytesIO(encoded)).convert("RGB")
    except MemoryError:
        raise
    except Exception as reason:  # Pillow's decoders raise OSError, SyntaxError, ValueError and more on bad bytes
        said = "not an image" if "cannot identify" in str(reason) else f"a damaged image ({reason})"
        raise DataError(f"{source}: {said}") from None
    return image


def decode(encoded: bytes, source: str = "image") -> Tensor:
    """Decode to uint8 [3, H, W]. Memory is laid out channels last, which is what the resize is quickest on.

    >>> decode(b"GIF89a", "cat/3.jpg")
    Traceback (most recent call last):
    ...
    aol.data.errors.DataError: cat/3.jpg: not an image
    """
    pixels = np.array(open_image(encoded, source))
    return torch.from_numpy(pixels).permute(2, 0, 1)


def shrink(encoded: bytes, source: str, *, size: int, quality: int) -> bytes:
    """Return the image with its shorter side at `size`, as JPEG (4:2:0); one that is no larger stays byte for byte."""
    image = open_image(encoded, source)
    width, height = image.size
    if min(width, height) <= size:
        return encoded
    scale = size / min(width, height)
    target = (max(size, round(width * scale)), max(size, round(height * scale)))
    buffer = io.BytesIO()
    resized = image.resize(target, _pillow().Resampling.BICUBIC, reducing_gap=3.0)
    resized.save(buffer, "JPEG", quality=quality, subsampling="4:2:0")
    return buffer.getvalue()
