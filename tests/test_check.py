"""Arguments are checked with one voice: the name, what was given, and what is allowed."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from aol import _check


@pytest.mark.parametrize(
    "value",
    [
        range(1, 3),
        np.array([2, 1], dtype=np.uint8)[::-1],
        torch.tensor([[1, 9], [2, 9]], dtype=torch.int8)[:, 0],
        [torch.tensor(1), np.int32(2)],
    ],
)
def test_whole_numbers_come_in_any_kind(value):
    found = _check.integers("it", value)
    assert found.dtype == torch.int64
    assert found.tolist() == [1, 2]


@pytest.mark.parametrize("value", [[1.0], [True], ["1"], "1", None, {1: 2}, object(), [[1], [1, 2]], [1j], [2**64]])
def test_what_is_no_whole_number_is_a_type_error(value):
    with pytest.raises(TypeError, match=r"^it must be whole numbers .*, not .*\.$"):
        _check.integers("it", value)


def test_nothing_at_all_is_no_whole_number_but_no_error_either():
    for value in ([], (), range(0), torch.zeros(0, dtype=torch.int64), np.zeros(0, dtype=np.int32)):
        assert _check.integers("it", value).shape == (0,)
        assert _check.integers("it", value).dtype == torch.int64
    with pytest.raises(TypeError, match="it"):
        _check.integers("it", torch.zeros(0))


@pytest.mark.parametrize(
    "value",
    [[True, False], [1, 0], np.array([True, False]), torch.tensor([1, 0], dtype=torch.uint8), np.array([1, 0], "u8")],
)
def test_truths_are_bools_or_zeros_and_ones(value):
    assert _check.truths("it", value)[0].tolist() == [True, False]


@pytest.mark.parametrize("value", [[2, 0], np.array([-1]), torch.tensor([7], dtype=torch.uint8), np.array([7], "u2")])
def test_a_predicted_class_is_no_truth(value):
    with pytest.raises(ValueError, match=r"^it must be true or false"):
        _check.truths("it", value)


@pytest.mark.parametrize("value", [[0.5], ["yes"], None, [1j]])
def test_what_is_no_truth_is_a_type_error(value):
    with pytest.raises(TypeError, match=r"^it must be true or false .*, not .*\.$"):
        _check.truths("it", value)


def test_a_python_float_is_not_rounded_to_float32_on_its_way():
    assert _check.finite("it", [0.1]).item() == 0.1
    assert _check.rates("it", 0.1, 0, 1).item() == 0.1
    assert _check.rates("it", [0.1], 0, 1).tolist() == [0.1]


def test_a_message_shows_large_things_in_few_words():
    with pytest.raises(TypeError) as caught:
        _check.whole("it", "x" * 10_000, 1)
    assert len(str(caught.value)) < 150
    with pytest.raises(ValueError, match=r"Tensor of torch\.int64 with shape") as caught:
        _check.labels(torch.zeros(1000, 1000, dtype=torch.int64), None)
    assert len(str(caught.value)) < 150
