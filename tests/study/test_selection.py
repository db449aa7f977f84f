"""Choosing settings: by validation of the other seeds alone, against loops; and what other ways of choosing make up."""

from __future__ import annotations

import numpy as np
import pytest

from aol.study.selection import best_on_test, choose, choose_without_each


def _naive(validation: list[list[float]], without: int | None) -> int:
    best, place = -1.0, 0
    for setting in range(len(validation[0])):
        rows = [row[setting] for seed, row in enumerate(validation) if seed != without]
        if (mean := sum(rows) / len(rows)) > best + 1e-12:
            best, place = mean, setting
    return place


@pytest.mark.parametrize("seed", range(20))
def test_choices_are_those_of_loops(seed: int) -> None:
    rng = np.random.default_rng(seed)
    validation = rng.random((rng.integers(2, 6), rng.integers(1, 7))).round(2)
    rows = validation.tolist()
    assert choose(validation) == _naive(rows, None)
    assert choose_without_each(validation).tolist() == [_naive(rows, place) for place in range(len(rows))]
    assert best_on_test(validation).tolist() == [row.index(max(row)) for row in rows]


@pytest.mark.parametrize("seed", range(20))
def test_a_seeds_own_validation_has_no_say_in_its_choice(seed: int) -> None:
    rng = np.random.default_rng(seed)
    validation = rng.random((4, 5))
    before = choose_without_each(validation)
    for place in range(4):
        changed = validation.copy()
        changed[place] = rng.random(5) * 10
        assert choose_without_each(changed)[place] == before[place]


def test_of_equal_settings_the_first_is_taken_whatever_the_last_bits_say() -> None:
    validation = np.array([[0.1, 0.3], [0.2, 0.2], [0.3, 0.1]])  # sums of the same numbers in another order
    assert choose(validation) == 0


def test_a_single_seed_chooses_for_itself() -> None:
    assert choose_without_each(np.array([[0.2, 0.4, 0.3]])).tolist() == [1]


def test_choosing_on_a_runs_own_validation_makes_up_a_gain_and_choosing_without_it_does_not() -> None:
    """All settings are equal, and luck on validation is luck on test: whatever gain appears is made up."""
    rng = np.random.default_rng(0)
    gains: dict[str, list[float]] = {"by all seeds": [], "by its own": [], "by the others": []}
    for _ in range(2000):
        test = rng.standard_normal((3, 10))
        gains["by all seeds"].append(float(test[:, choose(test)].mean()))
        gains["by its own"].append(float(test.max(1).mean()))
        gains["by the others"].append(float(test[np.arange(3), choose_without_each(test)].mean()))
    means = {name: float(np.mean(values)) for name, values in gains.items()}
    assert means["by the others"] == pytest.approx(0.0, abs=0.06)
    assert means["by all seeds"] == pytest.approx(1.539 / 3**0.5, abs=0.06)  # spreads of one run: nearly one
    assert means["by its own"] == pytest.approx(1.539, abs=0.06)


@pytest.mark.parametrize("wrong", [np.zeros(3), np.zeros((0, 3)), np.zeros((3, 0)), np.array([[0.1, np.nan]])])
def test_figures_with_a_hole_are_refused(wrong: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> None:
    for ask in (choose, choose_without_each, best_on_test):
        with pytest.raises(ValueError, match="figures must be finite, a row a seed and a column a setting"):
            ask(wrong)
