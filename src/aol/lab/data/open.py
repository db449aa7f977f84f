"""`--data NAME_OR_FOLDER`: opens a built-in set, a folder of images, or a set of Hugging Face `datasets`.

A built-in name is never a folder: write `./digits` for a folder of that name. Layout, classes and labels are checked
on opening, before training starts.

Folders: `root/train/CLASS/image` beside `root/val` or `root/test`, or `root/CLASS/image` alone, as ImageNet-1k
(train/n01440764/*.JPEG) and Places365 (train/airfield/*.jpg). Class folders hold images at any depth; other files and
hidden ones are ignored. Class numbers follow the sorted folder names.
"""

from __future__ import annotations

import io
import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from aol._need import need
from aol._values import did_you_mean
from aol.lab.data.encoded_images import StoredImages
from aol.lab.data.images import IMAGENET, Augmentation, DataError, ImageSet, Pair, centred, split_per_class
from aol.lab.data.named import NAMES, NUM_CLASSES, Folder, load_named, official_at

if TYPE_CHECKING:
    from aol.lab.settings import Settings

EXTENSIONS = (".jpg", ".jpeg", ".png", ".bmp", ".ppm", ".pgm", ".tif", ".tiff", ".webp")
TEST_FOLDERS = ("test", "val", "validation", "valid")
LABEL_COLUMNS = ("label", "labels", "fine_label")
_SMALL = 64  # pixels: the largest images of other libraries that are held in memory


def open_data(name_or_folder: Folder, data_dir: Folder | None = None) -> Pair[ImageSet] | Pair[StoredImages]:
    """Open a data set: a built-in name in memory (`ImageSet`), a folder of images of any size (`StoredImages`).

    Images of `hf:NAME_OR_FOLDER` are held in memory if they have one size of up to 64 pixels a side, and then treated
    as CIFAR is: `pixel / 128 - 1`, shifted by up to an eighth of their side, mirrored.

    >>> open_data("digits").train.shape
    (1, 8, 8)
    """
    word = os.fspath(name_or_folder)
    if word in NAMES:
        return load_named(word, data_dir=data_dir)
    if is_source(word):
        pair = _pair(word, open_source(word))
        return _in_memory(pair) or pair
    root = Path(word).expanduser().absolute()
    if not word or not root.exists():
        names, hint = ", ".join(NAMES), did_you_mean(root.name, NAMES)
        raise ValueError(f"unknown data set {word!r}: no such folder, and the built-in names are {names}.{hint}")
    if not root.is_dir():
        others = "for tables see docs/how-to/sklearn.md and boosted-trees.md, for text docs/how-to/transformers.md"
        raise ValueError(f"{root} is a file, and images are read from folders; {others}.")
    known = official_at(root)
    return known.load(root) if known else _pair(root.name, _open_folder(root))


def open_sets(
    folders: Mapping[str, str], data_dir: str | None, runs: Iterable[Settings]
) -> dict[str, Pair[ImageSet] | Pair[StoredImages]]:
    """Open the data sets of some runs: by name, or from the folder that is given for a name."""
    pairs = {}
    for name in dict.fromkeys(run.data for run in runs):
        if not (name in folders or name in NAMES or is_source(name) or Path(name).exists()):
            text = f"The data set {name} must be given: --data {name}=FOLDER; or leave it out with --only data=..."
            raise ValueError(text)
        pairs[name] = pair = open_data(folders.get(name, name), data_dir)
        if pair.num_classes != NUM_CLASSES.get(name, pair.num_classes):  # records would be taken for damaged ones
            place = f"--data {name}={folders[name]}"
            raise ValueError(f"{place} has {pair.num_classes} classes, but {name} has {NUM_CLASSES[name]}.")
    return pairs


