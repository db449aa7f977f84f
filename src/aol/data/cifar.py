"""`cifar10` and `cifar100`: 50,000 + 10,000 colour images of 32×32, in the official python files.

Assumes the folder holds the files; they are read by an unpickler that accepts only arrays, lists and text,
and their checksums are compared by `check`.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from aol.data.errors import DataError
from aol.data.images import Augmentation, ImageSet, Pair, centred, check_labels, mean_std
from aol.data.pickles import Plain, read_plain_pickle
from aol.data.registry import Download, Member, Official

_ADDRESS = "https://www.cs.toronto.edu/~kriz/"


def _text_list(value: Plain, path: Path, key: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(v, str | bytes) for v in value) or not value:
        raise DataError(f"{path}: {key!r} must be a list of names")
    return tuple(v.decode() if isinstance(v, bytes) else str(v) for v in value)


def _read_batch(path: Path, key: str, num_classes: int) -> tuple[torch.Tensor, torch.Tensor]:
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file")
    batch = read_plain_pickle(path)
    pixels, numbers = batch.get("data"), batch.get(key)
    if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or pixels.ndim != 2:
        raise DataError(f"{path}: 'data' must be a uint8 array of two axes")
    if pixels.shape[1] != 3072:
        raise DataError(f"{path}: rows of 'data' must hold 3072 pixels (3×32×32), got {pixels.shape[1]}")
    if not isinstance(numbers, list) or not all(isinstance(n, int) for n in numbers):
        raise DataError(f"{path}: {key!r} must be a list of whole numbers")
    if len(numbers) != len(pixels):
        raise DataError(f"{path}: {len(numbers)} labels for {len(pixels)} images")
    labels = torch.tensor(numbers, dtype=torch.int64)
    check_labels(labels, num_classes, str(path))
    return torch.from_numpy(pixels.reshape(-1, 3, 32, 32).copy()), labels


def _read_split(folder: Path, files: tuple[str, ...], key: str, classes: tuple[str, ...], name: str) -> ImageSet:
    parts = [_read_batch(folder / file, key, len(classes)) for file in files]
    return ImageSet(torch.cat([p for p, _ in parts]), torch.cat([n for _, n in parts]), classes, name)


def load_cifar10(folder: Path) -> Pair[ImageSet]:
    """Read CIFAR-10 from `cifar-10-batches-py`. Input, padding and mirroring are the paper's."""
    meta = folder / "batches.meta"
    if not meta.is_file():
        raise FileNotFoundError(f"{meta}: no such file")
    classes = _text_list(read_plain_pickle(meta).get("label_names"), meta, "label_names")
    batches = tuple(f"data_batch_{i}" for i in range(1, 6))
    return Pair(
        name="cifar10",
        train=_read_split(folder, batches, "labels", classes, "cifar10/train"),
        test=_read_split(folder, ("test_batch",), "labels", classes, "cifar10/test"),
        classes=classes,
        normalisation=centred(3),
        standardised=mean_std((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
        augmentation=Augmentation(pad=4, flip=True),
    )


def load_cifar100(folder: Path) -> Pair[ImageSet]:
    """Read CIFAR-100 (fine labels) from `cifar-100-python`. Input, padding and mirroring are the paper's."""
    meta = folder / "meta"
    if not meta.is_file():
        raise FileNotFoundError(f"{meta}: no such file")
    classes = _text_list(read_plain_pickle(meta).get("fine_label_names"), meta, "fine_label_names")
    return Pair(
        name="cifar100",
        train=_read_split(folder, ("train",), "fine_labels", classes, "cifar100/train"),
        test=_read_split(folder, ("test",), "fine_labels", classes, "cifar100/test"),
        classes=classes,
        normalisation=centred(3),
        standardised=mean_std((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
        augmentation=Augmentation(pad=4, flip=True),
    )


CIFAR10 = Official(
    name="cifar10",
    title="32×32 colour, 10 classes, 50,000 + 10,000",
    folder="cifar-10-batches-py",
    members=(
        Member("batches.meta", 158, "f962466ef690d46b226450fb9aadc74ba4bc64a76aa526b5827fe4bc5c7125cb"),
        Member("data_batch_1", 31_035_704, "54636561a3ce25bd3e19253c6b0d8538147b0ae398331ac4a2d86c6d987368cd"),
        Member("data_batch_2", 31_035_320, "766b2cef9fbc745cf056b3152224f7cf77163b330ea9a15f9392beb8b89bc5a8"),
        Member("data_batch_3", 31_035_999, "0f00d98ebfb30b3ec0ad19f9756dc2630b89003e10525f5e148445e82aa6a1f9"),
        Member("data_batch_4", 31_035_696, "3f7bb240661948b8f4d53e36ec720d8306f5668bd0071dcb4e6c947f78e9682b"),
        Member("data_batch_5", 31_035_623, "d91802434d8376bbaeeadf58a737e3a1b12ac839077e931237e0dcd43adcb154"),
        Member("test_batch", 31_035_526, "f53d8d457504f7cff4ea9e021afcf0e0ad8e24a91f3fc42091b8adef61157831"),
    ),
    downloads=(
        Download(
            _ADDRESS + "cifar-10-python.tar.gz",
            "cifar-10-python.tar.gz",
            170_498_071,
            "md5:c58f30108f718f92721af3b95e74349a",
        ),
    ),
    load=load_cifar10,
)

CIFAR100 = Official(
    name="cifar100",
    title="32×32 colour, 100 classes, 50,000 + 10,000",
    folder="cifar-100-python",
    members=(
        Member("meta", 1_473, "a5d4786345c961390f865e93b434dbd5c6904ce880667e0cb888c97d449f28b9"),
        Member("train", 155_249_918, "735e79b04f092ca3d2e6d07f368c0a7d70d48c48d28865950cc24454cf45129b"),
        Member("test", 31_049_707, "4b67687d9933c4db8f0831104447f15b93774f4f464bd0516f0f0f2ac83b7864"),
    ),
    downloads=(
        Download(
            _ADDRESS + "cifar-100-python.tar.gz",
            "cifar-100-python.tar.gz",
            169_001_437,
            "md5:eb9058c3a382ffc7106e4002c42a8d85",
        ),
    ),
    load=load_cifar100,
)
