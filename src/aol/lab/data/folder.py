"""Image folders: `root/train/CLASS/image` beside `root/val` or `root/test`, or `root/CLASS/image` alone.

Assumes class folders hold images at any depth; other files and hidden ones are ignored. Class numbers follow the sorted
folder names. ImageNet-1k (train/n01440764/*.JPEG) and Places365 (train/airfield/*.jpg) have this layout.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from aol._files import read_regular
from aol.lab.data.decode import EMPTY, EXTENSIONS, LARGEST
from aol.lab.data.encoded_images import Records, assign_splits
from aol.lab.data.errors import DataError
from aol.lab.data.images import split_per_class

TEST_FOLDERS = ("test", "val", "validation", "valid")
_NO_CLASS = "no class folders in it"
_NO_IMAGE = "an empty class folder, no image in it"
_NO_SPLIT = "neither a train folder nor at least two class folders in it"
_SPLITS = {"train", "training", "test", "testing", "val", "valid", "validation"}
_NAMED_SPLITS = "its folders are splits, not classes: they must be called train, and test or val, in lower case"
_NO_TEST = "has a train folder but no test or val folder with class folders beside it"
_LEADS_BACK = "a link that leads back to a folder above it"
_SINGLE = "a single image; without train and test folders, every class needs at least two"
# Pictures that people put into a folder, and that are not read.
_OTHER_PICTURES = (
    ".gif", ".heic", ".heif", ".avif", ".jp2", ".jpe", ".jfif", ".svg", ".psd", ".raw", ".cr2", ".nef", ".dng",
)  # fmt: skip


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
            raise DataError(f"{folder}: {_NO_CLASS}")
        self.classes = tuple(_as_text(label) for label in labels)
        found = [sorted(_images(os.path.join(self._folder, label), label)) for label in labels]
        if empty := [label for label, images in zip(labels, found, strict=True) if not images]:
            more = f" (and {len(empty) - 1} more: `aol data check` lists them)" if len(empty) > 1 else ""
            raise DataError(f"{folder / empty[0]}: {_NO_IMAGE}{more}")
        self._names = FileNames([name for images in found for name in images])
        counts = torch.tensor([len(images) for images in found])
        self.labels = torch.arange(len(found)).repeat_interleave(counts)

    def encoded(self, index: int) -> bytes:
        return read_regular(Path(self.source(index)), LARGEST)

    def source(self, index: int) -> str:
        return os.path.join(self._folder, self._names[index])

    def stamp(self, index: int) -> str:
        state = os.stat(self.source(index))
        return f"{self._names[index]}:{state.st_size}:{state.st_mtime_ns}"

    def names(self, index: Sequence[int]) -> list[str]:
        """Return the paths of the files at these positions inside the data set."""
        return [_as_text(os.path.join(self._inside, self._names[place])) for place in index]

    def subset(self, index: Tensor, name: str) -> _FolderRecords:
        """Return the images at these positions as a split of their own."""
        chosen = copy.copy(self)
        chosen.name, chosen.labels = name, self.labels[index]
        chosen._names = FileNames([self._names[place] for place in index.tolist()])
        return chosen


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


def _files(folder: str, prefix: str) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """Walk through a folder; give what is not a folder, and links to a folder above, with its path from `prefix`."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith("."):
                continue
            if entry.is_dir() and not _leads_back(entry):
                yield from _files(entry.path, f"{prefix}/{entry.name}")
            else:
                yield f"{prefix}/{entry.name}", entry


def _leads_back(entry: os.DirEntry[str]) -> bool:
    return entry.is_symlink() and Path(entry.path).parent.resolve().is_relative_to(Path(entry.path).resolve())


def _images(folder: str, prefix: str) -> Iterator[str]:
    for name, entry in _files(folder, prefix):
        image = name.lower().endswith(EXTENSIONS)
        if entry.is_dir() or (image and not entry.is_file()):
            raise DataError(f"{entry.path}: {_file_problem(entry)}")
        if image:
            yield name


