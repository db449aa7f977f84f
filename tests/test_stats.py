"""Intervals cover what they say, also when a setting was chosen; Holm's rule against the step-down loop."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy import stats

from aol.lab.study.stats import choose_leaving_one_out
from aol.stats import Gain, holm, inflation, paired_gain

TIMES = 2500


def test_the_interval_and_p_value_are_those_of_students_t() -> None:
    values = [0.012, -0.003, 0.027, 0.008]
    gain = paired_gain(values)
    known = stats.ttest_1samp(values, 0.0)
    ends = known.confidence_interval(0.95)
    assert gain.interval == pytest.approx((ends.low, ends.high))
    assert gain.p == pytest.approx(known.pvalue)
    for value in (0.005, 0.030):
        assert gain.p_equal(value) == pytest.approx(stats.ttest_1samp(values, value).pvalue)


@pytest.mark.parametrize("seeds", [3, 5, 10])
def test_the_paired_interval_covers_at_its_nominal_rate(seeds: int) -> None:
    rng = np.random.default_rng(seeds)
    hits = 0
    for values in rng.normal(0.01, 0.02, (TIMES, seeds)):
        gain = Gain(float(values.mean()), seeds, float(values.std(ddof=1)))
        assert gain.interval is not None
        hits += gain.interval[0] <= 0.01 <= gain.interval[1]
    assert hits / TIMES == pytest.approx(0.95, abs=0.0153)  # 3.5 standard errors


def _chosen(seeds: int, settings: int, shared: float) -> list[Gain]:
    """Gains of a method whose settings are all as good as the baseline; luck on validation is partly luck on test."""
    rng = np.random.default_rng(100 * seeds + settings)
    gains = []
    for _ in range(TIMES):
        test = rng.standard_normal((seeds, settings))
        validation = shared * test + math.sqrt(1 - shared**2) * rng.standard_normal((seeds, settings))
        own = choose_leaving_one_out(validation)
        differences = test[np.arange(seeds), own] - rng.standard_normal(seeds)
        gains.append(Gain(float(differences.mean()), seeds, float(differences.std(ddof=1)), chosen=1))
    return gains


@pytest.mark.parametrize(("seeds", "settings"), [(3, 2), (3, 22), (5, 10), (10, 22)])
@pytest.mark.parametrize("shared", [0.0, 1.0])
def test_the_interval_after_a_choice_covers_at_least_at_its_nominal_rate(
    seeds: int, settings: int, shared: float
) -> None:
    gains = _chosen(seeds, settings, shared)
    covered = sum(gain.interval is not None and gain.interval[0] <= 0.0 <= gain.interval[1] for gain in gains)
    assert covered / TIMES >= 0.95 - 0.010
    assert float(np.mean([gain.mean for gain in gains])) == pytest.approx(0.0, abs=0.06)  # no gain is made up


@pytest.mark.parametrize(("seeds", "settings"), [(3, 10), (5, 22), (10, 22)])
def test_with_both_sides_chosen_the_interval_covers_at_least_at_its_nominal_rate(seeds: int, settings: int) -> None:
    rng = np.random.default_rng(seeds)
    hits = {0: 0, 1: 0, 2: 0}
    for _ in range(TIMES):
        sides = rng.standard_normal((2, seeds, settings))
        ours, theirs = (side[np.arange(seeds), choose_leaving_one_out(side)] for side in sides)
        mean, spread = float((ours - theirs).mean()), float((ours - theirs).std(ddof=1))
        for chosen in hits:
            ends = Gain(mean, seeds, spread, chosen=chosen).interval
            assert ends is not None
            hits[chosen] += ends[0] <= 0.0 <= ends[1]
    assert hits[2] / TIMES >= 0.95 - 0.010
    assert hits[1] / TIMES < hits[2] / TIMES
    assert hits[0] / TIMES < 0.93


def _holm_by_steps(p_values: list[float], alpha: float) -> list[bool]:
    """Holm's rule as it is told: from the smallest on, stop at the first that is not small enough."""
    rejected = [False] * len(p_values)
    for step, place in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        if p_values[place] > alpha / (len(p_values) - step):
            break
        rejected[place] = True
    return rejected


def test_corrected_p_values_reject_what_the_steps_reject() -> None:
    rng = np.random.default_rng(0)
    for _ in range(300):
        p_values = (rng.random(rng.integers(1, 9)) ** 3).tolist()
        for alpha in (0.01, 0.05, 0.2):
            assert [p <= alpha for p in holm(p_values)] == _holm_by_steps(p_values, alpha)


@pytest.mark.parametrize("chosen", [0, 1, 2])
def test_the_seeds_that_are_needed_are_the_fewest_with_eighty_percent_power(chosen: int) -> None:
    gain = Gain(0.012, 4, 0.007, chosen=chosen)
    needed, rng = gain.seeds_needed(), np.random.default_rng(0)
    assert needed is not None
    power = []
    for seeds in (needed - 1, needed):
        error = 0.007 * math.sqrt(inflation(seeds, chosen) / seeds)
        means = 0.012 + error * rng.standard_normal(20_000)
        errors = error * np.sqrt(rng.chisquare(seeds - 1, 20_000) / (seeds - 1))
        power.append(float((means > stats.t.ppf(0.975, seeds - 1) * errors).mean()))
    assert power[0] < 0.81
    assert power[1] > 0.79


def test_a_gain_that_no_number_of_seeds_could_show_has_no_such_number() -> None:
    assert paired_gain([0.01, 0.002, 0.0100001]).seeds_needed() is not None
    assert paired_gain([0.01, -0.01, 0.0100001]).seeds_needed() is None  # over 20, where nothing is known
    assert paired_gain([0.01, -0.01]).seeds_needed() is None
    assert paired_gain([0.01, -0.0099999999]).seeds_needed() is None


@pytest.mark.parametrize(
    ("values", "p"),
    [([0.5], 1.0), ([0.1, 0.1, 0.1], 0.25), ([0.0, 0.0, 0.0], 1.0), ([0.3 - 0.1, 0.2, 0.7 - 0.5], 0.25)],
)
def test_one_seed_is_no_evidence_and_equal_differences_leave_only_their_sign(values: list[float], p: float) -> None:
    gain = paired_gain(values)
    assert (gain.interval, gain.p) == (None, pytest.approx(p))  # two sides of 1 in 8
    assert not gain.spread


@pytest.mark.parametrize("wrong", [[], [math.nan], [0.1, math.inf], [[1, 2], [3, 4]], 0.5])
def test_differences_that_are_no_numbers_are_refused(wrong: Any) -> None:
    with pytest.raises(ValueError, match="differences must be one or more finite numbers"):
        paired_gain(wrong)
