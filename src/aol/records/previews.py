"""What is shown of some samples: small pictures, or text and short rows of a table, kept beside the records.

The data need not be at hand where they are shown. Only samples that are worth looking at are kept.
"""

from __future__ import annotations

import json
import numbers
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Generic, TypeAlias, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from aol import _check
from aol._files import read_json, write_atomically

PICTURES, DESCRIPTIONS = "pictures.safetensors", "descriptions.json"
SIDE = 64  # the most pixels a side
LETTERS = 2000  # of a text
ENTRIES = 12  # of a row
_OLDEST, _SUSPICIOUS, _BY_CLASS = 96, 96, 400  # how many samples are kept
Description: TypeAlias = "str | list[list[str]]"
T = TypeVar("T")


def worth_seeing(label: Tensor, ema: Tensor, suspicion: Tensor) -> list[int]:
    """Return the samples that are worth showing: the oldest, of each class too, the most suspicious.

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


class Previews(Generic[T]):
    """What is shown of the samples that are worth looking at; each is asked for once.

    `show` is a user's function of a sample's row, `made` makes of its result what is kept, and `write` writes that.
    """

    def __init__(
        self, show: Callable[[int], object], made: Callable[[object], T], write: Callable[[Path, dict[int, T]], None]
    ) -> None:
        self._show, self._made, self._write = show, made, write
        self._kept: dict[int, T] = {}

    def update(self, folder: Path, rows: Iterable[int]) -> None:
        """Write what is shown of these samples, and of no others, into the folder of a run."""
        self._kept = {row: self._kept[row] if row in self._kept else self._made(self._show(row)) for row in rows}
        self._write(folder, self._kept)


# Pictures


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


def write_thumbnails(folder: Path, pictures: Mapping[int, Tensor]) -> None:
    """Write pictures by the sample's row into the folder of a run."""
    from safetensors.torch import save

    pixels = [picture.ravel() for picture in pictures.values()]
    with torch.device("cpu"):  # whatever the default is
        tensors = {
            "row": torch.tensor(list(pictures), dtype=torch.int64),
            "shape": torch.tensor([picture.shape for picture in pictures.values()], dtype=torch.int64).reshape(-1, 3),
            "pixels": torch.cat([torch.empty(0, dtype=torch.uint8), *pixels]),
        }
    write_atomically(folder / PICTURES, save(tensors))


def read_thumbnails(folder: Path) -> dict[int, Tensor]:
    """Return the pictures in the folder of a run by the sample's row; none where none were kept or can be read."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if not (folder / PICTURES).is_file():  # to open a pipe would be to wait
        return {}
    try:
        found = load_file(folder / PICTURES)
        shapes = found["shape"].tolist()
        parts = torch.split(found["pixels"], [c * h * w for c, h, w in shapes])
        return {row: part.reshape(s) for row, s, part in zip(found["row"].tolist(), shapes, parts, strict=True)}
    except (FileNotFoundError, SafetensorError, KeyError, ValueError, RuntimeError):
        return {}


# Text and rows of tables


def described(value: object) -> Description:
    """Return text as text, and a mapping or a vector as `[name, value]` pairs; both shortened.

    >>> described("a short text"), described({"age": 31, "height": 1.7321}), described(np.array([0.5, 2.0]))
    ('a short text', [['age', '31'], ['height', '1.732']], [['0', '0.5'], ['1', '2']])
    """
    if isinstance(value, str):
        return value if len(value) <= LETTERS else value[: LETTERS - 1] + "…"
    if isinstance(value, Tensor):
        value = value.detach().cpu().numpy()
    if isinstance(value, np.ndarray | list | tuple):
        vector = np.asarray(value)
        if vector.ndim != 1:
            raise ValueError(f"describe must return text, a mapping or a vector, not {_check.shown(value)}.")
        value = dict(enumerate(vector.tolist()))
    if not isinstance(value, Mapping):
        raise TypeError(f"describe must return text, a mapping or a vector, not {_check.shown(value)}.")
    rows = [[str(name)[:LETTERS], _entry(each)] for name, each in list(value.items())[:ENTRIES]]
    return rows if len(value) <= ENTRIES else [*rows, ["…", f"{len(value) - ENTRIES} more"]]


def _entry(value: object) -> str:
    real = isinstance(value, numbers.Real) and not isinstance(value, numbers.Integral)
    return f"{float(value):.4g}" if real else str(value)[:LETTERS]  # type: ignore[arg-type]


def write_descriptions(folder: Path, descriptions: Mapping[int, Description]) -> None:
    """Write descriptions by the sample's row into the folder of a run."""
    content = json.dumps(descriptions, ensure_ascii=False).encode(errors="backslashreplace")
    write_atomically(folder / DESCRIPTIONS, content)


def read_descriptions(folder: Path) -> dict[int, Description]:
    """Return the descriptions in the folder of a run by the sample's row; none where none were kept or can be read."""
    try:
        found = read_json(folder / DESCRIPTIONS)
        return {
            int(row): each if isinstance(each, str) else [[str(name), str(value)] for name, value in each]
            for row, each in found.items()
        }
    except (OSError, ValueError, TypeError, AttributeError):
        return {}
