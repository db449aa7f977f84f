from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import aol
from tests.support import oracle

LABELS = torch.arange(60) % 4


def make(kind: str, **more):
    settings = {"steps": 9, "seed": 2, **more}
    if kind == "ShiftingTail":
        return aol.ShiftingTail(LABELS, 5, period=3, **settings)
    return getattr(aol, kind)(LABELS, 0.25, **settings)


every_stream = pytest.mark.parametrize("kind", ["LimitedAccess", "ShiftingTail", "Arrivals"])


def told(stream) -> list[list[int]]:
    return [step.tolist() for step in stream]


@every_stream
def test_a_stream_tells_the_same_story_every_time(kind):
    stream = make(kind)
    story = told(stream)
    assert len(stream) == len(story) == 9
    assert told(stream) == story == told(make(kind))
    assert told(make(kind, seed=3)) != story
    assert [stream[t].tolist() for t in range(9)] == story
    assert stream[-1].tolist() == story[-1]
    assert len({tuple(step) for step in story}) == 9  # every step another subset
    for t in range(9):
        assert stream.counts(t).tolist() == np.bincount(LABELS[story[t]], minlength=4).tolist()


@every_stream
@pytest.mark.parametrize("stop", [0, 4, 9])
def test_a_stream_left_at_any_step_goes_on_there(kind, stop):
    story, stream, other = told(make(kind)), make(kind), make(kind)
    steps = iter(stream)
    begun = [next(steps).tolist() for _ in range(stop)]
    other.load_state_dict(stream.state_dict())
    assert other.step == stop
    assert begun + told(other) == story
    assert told(other) == story  # and from the front again
    assert begun + told(steps) == story


@every_stream
def test_indices_are_ascending_whole_numbers_without_repeats(kind):
    for step in make(kind):
        assert step.dtype == torch.int64
        assert (step.diff() > 0).all()
        assert 0 <= int(step.min()) <= int(step.max()) < 60


@pytest.mark.parametrize("kind", [aol.LimitedAccess, aol.Arrivals])
@given(st.integers(1, 500), st.floats(0, 1, exclude_min=True))
def test_a_step_shows_the_rounded_fraction_and_at_least_one(kind, size, fraction):
    stream = kind([0] * size, fraction, steps=2)
    assert [len(step) for step in stream] == [max(1, round(size * fraction))] * 2


@pytest.mark.parametrize("kind", [aol.LimitedAccess, aol.Arrivals])
def test_every_sample_is_shown_equally_often(kind):
    stream = kind([0] * 20, 0.25, steps=4000, seed=1)
    counts = np.bincount(np.concatenate([step.numpy() for step in stream]), minlength=20)
    # Without replacement the counts vary less than a chi-square, so this is a safe bound (99.9 %, 19 degrees).
    assert ((counts - 1000) ** 2 / 1000).sum() < 43.8


@given(st.integers(1, 6), st.integers(1, 30), st.floats(1, 50), st.integers(1, 7))
def test_a_shifting_tail_has_exact_counts_that_move_with_the_period(classes, size, imbalance, period):
    labels = torch.arange(classes * size) % classes
    stream = aol.ShiftingTail(labels, imbalance, period=period, steps=15, seed=4)
    wanted = oracle.long_tail_counts(size, classes, imbalance)
    for t in range(15):
        ranks = stream.ranks(t).tolist()
        assert sorted(ranks) == list(range(classes))
        assert ranks == stream.ranks(t // period * period).tolist()
        assert stream.counts(t).tolist() == [wanted[rank] for rank in ranks]
        assert int(stream.counts(t).min()) >= 1


def test_the_smallest_class_of_the_pool_is_the_size_of_the_head():
    labels = [0] * 50 + [1] * 8 + [2] * 20
    stream = aol.ShiftingTail(labels, 4, period=1, steps=5)
    for t in range(5):
        assert sorted(stream.counts(t).tolist()) == [2, 4, 8]


def test_a_shifting_tail_over_other_labels_refuses_a_state():
    state = make("ShiftingTail").state_dict()
    other = aol.ShiftingTail(LABELS.flip(0), 5, period=3, steps=9, seed=2)
    with pytest.raises(ValueError, match="labels"):
        other.load_state_dict(state)


@pytest.mark.parametrize(
    ("call", "error", "named"),
    [
        (lambda: aol.LimitedAccess([0], 0.0, steps=1), ValueError, "fraction"),
        (lambda: aol.LimitedAccess([0], "all", steps=1), TypeError, "fraction"),
        (lambda: aol.LimitedAccess([0], 0.5, steps=0), ValueError, "steps"),
        (lambda: aol.LimitedAccess([0], 0.5, steps=1, seed=-3), ValueError, "seed"),
        (lambda: aol.LimitedAccess([-1], 0.5, steps=1), ValueError, "labels"),
        (lambda: aol.ShiftingTail([0, 2], 5, period=1, steps=1), ValueError, "labels"),
        (lambda: aol.ShiftingTail([0, 1], 0.5, period=1, steps=1), ValueError, "imbalance"),
        (lambda: aol.ShiftingTail([0, 1], 5, period=0, steps=1), ValueError, "period"),
        (lambda: make("LimitedAccess")[9], IndexError, "step"),
        (lambda: make("LimitedAccess")[1.5], TypeError, "step"),
        (lambda: make("ShiftingTail").ranks(9), IndexError, "step"),
    ],
)
def test_bad_input_names_the_argument(call, error, named):
    with pytest.raises(error, match=named):
        call()
