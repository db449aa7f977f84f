"""Gains with one spread for all methods, beside a least-squares fit of seeds and methods."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from aol.engine.settings import Settings
from aol.study import notes
from aol.study.lines import Line
from aol.study.pooled import pooled_gains
from aol.study.spec import Study
from aol.study.table import make_table
from tests.support.made_up import luck, records, seed_effect, study

GAINS = {"none": 0.0, "aol": 0.02, "frequency": -0.01}


def draw(run: Settings) -> tuple[float, float]:
    level = 0.7 + 0.03 * seed_effect(run) + GAINS[run.weighting]
    return level + 0.004 * luck(run), level + 0.004 * luck(run, salt=1)


def lines_of(plan: Study, *, without: int = 0) -> list[Line]:
    known = records(plan.all_runs(), draw)
    for run in [run for run in known if run.weighting == "aol" and run.seed <= without]:
        del known[run]
    return list(make_table(plan, known).lines)


def fitted(lines: list[Line], seeds: tuple[int, ...]) -> tuple[float, float, int]:
    """Least squares: value = seed + method, over the means of cells → gain of aol, its error, degrees of freedom."""
    methods = ("none", "aol", "frequency")
    rows, values = [], []
    for seed in seeds:
        for method in methods:
            own = [line.values[line.seeds.index(seed)] for line in lines if line.method == method]
            rows.append([float(seed == each) for each in seeds] + [float(method == each) for each in methods[1:]])
            values.append(sum(own) / len(own))
    design = np.array(rows)
    found, left, rank, _ = np.linalg.lstsq(design, np.array(values), rcond=None)
    freedom = len(values) - int(rank)
    covariance = np.linalg.inv(design.T @ design) * float(left[0]) / freedom
    return float(found[len(seeds)]), float(covariance[len(seeds), len(seeds)]) ** 0.5, freedom


@pytest.mark.parametrize("imbalances", [(100,), (100, 50, 10)])
def test_the_error_is_that_of_a_fit_of_seeds_and_methods(imbalances: tuple[float, ...]) -> None:
    plan = study(seeds=(1, 2, 3, 4), rhos=(0.5,), imbalances=imbalances)
    lines = lines_of(plan)
    gain, error, freedom = fitted(lines, plan.seeds)
    found = pooled_gains(lines, "none")
    assert list(found) == ["aol", "frequency"]
    assert found["aol"].mean == pytest.approx(gain)
    assert found["aol"].error == pytest.approx(error)
    assert found["aol"].freedom == freedom == 6
    half = stats.t.ppf(0.975, 6) * error
    assert found["aol"].interval == pytest.approx((gain - half, gain + half))
    assert found["aol"].p == pytest.approx(2 * stats.t.sf(abs(gain) / error, 6))


def test_a_choice_of_settings_widens_it() -> None:
    chosen = pooled_gains(lines_of(study(rhos=(0.1, 0.5, 0.9))), "none")
    assert chosen["aol"].error == pytest.approx(chosen["frequency"].error * (1 + 3**0.5 / 3) ** 0.5)


def test_seeds_that_a_method_lacks_take_no_part() -> None:
    found = pooled_gains(lines_of(study(seeds=(1, 2, 3, 4, 5), rhos=(0.5,)), without=1), "none")
    assert {gain.seeds for gain in found.values()} == {4}


def test_with_two_seeds_or_one_method_nothing_is_said() -> None:
    assert pooled_gains(lines_of(study(seeds=(1, 2))), "none") == {}
    assert pooled_gains(lines_of(study().only(method=["aol"])), "none") == {}
    assert pooled_gains(lines_of(study(), without=1), "none") == {}
    assert notes.pooled(make_table(study(), {})) == []


def test_values_that_do_not_vary_make_no_interval() -> None:
    plan = study()
    table = make_table(plan, records(plan.all_runs(), lambda run: (0.7 + GAINS[run.weighting], 0.7)))
    assert pooled_gains(table.lines, "none") == {}


def test_the_sentence_names_every_method() -> None:
    plan = study(imbalances=(100, 50))
    (text,) = notes.pooled(make_table(plan, records(plan.all_runs(), draw)))
    assert text.startswith("If all methods vary alike, one spread for all of them (4 degrees of freedom)")
    assert "aol +2." in text
    assert "; frequency −1." in text or "; frequency −0." in text
