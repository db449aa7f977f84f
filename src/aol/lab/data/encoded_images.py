"""A large split, decoded on the fly: encoded images from any kind of storage as one torch data set.

Assumes records that open their files lazily, once a process and thread, and can be pickled into worker processes.
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from statistics import fmean
from typing import Generic, Protocol, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import Dataset

from aol.lab.data.crops import Transform, sample_generator
from aol.lab.data.decode import decode, size_of
from aol.lab.data.errors import DataError
from aol.lab.data.images import ImageSet, Labelled, check_labels, numbered_classes

H = TypeVar("H")
Places: TypeAlias = npt.NDArray[np.int64]
Progress = Callable[[int, int], None]
_IN_MEMORY_LIMIT_GIB = 8
_BLOCK = 64


class Records(Protocol):
    """What a kind of storage provides: encoded images by position, their labels, and names for messages."""

    name: str
    classes: tuple[str, ...]  # empty where they have no names: `assign_splits` numbers them
    labels: Tensor  # all of them, int64 [N], known without decoding an image

    def encoded(self, index: int) -> bytes:
        """Read the encoded image at a position."""

    def source(self, index: int) -> str:
        """Name the file, or the record in a file, that a position stands for."""

    def stamp(self, index: int) -> str:
        """Return a text that changes when the record does: packing compares it to find outdated records."""

    def names(self, index: Sequence[int]) -> list[str]:
        """Return what the records at these positions are called at their source, a different name each.

        A file by its path inside the data set, a row or key by that of its container too. Many at once: a table of
        names is read when asked for, and not kept.
        """


def assign_splits(
    train: Records, others: Iterable[Records], where: object, needed: str = "test or validation split"
) -> dict[str, Records]:
    """Return splits as train, test and, where there is one more, validation, all with the classes of train.

    A split whose labels are all -1, as in the test splits of competitions, is left out. `DataError` says where names of
    classes differ, which label has no class, and that what is `needed` beside the training split is missing.
    """
    labelled = [records for records in others if not bool((records.labels == -1).all())]
    if not labelled:
        raise DataError(f"{where}: no labelled {needed} beside the training split")
    splits = dict(zip(("train", "test", "validation"), (train, *labelled), strict=False))
    named, classes = train.classes, train.classes or numbered_classes(train.labels, train.name)
    for records in splits.values():
        if named and records.classes:
            _same_classes(train, records, where)
        records.classes = classes
        check_labels(records.labels, len(classes), records.name)
    return splits


def _same_classes(train: Records, other: Records, where: object) -> None:
    """Raise `DataError` unless two splits name the same classes in the same order."""
    if train.classes == other.classes:
        return
    lacking = [c for c in train.classes if c not in set(other.classes)]
    foreign = [c for c in other.classes if c not in set(train.classes)]
    said = [f"{other.name} lacks {_some(lacking)} of {train.name}"] * bool(lacking)
    said += [f"{other.name} has {_some(foreign)}, which {train.name} has not"] * bool(foreign)
    order = f"{other.name} has another order than {train.name}"
    raise DataError(f"{where}: classes differ: {' and '.join(said) or order}")


def _some(names: Sequence[str]) -> str:
    listed = ", ".join(repr(n) for n in names[:3])
    return listed if len(names) <= 3 else f"{listed} and {len(names) - 3} more"


class PerThread(Generic[H]):
    """A handle opened on first use in each thread of each process, and never carried into another.

    >>> handle = PerThread(list)
    >>> handle() is handle()
    True
    """

    def __init__(self, opener: Callable[[], H]) -> None:
        self._opener = opener
        self._local = threading.local()

    def __call__(self) -> H:
        """Return this thread's handle."""
        if getattr(self._local, "pid", None) != os.getpid():  # a fork inherits the parent's handle: open anew
            self._local.handle, self._local.pid = self._opener(), os.getpid()
        handle: H = self._local.handle
        return handle

    def __reduce__(self) -> tuple[type[PerThread[H]], tuple[Callable[[], H]]]:
        return PerThread, (self._opener,)


def gather_names(index: Sequence[int], ends: Places, read: Callable[[int, Places], list[str]]) -> list[str]:
    """Return the names at positions that are spread over parts; each part is asked once, for some of its rows.

    Part k holds the positions from `ends[k]` to below `ends[k + 1]`.

    >>> gather_names([3, 0], np.array([0, 2, 5]), lambda part, rows: [f"{part}:{row}" for row in rows])
    ['1:1', '0:0']
    """
    places = np.asarray(index, dtype=np.int64)
    if places.size and not 0 <= int(places.min()) <= int(places.max()) < int(ends[-1]):
        raise IndexError(f"index must lie in 0 to {int(ends[-1]) - 1}, got {int(places.min())} to {int(places.max())}")
    order = np.argsort(places, kind="stable")
    bounds = np.searchsorted(places[order], ends).tolist()
    names = np.empty(len(places), dtype=object)
    for part, (start, end) in enumerate(pairwise(bounds)):
        if start < end:
            mine = order[start:end]
            names[mine] = read(part, places[mine] - ends[part])
    return list(names)


