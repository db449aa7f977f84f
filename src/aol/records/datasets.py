"""What a data set of labelled samples tells: its labels, names of classes, pictures or texts, and how to load it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, Subset

from aol import _check
from aol.ages import SampleAges
from aol.records.previews import described, thumbnail

LABELS = ("label", "labels", "target")  # of a row that is a mapping
_LOADER = ("num_workers", "collate_fn", "pin_memory", "worker_init_fn", "multiprocessing_context", "prefetch_factor")


def opened(name: str, given: Any) -> tuple[Any, dict[str, Any]]:
    """Return a map-style data set, and the options of its loader."""
    data, options = given, {"batch_size": 256}
    if isinstance(given, DataLoader):
        size = given.batch_size or getattr(given.batch_sampler, "batch_size", None) or 256
        data, options = given.dataset, {**{option: getattr(given, option) for option in _LOADER}, "batch_size": size}
    if isinstance(data, IterableDataset) or not (hasattr(data, "__getitem__") and hasattr(data, "__len__")):
        raise TypeError(f"{name} must be a map-style data set or a loader of one, not {_check.shown(given)}.")
    return data, options


def label_of(batch: Any) -> Any:
    """Return the label of a sample or batch (x, y, ...), or of a mapping."""
    if not isinstance(batch, Mapping):
        short = isinstance(batch, tuple | list) and len(batch) < 2
        if short or isinstance(batch, Tensor | np.ndarray | str) or not hasattr(batch, "__getitem__"):
            raise TypeError(f"A row must be (x, y, ...) or a mapping with a label, not {_check.shown(batch)}.")
        return batch[1]
    for name in LABELS:
        if name in batch:
            return batch[name]
    raise ValueError(
        f"A row must have one of {', '.join(LABELS)}, not only {', '.join(map(str, batch))}: give answer=."
    )


def labels_of(data: Any, options: Mapping[str, Any] | None = None) -> Tensor:
    """Return the labels of all samples, `int64 [N]`: a column or an attribute if there is one, else by reading all."""
    if isinstance(data, Subset):
        return labels_of(data.dataset, options)[torch.as_tensor(data.indices, dtype=torch.int64)]
    columns = getattr(data, "column_names", None) or ()
    for name in LABELS:
        if name in columns:
            return _check.integers("labels", np.asarray(data[name][:])).flatten()
    targets = getattr(data, "targets", None) if getattr(data, "target_transform", None) is None else None
    if targets is None and len(getattr(data, "tensors", ())) > 1:
        targets = data.tensors[1]
    if targets is not None:
        return _check.integers("labels", targets).cpu()
    given = {"batch_size": 256, "collate_fn": _only_labels, **(options or {})}
    labels = [torch.zeros(0, dtype=torch.int64)]
    for batch in DataLoader(data, shuffle=False, generator=torch.Generator(), **given):
        label = label_of(batch)
        with suppress(TypeError, ValueError, RuntimeError):  # else the check says what it is
            label = torch.as_tensor(label).cpu().flatten()
        labels.append(_check.integers("labels", label))
    return torch.cat(labels)


def _only_labels(items: list[Any]) -> tuple[None, list[Any]]:
    return None, [label_of(item) for item in items]


def ages_of(
    train_set: Any, classes: Sequence[str] | None = None, device: torch.device | str | None = None
) -> SampleAges:
    """Return ages of a training set, or of what a loader loads, with as many classes as it has names for at least."""
    data, options = opened("train_set", train_set)
    label = labels_of(data, options)
    names = class_names(data) or () if classes is None else _check.listed("classes", classes)
    most = max(len(names), int(label.max()) + 1 if len(label) else 0)
    return SampleAges(label, num_classes=most, device=device)


def class_names(data: Any) -> list[str] | None:
    """Return the names of the classes, if the data set knows them."""
    if isinstance(data, Subset):
        return class_names(data.dataset)
    column = (getattr(data, "features", None) or {}).get("label")
    names = getattr(data, "classes", None) or getattr(column, "names", None)
    return [str(name) for name in names] if isinstance(names, list | tuple) else None


def previews_of(data: Any) -> dict[str, Callable[[int], object]]:
    """Return how a record shows a sample: `images` or `describe` of `aol.Recorder`, or nothing, by the first sample."""

    def shown(place: int) -> Any:
        item = data[place]
        if not isinstance(item, Mapping):
            return item[0]
        values = {name: value for name, value in item.items() if name not in LABELS}
        best = [value for value in values.values() if isinstance(value, str) or hasattr(value, "convert")]
        return best[0] if best else values

    for name, takes in (("images", thumbnail), ("describe", described)):
        with suppress(TypeError, ValueError, LookupError):
            takes(shown(0))
            return {name: shown}
    return {}


def first_that_differs(data: Any) -> int | None:
    """Return a sample that is another one when it is read again, of eight that are tried; None if there is none."""
    size = len(data)
    places = sorted({place * (size - 1) // 7 for place in range(8)}) if size else []  # a flip differs in half of them
    return next((place for place in places if not _same(data[place], data[place])), None)


def _same(one: Any, two: Any) -> bool:
    if isinstance(one, Mapping):
        return all(_same(one[name], two[name]) for name in one)
    if isinstance(one, tuple | list):
        return all(map(_same, one, two))
    return np.asarray(one).tobytes() == np.asarray(two).tobytes()
