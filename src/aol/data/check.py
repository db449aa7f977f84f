"""`aol data check`: where a data set is, how large it is, and which of its files are damaged.

Built-in sets are compared with their published checksums, packed ones with their own; other folders are checked for
layout, classes and labels, and decoded as a whole only on request.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from aol.data.encoded_images import Records, StoredImages, damaged, problems
from aol.data.errors import DataError
from aol.data.images import ImageSet, Pair
from aol.data.named import OFFICIAL, Official, find, load_named, missing_message, official_at
from aol.data.open import open_data, open_records
from aol.data.packed import PackedRecords

Progress = Callable[[str, int, int], None]


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
    name_or_folder: str | os.PathLike[str],
    *,
    data_dir: str | os.PathLike[str] | None = None,
    decode: bool = False,
    workers: int = 4,
    progress: Progress | None = None,
) -> Report:
    """Check a data set. `decode` also decodes every image of a folder, Parquet, LMDB or packed set.

    >>> check("digits").sizes
    {'train': 1438, 'test': 359}
    """
    word = os.fspath(name_or_folder)
    if word == "digits":
        return _loaded("digits", "inside scikit-learn", load_named(word), [])
    root = Path(word).expanduser().absolute()
    if known := OFFICIAL.get(word):
        folder = find(word, data_dir=data_dir)
        if folder is None:
            return Report(word, "built-in", None, [missing_message(known, data_dir)])
        return _check_official(known, folder)
    if known := official_at(root):
        return _check_official(known, root)
    if not word or not root.exists():
        open_data(word, data_dir)  # says what is wrong with the word
    try:
        kind, splits = open_records(root)
    except (DataError, FileNotFoundError) as reason:
        return Report(root.name, "unknown", str(root), [str(reason)])
    found: list[str] = []
    for split, records in splits.items():
        found += _split_problems(split, records, decode=decode, workers=workers, progress=progress)
    sizes = {split: len(records.labels) for split, records in splits.items()}
    return Report(root.name, kind, str(root), found, sizes, len(splits["train"].classes))


def _split_problems(
    split: str, records: Records, *, decode: bool, workers: int, progress: Progress | None
) -> list[str]:
    def report(done: int, total: int) -> None:
        if progress is not None:
            progress(split, done, total)

    found: list[str] = []
    if decode:
        found = damaged(StoredImages(records), workers=workers, progress=report)
    elif isinstance(records, PackedRecords):
        found = problems(records.encoded, len(records.labels), workers, report)
    return found + (problems(records.table, records.shards) if isinstance(records, PackedRecords) else [])


def _check_official(known: Official, folder: Path) -> Report:
    paths = [(member, path) for member, path in zip(known.members, known.present(folder), strict=True) if path]
    files = [FileState(str(path), path.stat().st_size, member.problem(path)) for member, path in paths]
    problems = [f"{f.path}: {f.problem}" for f in files if f.problem is not None]
    if problems:
        return Report(known.name, "built-in", str(folder), problems, files=files)
    return _loaded(known.name, str(folder), known.load(folder), files)


def _loaded(name: str, where: str, pair: Pair[ImageSet], files: list[FileState]) -> Report:
    sizes = {"train": len(pair.train), "test": len(pair.test)}
    return Report(name, "built-in", where, [], sizes, pair.num_classes, pair.train.shape, files)
