from __future__ import annotations

import collections
import copy
import pickle

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, Subset, TensorDataset

import aol

Point = collections.namedtuple("Point", ["x", "y"])


class Plain:
    """Four items of a kind, with an attribute of its own."""

    classes = ("cat", "dog")

    def __init__(self, item) -> None:
        self.item = item

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index):
        return self.item(index)


class Many(Plain):
    """One that hands out many items at once, and notes what it was asked."""

    def __getitems__(self, indices):
        self.asked = list(indices)
        return [self.item(index) for index in indices]


class Endless(IterableDataset):
    def __iter__(self):
        return iter(int, 1)


def pair(index):
    return (float(index), index % 2)


@pytest.mark.parametrize(
    ("item", "wanted"),
    [
        (lambda i: (i, "a"), (3, "a", 3)),
        (lambda i: [i, "a"], [3, "a", 3]),
        (lambda i: {"text": "a"}, {"text": "a", "index": 3}),
        (lambda i: collections.OrderedDict(text="a"), {"text": "a", "index": 3}),
        (lambda i: Point(1, 2), (1, 2, 3)),
        (lambda i: "text", ("text", 3)),
    ],
)
def test_the_index_is_added_to_items_of_any_kind(item, wanted):
    assert aol.Indexed(Plain(item))[3] == wanted
    assert aol.Indexed(Many(item)).__getitems__([3]) == [wanted]


def test_tensors_and_arrays_are_whole_items():
    item, index = aol.Indexed(torch.arange(6).reshape(3, 2))[1]
    assert item.tolist() == [2, 3]
    assert index == 1
    assert aol.Indexed(np.array([[5, 6]]))[0][0].tolist() == [5, 6]


def test_an_index_from_the_back_is_told_as_one_from_the_front():
    for data in (Plain(pair), Many(pair)):
        indexed = aol.Indexed(data)
        assert indexed[-1] == (3.0, 1, 3)
        assert indexed.__getitems__([-1, 0]) == [(3.0, 1, 3), (0.0, 0, 0)]


@pytest.mark.parametrize("data", [Plain(pair), Many(pair)])
@pytest.mark.parametrize(("index", "error"), [(4, IndexError), (-5, IndexError), (1.5, TypeError), ("a", TypeError)])
def test_an_index_outside_is_refused(data, index, error):
    with pytest.raises(error, match=r"index|integer"):
        aol.Indexed(data)[index]
    with pytest.raises(error, match=r"index|integer"):
        aol.Indexed(data).__getitems__([0, index])


def test_a_key_that_is_taken_asks_for_another_name():
    data = [{"index": 7}]
    with pytest.raises(ValueError, match="key="):
        aol.Indexed(data)[0]
    assert aol.Indexed(data, key="place")[0] == {"index": 7, "place": 0}


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("many", [True, False])
def test_a_loader_gets_each_index_beside_its_item(workers, many):
    data = TensorDataset(torch.arange(10) * 10) if many else [(10 * i,) for i in range(10)]
    loader = DataLoader(aol.Indexed(data), batch_size=4, shuffle=True, num_workers=workers)
    seen = [pair for value, index in loader for pair in zip(value.tolist(), index.tolist(), strict=True)]
    assert sorted(seen) == [(10 * i, i) for i in range(10)]


def test_a_subset_of_an_indexed_set_tells_the_indices_of_the_whole():
    assert [index for _, index in Subset(aol.Indexed(["a", "b", "c"]), [2, 0])] == [2, 0]
    assert [index for _, index in aol.Indexed(Subset(["a", "b", "c"], [2, 0]))] == [0, 1]


def test_indexed_sets_can_be_pickled_and_copied():
    indexed = aol.Indexed([("a",), ("b",)], key="place")
    for twin in (pickle.loads(pickle.dumps(indexed)), copy.deepcopy(indexed), copy.copy(indexed)):
        assert twin[1] == ("b", 1)
        assert twin.key == "place"


@pytest.mark.parametrize("data", [Endless(), iter([1]), 5, None, {1, 2}])
def test_what_is_not_map_style_is_refused(data):
    with pytest.raises(TypeError, match="dataset must be map-style"):
        aol.Indexed(data)
