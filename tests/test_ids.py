"""Ids of any kind to positions, and ages that are spoken to by id."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import aol

texts = st.lists(st.text(st.characters(exclude_characters="\0")), min_size=1, max_size=20, unique=True)
any_numbers = st.lists(st.integers(-(2**70), 2**70), min_size=1, max_size=20, unique=True)
small_numbers = st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=20, unique=True)


@given(texts | any_numbers | small_numbers, st.data())
def test_every_id_leads_back_to_its_position(ids, data):
    known = aol.IdMap(ids)
    assert len(known) == len(ids)
    assert known.index(ids).tolist() == list(range(len(ids)))
    asked = data.draw(st.lists(st.sampled_from(ids), max_size=10))
    found = known.index(asked)
    assert found.dtype == torch.int64
    assert found.tolist() == [ids.index(each) for each in asked]


@given(any_numbers, st.integers(-(2**70), 2**70))
def test_an_unknown_number_is_an_error_that_names_it(ids, other):
    known = aol.IdMap(ids)
    if other not in ids:
        with pytest.raises(IndexError, match=rf"(?<!\d){other}(?!\d).*not among the {len(ids)}"):
            known.index([ids[0], other])


@given(texts, st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=5))
def test_an_unknown_text_is_an_error(ids, other):
    known = aol.IdMap(ids)
    if other not in ids:
        with pytest.raises(IndexError, match="not among"):
            known.index([ids[0], other])


def test_a_name_that_only_begins_alike_is_another_one():
    known = aol.IdMap(["cat", "cat-1", "ca", "", "äöü", "日本", "a\udc80"])
    assert known.index(["", "ca", "日本", "äöü", "a\udc80"]).tolist() == [3, 2, 5, 4, 6]
    for other in ("c", "cat-", "cat-11", "日"):
        with pytest.raises(IndexError, match="not among"):
            known.index([other])


@pytest.mark.parametrize(
    "ids",
    [
        np.array([5, 3], dtype=np.uint8),
        np.array([5, 2**63 + 1], dtype=np.uint64),
        np.array(["a", "b"]),
        np.array(["a", "b"], dtype=object),
        np.array([7, 2**80], dtype=object),
        torch.tensor([9, -4]),
        range(3),
        ("x", "y"),
        [np.int64(4), np.int64(2)],
        [np.str_("p"), np.str_("q")],
    ],
)
def test_ids_come_in_any_kind(ids):
    known = aol.IdMap(ids)
    assert known.index(ids).tolist() == list(range(len(ids)))
    assert known.index(ids[:0] if not isinstance(ids, tuple) else []).shape == (0,)


def test_small_and_large_numbers_may_be_asked_of_either_kind_of_map():
    assert aol.IdMap([2**70, 5]).index([5]).tolist() == [1]
    assert aol.IdMap([2**63, 5]).index(torch.tensor([5])).tolist() == [1]
    with pytest.raises(IndexError, match=str(2**64)):
        aol.IdMap([1, 2]).index([1, 2**64])


@pytest.mark.parametrize(
    ("ids", "error", "named"),
    [
        (["a", "b", "a"], ValueError, "'a' occurs twice"),
        ([3, 3], ValueError, "3 occurs twice"),
        ([2**70, 1, 2**70], ValueError, str(2**70)),
        ([1, "a"], TypeError, "ids"),
        (["a", 1], TypeError, "ids"),
        ([1.5, 2.5], TypeError, "ids"),
        ([True, False], TypeError, "ids"),
        ([None, "a"], TypeError, "ids"),
        ([b"a"], TypeError, "ids"),
        ([[1, 2]], ValueError, "ids"),
        (5, ValueError, "ids"),
        ("abc", TypeError, "ids"),
        (["a", "a\0"], ValueError, "NUL"),
        (None, TypeError, "ids"),
        (np.array([1.0]), TypeError, "ids"),
    ],
)
def test_what_cannot_name_samples_is_refused(ids, error, named):
    with pytest.raises(error, match=named):
        aol.IdMap(ids)


def test_asking_for_another_kind_of_id_is_a_type_error():
    with pytest.raises(TypeError, match="text"):
        aol.IdMap(["1", "2"]).index([1])
    with pytest.raises(TypeError, match="number"):
        aol.IdMap([1, 2]).index(["1"])
    with pytest.raises(TypeError, match="ids"):
        aol.IdMap(["abc"]).index("abc")


def test_a_fingerprint_depends_on_ids_their_kind_and_their_order():
    prints = {aol.IdMap(ids).digest() for ids in (["1", "2"], ["2", "1"], [1, 2], [2, 1], ["1", "3"], ["1"])}
    assert len(prints) == 6
    assert aol.IdMap([1, 2]).digest() == aol.IdMap(np.array([1, 2], dtype=np.uint8)).digest()
    assert aol.IdMap(["a", "bc"]).digest() == aol.IdMap(np.array(["a", "bc"], dtype="U40")).digest()


def test_maps_can_be_pickled():
    known = pickle.loads(pickle.dumps(aol.IdMap(["a", "b"])))
    assert known.index(["b"]).tolist() == [1]


@pytest.mark.parametrize("ids", [["x", "y", "z"], [2**80, -5, 0], [30, 10, 20]])
@pytest.mark.parametrize("level", ["class", "sample"])
def test_ages_spoken_to_by_id_equal_ages_spoken_to_by_position(ids, level):
    named, plain = (aol.SampleAges([0, 0, 1], rho=0.5, level=level, ids=given) for given in (ids, None))
    for _ in range(3):
        named.observe([ids[2], ids[0], ids[2]], [True, False, False])
        plain.observe([2, 0, 2], [True, False, False])
        named.advance()
        plain.advance()
    assert named.age.equal(plain.age)
    assert named.weight([ids[0], ids[2]]).equal(plain.weight([0, 2]))
    assert named.weights.equal(plain.weights)


def test_an_unknown_id_leaves_the_ages_as_they_were():
    ages = aol.SampleAges([0, 1], ids=["a", "b"])
    with pytest.raises(IndexError, match=r"index.*'c'"):
        ages.observe(["a", "c"], [False, False])
    with pytest.raises(TypeError, match="index"):
        ages.observe([0], [False])
    with pytest.raises(IndexError, match=r"index.*'c'"):
        ages.weight(["c"])
    ages.advance()
    assert ages.age.tolist() == [1, 1]


def test_each_run_may_name_samples_of_its_own():
    ages = aol.SampleAges([0, 1], rho=[1.0, 1.0], ids=["a", "b"])
    ages.observe([["a"], ["b"]], [[False], [False]])
    ages.advance()
    assert ages.age.tolist() == [[2, 1], [1, 2]]


def test_ids_must_name_every_sample():
    with pytest.raises(ValueError, match="ids must name all 2 samples, not 1"):
        aol.SampleAges([0, 1], ids=["a"])


@pytest.mark.parametrize("others", [["a", "c"], ["b", "a"], [1, 2], None])
def test_a_state_of_other_ids_is_refused(others):
    state = aol.SampleAges([0, 1], ids=["a", "b"]).state_dict()
    with pytest.raises(ValueError, match="other ids"):
        aol.SampleAges([0, 1], ids=others).load_state_dict(state)
