"""The best of k runs against all ways of drawing them; choosing settings against loops and simulation."""

from __future__ import annotations

import itertools
import math
import statistics

import numpy as np
import pytest

from aol.lab.study.stats import best_of_k, choose, choose_leaving_one_out


@pytest.mark.parametrize("tries", [1, 2, 4, 7])
def test_the_expected_best_is_the_mean_over_all_ways_of_trying(tries: int) -> None:
    values = np.random.default_rng(tries).normal(0.7, 0.02, 7).round(3).tolist()
    ways = [max(way) for way in itertools.combinations(values, tries)]
    assert best_of_k(values, tries) == pytest.approx(statistics.fmean(ways), abs=1e-12)
    assert math.isnan(best_of_k(values, 8))


# Choosing a setting


@pytest.mark.parametrize("seed", range(6))
def test_choices_are_those_of_loops(seed: int) -> None:
    rng = np.random.default_rng(seed)
    validation = rng.random((rng.integers(2, 6), rng.integers(1, 7))).round(2)
    rows = validation.tolist()

    def best(kept: list[list[float]]) -> int:  # the first of equal ones
        means = [round(statistics.fmean(column), 12) for column in zip(*kept, strict=True)]
        return means.index(max(means))

    assert choose(validation) == best(rows)
    assert choose_leaving_one_out(validation).tolist() == [
        best(rows[:place] + rows[place + 1 :]) for place in range(len(rows))
    ]


def test_of_equal_settings_the_first_is_taken_whatever_the_last_bits_say() -> None:
    validation = np.array([[0.1, 0.3], [0.2, 0.2], [0.3, 0.1]])  # sums of the same numbers in another order
    assert choose(validation) == 0


def test_choosing_on_a_runs_own_validation_makes_up_a_gain_and_choosing_without_it_does_not() -> None:
    """All settings are equal, and luck on validation is luck on test: whatever gain appears is made up."""
    rng = np.random.default_rng(0)
    gains: dict[str, list[float]] = {"by all seeds": [], "by its own": [], "by the others": []}
    for _ in range(2000):
        test = rng.standard_normal((3, 10))
        gains["by all seeds"].append(float(test[:, choose(test)].mean()))
        gains["by its own"].append(float(test.max(1).mean()))
        gains["by the others"].append(float(test[np.arange(3), choose_leaving_one_out(test)].mean()))
    means = {name: float(np.mean(values)) for name, values in gains.items()}
    assert means["by the others"] == pytest.approx(0.0, abs=0.06)
    assert means["by all seeds"] == pytest.approx(1.539 / 3**0.5, abs=0.06)  # spreads of one run: nearly one
    assert means["by its own"] == pytest.approx(1.539, abs=0.06)
