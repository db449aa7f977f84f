"""A data set in memory: one uint8 tensor of pixels, labels, and normalisation and augmentation for networks.

Sets too large for memory are in `encoded_images.py`; both kinds come as a `Pair` of a training and a test split.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

import torch
from torch import Tensor

from aol.lab.data.errors import DataError


@dataclass(frozen=True)
class Normalisation:
    """Per-channel affine map of pixels in 0..255 to network input: `x * scale + shift`, as float32.

    >>> Normalisation((1 / 128,), (-1.0,))(torch.tensor([[[0, 128, 255]]], dtype=torch.uint8))
    tensor([[[-1.0000,  0.0000,  0.9922]]])
    """

    scale: tuple[float, ...]
    shift: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.scale) != len(self.shift) or not self.scale:
            raise ValueError(
                f"scale and shift need one value a channel each, got {len(self.scale)} and {len(self.shift)}"
            )

    def __call__(self, pixels: Tensor) -> Tensor:
        """Normalise pixels [..., C, H, W] of any dtype to float32 [..., C, H, W].

        >>> centred(3)(torch.full((2, 3, 4, 4), 255, dtype=torch.uint8)).shape
        torch.Size([2, 3, 4, 4])
        """
        channels = len(self.scale)
        if pixels.dim() < 3 or pixels.shape[-3] != channels:
            raise ValueError(f"pixels must be [..., {channels}, H, W], got shape {list(pixels.shape)}")
        # One value for all channels stays a Python number: a CUDA graph then captures no copy from the host.
        if len(set(self.scale)) == 1 and len(set(self.shift)) == 1:
            return pixels.to(torch.float32, copy=True).mul_(self.scale[0]).add_(self.shift[0])
        out = pixels.to(torch.float32, copy=True)
        for channel, (scale, shift) in enumerate(zip(self.scale, self.shift, strict=True)):
            out.select(-3, channel).mul_(scale).add_(shift)
        return out


def centred(channels: int) -> Normalisation:
    """Return the paper's CIFAR input: `x * 255 / 128 - 1` for x in [0, 1], that is `pixel / 128 - 1`.

    >>> centred(1).scale, centred(1).shift
    ((0.0078125,), (-1.0,))
    """
    return Normalisation((1 / 128,) * channels, (-1.0,) * channels)


def mean_std(mean: Sequence[float], std: Sequence[float]) -> Normalisation:
    """Standardise: `(x - mean) / std` for x in [0, 1].

    >>> round(mean_std([0.5], [0.25])(torch.full((1, 1, 1), 255, dtype=torch.uint8)).item(), 3)
    2.0
    """
    if any(s <= 0 for s in std):
        raise ValueError(f"std must be above zero, got {list(std)}")
    return Normalisation(tuple(1 / (255 * s) for s in std), tuple(-m / s for m, s in zip(mean, std, strict=True)))


IMAGENET = mean_std((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


@dataclass(frozen=True)
class Augmentation:
    """What training may do to an image of this set: shift by up to `pad` pixels over black, and mirror.

    >>> Augmentation(pad=4, flip=True)
    Augmentation(pad=4, flip=True)
    """

    pad: int
    flip: bool

    def __post_init__(self) -> None:
        if self.pad < 0:
            raise ValueError(f"pad must be at least 0, got {self.pad}")


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
    """One split in memory: images uint8 [N, C, H, W], labels int64 [N], and the names of the classes.

    `called` holds what the samples are called where they come from, in their order, if that is known.

    >>> pixels = torch.zeros(2, 1, 8, 8, dtype=torch.uint8)
    >>> s = ImageSet(pixels, torch.tensor([0, 1]), ("a", "b"), "toy/train")
    >>> len(s), s.num_classes, s.shape, s.counts.tolist()
    (2, 2, (1, 8, 8), [1, 1])
    """

    images: Tensor
    labels: Tensor
    classes: tuple[str, ...]
    name: str
    called: Sequence[str] | None = None

    def __post_init__(self) -> None:
        if self.images.dtype != torch.uint8 or self.images.dim() != 4:
            raise DataError(
                f"{self.name}: images must be uint8 [N, C, H, W], got {self.images.dtype} {list(self.images.shape)}"
            )
        if self.labels.dtype != torch.int64 or self.labels.shape != self.images.shape[:1]:
            raise DataError(
                f"{self.name}: labels must be int64 [{len(self.images)}], got {self.labels.dtype} "
                f"{list(self.labels.shape)}"
            )
        if len(self.labels) == 0:
            raise DataError(f"{self.name}: no images")
        if self.called is not None and len(self.called) != len(self.labels):
            raise DataError(f"{self.name}: {len(self.called)} names for {len(self.labels)} images")
        check_labels(self.labels, len(self.classes), self.name)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Return the channels, height and width of one image."""
        _, channels, height, width = self.images.shape
        return channels, height, width

    def to(self, device: torch.device | str) -> ImageSet:
        """Return the same split with its tensors on a device; nothing is copied when they are there already."""
        return replace(self, images=self.images.to(device), labels=self.labels.to(device))

    def subset(self, index: Tensor) -> ImageSet:
        """Return the images at `index` [n], in that order, as a split of its own.

        >>> pixels = torch.zeros(3, 1, 8, 8, dtype=torch.uint8)
        >>> s = ImageSet(pixels, torch.tensor([0, 1, 1]), ("a", "b"), "toy")
        >>> s.subset(torch.tensor([2, 0])).labels.tolist()
        [1, 0]
        """
        index = index.to(self.labels.device)
        return replace(self, images=self.images[index], labels=self.labels[index], called=self.names(index))

    def names(self, index: Tensor) -> list[str] | None:
        """Return what the samples `index [n]` are called where they come from; None where they have only numbers.

        >>> pixels = torch.zeros(2, 1, 8, 8, dtype=torch.uint8)
        >>> s = ImageSet(pixels, torch.tensor([0, 1]), ("a", "b"), "toy", ["train/a/0.png", "train/b/0.png"])
        >>> s.names(torch.tensor([1]))
        ['train/b/0.png']
        """
        return None if self.called is None else [self.called[place] for place in index.tolist()]


