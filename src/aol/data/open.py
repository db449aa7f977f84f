"""`--data NAME_OR_FOLDER`: recognises the kind of a data set and opens it.

Assumes a built-in name is never a folder: write `./digits` for a folder of that name. Layout, classes and
labels are checked on opening, before training starts.
"""

from __future__ import annotations

import os
from pathlib import Path

from aol.data.crops import crops_for
from aol.data.encoded_images import Records, StoredImages, into_memory
from aol.data.errors import DataError
from aol.data.folder import class_folders, open_folder
from aol.data.images import IMAGENET, Augmentation, ImageSet, Pair, centred
from aol.data.lmdb_set import lmdb_split, open_lmdb
from aol.data.named import NAMES, load_named, official_at
from aol.data.packed import MANIFEST, has_shards, open_packed
from aol.data.parquet import open_parquet, parquet_folder

Word = str | os.PathLike[str]


def open_records(root: Path) -> tuple[str, dict[str, Records]]:
    """Recognise a folder (packed, parquet, lmdb or folder) and open its splits."""
    if not root.exists():
        raise FileNotFoundError(f"{root}: no such folder; built-in names are {', '.join(NAMES)}")
    if not root.is_dir():
        raise DataError(f"{root}: a file, not a folder with a data set in it")
    if (root / MANIFEST).is_file():
        return "packed", open_packed(root)
    if parquet_folder(root) is not None:
        return "parquet", open_parquet(root)
    if lmdb_split(root, "train") is not None:
        return "lmdb", open_lmdb(root)
    if class_folders(root):
        return "folder", open_folder(root)
    if has_shards(root):
        raise DataError(f"{root}: a packing that has not finished; run `aol data pack` again")
    raise DataError(
        f"{root}: no data set recognised; expected train and test folders of class folders, train*.parquet, "
        "train.lmdb or a packed set"
    )


def open_data(
    name_or_folder: Word, data_dir: Word | None = None, *, size: int = 224, seed: int = 0
) -> Pair[ImageSet] | Pair[StoredImages]:
    """Open a data set: a built-in name in memory (`ImageSet`), a folder decoded on the fly (`StoredImages`).

    A folder's training split is cropped at random to `size`, drawn by `seed`; its other splits centrally.

    >>> open_data("digits").train.shape
    (1, 8, 8)
    >>> open_data("mnist")
    Traceback (most recent call last):
    ...
    ValueError: unknown data set 'mnist': no such folder, and the built-in names are digits, fashion-mnist,
    cifar10, cifar100
    """
    word = os.fspath(name_or_folder)
    if word in NAMES:
        return load_named(word, data_dir=data_dir)
    root = Path(word).expanduser().absolute()
    if not word or (not root.exists() and os.sep not in word):
        raise ValueError(f"unknown data set {word!r}: no such folder, and the built-in names are {', '.join(NAMES)}")
    if known := official_at(root):
        return known.load(root)
    _, records = open_records(root)
    training, evaluation = crops_for(size)
    splits = {
        name: StoredImages(each, training if name == "train" else evaluation, seed=seed)
        for name, each in records.items()
    }
    train, test, classes, change = splits["train"], splits["test"], splits["train"].classes, Augmentation(0, flip=True)
    return Pair(root.name, train, test, classes, IMAGENET, IMAGENET, change, splits.get("validation"))


def load(name_or_folder: Word, *, data_dir: Word | None = None, workers: int = 4) -> Pair[ImageSet]:
    """Load a data set into memory: a built-in one, or a folder of small images that all have one size.

    A folder is then treated as CIFAR is: `pixel / 128 - 1`, shifted by up to an eighth of its side, mirrored.

    >>> load("digits").num_classes
    10
    """
    opened = open_data(name_or_folder, data_dir)
    if isinstance(opened.train, ImageSet):
        return opened
    assert isinstance(opened.test, StoredImages)
    train = into_memory(opened.train, workers=workers)
    test = into_memory(opened.test, workers=workers)
    if train.shape != test.shape:
        raise DataError(f"{opened.name}: training images are {train.shape}, test images {test.shape}")
    validation = opened.validation
    return Pair(
        name=opened.name,
        train=train,
        test=test,
        classes=opened.classes,
        normalisation=centred(train.shape[0]),
        standardised=IMAGENET,
        augmentation=Augmentation(pad=min(train.shape[1:]) // 8, flip=True),
        validation=into_memory(validation, workers=workers) if isinstance(validation, StoredImages) else None,
    )
