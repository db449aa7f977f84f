"""`fashion-mnist`: 60,000 + 10,000 grey 28×28 images of clothes, in four IDX files, gzipped or not.

Assumes the folder holds all four files; their headers are checked, their checksums only by `check`.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from aol.data.errors import DataError
from aol.data.images import Augmentation, ImageSet, Pair, centred, mean_std
from aol.data.registry import Download, Member, Official, read_member

CLASSES = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)
_ADDRESS = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"


def read_idx(content: bytes, where: str) -> Tensor:
    """Read an IDX file of unsigned bytes: 0, 0, 8, the number of axes, big-endian sizes, then the values.

    >>> read_idx(bytes([0, 0, 8, 2, 0, 0, 0, 1, 0, 0, 0, 3, 7, 8, 9]), "tiny")
    tensor([[7, 8, 9]], dtype=torch.uint8)
    >>> read_idx(bytes([0, 0, 8, 1, 0, 0, 0, 5, 1]), "tiny")
    Traceback (most recent call last):
    ...
    aol.data.errors.DataError: tiny: 9 bytes, but its header asks for 13
    """
    if len(content) < 4 or content[:3] != b"\0\0\x08":
        raise DataError(f"{where}: not an IDX file of unsigned bytes")
    axes = content[3]
    start = 4 + 4 * axes
    shape = [int.from_bytes(content[at : at + 4], "big") for at in range(4, start, 4)]
    if len(content) != start + math.prod(shape):
        raise DataError(f"{where}: {len(content)} bytes, but its header asks for {start + math.prod(shape)}")
    return torch.from_numpy(np.frombuffer(content, np.uint8, offset=start).reshape(shape).copy())


def _split(folder: Path, prefix: str, name: str) -> ImageSet:
    images_name, labels_name = f"{prefix}-images-idx3-ubyte", f"{prefix}-labels-idx1-ubyte"
    images = read_idx(read_member(FASHION_MNIST, folder, images_name), str(folder / images_name))
    labels = read_idx(read_member(FASHION_MNIST, folder, labels_name), str(folder / labels_name))
    if images.dim() != 3 or images.shape[1:] != (28, 28):
        raise DataError(f"{folder / images_name}: images must be [N, 28, 28], got {list(images.shape)}")
    if labels.shape != images.shape[:1]:
        raise DataError(
            f"{folder / labels_name}: {labels.numel()} labels for the {len(images)} images of {images_name}"
        )
    return ImageSet(images.unsqueeze(1), labels.to(torch.int64), CLASSES, f"fashion-mnist/{name}")


def load_fashion_mnist(folder: Path) -> Pair[ImageSet]:
    """Read Fashion-MNIST from a folder.

    Input is `pixel / 128 - 1`. Training shifts by up to two pixels and mirrors: clothes have no left or
    right.
    """
    return Pair(
        name="fashion-mnist",
        train=_split(folder, "train", "train"),
        test=_split(folder, "t10k", "test"),
        classes=CLASSES,
        normalisation=centred(1),
        standardised=mean_std((0.2860,), (0.3530,)),
        augmentation=Augmentation(pad=2, flip=True),
    )


FASHION_MNIST = Official(
    name="fashion-mnist",
    title="clothes, 28×28 grey, 10 classes, 60,000 + 10,000",
    folder="fashion-mnist",
    # Of the content, not of the .gz: the Debian package compresses the same bytes anew.
    members=(
        Member(
            "train-images-idx3-ubyte",
            47_040_016,
            "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        ),
        Member(
            "train-labels-idx1-ubyte",
            60_008,
            "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        ),
        Member(
            "t10k-images-idx3-ubyte",
            7_840_016,
            "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        ),
        Member(
            "t10k-labels-idx1-ubyte",
            10_008,
            "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
        ),
    ),
    downloads=tuple(
        Download(_ADDRESS + name, name, size, f"md5:{md5}")
        for name, size, md5 in (
            ("train-images-idx3-ubyte.gz", 26_421_880, "8d4fb7e6c68d591d4c3dfef9ec88bf0d"),
            ("train-labels-idx1-ubyte.gz", 29_515, "25c81989df183df01b3e8a0aad5dffbe"),
            ("t10k-images-idx3-ubyte.gz", 4_422_102, "bef4ecab320f06d8554ea6380940ec79"),
            ("t10k-labels-idx1-ubyte.gz", 5_148, "bb300cfdad3c16e7a12a480ee83cd310"),
        )
    ),
    load=load_fashion_mnist,
    gzipped=True,
    system=(Path("/usr/share/datasets/fashion-mnist"),),
)
