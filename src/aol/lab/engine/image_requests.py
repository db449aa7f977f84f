"""What worker processes answer about large images: files as they are, cuts of decoded images, or finished ones.

Nothing here needs the training device. What is drawn for a sample depends on (seed, epoch, sample) alone, and so does
whether a worker or the device decodes it: neither the number of processes nor where a run was stopped changes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from aol.lab.data.crops import RandomResizedCrop, ResizeCenterCrop, resize, sample_generator
from aol.lab.data.decode import open_image, plain_jpeg_size, size_of
from aol.lab.data.encoded_images import Records, StoredImages, typical_bytes

if TYPE_CHECKING:
    from PIL.Image import Image

T = TypeVar("T")
_CHUNK = 32  # images that a worker reads at a time: fewer start sooner, more cost less to hand over
GROUP = 8  # chunks that the device decodes at a time
LARGEST = 1024  # rows or columns of a crop that is resized on the device


def chunks(index: Sequence[T]) -> list[Sequence[T]]:
    """Return samples in chunks, each a request to a worker."""
    return split(index, _CHUNK)


def split(index: Sequence[T], size: int) -> list[Sequence[T]]:
    """Return parts of a sequence, of `size` each but the last."""
    return [index[start : start + size] for start in range(0, len(index), size)]


def slot_bytes(records: Records, *, share: float, size: int = 0) -> int:
    """Return bytes that hold most chunks of files, of which a `share` is decoded, to cuts or to `size` × `size`."""
    files = 1.5 * typical_bytes(records) if share < 1 else 0.0
    pixels = max(1.2 * typical_bytes(records, decoded=True), 3 * size**2) if share else 0.0
    return int(_CHUNK * ((1 - share) * files + share * pixels))


def decoded_by_worker(sample: int, epoch: int, share: float) -> bool:
    """Return whether a worker decodes a sample in an epoch, not the device: a `share` of all, others in each epoch.

    The sample and the epoch in turns of a circle, irrational parts of it: as even as can be over both.

    >>> [sum(decoded_by_worker(sample, epoch, 0.25) for sample in range(1000)) for epoch in range(3)]
    [251, 249, 250]
    """
    turns: int = (sample * _TURN_OF_SAMPLE + epoch * _TURN_OF_EPOCH) % 2**32
    return turns < share * 2**32


_TURN_OF_SAMPLE, _TURN_OF_EPOCH = 2_654_435_769, 3_242_174_889  # 2³² / 1.618…, 2³² / 1.324…


def has_views(train: StoredImages, clean: StoredImages) -> bool:
    """Return whether a device can do what the transforms do: those of `crops_for`, not another's."""
    shown = train.transform
    known = isinstance(shown, RandomResizedCrop) or shown == clean.transform
    return isinstance(clean.transform, ResizeCenterCrop) and known


class Pixels(NamedTuple):
    """Images as the network takes them, uint8."""

    pixels: Tensor  # [n, 3, size, size]


class Images(NamedTuple):
    """JPEG files one after the other, then pixels `[height, width, 3]` of decoded images one after the other."""

    content: Tensor  # uint8 [M]
    encoded: Tensor  # bool [n]: whether this one is a file
    length: Tensor  # [k]: bytes of each file
    sample: Tensor  # [n]
    sizes: Tensor  # [n, 2]
    boxes: Tensor  # [n, 5]: what to show of each, as `RandomResizedCrop.boxes`; all 0: the central view

    def divided(self) -> tuple[Sequence[Tensor], Tensor]:
        """Return the files, and the pixels."""
        lengths = self.length.tolist()
        *files, pixels = torch.split(self.content, [*lengths, len(self.content) - sum(lengths)])
        return files, pixels


Box: TypeAlias = tuple[int, int, int, int, int]  # top, left, height, width, mirrored
CENTRAL: Box = (0, 0, 0, 0, 0)


class Part(NamedTuple):
    """One image: a file or pixels [height, width, 3], its size, and what to show of it."""

    content: bytes | npt.NDArray[np.uint8]
    size: tuple[int, int]
    box: Box = CENTRAL