def open_folder(root: Path) -> dict[str, Records]:
    """Open a folder's splits: `train`, `test` and, where both `test` and `val` have labels, `validation`.

    A `test` folder without class folders (ImageNet's is unlabelled) is replaced by `val`. A root that holds
    class folders alone is split: one fifth of each class, drawn with seed 0, is the test split.
    """
    if not (root / "train").is_dir():
        if problem := _classes_problem(class_folders(root)):
            raise DataError(f"{root}: {problem}")
        records = _FolderRecords(root, f"{root.name}/train")
        counts = torch.bincount(records.labels)
        if int(counts.min()) < 2:
            raise DataError(f"{root / records.classes[int(counts.argmin())]}: {_SINGLE}")
        kept, held = split_per_class(records.labels, 0.2, seed=0)
        return {
            "train": records.subset(kept, f"{root.name}/train"),
            "test": records.subset(held, f"{root.name}/test"),
        }
    names = _labelled_tests(root)
    if not names:
        raise DataError(f"{root}: {_NO_TEST}")
    train, *others = (_FolderRecords(root / name, f"{root.name}/{name}", name) for name in ("train", *names))
    return assign_splits(train, others, root)


def _classes_problem(labels: Sequence[str]) -> str | None:
    """Return what is wrong with the class folders of a set without a train folder, or None."""
    if labels and {label.lower() for label in labels} <= _SPLITS:
        return _NAMED_SPLITS
    return _NO_SPLIT if len(labels) < 2 else None


def _labelled_tests(root: Path) -> list[str]:
    """Return the names of the folders beside `train` that have class folders, at most two."""
    return [name for name in TEST_FOLDERS if (root / name).is_dir() and class_folders(root / name)][:2]


def layout_problems(root: Path) -> tuple[list[str], list[str]]:
    """Look at every file of an image folder: return one sentence for each problem, and the paths of its images.

    Unlike opening, this does not end at the first problem. Images are not opened.
    """
    split = (root / "train").is_dir()
    names = ["train", *_labelled_tests(root)] if split else [""]
    classes = {name: class_folders(root / name) for name in names}
    found = [] if classes[names[0]] else [f"{root / names[0]}: {_NO_CLASS}"]
    found += [f"{root}: {_NO_TEST}"] if split and len(names) == 1 else []
    if not split and (problem := _classes_problem(classes[""])):
        found.append(f"{root}: {problem}")
    images: list[str] = []
    for name, labels in classes.items():
        for label in labels:
            sentences, paths = _class_problems(root / name / label, fewest=1 if split else 2)
            found += sentences
            images += paths
        found += [f"{root / name}: no folder of class {label!r}" for label in classes[names[0]] if label not in labels]
        found += [
            f"{root / name / label}: no such class in train" for label in labels if label not in classes[names[0]]
        ]
    return found, images


def _class_problems(folder: Path, *, fewest: int) -> tuple[list[str], list[str]]:
    """Return one sentence for each problem of a class folder, and the paths of its images."""
    found, images = [], []
    try:
        for _, entry in sorted(_files(str(folder), "")):
            if problem := _file_problem(entry):
                found.append(f"{entry.path}: {problem}")
            elif entry.name.lower().endswith(EXTENSIONS):
                images.append(entry.path)
    except OSError as reason:
        found.append(f"{reason.filename}: cannot be read ({reason.strerror})")
    if len(images) < fewest:
        found.append(f"{folder}: {_SINGLE if images else _NO_IMAGE}")
    return found, images


def _file_problem(entry: os.DirEntry[str]) -> str | None:
    """Return what is wrong with a file in a class folder; None for a good one, and for one that is no picture."""
    name = entry.name.lower()
    if entry.is_dir():
        return _LEADS_BACK
    if name.endswith(_OTHER_PICTURES):
        return f"skipped, {name.rpartition('.')[2].upper()} is not read: convert it to PNG or JPEG, or remove it"
    if not name.endswith(EXTENSIONS):
        return None
    if not entry.is_file():
        return "a link to nothing" if entry.is_symlink() else "not a file"
    return EMPTY if entry.stat().st_size == 0 else None
