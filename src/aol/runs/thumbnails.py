"""Small pictures of some samples, kept beside the records: the data need not be at hand where they are shown.

Knows tensors and files. Pictures are taken from whatever shows an image for a sample: an array, or a function.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from aol import _check
from aol._files import write_atomically

FILE = "pictures.safetensors"
SIDE = 64  # the most pixels a side
_OLDEST, _SUSPICIOUS, _BY_CLASS = 96, 96, 400  # how many pictures are kept


def thumbnail(image: object) -> Tensor:
    """Return an image as `uint8 [1 or 3, H, W]`, at most 64 pixels a side.

    Takes Pillow's images, and arrays or tensors `[H, W]`, `[C, H, W]` or `[H, W, C]` with 1, 3 or 4 channels: uint8, or
    floating point, where 0 to 1 is black to white and any other range (normalised input) is stretched to that.

    >>> thumbnail(torch.rand(3, 224, 112)).shape
    torch.Size([3, 64, 32])
    """
    if hasattr(image, "convert"):
        image = image.convert("RGB")
    wanted = "an image: [H, W], [C, H, W] or [H, W, C] with 1, 3 or 4 channels, not empty"
    try:
        found = image.detach().cpu() if isinstance(image, Tensor) else torch.from_numpy(np.array(image))
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"images must give {wanted}, not {_check.shown(image)}.") from error
    if found.dim() == 2:
        found = found[None]
    elif found.dim() == 3 and found.shape[0] not in (1, 3, 4):
        found = found.permute(2, 0, 1)
    if found.dim() != 3 or found.shape[0] not in (1, 3, 4) or not found.numel() or found.is_complex():
        raise ValueError(f"images must give {wanted}, not {_check.shown(image)}.")
    return _shrunk(_as_bytes(found[: 1 if found.shape[0] == 1 else 3]))


def _as_bytes(pixels: Tensor) -> Tensor:
    if pixels.dtype == torch.uint8:
        return pixels
    value = pixels.to(torch.float32).nan_to_num()
    low, high = (float(each) for each in value.aminmax())
    if pixels.is_floating_point() and (low < 0.0 or high > 1.0):
        value = (value - low) / (high - low)
    elif not pixels.is_floating_point() and pixels.dtype != torch.bool:
        value = value / 255.0
    return (value.clamp(0.0, 1.0) * 255.0).round().to(torch.uint8)


def _shrunk(pixels: Tensor) -> Tensor:
    height, width = pixels.shape[1:]
    scale = SIDE / max(height, width)
    if scale >= 1.0:
        return pixels.contiguous()
    size = (max(1, round(height * scale)), max(1, round(width * scale)))
    return F.interpolate(pixels[None].to(torch.float32), size, mode="area")[0].round().to(torch.uint8)


def worth_seeing(label: Tensor, ema: Tensor, suspicion: Tensor) -> list[int]:
    """Return the samples of which a picture is worth keeping: the oldest, of each class too, the most suspicious.

    >>> worth_seeing(torch.tensor([0, 0, 1]), torch.tensor([1.0, 4.0, 2.0]), torch.tensor([0.0, 0.5, 0.9]))
    [1, 2, 0]
    """
    oldest = ema.nan_to_num(-1.0).argsort(descending=True, stable=True)
    doubtful = suspicion.nan_to_num(-1.0).topk(min(_SUSPICIOUS, len(suspicion))).indices
    num_classes = int(label.max()) + 1
    by_class = label[oldest].argsort(stable=True)  # within a class the oldest first
    first = torch.bincount(label, minlength=num_classes).cumsum(0) - torch.bincount(label, minlength=num_classes)
    rank = torch.arange(len(label), device=label.device) - first[label[oldest][by_class]]
    each = max(1, _BY_CLASS // num_classes)
    found = torch.cat((oldest[:_OLDEST], doubtful, oldest[by_class][rank < each]))
    return list(dict.fromkeys(found.tolist()))


class Thumbnails:
    """The pictures of those samples that are worth looking at; each is asked for once."""

    def __init__(self, show: Callable[[int], object]) -> None:
        self._show = show
        self._kept: dict[int, Tensor] = {}

    def keep(self, rows: Iterable[int]) -> None:
        """Keep the pictures of these samples and of no others."""
        self._kept = {row: self._kept[row] if row in self._kept else thumbnail(self._show(row)) for row in rows}

    def write(self, folder: Path) -> None:
        """Write the pictures into the folder of a run."""
        from safetensors.torch import save

        pictures = [picture.numpy() for picture in self._kept.values()]
        arrays = {
            "row": np.array(list(self._kept), np.int64),
            "shape": np.array([picture.shape for picture in pictures], np.int64).reshape(-1, 3),
            "pixels": np.concatenate([np.empty(0, np.uint8), *(picture.ravel() for picture in pictures)]),
        }
        tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
        write_atomically(folder / FILE, save(tensors))


def read_thumbnails(folder: Path) -> dict[int, Tensor]:
    """Return the pictures in the folder of a run by the sample's row; none where none were kept or can be read."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if not (folder / FILE).is_file():  # to open a pipe would be to wait
        return {}
    try:
        found = load_file(folder / FILE)
        shapes = found["shape"].tolist()
        parts = torch.split(found["pixels"], [c * h * w for c, h, w in shapes])
        return {row: part.reshape(s) for row, s, part in zip(found["row"].tolist(), shapes, parts, strict=True)}
    except (FileNotFoundError, SafetensorError, KeyError, ValueError, RuntimeError):
        return {}
