"""Methods side by side: gains are paired by seed, within equal conditions."""

from __future__ import annotations

import pytest

from aol.lab.settings import Settings
from aol.records.compare import compare
from aol.records.record import Run
from tests.cli.test_show import made_up


def test_a_row_a_method_with_the_paired_gain_and_its_interval() -> None:
    runs = [made_up(Settings(weighting=name, seed=seed), 0.0) for name in ("none", "aol") for seed in range(3)]
    none, aol = compare(runs, [0.50, 0.52, 0.54, 0.55, 0.56, 0.60])
    assert (none.method, none.seeds, none.gain) == ("none", 3, None)
    assert none.mean == pytest.approx(0.52)
    assert none.spread == pytest.approx(0.02)
    assert aol.gain is not None
    assert aol.gain.mean == pytest.approx(0.05)
    assert aol.gain.interval == pytest.approx((0.05 - 2.4841e-2, 0.05 + 2.4841e-2), abs=1e-5)  # t = 4.3027, sd = 0.01
    assert (none.conditions, aol.conditions) == ("", "")


def test_conditions_are_told_apart_and_compared_within() -> None:
    runs = [made_up(Settings(weighting=w, imbalance=i), 0.0) for i in (10.0, 100.0) for w in ("none", "cb")]
    rows = compare(runs, [0.5, 0.6, 0.3, 0.2])
    assert [row.conditions for row in rows] == ["imbalance=10.0"] * 2 + ["imbalance=100.0"] * 2
    assert [row.gain and row.gain.mean for row in rows] == [None, pytest.approx(0.1), None, pytest.approx(-0.1)]


def test_training_the_head_alone_is_compared_with_the_epochs_before() -> None:
    given: list[dict[str, int]] = [{"epochs": 200}, {"epochs": 220, "retrain": 20}, {"epochs": 220}]
    rows = compare([made_up(Settings(**own), 0.0) for own in given], [0.5, 0.6, 0.9])  # type: ignore[arg-type]
    assert {row.method: row.gain.mean for row in rows if row.gain} == {
        "over-smoothing (20 epochs, 0.98)": pytest.approx(0.1)
    }


def test_runs_of_a_users_own_loop_have_no_baseline() -> None:
    run = made_up(Settings(), 0.0)
    own = Run(**{**vars(run), "method": "mine", "seed": None, "settings": {"lr": 3}, "baseline": None})
    (row,) = compare([own, own], [0.5, 0.7])
    assert (row.method, row.seeds, row.gain) == ("mine", 2, None)
    assert row.mean == pytest.approx(0.6)


def test_a_loop_of_ones_own_has_the_baseline_that_is_called_so() -> None:
    run = made_up(Settings(), 0.0)
    own = [
        Run(**{**vars(run), "method": name, "seed": seed, "settings": {"lr": 3}, "baseline": None})
        for name in ("mine", "Plain")
        for seed in (0, 1)
    ]
    plain, mine = compare(own, [0.5, 0.7, 0.4, 0.5])
    assert (plain.method, plain.gain) == ("Plain", None)
    assert mine.gain is not None
    assert mine.gain.mean == pytest.approx(0.15)
