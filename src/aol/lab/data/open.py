"""`--data NAME_OR_FOLDER`: recognises the kind of a data set, opens it, and checks it for `aol data check`.

Assumes a built-in name is never a folder: write `./digits` for a folder of that name. Layout, classes and labels are
checked on opening, before training starts. `check` also compares built-in sets with their published checksums and
packed ones with their own.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch

from aol.lab.data.crops import crops_for
from aol.lab.data.decode import decode as decoded
from aol.lab.data.decode import identify, open_image
from aol.lab.data.encoded_images import Records, StoredImages, into_memory, problems
from aol.lab.data.errors import DataError
from aol.lab.data.folder import class_folders, layout_problems, open_folder
from aol.lab.data.images import IMAGENET, Augmentation, ImageSet, Pair, centred
from aol.lab.data.lmdb_set import lmdb_split, open_lmdb
from aol.lab.data.named import NAMES, OFFICIAL, Folder, Official, find, load_named, missing_message, official_at
from aol.lab.data.packed import MANIFEST, PackedRecords, has_shards, open_packed
from aol.lab.data.parquet import open_parquet, parquet_folder
from aol.lab.data.sources import is_source, open_source

Progress = Callable[[str, int, int], None]
_SMALL = 64  # pixels: the largest images of other libraries that are held in memory
_OPEN = {"packed": open_packed, "parquet": open_parquet, "lmdb": open_lmdb, "folder": open_folder}


def _kind(root: Path) -> str:
    """Recognise a folder: packed, parquet, lmdb, folder or unknown."""
    if (root / MANIFEST).is_file():
        return "packed"
    if parquet_folder(root) is not None:
        return "parquet"
    if lmdb_split(root, "train") is not None:
        return "lmdb"
    return "folder" if class_folders(root) else "unknown"


def open_records(root: Path) -> dict[str, Records]:
    """Recognise a folder and open its splits."""
    if not root.exists():
        raise FileNotFoundError(f"{root}: no such folder; built-in names are {', '.join(NAMES)}")
    if not root.is_dir():
        raise DataError(f"{root}: a file, not a folder with a data set in it")
    kind = _kind(root)
    if kind in _OPEN:
        return _OPEN[kind](root)
    if has_shards(root):
        raise DataError(f"{root}: a packing that has not finished; run `aol data pack` again")
    raise DataError(
        f"{root}: no data set recognised; expected train and test folders of class folders, train*.parquet, "
        "train.lmdb or a packed set"
    )


def open_data(
    name_or_folder: Folder, data_dir: Folder | None = None, *, size: int = 224, seed: int = 0
) -> Pair[ImageSet] | Pair[StoredImages]:
    """Open a data set: a built-in name in memory (`ImageSet`), a folder decoded on the fly (`StoredImages`).

    `hf:NAME` and `torchvision:NAME` are held in memory if their images have up to 64 pixels a side, else decoded. A
    decoded training split is cropped at random to `size`, drawn by `seed`; the other splits centrally.

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
        pair = _stored(word, open_source(word, data_dir), size, seed)
        first = decoded(pair.train.records.encoded(0), pair.train.records.source(0))
        return _in_memory(pair) if max(first.shape[1:]) <= _SMALL else pair
    root = Path(word).expanduser().absolute()
    if not word or (not root.exists() and os.sep not in word):
        raise ValueError(f"unknown data set {word!r}: no such folder, and the built-in names are {', '.join(NAMES)}")
    if known := official_at(root):
        return known.load(root)
    return _stored(root.name, open_records(root), size, seed)


def _stored(name: str, records: dict[str, Records], size: int, seed: int) -> Pair[StoredImages]:
    training, evaluation = crops_for(size)
    splits = {
        split: StoredImages(each, training if split == "train" else evaluation, seed=seed)
        for split, each in records.items()
    }
    train, test, classes, change = splits["train"], splits["test"], splits["train"].classes, Augmentation(0, flip=True)
    return Pair(name, train, test, classes, IMAGENET, IMAGENET, change, splits.get("validation"))


def load(name_or_folder: Folder, *, data_dir: Folder | None = None, workers: int = 4) -> Pair[ImageSet]:
    """Load a data set into memory: a built-in one, or a folder of small images that all have one size.

    A folder is then treated as CIFAR is: `pixel / 128 - 1`, shifted by up to an eighth of its side, mirrored.

    >>> load("digits").num_classes
    10
    """
    opened = open_data(name_or_folder, data_dir)
    return opened if isinstance(opened.train, ImageSet) else _in_memory(opened, workers)


