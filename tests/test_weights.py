"""Weights from counts against eighty-digit arithmetic; error rates against loops; temper and product."""

from __future__ import annotations

import math

import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import aol
from tests.support import oracle
from tests.support.histories import rhos, same

counts_lists = st.lists(st.integers(0, 10**18), min_size=1, max_size=8)
betas = st.sampled_from([0.0, 5e-324, 0.5, 0.9, 0.99, 0.999, 0.9999, 1 - 1e-12, math.nextafter(1, 0)]) | st.floats(
    0, 1, exclude_max=True
)
positive = st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=10)


@given(counts_lists, betas)
def test_class_balanced_weights_are_right_at_every_scale(counts, beta):
    weights = aol.class_balanced_weight(counts, beta)
    assert weights.dtype == torch.float32
    assert weights.tolist() == pytest.approx(oracle.class_balanced_weight(counts, beta), rel=1e-6)


@given(counts_lists, st.sampled_from([0.0, 0.5, 1.0, 2.0]) | st.floats(0, 3))
def test_frequency_weights_are_right_at_every_scale(counts, power):
    wanted = oracle.frequency_weight(counts, power)
    assert aol.frequency_weight(counts, power).tolist() == pytest.approx(wanted, rel=1e-5, abs=1e-44)


@pytest.mark.parametrize("weigh", [aol.class_balanced_weight, aol.frequency_weight])
def test_a_class_without_samples_gets_one_and_takes_no_part_in_the_mean(weigh):
    with_gap, without = weigh([90, 0, 10], 0.9), weigh([90, 10], 0.9)
    assert with_gap[1] == 1.0
    assert with_gap[[0, 2]].equal(without)
    assert weigh([0, 0], 0.9).tolist() == [1.0, 1.0]
    assert weigh([0], 0.9).tolist() == [1.0]


@pytest.mark.parametrize("weigh", [aol.class_balanced_weight, aol.frequency_weight])
def test_a_vector_of_settings_gives_a_row_each(weigh):
    counts = torch.tensor([500, 50, 0, 5])
    rates = [0.0, 0.5, 0.99]
    rows = weigh(counts, rates)
    assert rows.shape == (3, 4)
    for row, rate in zip(rows, rates, strict=True):
        assert row.equal(weigh(counts, rate))
    many = weigh(counts.repeat(3, 1) + 1, torch.tensor(rates, dtype=torch.float64))
    assert many[1].equal(weigh(counts + 1, 0.5))


def test_an_infinite_power_puts_all_the_weight_on_the_rarest_classes():
    assert aol.frequency_weight([100, 10, 0, 10], math.inf).tolist() == pytest.approx([0.0, 1.5, 1.0, 1.5])
    assert aol.temper([1.0, 3.0, 3.0, 0.0], math.inf).tolist() == pytest.approx([0.0, 2.0, 2.0, 0.0])


@given(positive, st.sampled_from([0.0, 0.5, 1.0, 2.0]) | st.floats(0, 4))
def test_temper_raises_to_a_power_and_keeps_mean_one(weight, power):
    wanted = oracle.mean_one([(w / max(weight)) ** power for w in weight])
    assert aol.temper(weight, power).tolist() == pytest.approx(wanted, rel=1e-5, abs=1e-30)


def test_temper_levels_at_zero_keeps_at_one_and_takes_a_vector():
    weight = torch.tensor([0.0, 0.5, 2.5])
    assert aol.temper(weight, 0.0).tolist() == [1.0, 1.0, 1.0]
    assert aol.temper(weight, 1.0).tolist() == weight.tolist()
    rows = aol.temper(weight, [0.0, 0.5, 1.0])
    assert rows[1].equal(aol.temper(weight, 0.5))
    assert aol.temper(torch.zeros(2), 0.5).tolist() == [1.0, 1.0]