@dataclass(frozen=True)
class Shortcut:
    """What is known of a nuisance that gives most classes away, as `aol.lab.data.nuisance` puts it into a set.

    Args:
        kept: places of the training samples that may be trained on, `int64`; the others are held out for validation.
        train: the training samples whose nuisance is that of another class than their true one, `bool [N]`.
        test: the same of the test samples.
    """

    kept: Tensor
    train: Tensor
    test: Tensor


S_co = TypeVar("S_co", covariant=True)


@dataclass(frozen=True)
class Pair(Generic[S_co]):
    """A data set: its training and test splits, with what a network needs to know about the pixels.

    `validation` is set only for sets with a labelled third split. `normalisation` is the
    protocol's; `standardised` is the per-channel mean/std one that the motivating observation uses.

    >>> from aol.lab.data import open_data
    >>> pair = open_data("digits")
    >>> pair.num_classes, pair.normalisation.shift, pair.augmentation
    (10, (-1.0,), Augmentation(pad=1, flip=False))
    """

    name: str
    train: S_co
    test: S_co
    classes: tuple[str, ...]
    normalisation: Normalisation
    standardised: Normalisation
    augmentation: Augmentation
    validation: S_co | None = None
    shortcut: Shortcut | None = None

    @property
    def num_classes(self) -> int:
        """How many classes there are."""
        return len(self.classes)


def check_labels(labels: Tensor, num_classes: int, where: str) -> None:
    """Raise `DataError` unless every label lies in 0..num_classes-1.

    >>> check_labels(torch.tensor([0, 7]), 2, "train.bin")
    Traceback (most recent call last):
    ...
    aol.lab.data.errors.DataError: train.bin: label 7 at position 1 is outside 0..1 (2 classes)
    """
    wrong = (labels < 0) | (labels >= num_classes)
    if bool(wrong.any()):
        at = int(wrong.nonzero()[0])
        raise DataError(
            f"{where}: label {int(labels[at])} at position {at} is outside 0..{num_classes - 1} ({num_classes} classes)"
        )


def split_per_class(labels: Tensor, fraction: float, *, seed: int) -> tuple[Tensor, Tensor]:
    """Split positions by class: `round(n_c * fraction)`, at least one, of each class are held out.

    Returns (kept, held_out), both int64 and ascending. The same labels, fraction and seed give the same split.

    >>> kept, held = split_per_class(torch.tensor([0, 0, 0, 0, 1, 1]), 0.25, seed=0)
    >>> len(kept), len(held)
    (4, 2)
    """
    if not 0 < fraction < 1:
        raise ValueError(f"fraction must be above 0 and below 1, got {fraction}")
    generator = torch.Generator().manual_seed(seed)
    kept, held = [], []
    for label in range(int(labels.max()) + 1):
        members = (labels == label).nonzero().flatten()
        if len(members) == 0:
            continue
        if len(members) < 2:
            raise DataError(f"class {label} has {len(members)} image: a split needs at least two of every class")
        shuffled = members[torch.randperm(len(members), generator=generator)]
        n = min(max(1, round(len(members) * fraction)), len(members) - 1)
        held.append(shuffled[:n])
        kept.append(shuffled[n:])
    return torch.cat(kept).sort().values, torch.cat(held).sort().values
