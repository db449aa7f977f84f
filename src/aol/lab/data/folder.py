"""Image folders: `root/train/CLASS/image` beside `root/val` or `root/test`, or `root/CLASS/image` alone.

Class folders hold images at any depth; other files and hidden ones are ignored. Class numbers follow the sorted folder
names. ImageNet-1k (train/n01440764/*.JPEG) and Places365 (train/airfield/*.jpg) have this layout.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from aol.lab.data.encoded_images import StoredImages
from aol.lab.data.errors import DataError

EXTENSIONS = (".jpg", ".jpeg", ".png", ".bmp", ".ppm", ".pgm", ".tif", ".tiff", ".webp")
TEST_FOLDERS = ("test", "val", "validation", "valid")


class _FolderImages(StoredImages):
    """The images of one split folder, in the order of sorted class and file names.

    `inside` is the folder's path inside the data set.
    """

    def __init__(self, folder: Path, name: str, inside: str = "") -> None:
        classes = class_folders(folder)
        if not classes:
            raise DataError(f"{folder}: no class folders in it")
        files = [sorted(_images(folder / label)) for label in classes]
        if empty := [label for label, images in zip(classes, files, strict=True) if not images]:
            raise DataError(f"{folder / empty[0]}: an empty class folder, no image in it")
        labels = torch.arange(len(files)).repeat_interleave(torch.tensor([len(images) for images in files]))
        super().__init__(name, [_as_text(label) for label in classes], labels)
        self._folder, self._inside = str(folder), inside
        # One array: of a million strings, every worker would get a copy.
        self._files = np.array([os.fsencode(file) for images in files for file in images])

    def encoded(self, place: int) -> str:
        return os.path.join(self._folder, os.fsdecode(self._files[place]))

    source = encoded

    def names(self, index: Tensor) -> list[str]:
        return [_as_text(os.path.join(self._inside, os.fsdecode(self._files[at]))) for at in index.tolist()]

    def _choose(self, index: Tensor) -> None:
        self._files = self._files[index.numpy()]


def class_folders(folder: Path) -> list[str]:
    """Return the sorted names of the folders in a folder, hidden ones left out."""
    with os.scandir(folder) as entries:
        return sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))


def _as_text(name: str) -> str:
    r"""Return a file's name as text that can be written anywhere: bytes that are no UTF-8 become a code.

    >>> _as_text(os.fsdecode(b"caf\xe9"))
    'caf\\xe9'
    """
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def _images(folder: Path) -> Iterator[str]:
    """Yield the paths of the images in a class folder and below it, from the name of the folder on."""
    for place, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        inside = os.path.relpath(place, folder.parent)
        images = (name for name in files if name.lower().endswith(EXTENSIONS) and not name.startswith("."))
        yield from (os.path.join(inside, name) for name in images)


def open_folder(root: Path) -> dict[str, StoredImages]:
    """Open the splits of a folder: `train` and those beside it that have class folders, or the whole as `train`."""
    if (root / "train").is_dir():
        names = ["train", *(name for name in TEST_FOLDERS if (root / name).is_dir() and class_folders(root / name))]
        return {name: _FolderImages(root / name, f"{root.name}/{name}", name) for name in names}
    classes = class_folders(root)
    if len(classes) < 2 or {label.lower() for label in classes} <= {*TEST_FOLDERS, "train", "training", "testing"}:
        tables = next(root.rglob("*.parquet"), None) or next(root.rglob("*.arrow"), None)
        hint = f"; it has tables: use hf:{root}" if tables else ""
        raise DataError(f"{root}: neither a folder named train nor at least two class folders in it{hint}")
    return {"train": _FolderImages(root, f"{root.name}/train")}
