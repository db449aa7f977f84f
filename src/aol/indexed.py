"""A data set whose items contain their index."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

from torch.utils.data import Dataset, IterableDataset

from aol import _check


class Indexed(Dataset[object]):
    """A map-style data set with the index added to each item.

    A tuple or list gets the index as its last element, a mapping under `key`; anything else becomes `(item, index)`.
    All other attributes are those of the data set.

    Args:
        dataset: anything with `__getitem__` and `__len__`.
        key: the key of the index in items that are mappings.

    >>> Indexed([("cat", 3), ("dog", 5)])[1]
    ('dog', 5, 1)
    >>> Indexed([{"text": "a"}])[0]
    {'text': 'a', 'index': 0}
    """

    def __init__(self, dataset: Any, *, key: str = "index") -> None:
        is_map = hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")
        if not is_map or isinstance(dataset, IterableDataset):
            raise TypeError(f"dataset must be map-style, with __getitem__ and __len__, not {_check.shown(dataset)}.")
        self.dataset: Any = dataset
        self.key = key

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> object:
        place = self._place(index)
        return self._named(self.dataset[place], place)

    def __getitems__(self, indices: Sequence[int]) -> list[object]:
        """Return several items, by the data set's own `__getitems__` if it has one."""
        places = [self._place(index) for index in indices]
        many = getattr(self.dataset, "__getitems__", None)
        items = many(places) if many else map(self.dataset.__getitem__, places)
        return [self._named(item, place) for item, place in zip(items, places, strict=True)]

    def _place(self, index: object) -> int:
        place = operator.index(index)  # type: ignore[arg-type]
        if not -len(self) <= place < len(self):
            raise IndexError(f"index must lie in 0 to {len(self) - 1}, not {place}.")
        return place % len(self)

    def _named(self, item: object, index: int) -> object:
        if isinstance(item, Mapping):
            if self.key in item:
                raise ValueError(f"items have a {self.key!r} already: give the index another name with key=.")
            return {**item, self.key: index}
        if isinstance(item, list):
            return [*item, index]
        return (*item, index) if isinstance(item, tuple) else (item, index)

    def __getattr__(self, name: str) -> object:
        # Only for names not found here; without the guard, unpickling would ask for `dataset` before it exists.
        if name == "dataset" or name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.dataset, name)