def _pair(name: str, splits: Mapping[str, StoredImages]) -> Pair[StoredImages]:
    """Return splits as train, test and, where there is one more, validation, all with the classes of train.

    A split whose labels are all -1, as in the test splits of competitions, is left out. Without a test split, a fifth
    of each class becomes one, drawn with seed 0.
    """
    train = splits.get("train") or splits.get("trainval")
    if train is None:
        raise DataError(f"{name}: a train split is needed, not {', '.join(splits)}")
    others = [splits[word] for word in TEST_FOLDERS if word in splits and bool((splits[word].labels != -1).any())]
    most = min(int(train.labels.max()) + 1, len(train))  # a label beyond the number of samples is a mistake
    classes = train.classes or tuple(map(str, range(most)))
    for split in (train, *others):
        if split.classes not in ((), classes):
            different = sorted(set(classes) ^ set(split.classes)) or split.classes
            raise DataError(f"{name}: the classes of {train.name} and {split.name} differ: {different[0]!r}")
        split.classes = classes
        if wrong := ((split.labels < 0) | (split.labels >= split.num_classes)).nonzero().flatten().tolist():
            what = f"label {int(split.labels[wrong[0]])} at position {wrong[0]}"
            raise DataError(f"{split.name}: {what} is not one of the {len(classes)} classes")
    counts = train.counts.tolist()
    if 0 in counts:
        raise DataError(f"{train.name}: no image of class {classes[counts.index(0)]!r}")
    if not others:
        if 1 in counts:
            single = classes[counts.index(1)]
            raise DataError(f"{train.name}: a single image of class {single!r}; without a test split, two are needed")
        kept, held = split_per_class(train.labels, 0.2, seed=0)
        logging.getLogger("aol").warning("%s has no test split: a fifth of each class is held out as one.", name)
        others = [train.subset(held, f"{name}/test")]
        train = train.subset(kept, train.name)
    test, validation, *_ = *others, None
    return Pair(name, train, test, classes, IMAGENET, IMAGENET, Augmentation(0, flip=True), validation)


def _in_memory(pair: Pair[StoredImages]) -> Pair[ImageSet] | None:
    """Return a set of small images of one size in memory; None if it is not one."""
    shape = pair.train.whole(0).shape
    splits: list[ImageSet] = []
    for split in (pair.train, pair.test, *filter(None, [pair.validation])):
        images = [split.whole(place) for place in range(len(split))] if max(shape[1:]) <= _SMALL else []
        if not images or any(image.shape != shape for image in images):
            return None
        splits.append(ImageSet(torch.stack(images), split.labels, split.classes, split.name))
    change = Augmentation(pad=min(shape[1:]) // 8, flip=True)
    train, test, *rest = splits
    return Pair(pair.name, train, test, pair.classes, centred(3), IMAGENET, change, rest[0] if rest else None)


class _FolderImages(StoredImages):
    """The images of one split folder, in the order of sorted class and file names; `inside` is its path in the set."""

    def __init__(self, folder: Path, name: str, inside: str = "") -> None:
        classes = _class_folders(folder)
        if not classes:
            raise DataError(f"{folder}: no class folders in it")
        files = [sorted(_images(folder / label)) for label in classes]
        if empty := [label for label, images in zip(classes, files, strict=True) if not images]:
            raise DataError(f"{folder / empty[0]}: an empty class folder, no image in it")
        labels = torch.arange(len(files)).repeat_interleave(torch.tensor([len(images) for images in files]))
        where = np.array([os.fsencode(file) for images in files for file in images])
        super().__init__(name, [_as_text(label) for label in classes], labels, where)
        self._folder, self._inside = str(folder), inside

    def encoded(self, place: int) -> str:
        return os.path.join(self._folder, os.fsdecode(self._where[place]))

    def names(self, index: Tensor) -> list[str]:
        return [_as_text(os.path.join(self._inside, os.fsdecode(self._where[at]))) for at in index.tolist()]


def _class_folders(folder: Path) -> list[str]:
    with os.scandir(folder) as entries:
        return sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))


