"""Draws with replacement by weight: right in proportion, at any scale and number."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import aol


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_draws_follow_the_weights():
    weight = torch.tensor([1.0, 0.0, 2.0, 5.0, 0.5, 0.0, 1.5])
    drawn = aol.draw(weight, 100_000, generator=generator(1))
    counts = torch.bincount(drawn, minlength=7).double()
    assert counts[[1, 5]].tolist() == [0.0, 0.0]
    expected = (weight / weight.sum() * 100_000).double()
    some = expected > 0
    chi_square = ((counts - expected)[some] ** 2 / expected[some]).sum().item()
    assert chi_square < 18.5  # 99.9 % of chi-square with 4 degrees of freedom


def test_draws_of_runs_follow_each_runs_weights():
    drawn = aol.draw(torch.tensor([[0.0, 1.0, 0.0], [1.0, 0.0, 3.0]]), 4000, generator=generator(2))
    assert drawn.shape == (2, 4000)
    assert drawn[0].unique().tolist() == [1]
    assert drawn[1].unique().tolist() == [0, 2]
    assert (drawn[1] == 2).double().mean().item() == pytest.approx(0.75, abs=0.03)


@given(st.lists(st.sampled_from([0.0, 5e-324, 1e-300, 1.0, 1e300]), min_size=1, max_size=8), st.integers(0, 100))
def test_a_weight_of_zero_is_never_drawn_at_any_scale(weight, seed):
    if not any(weight):
        weight[0] = 5e-324
    drawn = aol.draw(torch.tensor(weight, dtype=torch.float64), 200, generator=generator(seed))
    assert all(weight[i] > 0 for i in drawn.tolist())


def test_a_point_that_rounds_to_the_very_top_is_still_inside(monkeypatch):
    almost = torch.full((3,), 1 - 2**-53, dtype=torch.float64)
    monkeypatch.setattr(torch, "rand", lambda *shape, **more: almost)
    weight = torch.tensor([1.0, 1 / 3, 0.7, 0.0, 0.0])
    assert aol.draw(weight, 3, generator=generator()).tolist() == [2, 2, 2]


def test_more_samples_than_float32_can_count_are_drawn_exactly():
    size = 2**24 + 5
    weight = torch.zeros(size)
    weight[-2:] = torch.tensor([1.0, 3.0])
    drawn = aol.draw(weight, 400, generator=generator(3))
    assert drawn.unique().tolist() == [size - 2, size - 1]
    assert (drawn == size - 1).double().mean().item() == pytest.approx(0.75, abs=0.1)


@pytest.mark.parametrize(
    ("weight", "number", "error", "named"),
    [
        ([1.0, math.nan], 3, ValueError, "weight"),
        ([1.0, -1.0], 3, ValueError, "weight"),
        ([0.0, 0.0], 3, ValueError, "weight"),
        ([1.7e308, 1.7e308], 3, ValueError, "weight"),
        ([[[1.0]]], 3, ValueError, "weight"),
        ([1.0], 0, ValueError, "num_samples"),
        ([[1.0, 0.0], [0.0, 0.0]], 3, ValueError, "weight"),
    ],
)
def test_what_cannot_be_drawn_from_is_named(weight, number, error, named):
    with pytest.raises(error, match=named):
        aol.draw(weight, number, generator=generator())
