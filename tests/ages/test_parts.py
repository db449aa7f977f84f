"""Ages of tokens and of pairs of sample and label, against one SampleAges whose samples are the parts."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import aol
from tests.support.histories import same

IGNORED = -100


@st.composite
def texts(draw):
    """Rows of labels with ignored ones anywhere; some rows have no part."""
    return draw(st.lists(st.lists(st.sampled_from([IGNORED, 0, 1, 2]), max_size=6), min_size=1, max_size=6))


def naive_places(rows: list[list[int]]) -> list[list[int]]:
    """The number of each part among all parts, or -1 where there is none."""
    found, number = [], 0
    for row in rows:
        found.append([])
        for label in row:
            found[-1].append(-1 if label == IGNORED else number)
            number += label != IGNORED
    return found


@given(texts(), st.sampled_from([0.3, [0.3, 0.9]]), st.sampled_from(["class", "part"]), st.integers(0, 2**20))
def test_parts_age_as_samples_of_their_own_would(rows, rho, level, seed):
    flat = [label for row in rows for label in row if label != IGNORED]
    if not flat:
        return
    ages = aol.PartAges(rows, num_classes=3, rho=rho, level=level)
    truth = aol.SampleAges(flat, num_classes=3, rho=rho, level="sample" if level == "part" else "class")
    runs = tuple(truth.rho.shape)
    generator = torch.Generator().manual_seed(seed)
    places = naive_places(rows)
    for epoch in range(4):
        index = torch.randperm(len(rows), generator=generator)[: 1 + epoch].tolist()
        width = 7 + epoch
        label = torch.full((len(index), width), IGNORED)
        for row, sample in enumerate(index):  # padded on the left in every other epoch
            begin = 0 if epoch % 2 else width - len(rows[sample])
            label[row, begin : begin + len(rows[sample])] = torch.tensor(rows[sample], dtype=torch.int64)
        right = torch.rand(*runs, len(index), width, generator=generator) < 0.5
        ages.observe(index, right, label)
        for row, sample in enumerate(index):
            begin = 0 if epoch % 2 else width - len(rows[sample])
            for column, place in enumerate(places[sample]):
                if place >= 0:
                    truth.observe([place], right[..., row, begin + column, None])
        ages.parts._warned = truth._warned = True  # some epochs observe nothing
        ages.advance()
        truth.advance()
        for name in ("age", "ema", "class_age", "class_weight"):
            assert same(getattr(ages.parts, name), getattr(truth, name)), name
        weight = ages.weight(index, label)
        assert weight.shape == (*runs, *label.shape)
        assert not weight[..., label == IGNORED].any()
        assert same(weight[..., label != IGNORED], truth.weight(ages.positions(index, label)))


@given(texts())
def test_a_sample_weighs_what_its_parts_weigh_on_average(rows):
    if all(label == IGNORED for row in rows for label in row):
        return
    ages = aol.PartAges(rows, level="part")
    right = [label != 1 for row in rows for label in row if label != IGNORED]
    ages.parts.observe(range(len(right)), right)
    ages.advance()
    wanted = [float(part.double().mean()) if part.numel() else 1.0 for part in ages.split(ages.parts.weights)]
    assert ages.weights.tolist() == pytest.approx(wanted, rel=1e-6)
    assert len(list(aol.AgeSampler(ages))) == len(rows)


def test_a_text_that_is_cut_has_fewer_parts():
    ages = aol.PartAges([[0, 1, 2, 0], [1, 1]])
    ages.observe([0], [[False, False]], [[0, 1]])
    ages.advance()
    assert [part.tolist() for part in ages.split(ages.parts.age)] == [[2, 2, 1, 1], [1, 1]]


@pytest.mark.parametrize("kind", ["tensor", "array", "lists", "tensors", "images"])
def test_labels_come_in_any_form(kind):
    rows = torch.tensor([[0, IGNORED, 1], [2, 1, 0]])
    forms = {
        "tensor": rows,
        "array": rows.numpy(),
        "lists": rows.tolist(),
        "tensors": list(rows),
        "images": rows.reshape(2, 1, 3),
    }
    ages = aol.PartAges(forms[kind])
    assert ages.parts.labels.tolist() == [0, 1, 2, 1, 0]
    shape = (2, 1, 3) if kind == "images" else (2, 3)
    ages.observe([0, 1], np.ones(shape, bool), rows.reshape(shape))
    assert ages.weight([0, 1], rows.reshape(shape)).shape == shape


def test_the_oldest_parts_are_named_by_sample_and_part():
    ages = aol.PartAges([[0, IGNORED, 1], [1, 0]])
    for right in ([[True, True, False], [False, True, True]], [[True, True, True], [False, True, True]]):
        ages.observe([0, 1], right, [[0, IGNORED, 1], [1, 0, IGNORED]])
        ages.advance()
    assert ages.oldest(5)["age"].to_dict() == {(1, 0): 3}
    assert ages.to_frame()["age"].to_dict() == {(0, 0): 1, (0, 1): 1, (1, 0): 3, (1, 1): 1}
    runs = aol.PartAges([[0, 1]], rho=[0.1, 0.2])
    runs.observe([0], [[[True, False]], [[False, True]]], [[0, 1]])
    runs.advance()
    assert runs.oldest(1)["age"].to_dict() == {(0, 0, 1): 2, (1, 0, 0): 2}


def test_pairs_have_a_class_for_each_label_absent_and_present():
    target = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]])
    ages = aol.PartAges(aol.pair_classes(target), rho=1.0)
    for _ in range(3):  # label 1 is never found
        ages.observe([0, 1, 2], (target == 0) | (torch.arange(2) == 0), aol.pair_classes(target))
        ages.advance()
    assert ages.class_age.tolist() == [1.0, 1.0, 1.0, 4.0]
    assert ages.num_classes == 4


@pytest.mark.parametrize("target", [[[0, 2]], [[0.5, 1.0]], 1, [[float("nan"), 0.0]]])
def test_targets_must_be_zero_or_one(target):
    with pytest.raises(ValueError, match="target"):
        aol.pair_classes(target)


@pytest.mark.parametrize(
    ("labels", "error"),
    [
        ([], ValueError),
        ([[]], ValueError),
        ([[IGNORED]], ValueError),
        ([0, 1], ValueError),
        (torch.tensor([0, 1]), ValueError),
        ([[0, -5]], ValueError),
        ([[0.5]], TypeError),
        (["ab"], TypeError),
        (7, TypeError),
    ],
)
def test_labels_that_are_none_are_refused(labels, error):
    with pytest.raises(error, match="labels"):
        aol.PartAges(labels)


def test_labels_of_another_sample_are_refused_by_name():
    ages = aol.PartAges([[0, 1], [1, 0]])
    with pytest.raises(ValueError, match=r"part 0 of sample 1 has class 1 .* 0 was given"):
        ages.observe([1], [[True, True]], [[0, 1]])
