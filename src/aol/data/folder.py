"""Image folders: `root/train/CLASS/image` beside `root/val` or `root/test`, or `root/CLASS/image` alone.

Assumes class folders hold images at any depth; other files and hidden ones are ignored. Class numbers follow the sorted
folder names. ImageNet-1k (train/n01440764/*.JPEG) and Places365 (train/airfield/*.jpg) have this layout.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch

from aol.data.decode import EXTENSIONS
from aol.data.encoded_images import Records, Subset
from aol.data.errors import DataError
from aol.data.images import split_per_class

TEST_FOLDERS = ("test", "val", "validation", "valid")


class FileNames:
    """Many file names in two arrays: a list of a million strings would be copied into every worker.

    >>> FileNames(["a.png", "b/c.png"])[1]
    'b/c.png'
    """

    def __init__(self, names: Sequence[str]) -> None:
        encoded = [os.fsencode(name) for name in names]
        self._ends = np.cumsum([len(name) for name in encoded], dtype=np.int64)
        self._bytes = np.frombuffer(b"".join(encoded), np.uint8)

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, index: int) -> str:
        start = int(self._ends[index - 1]) if index else 0
        return os.fsdecode(self._bytes[start : int(self._ends[index])].tobytes())


class _FolderRecords:
    """The images of one split folder, in the order of sorted class and file names.

    `inside` is the folder's path inside the data set.
    """

    def __init__(self, folder: Path, name: str, inside: str = "") -> None:
        self.name, self._inside = name, inside
        self._folder = str(folder)
        labels = class_folders(folder)
        if not labels:
            raise DataError(f"{folder}: no class folders in it")
        self.classes = tuple(_as_text(label) for label in labels)
        found = [sorted(_images(os.path.join(self._folder, label), label)) for label in labels]
        for label, images in zip(labels, found, strict=True):
            if not images:
                raise DataError(f"{folder / label}: an empty class folder, no image in it")
        self._names = FileNames([name for images in found for name in images])
        counts = torch.tensor([len(images) for images in found])
        self.labels = torch.arange(len(found)).repeat_interleave(counts)

    def encoded(self, index: int) -> bytes:
        with open(self.source(index), "rb") as file:
            return file.read()

    def source(self, index: int) -> str:
        return os.path.join(self._folder, self._names[index])

    def stamp(self, index: int) -> str:
        state = os.stat(self.source(index))
        return f"{self._names[index]}:{state.st_size}:{state.st_mtime_ns}"

    def names(self, index: Sequence[int]) -> list[str]:
        """Return the paths of the files at these positions inside the data set."""
        return [_as_text(os.path.join(self._inside, self._names[place])) for place in index]


def class_folders(folder: Path) -> list[str]:
    """Return the sorted names of the folders in a folder, hidden ones left out."""
    with os.scandir(folder) as entries:
        return sorted(e.name for e in entries if e.is_dir() and not e.name.startswith("."))


def _as_text(name: str) -> str:
    r"""Return a file's name as text that can be written anywhere: bytes that are no UTF-8 become a code.

    >>> _as_text(os.fsdecode(b"caf\xe9"))
    'caf\\xe9'
    """
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def _images(folder: str, prefix: str) -> Iterator[str]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith("."):
                continue
            if entry.is_dir():
                if entry.is_symlink() and Path(folder).resolve().is_relative_to(Path(entry.path).resolve()):
                    raise DataError(f"{entry.path}: a link that leads back to a folder above it")
                yield from _images(entry.path, f"{prefix}/{entry.name}")
            elif entry.name.lower().endswith(EXTENSIONS):
                yield f"{prefix}/{entry.name}"


def open_folder(root: Path) -> dict[str, Records]:
    """Open a folder's splits: `train`, `test` and, where both `test` and `val` have labels, `validation`.

    A `test` folder without class folders (ImageNet's is unlabelled) is replaced by `val`. A root that holds
    class folders alone is split: one fifth of each class, drawn with seed 0, is the test split.
    """
    if not (root / "train").is_dir():
        records = _FolderRecords(root, f"{root.name}/train")
        if len(records.classes) < 2:
            raise DataError(f"{root}: neither a train folder nor at least two class folders in it")
        counts = torch.bincount(records.labels)
        if int(counts.min()) < 2:
            raise DataError(
                f"{root / records.classes[int(counts.argmin())]}: a single image; without train and test folders, "
                "every class needs at least two"
            )
        kept, held = split_per_class(records.labels, 0.2, seed=0)
        return {
            "train": Subset(records, kept, f"{root.name}/train"),
            "test": Subset(records, held, f"{root.name}/test"),
        }
    labelled = [name for name in TEST_FOLDERS if (root / name).is_dir() and class_folders(root / name)]
    if not labelled:
        raise DataError(f"{root}: has a train folder but no test or val folder with class folders beside it")
    splits: dict[str, Records] = {"train": _FolderRecords(root / "train", f"{root.name}/train", "train")}
    for role, name in zip(("test", "validation"), labelled, strict=False):
        splits[role] = _FolderRecords(root / name, f"{root.name}/{name}", name)
        same_classes(splits["train"], splits[role], root / "train", root / name)
    return splits


def same_classes(train: Records, other: Records, train_at: Path, other_at: Path) -> None:
    """Raise `DataError` unless two splits name the same classes in the same order."""
    if train.classes == other.classes:
        return
    lacking = [c for c in train.classes if c not in set(other.classes)]
    foreign = [c for c in other.classes if c not in set(train.classes)]
    said = [f"{other_at} lacks {_some(lacking)} of {train_at}"] * bool(lacking)
    said += [f"{other_at} has {_some(foreign)}, which {train_at} has not"] * bool(foreign)
    raise DataError("classes differ: " + (" and ".join(said) or f"{other_at} has another order than {train_at}"))


def _some(names: Sequence[str]) -> str:
    listed = ", ".join(repr(n) for n in names[:3])
    return listed if len(names) <= 3 else f"{listed} and {len(names) - 3} more"
