"""What is shown of some samples, kept in the folder of a run: small pictures, or text and short rows of a table."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from aol._files import read_regular, write_atomically
from aol._values import shown

FILE, TEST = "previews.safetensors", "test-previews.safetensors"
SIDE = 64  # the most pixels a side
LARGEST = 5 * 10**6  # bytes of the file
LETTERS = 2000  # of a text
ENTRIES = 12  # of a row
_OLDEST, _SUSPECTED, _BY_CLASS = 100, 100, 300  # how many samples are kept
Description: TypeAlias = "str | list[list[str]]"


class Previews(NamedTuple):
    """What is kept of a run's samples, by the row of the sample: pictures, and texts or `[name, value]` pairs."""

    images: dict[int, Tensor]  # uint8 [1 or 3, H, W]
    texts: dict[int, Description]


def save_previews(
    folder: Path,
    rows: Iterable[int],
    *,
    image: Callable[[int], object] | None = None,
    text: Callable[[int], object] | None = None,
    file: str = FILE,
) -> None:
    """Write what `thumbnail` and `described` make of samples into a folder, at most 5 MB, the first rows first."""
    from safetensors.torch import save

    images: dict[str, Tensor] = {}
    texts: dict[int, Description] = {}
    left = LARGEST - 1000
    for row in rows:
        picture, words = image and thumbnail(image(row)), text and described(text(row))
        left -= 100 + (0 if picture is None else picture.numel()) + len(json.dumps({row: words}))
        if left < 0:
            break
        images |= {} if picture is None else {str(row): picture}
        texts |= {} if words is None else {row: words}
    images["texts"] = torch.frombuffer(bytearray(json.dumps(texts).encode()), dtype=torch.uint8)
    write_atomically(folder / file, save(images))


def read_previews(folder: Path, file: str = FILE) -> Previews:
    """Return what was kept of a run's samples; nothing where nothing was kept, or where it cannot be read."""
    from safetensors.torch import load

    try:
        images = load(read_regular(folder / file, LARGEST))
        texts = json.loads(images.pop("texts").numpy().tobytes())
        shapes = [(picture.dtype, *picture.shape) for picture in images.values()]
        if not all(d == torch.uint8 and c in (1, 3) and 0 < h <= SIDE and 0 < w <= SIDE for d, c, h, w in shapes):
            raise ValueError
        rows = ((int(row), own) for row, own in texts.items())
        said = {row: own if isinstance(own, str) else [[str(n), str(v)] for n, v in own] for row, own in rows}
        return Previews({int(row): picture for row, picture in images.items()}, said)
    except Exception:  # the run can be read without it
        return Previews({}, {})


def worth_seeing(label: Tensor, ema: Tensor, suspicion: Tensor) -> list[int]:
    """Return the samples that are worth showing: the oldest, the most suspicious, and the oldest of every class."""
    oldest, suspected = (value.nan_to_num(-1.0).argsort(descending=True, stable=True) for value in (ema, suspicion))
    by_class = oldest[label[oldest].argsort(stable=True)]  # within a class the oldest first
    count = torch.bincount(label)
    rank = torch.arange(len(label), device=label.device) - (count.cumsum(0) - count)[label[by_class]]
    first = by_class[rank < max(1, _BY_CLASS // len(count))]
    return list(dict.fromkeys(torch.cat((oldest[:_OLDEST], suspected[:_SUSPECTED], first)).tolist()))[:500]


def thumbnail(image: object) -> Tensor:
    """Return an image as `uint8 [1 or 3, H, W]`, at most 64 pixels a side.

    Takes Pillow's images, and arrays or tensors `[H, W]`, `[C, H, W]` or `[H, W, C]` with 1, 3 or 4 channels: uint8, or
    floating point, where 0 to 1 is black to white and any other range (normalised input) is stretched to that.

    >>> thumbnail(torch.rand(3, 224, 112)).shape
    torch.Size([3, 64, 32])
    """
    if hasattr(image, "convert"):
        image = image.convert("RGB")
    try:
        pixels = image.detach().cpu() if isinstance(image, Tensor) else torch.from_numpy(np.array(image))
        pixels = pixels[None] if pixels.dim() == 2 else pixels
        pixels = pixels if pixels.shape[0] in (1, 3, 4) else pixels.permute(2, 0, 1)
        channels, height, width = pixels.shape
        if channels not in (1, 3, 4):
            raise ValueError
        value = pixels[: 1 if channels == 1 else 3].to(torch.float32).nan_to_num()
        low, high = (float(bound) for bound in value.aminmax())
    except (TypeError, ValueError, RuntimeError, IndexError) as error:
        wanted = "an image: [H, W], [C, H, W] or [H, W, C] with 1, 3 or 4 channels, not empty"
        raise TypeError(f"images must give {wanted}, not {shown(image)}.") from error
    if pixels.is_floating_point():
        stretched = value if low >= 0.0 and high <= 1.0 else (value - low) / max(high - low, 1e-12)
        value = (stretched * 255.0).round()
    elif pixels.dtype == torch.bool:
        value *= 255.0
    scale = SIDE / max(height, width)
    if scale < 1.0:
        size = (max(1, round(height * scale)), max(1, round(width * scale)))
        value = F.interpolate(value[None], size, mode="area")[0].round()
    return value.clamp(0.0, 255.0).to(torch.uint8).contiguous()


def png(pixels: Tensor) -> bytes:
    """Return `uint8 [1 or 3, H, W]` as the content of a PNG file."""
    from PIL import Image

    content = io.BytesIO()
    Image.fromarray(pixels.permute(1, 2, 0).squeeze(2).numpy()).save(content, "PNG", optimize=True)
    return content.getvalue()


def described(value: object) -> Description:
    """Return a mapping or a vector as `[name, value]` pairs, and anything else as text; both shortened.

    >>> described("a short text"), described({"age": 31, "height": 1.7321})
    ('a short text', [['age', '31'], ['height', '1.732']])
    """
    if isinstance(value, Tensor | np.ndarray):
        value = dict(enumerate(torch.as_tensor(value).flatten().tolist()))
    if not isinstance(value, Mapping):
        text = str(value)
        return text if len(text) <= LETTERS else text[: LETTERS - 1] + "…"
    pairs = [
        [str(name)[:LETTERS], f"{entry:.4g}" if isinstance(entry, float | np.floating) else str(entry)[:LETTERS]]
        for name, entry in list(value.items())[:ENTRIES]
    ]
    return pairs if len(value) <= ENTRIES else [*pairs, ["…", f"{len(value) - ENTRIES} more"]]