def joined(parts: Sequence[Part], samples: Sequence[int]) -> Images:
    """Return images of a chunk as one answer.

    >>> images = joined([Part(np.zeros((2, 3, 3), np.uint8), (2, 3)), Part(b"jpeg", (5, 5))], [7, 8])
    >>> files, pixels = images.divided()
    >>> images.encoded.tolist(), [len(file) for file in files], len(pixels)
    ([False, True], [4], 18)
    """
    files = [np.frombuffer(part.content, np.uint8) for part in parts if isinstance(part.content, bytes)]
    cuts = [part.content.reshape(-1) for part in parts if not isinstance(part.content, bytes)]
    return Images(
        torch.from_numpy(np.concatenate([*files, *cuts])),
        torch.tensor([isinstance(part.content, bytes) for part in parts]),
        torch.tensor([len(file) for file in files], dtype=torch.int64),
        torch.tensor(samples),
        torch.tensor([part.size for part in parts]),
        torch.tensor([part.box for part in parts]),
    )


Request: TypeAlias = tuple[str, int, int, int]  # what is wanted, sample, seed, epoch


class ImageReader:
    """Answers requests for chunks of images, in a worker process or here.

    Args:
        train, clean: what a request may want, "train" or "clean".
        cuts: training images are only cut, to be resized and mirrored on the device.
        encoded: plain JPEGs are only read, to be decoded on the device, too.
        share: so many of the plain JPEGs are decoded here nevertheless, at the size that is needed.
    """

    def __init__(
        self, train: StoredImages, clean: StoredImages, *, cuts: bool, encoded: bool, share: float = 0.0
    ) -> None:
        self._views, self._records = {"train": train, "clean": clean}, train.records
        self._cuts, self.encoded, self.share = cuts or encoded, encoded, share if encoded else 1.0

    def __call__(self, requests: Sequence[Request]) -> Pixels | Images:
        """Return the images of a chunk."""
        if self._cuts:
            return joined([self._part(*request) for request in requests], [index for _, index, _, _ in requests])
        images = [self._views[what].image(index, seed=seed, epoch=epoch) for what, index, seed, epoch in requests]
        return Pixels(torch.stack(images))

    def _part(self, what: str, index: int, seed: int, epoch: int) -> Part:
        """Return an image as it is or, where the device does not decode it, a cut or what the transform returns."""
        content, transform = self._records.encoded(index), self._views[what].transform
        assert transform is not None
        crop = transform if isinstance(transform, RandomResizedCrop) else None
        plain = plain_jpeg_size(content) if self.encoded else None
        size = plain or size_of(content, self._records.source(index))
        box = CENTRAL if crop is None else _draw_box(crop, *size, sample_generator(seed, epoch, index))
        own = plain is not None and decoded_by_worker(index, epoch, self.share)
        if plain is not None and max(plain) <= 2 * LARGEST and not own:
            return Part(content, plain, box)
        least = transform.resize if isinstance(transform, ResizeCenterCrop) else transform.size
        reduce = _reduction(min(size if crop is None else box[2:4]), least) if own else 1
        image = open_image(content, self._records.source(index), reduce=reduce)
        if crop is not None:
            return _cut(image, box, size, crop.size)
        pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1)
        return _uncropped(transform(pixels, sample_generator(seed, epoch, index)).permute(1, 2, 0).numpy())


def _draw_box(crop: RandomResizedCrop, height: int, width: int, generator: np.random.Generator) -> Box:
    """Draw a box and whether to mirror it, as `RandomResizedCrop.boxes`."""
    box = crop.box(height, width, generator)
    return (*box, int(crop.flip and generator.random() < 0.5))


def _cut(image: Image, box: Box, size: tuple[int, int], most: int) -> Part:
    """Cut an image that has `size`, or is a smaller copy of it; a very large cut is resized to `most` × `most`."""
    top, left, height, width, flip = box
    down, across = image.height / size[0], image.width / size[1]
    edges = (left * across, top * down, (left + width) * across, (top + height) * down)
    cut = np.array(image.crop(edges))  # to the nearest pixels
    if max(cut.shape) > LARGEST:
        cut = resize(torch.from_numpy(cut).permute(2, 0, 1), most, most).permute(1, 2, 0).numpy()
    return _uncropped(cut, flip)


def _reduction(side: int, least: int) -> int:
    """Return how many times smaller JPEGs can be decoded so that `side` pixels become `least` or more.

    >>> [_reduction(side, 224) for side in (300, 448, 900, 9000)]
    [1, 2, 4, 8]
    """
    return max(factor for factor in (1, 2, 4, 8) if factor == 1 or side // factor >= least)


def _uncropped(pixels: npt.NDArray[np.uint8], flip: int = 0) -> Part:
    """Return pixels [height, width, 3] of which all are shown."""
    rows, columns = pixels.shape[:2]
    return Part(pixels, (rows, columns), (0, 0, rows, columns, flip))
