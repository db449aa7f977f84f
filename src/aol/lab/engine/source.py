"""Sources of batches: a set kept on the device as one tensor; others have those of large images.

`stored_source.py`: decoded while training; `kept_images.py`: decoded once. A source returns network input for given
samples; the caller chooses the samples and their order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TypeAlias

import torch
from torch import Tensor

from aol import _check, _seeds
from aol.lab.data import augment
from aol.lab.data.crops import crops_for
from aol.lab.data.encoded_images import StoredImages
from aol.lab.data.images import Augmentation, ImageSet, Normalisation, Pair
from aol.lab.data.nuisance import change
from aol.lab.engine import kept_images
from aol.lab.engine.image_requests import has_views
from aol.lab.engine.kept_images import Decoded
from aol.lab.engine.stored_source import FromStorage, worker_count
from aol.lab.settings import Settings, WrongSettingsError

AnyPair: TypeAlias = Pair[ImageSet] | Pair[StoredImages]


@dataclass(frozen=True)
class Decoding:
    """How large images come to a GPU.

    Args:
        keep: decode a set once and keep it on the GPU, where it fits.
        cpu_share: of the JPEGs that are decoded while training, the part that worker processes decode, not nvJPEG; by
            default a half if there are at least 16 workers, else none.
    """

    keep: bool = True
    cpu_share: float | None = None

    def __post_init__(self) -> None:
        if self.cpu_share is not None:
            _check.number("cpu_share", self.cpu_share, 0.0, 1.0)

    def share(self, workers: int) -> float:
        """Return the part of the JPEGs that `workers` processes decode.

        >>> Decoding().share(16), Decoding().share(8), Decoding(cpu_share=0.25).share(8)
        (0.5, 0.0, 0.25)
        """
        if self.cpu_share is not None:
            return self.cpu_share
        return 0.5 if workers >= 16 else 0.0  # 16: as measured, see benchmarks/README.md


def data_of(run: Settings, pairs: Mapping[str, AnyPair], *, pixels: bool = True) -> AnyPair:
    """Return the data set of a run, with its nuisance and noisy labels; the last such set is kept.

    With `pixels=False` labels and shapes are right, and the images are not: quick, to check runs before training.
    """
    pair = pairs[run.data]
    if not run.changes_data:
        return pair
    if not isinstance(pair.train, ImageSet) or not isinstance(pair.test, ImageSet):
        what = f"nuisance={run.nuisance!r}" if run.nuisance != "none" else "noise"
        raise WrongSettingsError(f"{what} needs a data set in memory; {pair.name} is decoded while training.")
    settings = {name: getattr(run, name) for name in ("nuisance", "conflicts", "noise", "validation")}
    if not pixels:
        return change(pair, **settings, pixels=False)
    if not _changed or _changed[0][0] is not pair or _changed[0][1] != settings:
        _changed[:] = [(pair, settings, change(pair, **settings))]
    return _changed[0][2]


_changed: list[tuple[AnyPair, dict[str, object], AnyPair]] = []  # one at most: a set may need a gigabyte


class OnDevice:
    """A set kept on the training device; crop, flip and normalisation happen there.

    The augmentation of a sample depends on its run's seed, the epoch and its place in the order only.
    """

    def __init__(
        self, images: ImageSet, normalisation: Normalisation, augmentation: Augmentation | None, device: torch.device
    ) -> None:
        moved = images.to(device)
        self.labels = moved.labels
        self.names = moved.names
        self._pixels = moved.images
        self.area = moved.shape[1] * moved.shape[2]
        self._normalisation = normalisation
        self._augmentation = augmentation
        self._draws: augment.Draws | None = None
        self._scale = torch.tensor(normalisation.scale, device=device)
        self._shift = torch.tensor(normalisation.shift, device=device)
        self._by_kernel = device.type == "cuda" and find_spec("triton") is not None and moved.images.is_contiguous()

    def prepare(self, size: int, mine: Tensor, *, epoch: int, seeds: Sequence[int]) -> None:
        """Draw the augmentation of all `size` places of an epoch's order; this process trains on the places `mine`."""
        if self._augmentation is None:
            return
        own = sorted(set(seeds))  # runs of one seed share their draws
        generators = [_seeds.generator(seed, _AUGMENT, epoch, device=self._pixels.device) for seed in own]
        drawn = augment.draw(size, self._augmentation, generator=generators).batch(mine)
        rows = torch.tensor([own.index(seed) for seed in seeds], device=self._pixels.device)
        drawn = augment.Draws(*(each.index_select(0, rows) for each in drawn))
        if self._draws is None or self._draws.row.shape != drawn.row.shape:
            self._draws = drawn
        else:  # in place: captured batches read this memory
            for old, new in zip(self._draws, drawn, strict=True):
                old.copy_(new)

    def augmented(self, index: Tensor, at: Tensor) -> Tensor:
        """Return samples `index [R, B]` as network input, augmented as drawn for the places `at [B]`."""
        if self._augmentation is None or self._draws is None:
            return self.plain(index)
        drawn = augment.Draws(*(each.index_select(1, at) for each in self._draws))
        pad = self._augmentation.pad
        if self._by_kernel:
            return self._gathered(index, drawn, pad)
        return augment.training_batch(self._pixels, index, drawn, pad=pad, normalisation=self._normalisation)

    def plain(self, index: Tensor) -> Tensor:
        """Return samples without augmentation: `[..., C, H, W]` of `index [...]`."""
        if self._by_kernel:
            return self._gathered(index, None, 0)
        return augment.evaluation_batch(self._pixels, index, normalisation=self._normalisation)

    def _gathered(self, index: Tensor, draws: augment.Draws | None, pad: int) -> Tensor:
        from aol.lab.nets.fused import images  # needs Triton

        batch: Tensor = images.batch(self._pixels, index, draws, pad=pad, scale=self._scale, shift=self._shift)
        return batch