@given(positive, st.data())
def test_a_product_is_right_in_any_order(first, data):
    size = len(first)
    second = data.draw(st.lists(st.floats(1e-6, 1e6), min_size=size, max_size=size))
    wanted = oracle.mean_one([a * b for a, b in zip(first, second, strict=True)])
    assert aol.combine(first, second).tolist() == pytest.approx(wanted, rel=1e-6)
    assert aol.combine(second, first, [7.0] * size).tolist() == pytest.approx(wanted, rel=1e-6)
    assert aol.combine(first).tolist() == pytest.approx(oracle.mean_one(first), rel=1e-6)


def test_a_product_neither_overflows_nor_vanishes():
    assert aol.combine([1e200, 1.0], [1e200, 1.0]).tolist() == [2.0, 0.0]
    assert aol.combine([1e-200, 1e-200], [1e-200, 3e-200]).tolist() == [0.5, 1.5]
    assert aol.combine([1e308, 1e308], [1.0, 3.0]).tolist() == [0.5, 1.5]
    assert aol.combine([0.0, 0.0], [1.0, 3.0]).tolist() == [1.0, 1.0]


def test_a_product_of_a_row_and_a_matrix_has_a_row_a_run():
    matrix = torch.tensor([[0.5, 1.5], [1.0, 1.0]])
    assert aol.combine(torch.tensor([1.0, 3.0]), matrix)[1].equal(aol.combine([1.0, 3.0]))
    assert aol.combine(matrix, torch.tensor([1.0, 3.0]))[0].tolist() == pytest.approx([0.2, 1.8])


@given(
    st.integers(1, 4).flatmap(
        lambda c: st.tuples(
            st.just(c),
            st.lists(st.lists(st.tuples(st.integers(0, c - 1), st.booleans()), max_size=10), min_size=1, max_size=6),
        )
    ),
    rhos,
)
def test_error_rates_agree_with_the_naive_loops(stream, rho):
    num_classes, steps = stream
    rates, truth = aol.ErrorRates(num_classes, rho=rho), oracle.ErrorOracle(num_classes, rho)
    for step in steps:
        label, right = [y for y, _ in step], [c for _, c in step]
        rates.observe(label, right)
        rates.advance()
        truth.step(label, right)
        assert rates.error_rate.tolist() == pytest.approx(truth.rate, rel=2e-6, abs=1e-7, nan_ok=True)
        known = [r for r in truth.rate if not math.isnan(r)]
        if rho and sum(known) > 1e-3:
            assert rates.class_weight.tolist() == pytest.approx(oracle.mean_one(truth.rate), rel=1e-4, abs=1e-4)
        elif not sum(known) or not rho:
            assert rates.class_weight.tolist() == [1.0] * num_classes


def test_error_rates_of_runs_together_equal_runs_apart():
    together, apart = aol.ErrorRates(3, rho=[0.1, 0.7]), [aol.ErrorRates(3, rho=r) for r in (0.1, 0.7)]
    for step in range(4):
        generator = torch.Generator().manual_seed(step)
        label = torch.randint(0, 3, (5,), generator=generator)
        right = torch.rand(2, 5, generator=generator) < 0.5
        together.observe(label, right)
        together.advance()
        for r, rates in enumerate(apart):
            rates.observe(label, right[r])
            rates.advance()
    for r, rates in enumerate(apart):
        assert same(together.error_rate[r], rates.error_rate)
        assert same(together.weight([2, 0])[r], rates.weight([2, 0]))


@given(st.lists(st.booleans(), min_size=1, max_size=30), st.none() | st.floats(0.5, 100))
def test_a_set_has_a_constant_factor_and_all_weights_have_mean_one(member, factor):
    weight = aol.set_weight(member, factor)
    inside, outside = (
        [w for w, m in zip(weight.tolist(), member, strict=True) if m == wanted] for wanted in (True, False)
    )
    assert float(weight.double().mean()) == pytest.approx(1.0, rel=1e-6)
    if inside and outside:
        balanced = max(1.0, len(outside) / len(inside))
        assert inside == pytest.approx([outside[0] * (balanced if factor is None else factor)] * len(inside), rel=1e-6)
    else:
        assert weight.tolist() == [1.0] * len(member)


