"""`--data NAME_OR_FOLDER`: opens a built-in set, a folder of images, or a set of Hugging Face `datasets`.

A built-in name is never a folder: write `./digits` for a folder of that name. Layout, classes and labels are checked
on opening, before training starts.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path

import torch

from aol.lab.data.encoded_images import StoredImages
from aol.lab.data.errors import DataError
from aol.lab.data.folder import TEST_FOLDERS, open_folder
from aol.lab.data.images import IMAGENET, Augmentation, ImageSet, Pair, centred, check_labels, split_per_class
from aol.lab.data.named import NAMES, Folder, load_named, official_at
from aol.lab.data.sources import is_source, open_source

_SMALL = 64  # pixels: the largest images of other libraries that are held in memory


def open_data(name_or_folder: Folder, data_dir: Folder | None = None) -> Pair[ImageSet] | Pair[StoredImages]:
    """Open a data set: a built-in name in memory (`ImageSet`), a folder of images of any size (`StoredImages`).

    Images of `hf:NAME_OR_FOLDER` are held in memory if they have one size of up to 64 pixels a side, and then treated
    as CIFAR is: `pixel / 128 - 1`, shifted by up to an eighth of their side, mirrored.

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
    if is_source(word):
        pair = _stored(word, open_source(word))
        return _in_memory(pair) or pair
    root = Path(word).expanduser().absolute()
    if not word or not root.exists():
        raise ValueError(f"unknown data set {word!r}: no such folder, and the built-in names are {', '.join(NAMES)}")
    if not root.is_dir():
        raise DataError(f"{root}: a file, not a folder with a data set in it")
    known = official_at(root)
    return known.load(root) if known else _stored(root.name, open_folder(root))


def _stored(name: str, splits: Mapping[str, StoredImages]) -> Pair[StoredImages]:
    """Return splits as train, test and, where there is one more, validation, all with the classes of train.

    A split whose labels are all -1, as in the test splits of competitions, is left out. Without a test split, a fifth
    of each class becomes one, drawn with seed 0.
    """
    train = splits.get("train") or splits.get("trainval")
    if train is None:
        raise DataError(f"{name}: a train split is needed, not {', '.join(splits)}")
    others = [splits[word] for word in TEST_FOLDERS if word in splits and bool((splits[word].labels != -1).any())]
    most = min(int(train.labels.max()) + 1, len(train))  # a label beyond the number of samples is a mistake
    classes = train.classes or tuple(str(number) for number in range(most))
    for split in (train, *others):
        if split.classes not in ((), classes):
            different = sorted(set(classes) ^ set(split.classes)) or split.classes
            raise DataError(f"{name}: the classes of {train.name} and {split.name} differ: {different[0]!r}")
        split.classes = classes
        check_labels(split.labels, split.num_classes, split.name)
    counts = train.counts.tolist()
    if 0 in counts:
        raise DataError(f"{train.name}: no image of class {train.classes[counts.index(0)]!r}")
    if not others:
        if min(counts) < 2:
            single = train.classes[counts.index(1)]
            raise DataError(f"{train.name}: a single image of class {single!r}; without a test split, two are needed")
        kept, held = split_per_class(train.labels, 0.2, seed=0)
        logging.getLogger("aol").warning("%s has no test split: a fifth of each class is held out as one.", name)
        others = [train.subset(held, f"{name}/test")]
        train = train.subset(kept, train.name)
    validation = others[1] if len(others) > 1 else None
    return Pair(name, train, others[0], train.classes, IMAGENET, IMAGENET, Augmentation(0, flip=True), validation)


def _in_memory(pair: Pair[StoredImages]) -> Pair[ImageSet] | None:
    """Return a set of small images of one size in memory; None if it is not one."""
    shape = pair.train.whole(0).shape
    splits = []
    for split in (pair.train, pair.test, *([] if pair.validation is None else [pair.validation])):
        images = [split.whole(place) for place in range(len(split))] if max(shape[1:]) <= _SMALL else []
        if not images or any(image.shape != shape for image in images):
            return None
        splits.append(ImageSet(torch.stack(images), split.labels, split.classes, split.name))
    train, test, *rest = splits
    change = Augmentation(pad=min(shape[1:]) // 8, flip=True)
    return Pair(pair.name, train, test, pair.classes, centred(3), IMAGENET, change, rest[0] if rest else None)
