"""Data sets that Hugging Face `datasets` reads, as `hf:NAME_OR_FOLDER`: of the hub, or of images, Parquet or Arrow.

The library is not imported before such a name is opened.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from aol._need import need
from aol.lab.data.encoded_images import StoredImages
from aol.lab.data.errors import DataError

LABEL_COLUMNS = ("label", "labels", "fine_label")


def is_source(word: str) -> bool:
    """Return whether a word names a data set that another library reads.

    >>> is_source("hf:beans"), is_source("photos")
    (True, False)
    """
    return word.startswith("hf:") and len(word) > 3


class _TableImages(StoredImages):
    """A split with a column of images and a column of labels; rows are read from the Arrow file when asked for."""

    def __init__(self, rows: Any, name: str) -> None:
        datasets = _datasets()
        images = [column for column, kind in rows.features.items() if isinstance(kind, datasets.Image)]
        columns = [column for column in LABEL_COLUMNS if column in rows.features]
        if not images or not columns:
            wanted = "an Image column" if not images else f"a column of labels ({', '.join(LABEL_COLUMNS)})"
            raise DataError(f"{name}: {wanted} is needed, among {', '.join(rows.features)}")
        values = rows.with_format("arrow")[columns[0]][:].to_numpy(zero_copy_only=False)
        if values.dtype.kind not in "iu" or not len(values):
            raise DataError(f"{name}: one whole number as the label of each image is needed, not {values.dtype}")
        labels = torch.from_numpy(values.astype("int64"))
        super().__init__(name, getattr(rows.features[columns[0]], "names", None) or (), labels)
        self._image = images[0]
        self._rows = rows.select_columns(images[:1]).cast_column(images[0], datasets.Image(decode=False))

    def encoded(self, place: int) -> str | io.BytesIO:
        cell = self._rows[int(place)][self._image] or {}
        if cell.get("bytes") is None and not cell.get("path"):
            raise DataError(f"{self.source(place)}: no image in it")
        return str(cell["path"]) if cell.get("bytes") is None else io.BytesIO(cell["bytes"])

    def source(self, place: int) -> str:
        return f"{self.name} (row {place})"

    def names(self, index: Tensor) -> list[str]:
        return [f"{self.name}#{row}" for row in index.tolist()]

    def _choose(self, index: Tensor) -> None:
        self._rows = self._rows.select(index.numpy())


def _datasets() -> Any:
    return need("datasets", "a data set of Hugging Face")


def open_source(word: str) -> dict[str, StoredImages]:
    """Open the splits of `hf:NAME`, `hf:NAME:CONFIGURATION` (from the cache, or the hub), or `hf:FOLDER`."""
    datasets, rest = _datasets(), word.removeprefix("hf:")
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