def test_sets_of_runs_have_a_row_each():
    peak = torch.tensor([[1.0, 3.0, math.nan], [5.0, 3.0, 1.0]])
    weights = aol.old_set_weight(peak, after=[2, 4], factor=[3, 1])
    assert weights.tolist() == [[0.5, 1.5, 1.0], [1.0, 1.0, 1.0]]
    assert aol.set_weight(peak > 2, [3, 1]).tolist()[0] == pytest.approx([0.6, 1.8, 0.6])


ONES = torch.ones(3)


@pytest.mark.parametrize(
    ("call", "error", "named"),
    [
        (lambda: aol.class_balanced_weight([1, 2], 1.0), ValueError, "beta"),
        (lambda: aol.class_balanced_weight([1, 2], "0.9"), TypeError, "beta"),
        (lambda: aol.class_balanced_weight([1, 2], [[0.5]]), ValueError, "beta"),
        (lambda: aol.class_balanced_weight([-1, 2], 0.9), ValueError, "counts"),
        (lambda: aol.class_balanced_weight("12", 0.9), TypeError, "counts"),
        (lambda: aol.class_balanced_weight([math.nan], 0.9), ValueError, "counts"),
        (lambda: aol.class_balanced_weight(torch.ones(2, 3), [0.1, 0.2, 0.3]), ValueError, "beta"),
        (lambda: aol.frequency_weight([1, 2], -1.0), ValueError, "power"),
        (lambda: aol.frequency_weight([[1], [2, 3]], 1.0), TypeError, "counts"),
        (lambda: aol.temper(ONES, -1.0), ValueError, "power"),
        (lambda: aol.temper([-1.0], 1.0), ValueError, "weight"),
        (lambda: aol.combine(), ValueError, "weight"),
        (lambda: aol.combine(ONES, torch.ones(2)), ValueError, "weight"),
        (lambda: aol.combine(ONES, [1.0, math.nan, 1.0]), ValueError, "weight"),
        (lambda: aol.set_weight(True), ValueError, "member"),
        (lambda: aol.set_weight([True, False], -1), ValueError, "factor"),
        (lambda: aol.old_set_weight(3.0), ValueError, "peak_age"),
        (lambda: aol.old_set_weight([1.0, 2.0], 0), ValueError, "after"),
        (lambda: aol.ErrorRates(0), ValueError, "num_classes"),
        (lambda: aol.ErrorRates(2, rho=2), ValueError, "rho"),
    ],
)
def test_bad_input_names_the_argument(call, error, named):
    with pytest.raises(error, match=named):
        call()


def test_weights_carry_no_gradient_and_change_no_input():
    weight = torch.tensor([1.0, 3.0], requires_grad=True)
    for made in (aol.combine(weight, weight), aol.temper(weight, 0.5)):
        assert not made.requires_grad
    assert weight.tolist() == [1.0, 3.0]


@pytest.mark.parametrize(
    "use",
    [
        aol.logit_offsets,
        lambda counts: aol.class_balanced_weight(counts, 0.9),
        lambda counts: aol.frequency_weight(counts, 0.5),
        lambda counts: aol.metrics.class_metrics([0.5, 0.5, 0.5], counts=counts),
    ],
)
def test_counts_of_a_series_must_be_in_the_order_of_classes(use) -> None:
    labels = pd.Series([1, 1, 1, 0, 2, 2])
    with pytest.raises(ValueError, match=r"order of the classes.*\[1, 2, 0\].*reindex"):
        use(labels.value_counts())
    with pytest.raises(ValueError, match=r"\[0, 2\]"):
        use(labels[labels != 1].value_counts().sort_index())
    weights, wanted = use(labels.value_counts().reindex(range(3), fill_value=0)), use([1, 3, 2])
    assert str(weights) == str(wanted)
    assert str(use(pd.Series([1, 3, 2], index=["a", "b", "c"]))) == str(wanted)
