"""ClassAges against the oracle: thresholds, classes that are not observed, runs."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import aol
from tests.support.histories import rhos, same
from tests.support.oracle import StreamOracle


def lowest_plus_a_bit(accuracy) -> float:
    """A threshold function that works on the library's tensor and on the oracle's list."""
    return min(v for v in map(float, accuracy) if not math.isnan(v)) + 0.25


thresholds = st.sampled_from(["median", "positive-median", "mean", 0.0, 0.5, 1.0, lowest_plus_a_bit]) | st.floats(0, 1)


@st.composite
def streams(draw, most_classes: int = 5):
    """A number of classes, and for each step a list of (label, right); some steps show nothing."""
    num_classes = draw(st.integers(1, most_classes))
    answers = st.tuples(st.integers(0, num_classes - 1), st.booleans())
    return num_classes, draw(st.lists(st.lists(answers, max_size=15), min_size=1, max_size=8))


def split(step):
    return [y for y, _ in step], [c for _, c in step]


@settings(max_examples=50)
@given(streams(), rhos, thresholds, st.integers(0, 5))
def test_a_stream_agrees_with_the_naive_loops(stream, rho, threshold, cut):
    num_classes, steps = stream
    ages, truth = (kind(num_classes, rho=rho, threshold=threshold) for kind in (aol.ClassAges, StreamOracle))
    for step in steps:
        ages.observe(*split(step[:cut]))
        ages.observe(*split(step[cut:]))
        ages.advance()
        truth.step(*split(step))
        assert ages.age.dtype == torch.int32
        assert ages.age.tolist() == truth.age
        assert ages.ema.tolist() == pytest.approx(truth.ema, rel=2e-6)
        assert ages.class_weight.tolist() == pytest.approx(truth.class_weight, rel=2e-6)
        assert ages.accuracy.tolist() == pytest.approx(truth.accuracy, rel=1e-12, nan_ok=True)
        assert ages.threshold.item() == pytest.approx(truth.threshold, rel=1e-12, nan_ok=True)
        every = list(range(num_classes)) * 2
        assert ages.weight(every).tolist() == pytest.approx(truth.class_weight * 2, rel=2e-6)
        assert int(ages.age.min()) >= 1
        assert ages.class_weight.double().mean().item() == pytest.approx(1.0, rel=1e-6)
    assert ages.epoch == len(steps)


@settings(max_examples=40)
@given(st.lists(st.tuples(rhos, thresholds), min_size=1, max_size=4), st.integers(0, 2**30), st.booleans())
def test_runs_together_equal_runs_apart_to_the_last_bit(settings, seed, shared):
    runs = len(settings)
    together = aol.ClassAges(4, rho=[rho for rho, _ in settings], threshold=[rule for _, rule in settings])
    apart = [aol.ClassAges(4, rho=rho, threshold=rule) for rho, rule in settings]
    for step in range(5):
        generator = torch.Generator().manual_seed(seed + step)
        label = torch.randint(0, 4, (6,) if shared else (runs, 6), generator=generator)
        right = torch.rand(runs, 6, generator=generator) < 0.5
        together.observe(label, right)
        together.advance()
        for r, ages in enumerate(apart):
            ages.observe(label if shared else label[r], right[r])
            ages.advance()
    own = torch.arange(runs * 2).reshape(runs, 2) % 4
    for r, ages in enumerate(apart):
        for name in ("age", "ema", "class_weight", "accuracy", "threshold", "rho"):
            assert same(getattr(together, name)[r], getattr(ages, name)), name
        assert same(together.weight([3, 0, 0])[r], ages.weight([3, 0, 0]))
        assert same(together.weight(own)[r], ages.weight(own[r]))


@pytest.mark.parametrize("rule", ["positive-median", "mean"])
def test_classes_at_zero_grow_older_where_the_median_is_zero(rule):
    by_median, ages = aol.ClassAges(5), aol.ClassAges(5, threshold=rule)
    for each in (by_median, ages):
        for _ in range(2):
            each.observe(range(5), [True, False, False, False, True])
            each.advance()
    assert by_median.age.tolist() == [1, 1, 1, 1, 1]
    assert ages.age.tolist() == [1, 3, 3, 3, 1]


@pytest.mark.parametrize("right", [1, 3, 7])
def test_classes_that_are_equally_good_are_not_below_their_mean(right):
    ages = aol.ClassAges(7, threshold="mean")  # the float sum of seven times 0.1 is not 0.7
    ages.observe(torch.arange(7).repeat(10), torch.arange(70) < 7 * right)
    ages.advance()
    assert ages.age.tolist() == [1] * 7


def test_a_class_that_is_not_observed_keeps_its_age_and_accuracy_while_its_ema_goes_on():
    ages = aol.ClassAges(2, rho=0.5, threshold=1.0)
    ages.observe([0, 1], [False, False])
    ages.advance()
    ages.observe([0], [False])
    ages.advance()
    ages.observe([0, 0], [False, True])
    ages.advance()
    assert ages.age.tolist() == [4, 2]
    assert ages.ema.tolist() == [3.25, 2.0]
    assert ages.accuracy.tolist() == [0.5, 0.0]
    ages.advance()
    assert ages.age.tolist() == [4, 2]
    assert ages.ema.tolist() == [3.625, 2.0]


def test_the_emas_start_at_the_first_updated_ages_even_of_a_class_seen_later():
    ages = aol.ClassAges(2, rho=0.25, threshold=1.0)
    ages.observe([0], [False])
    ages.advance()
    assert ages.ema.tolist() == [2.0, 1.0]
    ages.observe([1], [False])
    ages.advance()
    assert ages.ema.tolist() == [2.0, 1.25]


def test_a_threshold_function_gets_accuracies_with_nan_where_unseen_and_cannot_spoil_them():
    given_to = []

    def spoiler(accuracy):
        given_to.append(accuracy.tolist())
        accuracy.fill_(0.0)
        return torch.tensor(0.6)

    ages = aol.ClassAges(3, threshold=spoiler)
    ages.observe([0, 0, 2], [True, False, True])
    ages.advance()
    assert given_to == [pytest.approx([0.5, math.nan, 1.0], nan_ok=True)]
    assert ages.age.tolist() == [2, 1, 1]
    assert ages.accuracy.tolist() == pytest.approx([0.5, math.nan, 1.0], nan_ok=True)
    assert ages.threshold.dtype == torch.float64


def test_a_threshold_function_is_not_asked_where_nothing_was_observed():
    ages = aol.ClassAges(2, rho=[0.5, 0.5], threshold=lambda accuracy: accuracy[~accuracy.isnan()].min())
    ages.advance()
    assert ages.epoch == 1
    assert ages.threshold.isnan().all()
    assert ages.age.tolist() == [[1, 1], [1, 1]]


@pytest.mark.parametrize("answer", [lambda a: math.nan, lambda a: math.inf, lambda a: "high", lambda a: 1 / 0])
def test_a_threshold_function_that_fails_loses_no_observation(answer):
    answers = [answer]
    ages = aol.ClassAges(3, threshold=lambda accuracy: answers[0](accuracy))
    ages.observe([0, 1, 2], [True, False, True])
    with pytest.raises((ValueError, ZeroDivisionError)):
        ages.advance()
    assert ages.epoch == 0
    answers[0] = lambda accuracy: 0.5
    ages.advance()
    assert ages.age.tolist() == [1, 2, 1]
    assert ages.accuracy.tolist() == [1.0, 0.0, 1.0]


@pytest.mark.parametrize("kind", [aol.ClassAges, aol.ErrorRates])
def test_a_stray_label_on_the_device_is_left_out_and_reported_by_advance(kind, monkeypatch):
    state = kind(2, rho=0.5)
    monkeypatch.setattr(aol._check, "readable", lambda value: False)  # as on a CUDA device
    state.observe([0, 7, 1, -1], [True, True, False, False])
    assert state.weight([0, 7]).isnan().tolist() == [False, True]
    with pytest.raises(IndexError, match="advance"):
        state.advance()
    assert state.epoch == 0
    state.advance()
    assert state.epoch == 1
    assert state.class_weight.argmax() == 1


@pytest.mark.parametrize("threshold", ["mode", "", -0.1, 1.5, math.nan, None, True, [0.5], torch.tensor(0.5)])
def test_a_bad_threshold_is_named(threshold):
    with pytest.raises((TypeError, ValueError), match="threshold"):
        aol.ClassAges(3, threshold=threshold)


@pytest.mark.parametrize("state", [aol.ClassAges(2), aol.ErrorRates(2)])
@pytest.mark.parametrize("times", [-1, 2**62])
def test_counts_that_are_negative_or_would_wrap_are_refused(state, times):
    with pytest.raises(IndexError, match="times must lie in 0 to"):
        state.observe([0], [True], times=[times])
    assert not state.state_dict()["_count"].any()
