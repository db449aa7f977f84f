"""Encoded image bytes ↔ pixels, with Pillow; an image that cannot be decoded is an error that names its file.

Needs Pillow, imported on first use. Every image becomes RGB and upright: the rotation that a camera notes in EXIF is
applied.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from types import ModuleType
from typing import TYPE_CHECKING, BinaryIO

import numpy as np
import torch
from torch import Tensor

from aol._need import need
from aol.lab.data.errors import DataError

if TYPE_CHECKING:
    from PIL.Image import Image

_ORIENTATION = 0x0112  # EXIF tag: 1 upright, 2 to 8 mirrored or rotated
EXTENSIONS = (".jpg", ".jpeg", ".png", ".bmp", ".ppm", ".pgm", ".tif", ".tiff", ".webp")
LARGEST = 2**30  # bytes of an image file
EMPTY = "an empty file, not an image"


def _pillow() -> ModuleType:
    return need("PIL.Image", package="pillow", extra="images", why="decoding images")


@contextlib.contextmanager
def _opened(file: BinaryIO, source: str) -> Iterator[Image]:
    """Open an image; what Pillow raises on bad bytes (OSError, SyntaxError and more) becomes a `DataError`."""
    if not file.read(1):
        raise DataError(f"{source}: {EMPTY}")
    file.seek(0)
    pillow = _pillow()
    try:
        yield pillow.open(file)
    except MemoryError:
        raise
    except Exception as reason:
        said = "not an image" if "cannot identify" in str(reason) else f"a damaged image ({reason})"
        raise DataError(f"{source}: {said}") from None


def open_image(encoded: bytes, source: str, *, reduce: int = 1) -> Image:
    """Decode the whole image with Pillow, upright, as RGB; a damaged one is a `DataError` naming `source`.

    `reduce`: decode a JPEG at 1/2, 1/4 or 1/8 of its sides, which takes less time.
    """
    with _opened(io.BytesIO(encoded), source) as image:
        if reduce > 1:
            image.draft(None, (image.width // reduce, image.height // reduce))
        image.load()
        upright = _upright(image)
        return upright if upright.mode == "RGB" else upright.convert("RGB")  # which would copy it


def size_of(encoded: bytes, source: str) -> tuple[int, int]:
    """Return height and width of an image, upright, from its header; what is not an image is a `DataError`.

    >>> buffer = io.BytesIO()
    >>> _pillow().new("RGB", (9, 7)).save(buffer, "PNG")
    >>> size_of(buffer.getvalue(), "cat/3.png")
    (7, 9)
    """
    with _opened(io.BytesIO(encoded), source) as image:
        width, height = image.size
        return (width, height) if _orientation(image) >= 5 else (height, width)


def plain_jpeg_size(encoded: bytes) -> tuple[int, int] | None:
    """Return height and width of a whole, upright, sequential RGB JPEG, which every decoder takes; None for all else.

    >>> plain_jpeg_size(b"GIF89a") is None
    True
    """
    if not (encoded.startswith(b"\xff\xd8") and encoded.endswith(b"\xff\xd9")):
        return None
    try:
        image: Image = _pillow().open(io.BytesIO(encoded))
        plain = image.mode == "RGB" and "progressive" not in image.info and _orientation(image) == 1
    except Exception:  # Pillow's decoder names what is wrong
        return None
    return (image.height, image.width) if plain else None


def identify(file: BinaryIO, source: str) -> None:
    """Read the header of an image, not its pixels; what is not an image is a `DataError` naming `source`.

    >>> identify(io.BytesIO(b"hello"), "cat/3.jpg")
    Traceback (most recent call last):
    ...
    aol.lab.data.errors.DataError: cat/3.jpg: not an image
    """
    with _opened(file, source):
        pass


def _orientation(image: Image) -> int:
    try:
        orientation = image.getexif().get(_ORIENTATION, 1)
    except Exception:  # damaged EXIF beside whole pixels
        return 1
    return orientation if orientation in range(2, 9) else 1


def _upright(image: Image) -> Image:
    """Rotate or mirror a loaded image as its EXIF data ask for."""
    orientation = _orientation(image)
    turns = _pillow().Transpose
    needed = {
        2: turns.FLIP_LEFT_RIGHT,
        3: turns.ROTATE_180,
        4: turns.FLIP_TOP_BOTTOM,
        5: turns.TRANSPOSE,
        6: turns.ROTATE_270,
        7: turns.TRANSVERSE,
        8: turns.ROTATE_90,
    }
    return image.transpose(needed[orientation]) if orientation in needed else image


def decode(encoded: bytes, source: str = "image") -> Tensor:
    """Decode to uint8 [3, H, W]. Memory is laid out channels last, which is what the resize is quickest on.

    >>> decode(b"GIF89a", "cat/3.jpg")
    Traceback (most recent call last):
    ...
    aol.lab.data.errors.DataError: cat/3.jpg: not an image
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
