"""Tables of a study: checks of its verdicts, few seeds, and how many runs there are."""

from __future__ import annotations

import math
import statistics
from dataclasses import replace

import pytest

from aol.lab.settings import Settings
from aol.lab.study.comparisons import StudyResults
from aol.lab.study.formats import notes
from aol.lab.study.spec import load
from aol.lab.study.tables import (
    NONE,
    as_published_table,
    checks,
    method_table,
    optimistic_table,
    rival_rows,
    rows,
)
from tests.support.made_up import luck, record, records, results, seed_effect, study


def _same(_: Settings) -> tuple[float, float]:
    return 0.5, 0.5


def _checks(table: StudyResults) -> dict[str, str]:
    """Return the checks of aol by name."""
    (found,) = [each.frame for each in checks(table) if each.title == "Checks"]
    return dict(zip(found["check"], found["aol"], strict=True))


def _drawn(gains: dict[str, float], *, noise: float, seeds: int = 5) -> StudyResults:
    plan = study(seeds=tuple(range(1, seeds + 1)), rhos=(0.1, 0.3, 0.5, 0.7, 0.9))

    def draw(run: Settings) -> tuple[float, float]:
        level = 0.7 + gains.get(run.weighting, 0.0)
        return level + noise * luck(run), level + noise * luck(run, salt=1)

    return results(plan, records(plan.all_runs(), draw))


def _number(text: str) -> float:
    return float(text.replace("−", "-"))


def test_a_gain_from_picking_on_test_disappears_when_chosen_on_validation() -> None:
    found = _checks(_drawn({}, noise=0.02))
    best = _number(found["gain of the best setting on test"])
    assert best > 1.0
    assert _number(found["the same, minus the best of 6 runs of none"]) < best / 2
    assert abs(_number(found["gain, 1 cell, 5 seeds"])) < best / 2


def test_a_gain_is_above_the_noise() -> None:
    found = _checks(_drawn({"aol": 0.05}, noise=0.003))
    assert found["cells where the best setting is above the noise of one seed (95 %)"] == "1 of 1"
    (noise,) = [_number(value) for name, value in found.items() if name.startswith("the same between runs of none")]
    assert noise < 1.0 < _number(found["gain, 1 cell, 5 seeds"])


def test_methods_stand_side_by_side() -> None:
    table = _drawn({"aol": 0.02, "frequency": 0.05}, noise=0.003)
    frame = method_table(table).frame
    assert frame["method"].tolist() == ["aol", "frequency"]
    (rival,) = rival_rows(table)
    numbers = [rival[name] for name in ("gain_points", "gain_low_points", "gain_high_points")]
    mean, low, high = (f"{value:+.2f}".replace("-", "−") for value in numbers)
    assert frame["aol minus it (95 %)"].tolist() == [NONE, f"{mean} ({low}, {high})"]
    assert rival["gain_points"] == pytest.approx(-3.0, abs=0.5)


def test_the_paper_is_compared_by_every_figure() -> None:
    first = checks(_drawn({}, noise=0.001))[0]
    assert first.frame["figure"].tolist() == ["tail_mean", "last", "best"]
    assert set(first.frame["paper"]) == {"72.20"}


def test_one_seed_is_described_and_not_judged() -> None:
    plan = replace(study(seeds=(1,), imbalances=(100, 50)), tries_seeds=5)
    gains = {"aol": 0.05, "frequency": 0.08}

    def level(run: Settings) -> float:
        return 0.7 + 0.01 * seed_effect(run) + gains.get(run.weighting, 0.0)

    known = records(plan.all_runs(), lambda run: (level(run), 0.7))
    found = _checks(results(plan, known))
    assert found["gain, mean of 2 cells, 1 seed"] == "+5.00"
    assert found["lowest and highest cell"] == "+5.00, +5.00"
    assert found["cells above zero"] == "2 of 2"
    assert found["paper's gain"] == "+1.20"
    assert found["gain of all settings, none chosen"] == "+5.00"
    assert found["settings above none, by cell"] == "3 of 3, 3 of 3"
    (noise,) = [value for name, value in found.items() if name.startswith("the same between runs of none")]
    plain = [run for run in plan.all_runs() if run.weighting == "none"]
    pools = [[level(run) for run in plain if run.imbalance == imbalance] for imbalance in (100, 50)]
    assert all(len(pool) == 6 for pool in pools)
    deviation = math.sqrt(sum(2 * statistics.variance(pool) for pool in pools)) / 2  # of a mean of two cells
    assert _number(noise) == pytest.approx(100 * deviation, abs=0.005)
    assert "best epoch of the best setting on test" in found
    assert "gain of the best setting on test" not in found
    (side,) = [each.frame for each in checks(results(plan, known)) if each.title.startswith("Methods")]
    assert side.to_numpy().tolist() == [["aol", "+5.00"], ["frequency", "+8.00"]]
    assert optimistic_table(results(plan, known)).frame.columns.tolist() == [
        "OPTIMISTIC",
        "best on test",
        "best of none",
    ]


