"""SampleAges against the oracle: every rule, however an epoch is cut into calls."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import aol
from aol import ages as module
from tests.support.histories import random_answers, rhos, same, stories, tell_epoch
from tests.support.oracle import SampleOracle

RULES = [(level, fuse, absent) for level in ("class", "sample") for fuse in module.FUSE for absent in ("keep", "grow")]


def assert_same_numbers(ages, truth, *, rel=2e-6):
    def close(found, wanted):
        assert found.tolist() == pytest.approx(wanted, rel=rel, nan_ok=True)

    assert ages.age.dtype == torch.int32
    assert ages.age.tolist() == truth.age
    for name in ("ema", "mean_age", "class_age", "class_weight", "sample_weight"):
        found = getattr(ages, name)
        assert found.dtype == torch.float32, name
        close(found, getattr(truth, name))
    every = list(range(len(truth.labels)))
    close(ages.weight(every), truth.weight(every))
    close(ages.weight(every[::-1] + every), truth.weight(every[::-1] + every))


@pytest.mark.parametrize(("level", "fuse", "absent"), RULES)
@pytest.mark.parametrize("full", [True, False])
@settings(max_examples=15)
@given(data=st.data(), rho=rhos)
def test_every_rule_agrees_with_the_naive_loops(level, fuse, absent, full, data, rho):
    story = data.draw(stories(full=full))
    kind = {"rho": rho, "level": level, "fuse": fuse, "absent": absent, "num_classes": story.num_classes}
    ages, truth = aol.SampleAges(story.labels, **kind), SampleOracle(story.labels, **kind)
    assert_same_numbers(ages, truth)
    for epoch in range(len(story.epochs)):
        tell_epoch(ages, story, epoch)
        truth.epoch(story.observed(epoch))
        assert ages.epoch == epoch + 1
        assert_same_numbers(ages, truth)


@pytest.mark.parametrize(("fuse", "right"), [("ema", 0.02), ("peak", 0.5)])
def test_three_hundred_epochs_do_not_drift(fuse, right):
    labels = [i % 3 for i in range(40)]
    ages, truth = aol.SampleAges(labels, rho=0.07, fuse=fuse), SampleOracle(labels, rho=0.07, fuse=fuse)
    for answers in random_answers(40, 300, right=right, seed=5):
        ages.observe(range(40), answers)
        ages.advance()
        truth.epoch(dict(enumerate(answers.tolist())))
    assert_same_numbers(ages, truth, rel=5e-6)


def test_before_the_first_epoch_ages_are_one_and_so_are_all_weights():
    ages = aol.SampleAges([0, 1, 1], num_classes=3)
    assert ages.age.tolist() == [1, 1, 1]
    assert ages.ema.isnan().all()
    assert ages.class_age.isnan().all()
    assert ages.class_weight.tolist() == ages.sample_weight.tolist() == [1.0, 1.0, 1.0]


def test_rho_zero_gives_uniform_weights_whatever_happened():
    ages = aol.SampleAges([0, 0, 1], rho=0.0, level="sample")
    for _ in range(4):
        ages.observe([0, 1, 2], [True, False, False])
        ages.advance()
    assert ages.age.tolist() == [1, 5, 5]
    assert ages.ema.tolist() == [1.0, 2.0, 2.0]  # the paper's equations: frozen at the first age
    assert ages.class_weight.tolist() == [1.0, 1.0]
    assert ages.sample_weight.tolist() == ages.weight([0, 1, 2]).tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("chunk", [1, 7])
@pytest.mark.parametrize(("level", "fuse", "absent"), [RULES[0], RULES[-1]])
def test_folding_in_chunks_changes_nothing(monkeypatch, chunk, level, fuse, absent):
    labels = [i * i % 5 for i in range(23)]
    kind = {"rho": [0.3, 0.9, 0.0], "level": level, "fuse": fuse, "absent": absent}
    whole, parts = aol.SampleAges(labels, **kind), aol.SampleAges(labels, **kind)
    for step in range(5):
        index = torch.randperm(23, generator=torch.Generator().manual_seed(step))[:15]
        right = torch.rand(3, 15, generator=torch.Generator().manual_seed(step)) < 0.5
        for ages, size in ((whole, 1 << 20), (parts, chunk)):
            monkeypatch.setattr(module, "_BLOCK", size)
            ages.observe(index, right)
            ages.advance()
    for name in ("age", "ema", "class_age", "class_weight", "sample_weight"):
        assert same(getattr(whole, name), getattr(parts, name)), name
    assert same(whole.weight(range(23)), parts.weight(range(23)))


def test_sums_that_need_fewer_binary_places_in_a_very_long_run_are_still_right():
    # Very many epochs times samples leave less room behind the point in the whole-number sums.
    ages = aol.SampleAges([i % 2 for i in range(2000)], rho=0.3)
    for answers in random_answers(2000, 3, right=0.5, seed=2):
        ages.observe(range(2000), answers)
        ages.advance()
    before = (ages.class_age, ages.class_weight, ages.sample_weight)
    state = ages.state_dict()
    state["_extra_state"]["epoch"] = 2**40
    ages.load_state_dict(state)
    ages.advance()  # sums anew, with fewer bits
    for old, new in zip(before, (ages.class_age, ages.class_weight, ages.sample_weight), strict=True):
        assert new.tolist() == pytest.approx(old.tolist(), rel=1e-6)


def test_class_sums_never_overflow_at_the_largest_ages():
    ages, largest = aol.SampleAges([0] * 1000, rho=1.0), 2**31 - 1
    state = ages.state_dict()
    state |= {"_age": state["_age"] + (largest - 1), "_ema": torch.full_like(state["_ema"], float(largest))}
    state["_extra_state"]["epoch"] = largest
    ages.load_state_dict(state)
    ages.observe(range(1000), [False] * 1000)
    ages.advance()
    assert ages.class_age.tolist() == pytest.approx([float(largest)])
    assert int(ages.age.min()) == int(ages.age.max()) == largest  # counting stops, it does not wrap around


@pytest.mark.parametrize(
    "labels",
    [
        [0, 1, 2, 1],
        np.array([0, 1, 2, 1], dtype=np.uint8),
        np.array([0, 9, 1, 9, 2, 9, 1, 9])[::2],
        torch.tensor([0, 1, 2, 1], dtype=torch.uint8),
        torch.tensor([0, 9, 1, 9, 2, 9, 1, 9], dtype=torch.int32)[::2],
    ],
)
def test_labels_come_in_any_kind_of_whole_number(labels):
    ages = aol.SampleAges(labels)
    ages.observe(range(4), [True, False, True, True])
    ages.advance()
    assert ages.num_classes == 3
    assert ages.class_age.tolist() == [1.0, 1.5, 1.0]


def test_read_only_arrays_are_read_without_a_warning(recwarn):
    arrays = [np.array([0, 1]), np.array([1, 0]), np.array([True, False])]
    for array in arrays:
        array.flags.writeable = False
    ages = aol.SampleAges(arrays[0])
    ages.observe(arrays[1], arrays[2])
    ages.advance()
    assert ages.age.tolist() == [2, 1]
    assert not recwarn.list


def test_more_than_256_classes_are_kept_apart():
    ages = aol.SampleAges(range(1000), rho=1.0)
    ages.observe([300, 44], [False, True])
    ages.advance()
    assert ages.class_age[300] == 2.0
    assert ages.class_age[44] == 1.0
    assert math.isnan(ages.class_age[999])
