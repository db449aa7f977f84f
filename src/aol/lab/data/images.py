"""A data set in memory: one uint8 tensor of pixels, labels, and normalisation and augmentation for networks.

Sets of images of any size are in `encoded_images.py`; both kinds come as a `Pair` of a training and a test split.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

import torch
from torch import Tensor


class DataError(ValueError):
    """Data that cannot be trained on: the message names the file and what is wrong with it."""

    exit_status = 1  # of the command line; wrong words have 2


@dataclass(frozen=True)
class Normalisation:
    """Per-channel affine map of pixels in 0..255 to network input: `x * scale + shift`, as float32.

    >>> Normalisation((1 / 128,), (-1.0,))(torch.tensor([[[0, 128, 255]]], dtype=torch.uint8))
    tensor([[[-1.0000,  0.0000,  0.9922]]])
    """

    scale: tuple[float, ...]
    shift: tuple[float, ...]

    def __call__(self, pixels: Tensor) -> Tensor:
        """Normalise pixels [..., C, H, W] of any dtype to float32 [..., C, H, W]."""
        out = pixels.to(torch.float32, copy=True)
        # One value for all channels stays a Python number: a CUDA graph then captures no copy from the host.
        if len(set(self.scale)) == 1 and len(set(self.shift)) == 1:
            return out.mul_(self.scale[0]).add_(self.shift[0])
        for channel, (scale, shift) in enumerate(zip(self.scale, self.shift, strict=True)):
            out.select(-3, channel).mul_(scale).add_(shift)
        return out


def centred(channels: int) -> Normalisation:
    """Return the paper's CIFAR input: `x * 255 / 128 - 1` for x in [0, 1], that is `pixel / 128 - 1`."""
    return Normalisation((1 / 128,) * channels, (-1.0,) * channels)


def mean_std(mean: Sequence[float], std: Sequence[float]) -> Normalisation:
    """Standardise: `(x - mean) / std` for x in [0, 1]."""
    return Normalisation(tuple(1 / (255 * s) for s in std), tuple(-m / s for m, s in zip(mean, std, strict=True)))


IMAGENET = mean_std((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


@dataclass(frozen=True)
class Augmentation:
    """What training may do to an image of this set: shift by up to `pad` pixels over black, and mirror."""

    pad: int
    flip: bool


class Labelled:
    """Samples of one split, each with its class."""

    labels: Tensor
    classes: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def num_classes(self) -> int:
        """How many classes there are, whether or not each has an image in this split."""
        return len(self.classes)

    @property
    def counts(self) -> Tensor:
        """Count the images of each class: int64 [C]."""
        return torch.bincount(self.labels, minlength=self.num_classes)


@dataclass(frozen=True)
class ImageSet(Labelled):
    """One split in memory: images uint8 [N, C, H, W], labels int64 [N], and the names of the classes."""

    images: Tensor
    labels: Tensor
    classes: tuple[str, ...]
    name: str

    @property
    def shape(self) -> tuple[int, int, int]:
        """Return the channels, height and width of one image."""
        _, channels, height, width = self.images.shape
        return channels, height, width

    def subset(self, index: Tensor) -> ImageSet:
        """Return the images at `index` [n], in that order, as a split of its own."""
        return replace(self, images=self.images[index], labels=self.labels[index])


@dataclass(frozen=True)
class Shortcut:
    """What is known of a nuisance that gives most classes away, as `aol.lab.data.nuisance` puts it into a set."""

    kept: Tensor  # int64: places of the training samples that are not held out for validation
    train: Tensor  # bool [N]: whether the nuisance of a training sample is that of another class than its true one
    test: Tensor  # bool: the same of the test samples


S_co = TypeVar("S_co", covariant=True)


@dataclass(frozen=True)
class Pair(Generic[S_co]):
    """A data set: its training and test splits, with what a network needs to know about the pixels."""

    name: str
    train: S_co
    test: S_co
    classes: tuple[str, ...]
    normalisation: Normalisation  # the paper's
    standardised: Normalisation  # by mean and std of each channel, as its motivating observation
    augmentation: Augmentation
    validation: S_co | None = None  # of sets with a labelled third split
    shortcut: Shortcut | None = None

    @property
    def num_classes(self) -> int:
        """How many classes there are."""
        return len(self.classes)


def split_per_class(labels: Tensor, fraction: float, *, seed: int) -> tuple[Tensor, Tensor]:
    """Split positions by class: `round(n_c * fraction)`, at least one, of each class are held out.

    Returns (kept, held_out), both int64 and ascending. The same labels, fraction and seed give the same split.

    >>> kept, held = split_per_class(torch.tensor([0, 0, 0, 0, 1, 1]), 0.25, seed=0)
    >>> len(kept), len(held)
    (4, 2)
    """
    generator = torch.Generator().manual_seed(seed)
    kept, held = [], []
    for label, count in enumerate(torch.bincount(labels).tolist()):
        if count == 1:
            raise DataError(f"class {label} has 1 image: a split needs at least two of every class")
        if count:
            shuffled = (labels == label).nonzero().flatten()[torch.randperm(count, generator=generator)]
            n = min(max(1, round(count * fraction)), count - 1)
            held.append(shuffled[:n])
            kept.append(shuffled[n:])
    return torch.cat(kept).sort().values, torch.cat(held).sort().values