class StoredImages(Labelled, Dataset[tuple[Tensor, int, int]]):
    """A split whose images are decoded when asked for: item i is (uint8 [3, H, W], label, i).

    What a transform draws depends on (seed, epoch, i) alone. `set_epoch` also reaches workers that stay
    alive between epochs. Normalisation is done on the training device: uint8 is a quarter of the bytes to copy.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from PIL import Image
    >>> from aol.lab.data import open_data
    >>> root = Path(tempfile.mkdtemp())
    >>> for folder in ("train/cat", "train/dog", "val/cat", "val/dog"):
    ...     (root / folder).mkdir(parents=True)
    ...     Image.new("RGB", (9, 7)).save(root / folder / "0.png")
    >>> train = open_data(root, size=32).train
    >>> image, label, index = train[1]
    >>> image.shape, label, index
    (torch.Size([3, 32, 32]), 1, 1)
    """

    def __init__(self, records: Records, transform: Transform | None = None, *, seed: int = 0) -> None:
        if seed < 0:
            raise ValueError(f"seed must be at least 0, got {seed}")
        self.records, self.transform, self.seed = records, transform, seed
        self.name, self.classes, self.labels = records.name, records.classes, records.labels
        self._epoch = torch.zeros(1, dtype=torch.int64).share_memory_()  # type: ignore[no-untyped-call]

    @property
    def shape(self) -> tuple[int, int, int] | None:
        """Give channels, height and width of one item; None without a transform, where sizes differ."""
        return None if self.transform is None else (3, self.transform.size, self.transform.size)

    @property
    def epoch(self) -> int:
        """Return the epoch that the next items are drawn for."""
        return int(self._epoch)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch, in every worker process too; call it before iterating over a loader."""
        if epoch < 0:
            raise ValueError(f"epoch must be at least 0, got {epoch}")
        self._epoch.fill_(epoch)

    def names(self, index: Tensor) -> list[str]:
        """Return what the samples `index [n]` are called where they come from.

        Paths of files inside the data set, `FILE.parquet#ROW`, `FILE.lmdb#KEY`: docs/how-to/large.md lists them.
        """
        return self.records.names(index.tolist())

    def with_transform(self, transform: Transform | None, *, seed: int | None = None) -> StoredImages:
        """Return the same records seen through another transform, for instance the training set unaugmented."""
        return StoredImages(self.records, transform, seed=self.seed if seed is None else seed)

    def __getitem__(self, index: int) -> tuple[Tensor, int, int]:
        index = int(index)
        if not 0 <= index < len(self):
            raise IndexError(f"index {index} is outside 0..{len(self) - 1} of {self.name}")
        return self.image(index, seed=self.seed, epoch=self.epoch), int(self.labels[index]), index

    def image(self, index: int, *, seed: int, epoch: int) -> Tensor:
        """Return the pixels of an item, uint8 [3, H, W], as another seed and epoch draw them."""
        image = decode(self.records.encoded(index), self.records.source(index))
        if self.transform is not None:
            image = self.transform(image, sample_generator(seed, epoch, index))
        return image.contiguous()


def typical_bytes(records: Records, *, decoded: bool = False) -> float:
    """Return the mean size of up to 64 files of a set or, `decoded`, of their pixels; damaged ones do not count."""
    found = []
    for index in torch.randperm(len(records.labels), generator=torch.Generator().manual_seed(0))[:64].tolist():
        with contextlib.suppress(DataError):  # it is named when it is needed
            content = records.encoded(index)
            found.append(3 * math.prod(size_of(content, records.source(index))) if decoded else len(content))
    return fmean(found or [1 << 18])


def problems(
    read: Callable[[int], object], count: int, workers: int = 4, progress: Progress | None = None
) -> list[str]:
    """Call `read` with 0 to `count - 1`, in threads; return one sentence for each that cannot be read.

    Threads, not processes: Pillow decodes with Python's lock released.
    """

    def scan(block: range) -> list[str]:
        found = []
        for index in block:
            try:
                read(index)
            except (DataError, OSError) as reason:
                found.append(str(reason))
        return found

    found: list[str] = []
    blocks = _blocks(count)
    with ThreadPoolExecutor(max(1, workers)) as pool:
        for block, said in zip(blocks, pool.map(scan, blocks), strict=True):
            found += said
            if progress is not None:
                progress(block.stop, count)
    return found


def _blocks(count: int) -> list[range]:
    # A million single tasks would cost more memory than the images they read.
    return [range(start, min(start + _BLOCK, count)) for start in range(0, count, _BLOCK)]


def into_memory(split: StoredImages, *, workers: int = 4) -> ImageSet:
    """Decode a whole split of equal-sized small images into one tensor.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from PIL import Image
    >>> from aol.lab.data import open_data
    >>> root = Path(tempfile.mkdtemp())
    >>> for folder in ("train/cat", "train/dog", "val/cat", "val/dog"):
    ...     (root / folder).mkdir(parents=True)
    ...     Image.new("RGB", (9, 7)).save(root / folder / "0.png")
    >>> into_memory(open_data(root).train).images.shape
    torch.Size([2, 3, 7, 9])
    """
    plain = split.with_transform(None)
    first = plain[0][0]
    gib = len(plain) * first.numel() / 2**30
    if gib > _IN_MEMORY_LIMIT_GIB:
        raise DataError(f"{split.name}: {gib:.1f} GiB of pixels are too many for memory; open it with open_data")
    images = torch.empty(len(plain), *first.shape, dtype=torch.uint8)

    def place(block: range) -> None:
        for index in block:
            image = plain[index][0]
            if image.shape != first.shape:
                raise DataError(
                    f"{split.records.source(index)}: {image.shape[-1]}×{image.shape[-2]} pixels, but the "
                    f"first image has {first.shape[-1]}×{first.shape[-2]}; images held in memory must all have one size"
                )
            images[index] = image

    with ThreadPoolExecutor(max(1, workers)) as pool:
        list(pool.map(place, _blocks(len(plain))))
    return ImageSet(images, split.labels, split.classes, split.name, plain.names(torch.arange(len(plain))))
