"""Data sets of other libraries by name: `hf:NAME` of Hugging Face datasets, `torchvision:NAME` of torchvision.

Neither library is imported before such a name is opened. Small images of one size are held in memory, as those of
built-in sets; others are decoded while training, as those of a folder.
"""

from __future__ import annotations

import inspect
import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from aol._need import need
from aol.lab.data.encoded_images import Records, assign_splits
from aol.lab.data.errors import DataError
from aol.lab.data.named import Folder, search_folders
from aol.lab.data.parquet import LABEL_COLUMNS

_TRAIN, _TEST = ("train", "trainval"), ("test", "validation", "val", "valid")


def is_source(word: str) -> bool:
    """Return whether a word names a data set of another library.

    >>> is_source("hf:beans"), is_source("photos")
    (True, False)
    """
    name, colon, rest = word.partition(":")
    return bool(colon and rest) and name in SOURCES


def open_source(word: str, data_dir: Folder | None = None) -> dict[str, Records]:
    """Open the splits of a data set of another library: train and test, and validation where there is one."""
    name, _, rest = word.partition(":")
    splits = SOURCES[name](word, rest, data_dir)
    train = next((splits[name] for name in _TRAIN if name in splits), None)
    others = [splits[name] for name in _TEST if name in splits]
    if train is None or not others:
        raise DataError(f"{word}: a train and a labelled test or validation split are needed, not {', '.join(splits)}")
    return assign_splits(train, others, word)


def _whole_labels(labels: Any, count: int, name: str) -> Tensor:
    """Return the labels of `count` images as int64; `DataError` unless each has one whole number."""
    try:
        values = labels.numpy() if isinstance(labels, Tensor) else np.array(labels)
    except ValueError:  # lists of different lengths
        values = np.array(labels, dtype=object)
    if values.dtype.kind not in "biu" or values.shape != (count,):
        kind = f"{values.dtype} {list(values.shape)}"
        raise DataError(f"{name}: one whole number as the label of each image is needed, not {kind}")
    return torch.from_numpy(values.astype(np.int64))


class _Rows:
    """Records that are known by their number in a split."""

    name: str
    labels: Tensor
    classes: tuple[str, ...]
    _stamp: str

    def source(self, index: int) -> str:
        return f"{self.name} (row {index})"

    def stamp(self, index: int) -> str:
        return f"{self._stamp}:{index}"

    def names(self, index: Sequence[int]) -> list[str]:
        return [f"{self.name}#{row}" for row in index]


# Hugging Face datasets


class _HubRecords(_Rows):
    """A split with a column of images and a column of labels; rows are read from the Arrow file when asked for."""

    def __init__(self, rows: Any, name: str) -> None:
        datasets = _datasets()
        images = [column for column, kind in rows.features.items() if isinstance(kind, datasets.Image)]
        labels = [column for column in LABEL_COLUMNS if column in rows.features]
        if not images or not labels:
            wanted = "an Image column" if not images else f"a column of labels ({', '.join(LABEL_COLUMNS)})"
            raise DataError(f"{name}: {wanted} is needed, among {', '.join(rows.features)}")
        self.name, self._image = name, images[0]
        self._rows = rows.select_columns([images[0]]).cast_column(images[0], datasets.Image(decode=False))
        self.labels = _whole_labels(rows.with_format("arrow")[labels[0]][:].to_numpy(), len(rows), name)
        if not len(self.labels):
            raise DataError(f"{name}: no rows in it")
        self.classes = tuple(getattr(rows.features[labels[0]], "names", None) or ())
        self._stamp = str(rows._fingerprint)

    def encoded(self, index: int) -> bytes:
        cell = self._rows[index][self._image] or {}
        if cell.get("bytes") is not None:
            return bytes(cell["bytes"])
        if not cell.get("path"):
            raise DataError(f"{self.source(index)}: no image in it")
        return Path(cell["path"]).read_bytes()


def _datasets() -> Any:
    return need("datasets", package="datasets", extra="hf", why="a data set of Hugging Face")


def _open_hub(word: str, rest: str, data_dir: Folder | None) -> dict[str, Records]:
    """Open `hf:NAME`, `hf:NAME:CONFIGURATION` (from the cache, or the hub), or `hf:FOLDER` of `save_to_disk`."""
    datasets = _datasets()
    folder = Path(rest).expanduser()
    name, _, configuration = rest.partition(":")
    try:
        if folder.is_dir() and ((folder / "dataset_dict.json").is_file() or (folder / "state.json").is_file()):
            found = datasets.load_from_disk(str(folder))
        elif folder.is_dir():
            found = datasets.load_dataset(str(folder))
        else:
            found = datasets.load_dataset(name, configuration or None)
    except (OSError, ValueError, RuntimeError) as reason:  # not found, no network, another configuration
        raise DataError(f"{word}: {' '.join(str(reason).split())}") from reason
    if not isinstance(found, Mapping):
        raise DataError(f"{word}: one split only; a train and a test split are needed")
    return {split: _HubRecords(rows, f"{word}/{split}") for split, rows in found.items()}


# torchvision


class _VisionRecords(_Rows):
    """A data set of torchvision, whose items are (image, label); images are passed on without compression."""

    def __init__(self, items: Any, name: str) -> None:
        self.name, self._items = name, items
        known = next((getattr(items, each) for each in ("targets", "labels", "_labels") if hasattr(items, each)), None)
        labels = [items[index][1] for index in range(len(items))] if known is None else known
        self.labels = _whole_labels(labels, len(items), name)
        self._stamp = str(len(items))
        self.classes = tuple(map(str, getattr(items, "classes", None) or ()))

    def encoded(self, index: int) -> bytes:
        buffer = io.BytesIO()
        self._items[index][0].convert("RGB").save(buffer, "PPM")
        return buffer.getvalue()


def _open_torchvision(word: str, rest: str, data_dir: Folder | None) -> dict[str, Records]:
    """Open `torchvision:NAME` in the folders where built-in sets are looked for; nothing is downloaded."""
    vision = need("torchvision.datasets", package="torchvision", extra="torchvision", why="a data set of torchvision")
    kind: Any = getattr(vision, rest, None)
    if not inspect.isclass(getattr(vision, rest, None)):  # of `kind`, mypy would know no arguments
        raise DataError(f"{word}: torchvision has no data set {rest!r}")
    accepted = inspect.signature(kind).parameters
    if "train" not in accepted and "split" not in accepted:
        raise DataError(f"{word}: it has no train and test splits")
    roots, reason = search_folders(data_dir), ""
    for root in roots:
        found: dict[str, Records] = {}
        for split in (*_TRAIN, *_TEST):
            chosen = {"split": split} if "split" in accepted else {"train": split in _TRAIN}
            if "train" in accepted and "split" not in accepted and split not in ("train", "test"):
                continue
            try:
                found[split] = _VisionRecords(kind(str(root), **chosen), f"{word}/{split}")
            except (RuntimeError, OSError) as error:  # not there
                reason = " ".join(str(error).split())
            except ValueError:  # it has no such split
                continue
        if found:
            return found
    raise FileNotFoundError(
        f"{word} was not found in {', '.join(map(str, roots))} ({reason}); torchvision downloads it: "
        f'torchvision.datasets.{rest}("{roots[0]}", download=True)'
    )


SOURCES: Mapping[str, Callable[[str, str, Folder | None], dict[str, Records]]] = {
    "hf": _open_hub,
    "torchvision": _open_torchvision,
}