def test_settings_that_lose_are_counted_where_one_is_chosen() -> None:
    plan = replace(study(seeds=(1,), rhos=(0.1, 0.5, 0.7, 0.9)), tries_seeds=0)
    gain = {0.1: 0.04, 0.5: -0.01, 0.7: -0.02, 0.9: 0.0}
    levels = {run: 0.7 + (gain[run.rho] if run.weighting == "aol" else 0.0) for run in plan.all_runs()}
    found = _checks(results(plan, {run: record(run, level, level) for run, level in levels.items()}))
    assert found["gain, 1 cell, 1 seed"] == "+4.00"
    assert found["gain of all settings, none chosen"] == "+0.25"
    assert found["settings above none, by cell"] == "1 of 4"


def test_one_seed_also_stands_beside_the_mean_of_all_baseline_runs() -> None:
    """The baseline run of seed 1 is five points below the others: the gain over it is not the gain over all."""
    plan = replace(study(seeds=(1,)), tries_seeds=4)
    made = {}
    for run in plan.all_runs():
        level = 0.70 + (0.05 if run.weighting == "aol" else -0.02 if run.seed == 1 else 0.03)
        made[run] = record(run, level, 0.7)
    found = _checks(results(plan, made))
    assert found["gain, 1 cell, 1 seed"] == "+7.00"
    # (0.68 + 4 · 0.73) / 5 = 0.72
    assert found["gain over the mean of all runs of none, up to 5 seeds a cell"] == "+3.00"


def test_one_baseline_run_is_not_called_the_best_of_many() -> None:
    plan = replace(study(seeds=(1,)), tries_seeds=0)
    table = results(plan, records(plan.all_runs(), _same))
    assert "best of none" not in optimistic_table(table).frame
    assert "best of none" not in as_published_table(table).frame
    assert not any(name.startswith(("best epoch, best of", "two runs")) for name in _checks(table))
    assert {row["baseline_best_of_tries_percent"] for row in rows(table, optimistic=True)} == {None}


def test_a_diverged_run_that_two_cells_share_is_one_run() -> None:
    plan = load("limited-access").only(imbalance=[100])
    known = records(plan.all_runs(), _same)
    plain = plan.run(plan.cells_list()[0], plan.method("none"), {}, 42)
    known[plain] = replace(known[plain], failed_at_epoch=3)
    assert "1 run diverged and counts as chance." in notes(results(plan, known), "runs")


def test_runs_and_cells_are_counted() -> None:
    plan = load("correlations")
    run = plan.all_runs()[1]
    table = results(plan, {run: record(run, 0.5)})
    assert notes(table, "runs")[0] == "1/2 runs complete."
    assert "1 of 2 cells" in notes(table, "runs")[1]
    assert notes(table, "hardware")[0].startswith("1 run; made up; ")


def test_a_choice_of_settings_is_mentioned_only_where_there_is_one() -> None:
    chosen, fixed = study(), study(rhos=(0.5,))
    for plan, said in ((chosen, True), (fixed, False)):
        text = " ".join(notes(results(plan, records(plan.all_runs(), _same)), "legend"))
        assert ("widened for the choice" in text) == said


def test_a_table_with_sigmoid_says_what_weighted_losses_are_divided_by() -> None:
    plan = load("offline-reweighting").only(data=["cifar10"], imbalance=[100])
    known = records(plan.all_runs(), _same)
    (text,) = [each for each in notes(results(plan, known), "method") if "divided" in each]
    assert "softmax by the sum of the weights; sigmoid by the number of samples" in text
    softmax = {run: each for run, each in known.items() if run.loss == "softmax"}
    assert "divided" not in " ".join(notes(results(plan, softmax), "method"))