_AUGMENT = 1_000_002  # this use's place in the path of a seed; orders are 1,000,001


Source: TypeAlias = OnDevice | Decoded | FromStorage


def input_shape(run: Settings, pair: AnyPair) -> tuple[int, int, int]:
    """Return channels, height and width of a run's network input, from its data set before any change."""
    channels, height, width = shape_of(pair, run.image_size)
    return (channels if run.nuisance == "none" else 3, height, width)


def shape_of(pair: AnyPair, image_size: int | None) -> tuple[int, int, int]:
    """Return channels, height and width of network input; `image_size` is for sets that are cropped to any size."""
    if isinstance(pair.train, StoredImages) and image_size is not None:
        return (3, image_size, image_size)
    if image_size is not None and pair.train.shape is not None and image_size != pair.train.shape[1]:
        raise WrongSettingsError(
            f"image_size is for folders of images: those of {pair.name} are {pair.train.shape[1]} pixels wide."
        )
    if pair.train.shape is None:
        raise WrongSettingsError(f"The images of {pair.name} have no common size: image_size must be given.")
    return pair.train.shape


def sources(
    pair: AnyPair,
    *,
    image_size: int | None,
    normalisation: str,
    augment: bool,
    workers: int | None,
    device: torch.device,
    decoding: Decoding | None = None,
) -> tuple[Source, Source]:
    """Return the training and the test split of a data set as sources; `decoding` is for large images."""
    scale = pair.normalisation if normalisation == "centred" else pair.standardised
    train, test = pair.train, pair.test
    if isinstance(train, ImageSet) and isinstance(test, ImageSet):
        augmentation = pair.augmentation if augment else None
        return OnDevice(train, scale, augmentation, device), OnDevice(test, scale, None, device)
    if not isinstance(train, StoredImages) or not isinstance(test, StoredImages):
        raise TypeError("A data set must have both splits in memory, or both in storage.")
    if image_size is not None:
        crop, centre = crops_for(image_size)
        train, test = train.with_transform(crop), test.with_transform(centre)
    plain = train.with_transform(test.transform)
    count, how = worker_count(workers, device), decoding or Decoding()

    def stored(train: StoredImages, clean: StoredImages) -> Decoded | FromStorage:
        """Return a large split: decoded once and kept on a GPU where it fits, else decoded while training."""
        images = None
        if how.keep and has_views(train, clean):
            images = kept_images.kept(train, workers=count, device=device)
        if images is None:
            return FromStorage(train, clean, scale, workers=count, device=device, cpu_share=how.share(count))
        return Decoded(images, train, clean, scale, device)

    return stored(train if augment else plain, plain), stored(test, test)