def _as_text(name: str) -> str:
    """Return a file's name as text that can be written anywhere: bytes that are no UTF-8 become a code."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def _images(folder: Path) -> Iterator[str]:
    """Yield the paths of the images in a class folder and below it, from the name of the folder on."""
    for place, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        inside = os.path.relpath(place, folder.parent)
        images = (name for name in files if name.lower().endswith(EXTENSIONS) and not name.startswith("."))
        yield from (os.path.join(inside, name) for name in images)


def _open_folder(root: Path) -> dict[str, StoredImages]:
    """Open the splits of a folder: `train` and those beside it that have class folders, or the whole as `train`."""
    if (root / "train").is_dir():
        names = ["train", *(name for name in TEST_FOLDERS if (root / name).is_dir() and _class_folders(root / name))]
        return {name: _FolderImages(root / name, f"{root.name}/{name}", name) for name in names}
    classes = _class_folders(root)
    if len(classes) < 2 or {label.lower() for label in classes} <= {*TEST_FOLDERS, "train", "training", "testing"}:
        tables = next(root.rglob("*.parquet"), None) or next(root.rglob("*.arrow"), None)
        hint = f"; it has tables: use hf:{root}" if tables else ""
        raise DataError(f"{root}: neither a folder named train nor at least two class folders in it{hint}")
    return {"train": _FolderImages(root, f"{root.name}/train")}


def is_source(word: str) -> bool:
    """Return whether a word names a data set that Hugging Face `datasets` reads."""
    return word.startswith("hf:") and len(word) > 3


class _TableImages(StoredImages):
    """A split with a column of images and a column of labels; rows are read from the Arrow file when asked for."""

    def __init__(self, rows: Any, name: str) -> None:
        datasets = need("datasets", "a data set of Hugging Face")
        images = [column for column, kind in rows.features.items() if isinstance(kind, datasets.Image)]
        columns = [column for column in LABEL_COLUMNS if column in rows.features]
        if not images or not columns:
            wanted = "an Image column" if not images else f"a column of labels ({', '.join(LABEL_COLUMNS)})"
            raise DataError(f"{name}: {wanted} is needed, among {', '.join(rows.features)}")
        values = rows.with_format("arrow")[columns[0]][:].to_numpy(zero_copy_only=False)
        if values.dtype.kind not in "iu" or not len(values):
            raise DataError(f"{name}: one whole number as the label of each image is needed, not {values.dtype}")
        labels = torch.from_numpy(values.astype("int64"))
        super().__init__(name, getattr(rows.features[columns[0]], "names", None) or (), labels, np.arange(len(rows)))
        self._image, self._split = images[0], name
        self._rows = rows.select_columns(images[:1]).cast_column(images[0], datasets.Image(decode=False))

    def encoded(self, place: int) -> str | io.BytesIO:
        cell = self._rows[int(self._where[place])][self._image] or {}
        if cell.get("bytes") is None and not cell.get("path"):
            raise DataError(f"{self.names(torch.tensor([place]))[0]}: no image in it")
        return str(cell["path"]) if cell.get("bytes") is None else io.BytesIO(cell["bytes"])

    def names(self, index: Tensor) -> list[str]:
        return [f"{self._split}#{row}" for row in self._where[index.numpy()]]


def open_source(word: str) -> dict[str, StoredImages]:
    """Open the splits of `hf:NAME`, `hf:NAME:CONFIGURATION` (from the cache, or the hub), or `hf:FOLDER`."""
    datasets, rest = need("datasets", "a data set of Hugging Face"), word.removeprefix("hf:")
    folder = Path(rest).expanduser()
    name, _, configuration = rest.partition(":")
    try:
        if (folder / "dataset_dict.json").is_file() or (folder / "state.json").is_file():  # of save_to_disk
            opened = datasets.load_from_disk(str(folder))
        elif folder.is_dir():
            opened = datasets.load_dataset(str(folder))
        else:
            opened = datasets.load_dataset(name, configuration or None)
    except (OSError, ValueError, RuntimeError) as reason:  # not there, no network, another configuration
        raise DataError(f"{word}: {' '.join(str(reason).split())}") from reason
    splits = opened if isinstance(opened, Mapping) else {"train": opened}
    return {split: _TableImages(rows, f"{word}/{split}") for split, rows in splits.items()}
