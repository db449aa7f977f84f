"""A data set of random pixels: speed does not depend on what images show."""

from __future__ import annotations

import torch

from aol.lab.data.images import Augmentation, ImageSet, Pair, centred


def random_pair(*, train: int, test: int, size: int = 32, channels: int = 3) -> Pair[ImageSet]:
    """Return a data set of the given size, 10 classes, with random pixels."""
    generator = torch.Generator().manual_seed(0)

    def split(per_class: int, name: str) -> ImageSet:
        pixels = torch.randint(256, (10 * per_class, channels, size, size), generator=generator, dtype=torch.uint8)
        labels = torch.arange(10).repeat_interleave(per_class)
        return ImageSet(pixels, labels, tuple("0123456789"), name)

    scale = centred(channels)
    return Pair(
        "random", split(train // 10, "train"), split(test // 10, "test"), tuple("0123456789"), scale, scale,
        Augmentation(pad=4, flip=True),
    )  # fmt: skip
