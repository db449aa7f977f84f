from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import aol
from aol.ages import mean_one
from tests.support import oracle


@pytest.mark.parametrize("dtype", [torch.int8, torch.int32, torch.int64, torch.float32, torch.float64])
def test_a_right_answer_resets_the_age_and_a_wrong_one_adds_one(dtype):
    age = aol.age_step(torch.tensor([[1, 5], [9, 1]], dtype=dtype), torch.tensor([[True, True], [False, False]]))
    assert age.tolist() == [[1, 1], [10, 2]]
    assert age.dtype == dtype


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64])
def test_an_age_stops_at_the_largest_number_of_its_type(dtype):
    largest = torch.iinfo(dtype).max
    before = torch.tensor([1, largest - 1, largest, largest], dtype=dtype)
    age = aol.age_step(before, [False, False, False, True])
    assert age.tolist() == [2, largest, largest, 1]
    assert age.dtype == dtype
    assert before.tolist() == [1, largest - 1, largest, largest]


def test_answers_may_be_lists_arrays_or_whole_numbers_and_broadcast():
    age = torch.tensor([[3, 3], [3, 3]])
    assert aol.age_step(age, [True, False]).tolist() == [[1, 4], [1, 4]]
    assert aol.age_step(age, torch.tensor([[1], [0]])).tolist() == [[1, 1], [4, 4]]


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=30), st.floats(0, 1))
def test_ema_steps_fold_a_history_as_the_paper_does(history, rho):
    ema = torch.tensor([float(history[0])], dtype=torch.float64)
    rounded = torch.tensor(rho, dtype=torch.float32).item()  # rho is rounded to float32 by contract
    for age in history[1:]:
        ema = aol.ema_step(ema, torch.tensor([age]), rho)
    assert ema.item() == pytest.approx(oracle.fold(history, rounded), rel=1e-12)


def test_the_ema_is_exact_at_both_ends():
    ema, age = torch.tensor([3.3, 1.7]), torch.tensor([7, 9])
    assert aol.ema_step(ema, age, 0.0).equal(ema)
    assert aol.ema_step(ema, age, 1.0).equal(age.float())


def test_rho_as_a_float_and_as_float32_or_float64_tensors_agree_to_the_last_bit():
    ema, age = torch.rand(2, 50, generator=torch.Generator().manual_seed(0)) * 40 + 1, torch.full((2, 50), 17)
    by_number = aol.ema_step(ema, age, 0.3)
    assert by_number.equal(aol.ema_step(ema, age, torch.tensor(0.3)))
    assert by_number.equal(aol.ema_step(ema, age, torch.tensor([0.3, 0.3], dtype=torch.float64)))
    assert by_number.equal(aol.ema_step(ema, age, [0.3]))


def test_a_vector_rho_goes_along_the_first_dimension():
    ema, age = torch.ones(2, 3, 4), torch.full((2, 3, 4), 5)
    out = aol.ema_step(ema, age, torch.tensor([0.25, 1.0]))
    assert out[0].unique().tolist() == [2.0]
    assert out[1].unique().tolist() == [5.0]


@pytest.mark.parametrize(
    ("call", "error", "named"),
    [
        (lambda: aol.ema_step([1.0], torch.ones(1), 0.5), TypeError, "ema"),
        (lambda: aol.ema_step(torch.ones(1, dtype=torch.int64), torch.ones(1), 0.5), TypeError, "ema"),
        (lambda: aol.ema_step(torch.ones(3), torch.ones(3), [0.1, 0.2]), ValueError, "rho"),
        (lambda: aol.ema_step(torch.tensor(1.0), torch.ones(1), [0.1, 0.2]), ValueError, "rho"),
        (lambda: aol.ema_step(torch.ones(1), torch.ones(1), 1.5), ValueError, "rho"),
        (lambda: aol.ema_step(torch.ones(1), torch.ones(1), float("nan")), ValueError, "rho"),
        (lambda: aol.ema_step(torch.ones(1), torch.ones(1), True), TypeError, "rho"),
        (lambda: aol.ema_step(torch.ones(3), torch.ones(2), 0.5), ValueError, "age"),
        (lambda: aol.ema_step(torch.ones(3), "abc", 0.5), TypeError, "age"),
        (lambda: aol.age_step(torch.ones(3), [True, False]), ValueError, "correct"),
        (lambda: aol.age_step(torch.ones(3), [0.5, 0.5, 0.5]), TypeError, "correct"),
        (lambda: aol.age_step("abc", [True]), TypeError, "age"),
        (lambda: aol.age_step([True], [True]), TypeError, "age"),
    ],
)
def test_bad_input_names_the_argument(call, error, named):
    with pytest.raises(error, match=named):
        call()


@given(st.lists(st.floats(1e-3, 1e6) | st.just(float("nan")), min_size=1, max_size=20))
def test_mean_one_leaves_out_what_is_unknown(values):
    found = mean_one(torch.tensor([values, values], dtype=torch.float64))
    assert found.dtype == torch.float32
    assert found[0].equal(found[1])
    assert found[0].tolist() == pytest.approx(
        oracle.mean_one(values) if any(v == v for v in values) else [1.0] * len(values)
    )


def test_no_gradient_flows_into_ages():
    rho = torch.tensor([0.5], requires_grad=True)
    assert not aol.ema_step(torch.ones(1, 2), torch.full((1, 2), 3), rho).requires_grad
    assert not aol.age_step(torch.ones(2, requires_grad=True), [True, False]).requires_grad
