"""Sources of batches: a set kept on the device as one tensor; `stored_source.py` has those of large images.

A source returns network input for given samples; the caller chooses the samples and their order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import TypeAlias

import torch
from torch import Tensor

from aol import _seeds
from aol.lab.data import augment
from aol.lab.data.encoded_images import SIZE, StoredImages
from aol.lab.data.images import Augmentation, ImageSet, Normalisation, Pair
from aol.lab.data.nuisance import change
from aol.lab.engine.stored_source import Decoded, FromStorage, Reader, keep
from aol.lab.settings import Settings, WrongSettingsError

_AUGMENT = 1_000_002  # this use's place in the path of a seed; orders are 1,000,001
AnyPair: TypeAlias = Pair[ImageSet] | Pair[StoredImages]


def data_of(run: Settings, pairs: Mapping[str, AnyPair]) -> AnyPair:
    """Return the data set of a run, with its nuisance and noisy labels; the last such set is kept."""
    pair = pairs[run.data]
    if not run.changes_data:
        return pair
    if not isinstance(pair.train, ImageSet) or not isinstance(pair.test, ImageSet):
        what = f"nuisance={run.nuisance!r}" if run.nuisance != "none" else "noise"
        raise WrongSettingsError(f"{what} needs a data set in memory; {pair.name} is decoded while training.")
    settings = {name: getattr(run, name) for name in ("nuisance", "conflicts", "noise", "validation")}
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
        self.labels, self._pixels = images.labels.to(device), images.images.to(device)
        self.area = images.shape[1] * images.shape[2]
        self._normalisation, self._augmentation = normalisation, augmentation
        self._draws: augment.Draws | None = None  # keeps its memory, which captured batches read
        self._affine = [torch.tensor(values, device=device) for values in (normalisation.scale, normalisation.shift)]
        self._by_kernel = device.type == "cuda" and find_spec("triton") is not None and self._pixels.is_contiguous()

    def names(self, index: Tensor) -> list[str] | None:
        """Return what the samples `index [n]` are called: nothing, they are known by their index."""
        return None

    def prepare(self, size: int, mine: Tensor, *, epoch: int, seeds: Sequence[int]) -> None:
        """Draw the augmentation of all `size` places of an epoch's order; this process trains on the places `mine`."""
        if self._augmentation is None:
            return
        own, device = sorted(set(seeds)), self._pixels.device  # runs of one seed share their draws
        generators = [_seeds.generator(seed, _AUGMENT, epoch, device=device) for seed in own]
        rows = torch.tensor([own.index(seed) for seed in seeds], device=device)
        parts = augment.draw(size, self._augmentation, generator=generators)
        drawn = augment.Draws(*(part[:, mine].index_select(0, rows) for part in parts))
        if self._draws is None or self._draws.row.shape != drawn.row.shape:
            self._draws = drawn
        for old, new in zip(self._draws, drawn, strict=True):
            old.copy_(new)

    def augmented(self, index: Tensor, at: Tensor) -> Tensor:
        """Return samples `index [R, B]` as network input, augmented as drawn for the places `at [B]`."""
        if self._augmentation is None or self._draws is None:
            return self.plain(index)
        drawn = augment.Draws(*(part.index_select(1, at) for part in self._draws))
        return self._batch(index, drawn, self._augmentation.pad)

    def plain(self, index: Tensor) -> Tensor:
        """Return samples without augmentation: `[..., C, H, W]` of `index [...]`."""
        return self._batch(index, None, 0)

    def _batch(self, index: Tensor, draws: augment.Draws | None, pad: int) -> Tensor:
        if self._by_kernel:
            from aol.lab.nets.fused import images  # needs Triton

            scale, shift = self._affine
            batch: Tensor = images.batch(self._pixels, index, draws, pad=pad, scale=scale, shift=shift)
            return batch
        if draws is not None:  # padding is black before normalisation, as in the usual pipeline
            return self._normalisation(augment.crop_flip(self._pixels, index, draws, pad=pad))
        pixels = self._pixels.index_select(0, index.flatten())
        return self._normalisation(pixels.view(*index.shape, *pixels.shape[1:]))


Source: TypeAlias = OnDevice | Decoded | FromStorage


def input_shape(run: Settings, pair: AnyPair) -> tuple[int, int, int]:
    """Return channels, height and width of a run's network input, from its data set before any change."""
    channels, height, width = shape_of(pair, run.image_size)
    return (channels if run.nuisance == "none" else 3, height, width)


def shape_of(pair: AnyPair, image_size: int | None) -> tuple[int, int, int]:
    """Return channels, height and width of network input; `image_size` is for sets that are cropped to any size."""
    own = pair.train.shape
    if isinstance(pair.train, StoredImages):
        return own if image_size is None else (3, image_size, image_size)
    if image_size not in (None, own[1]):
        raise WrongSettingsError(f"image_size is for large images: those of {pair.name} are {own[1]} pixels wide.")
    return own


def sources(
    pair: AnyPair,
    *,
    image_size: int | None,
    normalisation: str,
    augment: bool,
    workers: int | None,
    device: torch.device,
) -> tuple[Source, Source]:
    """Return the training and the test split of a data set as sources; `workers` decode large images."""
    scale = pair.normalisation if normalisation == "centred" else pair.standardised
    train, test = pair.train, pair.test
    if isinstance(train, ImageSet) and isinstance(test, ImageSet):
        augmentation = pair.augmentation if augment else None
        return OnDevice(train, scale, augmentation, device), OnDevice(test, scale, None, device)

    def stored(split: ImageSet | StoredImages, augment: bool) -> Decoded | FromStorage:
        """Return a large split: decoded once and kept on a GPU where it fits, else decoded while training."""
        assert isinstance(split, StoredImages)
        reader = Reader(split, image_size or SIZE, workers=workers, device=device)
        images = keep(reader)
        if images is None:
            return FromStorage(reader, scale, augment=augment)
        return Decoded(reader, images, scale, augment=augment)

    return stored(train, augment), stored(test, False)
