"""The set of samples that were once wrong for long, against the naive loops."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import aol
from aol.plugins._training import check_ages
from tests.support.histories import random_answers, same, stories, tell_epoch
from tests.support.oracle import OldOracle


@pytest.mark.parametrize("absent", ["keep", "grow"])
@settings(max_examples=60)
@given(stories(full=False), st.integers(1, 3), st.sampled_from([None, 0.0, 1.0, 7.5, 50]))
def test_the_set_and_its_weights_agree_with_the_naive_loops(absent, story, after, factor):
    kind = {"after": after, "factor": factor, "absent": absent, "num_classes": story.num_classes}
    ages, truth = aol.OldSet(story.labels, **kind), OldOracle(story.labels, **kind)
    every = list(range(len(story.labels)))
    for epoch in range(len(story.epochs)):
        tell_epoch(ages, story, epoch)
        truth.epoch(story.observed(epoch))
        assert ages.old.tolist() == truth.old
        assert ages.age.tolist() == truth.age
        assert ages.ema.tolist() == pytest.approx(truth.ema, nan_ok=True)
        assert ages.sample_weight.tolist() == pytest.approx(truth.sample_weight, rel=1e-6)
        assert ages.weight(every[::-1]).tolist() == pytest.approx(truth.sample_weight[::-1], rel=1e-6)
        pure = aol.old_set_weight(ages.ema, after, factor)
        assert pure.tolist() == pytest.approx(truth.sample_weight, rel=1e-6)


def test_a_sample_is_old_from_its_last_wrong_answer_in_a_row_on_and_stays_so():
    ages = aol.OldSet([0, 0], after=3)
    found = []
    for right in (False, False, True, False, False, False, True, True):
        ages.observe([0, 1], [right, True])
        ages.advance()
        found.append(ages.old.tolist())
    assert found == [[False, False]] * 5 + [[True, False]] * 3


def test_without_a_factor_old_and_young_samples_have_the_same_total_weight():
    ages = aol.OldSet([0] * 10, after=1)
    ages.observe(range(10), [i not in (3, 7) for i in range(10)])
    ages.advance()
    weight = ages.sample_weight
    assert float(weight[[3, 7]].sum()) == pytest.approx(5.0)
    assert float(weight.sum()) == pytest.approx(10.0)
    ages.observe(range(10), [i < 2 for i in range(10)])
    ages.advance()
    assert ages.old.sum() == 8
    assert ages.sample_weight.tolist() == [1.0] * 10  # a majority is not weighted down


def test_runs_together_equal_runs_apart_to_the_last_bit():
    labels, after, factor = [i % 3 for i in range(30)], [1, 2, 4], [50, 3, 0.5]
    together = aol.OldSet(labels, after=after, factor=factor)
    apart = [aol.OldSet(labels, after=a, factor=f) for a, f in zip(after, factor, strict=True)]
    for answers in random_answers(90, 8, right=0.4, seed=2):
        right = torch.as_tensor(answers).reshape(3, 30)
        together.observe(range(30), right)
        together.advance()
        for ages, own in zip(apart, right, strict=True):
            ages.observe(range(30), own)
            ages.advance()
        for row, ages in enumerate(apart):
            assert same(together.old[row], ages.old)
            assert same(together.sample_weight[row], ages.sample_weight)
            assert same(together.weight([5, 1])[row], ages.weight([5, 1]))


def test_a_sampler_draws_old_samples_by_their_factor():
    ages = aol.OldSet([0] * 100, after=1, factor=99)
    ages.observe(range(100), [i > 0 for i in range(100)])
    ages.advance()
    drawn = list(aol.AgeSampler(ages, num_samples=20_000, seed=1))
    assert sum(i == 0 for i in drawn) / 20_000 == pytest.approx(0.5, abs=0.02)


def test_plug_ins_and_recorders_take_an_old_set_for_ages(tmp_path):
    labels = torch.tensor([0, 0, 1, 1])
    ages = aol.OldSet(labels, after=1)
    assert check_ages(ages) is ages
    recorder = aol.Recorder(tmp_path, ages)
    for _ in range(3):
        logits = torch.tensor([[2.0, 0.0], [0.0, 2.0], [0.0, 2.0], [0.0, 2.0]])  # sample 1 is wrong
        ages.observe(range(4), aol.is_correct(logits, labels))
        recorder.observe(range(4), logits)
        ages.advance()
        recorder.advance()
    recorder.close()
    assert ages.weight([0, 1]).tolist() == pytest.approx([2 / 3, 2.0])
    weight = aol.load_runs(tmp_path).classes()["weight"].tolist()
    assert weight == pytest.approx([4 / 3, 2 / 3])  # used in the last epoch, mean over the class's samples


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"after": 0}, "after"),
        ({"after": math.nan}, "after"),
        ({"after": "x"}, "after"),
        ({"factor": -1}, "factor"),
        ({"factor": math.inf}, "factor"),
        ({"after": [1, 2], "factor": [1, 2, 3]}, "factor"),
        ({"after": 2, "factor": [1, 2]}, "factor"),
    ],
    ids=str,
)
def test_a_wrong_setting_is_refused_by_name(given, named):
    with pytest.raises((TypeError, ValueError), match=named):
        aol.OldSet([0, 1], **given)