def _in_memory(opened: Pair[StoredImages], workers: int = 4) -> Pair[ImageSet]:
    splits = (opened.train, opened.test, opened.validation)
    train, test, *validation = (into_memory(s, workers=workers) for s in splits if isinstance(s, StoredImages))
    if train.shape != test.shape:
        raise DataError(f"{opened.name}: training images are {train.shape}, test images {test.shape}")
    scale, change = centred(train.shape[0]), Augmentation(pad=min(train.shape[1:]) // 8, flip=True)
    return Pair(opened.name, train, test, opened.classes, scale, IMAGENET, change, next(iter(validation), None))


@dataclass(frozen=True)
class FileState:
    """One file of a set: its bytes on disk and what is wrong with it, or None."""

    path: str
    bytes: int
    problem: str | None


@dataclass(frozen=True)
class Report:
    """What a check found. `problems` is empty when nothing is wrong; `sizes` counts the images of each split."""

    name: str
    kind: str
    where: str | None
    problems: list[str]
    sizes: dict[str, int] = field(default_factory=dict)
    classes: int = 0
    shape: tuple[int, int, int] | None = None
    files: list[FileState] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems


def check(
    name_or_folder: Folder,
    *,
    data_dir: Folder | None = None,
    decode: bool = False,
    workers: int = 4,
    progress: Progress | None = None,
) -> Report:
    """Check a data set and list all its problems. Of every image the header is read; with `decode` all pixels.

    Built-in sets are always compared with their published checksums, packed ones with their own.

    >>> check("digits").sizes
    {'train': 1438, 'test': 359}
    """
    word = os.fspath(name_or_folder)
    if word == "digits":
        return _loaded("digits", "inside scikit-learn", load_named(word), [])
    root = Path(word).expanduser().absolute()
    if is_source(word):
        splits = open_source(word, data_dir)
        found = _record_problems(splits, decode, workers, progress)
        return _report(word, word.partition(":")[0], word, splits, found)
    if known := OFFICIAL.get(word):
        folder = find(word, data_dir=data_dir)
        if folder is None:
            return Report(word, "built-in", None, [missing_message(known, data_dir)])
        return _check_official(known, folder)
    if known := official_at(root):
        return _check_official(known, root)
    if not word or not root.exists():
        open_data(word, data_dir)  # says what is wrong with the word
    kind = _kind(root) if root.is_dir() else "unknown"
    found = _folder_problems(root, decode, workers, progress) if kind == "folder" else []
    try:
        splits = open_records(root)
    except (DataError, FileNotFoundError) as reason:
        return Report(root.name, kind, str(root), found or [str(reason)])
    if kind != "folder":
        found = _record_problems(splits, decode, workers, progress)
    return _report(root.name, kind, str(root), splits, found)


def _report(name: str, kind: str, where: str, splits: dict[str, Records], found: list[str]) -> Report:
    if len(splits["train"].classes) < 2:
        found.append(f"{where}: a single class; at least two are needed")
    sizes = {split: len(records.labels) for split, records in splits.items()}
    return Report(name, kind, where, found, sizes, len(splits["train"].classes))


def _record_problems(splits: dict[str, Records], decode: bool, workers: int, progress: Progress | None) -> list[str]:
    """Return all problems of encoded images, of classes without any, and of packed sets."""
    found: list[str] = []
    for split, records in splits.items():
        report = None if progress is None else partial(progress, split)
        found += problems(_reader(records, decode), len(records.labels), workers, report)
        counts = torch.bincount(records.labels, minlength=len(records.classes)).tolist()
        empty = (name for name, count in zip(records.classes, counts, strict=True) if not count)
        found += [f"{records.name}: no image of class {name!r}" for name in empty]
        if isinstance(records, PackedRecords):
            found += problems(records.table, records.shards)
    return found


def _folder_problems(root: Path, decode: bool, workers: int, progress: Progress | None) -> list[str]:
    """Return all problems of an image folder: of its layout, then of its images."""
    found, images = layout_problems(root)

    def read(index: int) -> None:
        with open(images[index], "rb") as file:
            if decode:
                open_image(file.read(), images[index])
            else:
                identify(file, images[index])

    return found + problems(read, len(images), workers, None if progress is None else partial(progress, "images"))


def _reader(records: Records, decode: bool) -> Callable[[int], object]:
    """Return what reads a record, and its header or all its pixels."""
    if decode:
        return lambda at: open_image(records.encoded(at), records.source(at))
    return lambda at: identify(io.BytesIO(records.encoded(at)), records.source(at))


def _check_official(known: Official, folder: Path) -> Report:
    files = [FileState(str(path), path.stat().st_size, problem) for path, problem in known.state(folder)]
    found = [f"{f.path}: {f.problem}" for f in files if f.problem is not None]
    if found:
        return Report(known.name, "built-in", str(folder), found, files=files)
    return _loaded(known.name, str(folder), known.load(folder), files)


def _loaded(name: str, where: str, pair: Pair[ImageSet], files: list[FileState]) -> Report:
    sizes = {"train": len(pair.train), "test": len(pair.test)}
    return Report(name, "built-in", where, [], sizes, pair.num_classes, pair.train.shape, files)
