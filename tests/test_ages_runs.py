"""A run is a row: R runs at once are R separate ones to the last bit, and so is any way of sharing samples out."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import aol
from tests.support.histories import random_answers, rhos, same

NAMES = ("age", "ema", "class_age", "class_weight", "sample_weight")


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize(
    ("shared", "fuse", "absent", "level"),
    [(True, "ema", "keep", "class"), (False, "ema", "grow", "sample"), (False, "peak", "keep", "class")],
)
@settings(max_examples=25)
@given(st.lists(rhos, min_size=1, max_size=5), st.integers(1, 40), st.integers(0, 2**30))
def test_runs_together_equal_runs_apart_to_the_last_bit(shared, fuse, absent, level, rho, size, seed):
    runs, labels = len(rho), torch.randint(0, 3, (size,), generator=generator(seed))
    kind = {"num_classes": 3, "fuse": fuse, "absent": absent, "level": level}
    together = aol.SampleAges(labels, rho=rho, **kind)
    apart = [aol.SampleAges(labels, rho=each, **kind) for each in rho]
    for step in range(4):
        batch = size if step == 0 else 7
        index = torch.randint(0, size, (batch,) if shared else (runs, batch), generator=generator(seed + step))
        right = torch.rand(runs, batch, generator=generator(seed + step)) < 0.4
        together.observe(index, right)
        together.advance()
        for r, ages in enumerate(apart):
            ages.observe(index if shared else index[r], right[r])
            ages.advance()
    for name in NAMES:
        found = getattr(together, name)
        assert found.shape[0] == runs
        for r, ages in enumerate(apart):
            assert same(found[r], getattr(ages, name)), (name, r)
    everyone = torch.arange(size)
    own = torch.randint(0, size, (runs, 5), generator=generator(seed))
    for r, ages in enumerate(apart):
        assert same(together.weight(everyone)[r], ages.weight(everyone))
        assert same(together.weight(own)[r], ages.weight(own[r]))


def test_where_a_sample_stands_does_not_change_a_bit_of_it():
    # Long enough for vector instructions, with a tail that they do not cover.
    size = 1003
    labels, place = torch.arange(size) % 7, torch.randperm(size, generator=generator(3))
    moved_labels = torch.empty_like(labels)
    moved_labels[place] = labels
    kind = {"rho": [0.3, 0.07, 0.999]}
    first, second = aol.SampleAges(labels, **kind), aol.SampleAges(moved_labels, **kind)
    for step in range(30):
        right = torch.rand(3, size, generator=generator(step)) < 0.2
        first.observe(range(size), right)
        second.observe(place, right)
        first.advance()
        second.advance()
    assert same(first.ema, second.ema[:, place])
    assert same(first.sample_weight, second.sample_weight[:, place])
    assert same(first.class_age, second.class_age)
    assert same(first.class_weight, second.class_weight)


@pytest.mark.parametrize("cuts", [[0, 0, 1003], list(range(0, 1003, 17))])
def test_how_an_epoch_is_cut_into_calls_does_not_change_a_bit(cuts):
    size = 1003
    whole, parts = (aol.SampleAges(torch.arange(size) % 5, rho=0.3) for _ in range(2))
    for step, right in enumerate(random_answers(size, 6, right=0.3, seed=8)):
        order = torch.randperm(size, generator=generator(step))
        whole.observe(range(size), right)
        whole.advance()
        for part in order.tensor_split(cuts):
            parts.observe(part, right[part])
        parts.advance()
    for name in NAMES:
        assert same(getattr(whole, name), getattr(parts, name)), name


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans()), min_size=1, max_size=40), st.integers(1, 3), st.data())
def test_of_a_repeated_index_the_last_one_wins_within_a_call_and_across_calls(answers, runs, data):
    ages = aol.SampleAges([0, 1, 2, 3], rho=[1.0] * runs)
    cut = data.draw(st.integers(0, len(answers)))
    for part in (answers[:cut], answers[cut:]):
        index, right = [i for i, _ in part], [[(c ^ (r == 1)) for _, c in part] for r in range(runs)]
        ages.observe(index, torch.tensor(right, dtype=torch.bool).reshape(runs, -1))
    ages.advance()
    last = dict(answers)
    for r in range(runs):
        wanted = [(1 if last[i] ^ (r == 1) else 2) if i in last else 1 for i in range(4)]
        assert ages.age[r].tolist() == wanted


def test_a_last_answer_in_a_long_call_of_repeats_still_wins():
    # Long enough that a parallel or vectorised scatter would show.
    size = 100_000
    index = torch.arange(size) % 10
    for shape in ((size,), (2, size)):
        ages = aol.SampleAges([0] * 10, rho=[0.5, 0.5])
        right = torch.zeros(2, size, dtype=torch.bool)
        right[:, -10:-5] = True
        ages.observe(index.expand(shape), right)
        ages.advance()
        assert ages.age.tolist() == [[1] * 5 + [2] * 5] * 2
