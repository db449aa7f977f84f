"""Tables with fewer seeds than a verdict needs: described, beside the luck of their plain runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from aol.study.page import page
from aol.study.records import Store
from tests.support.made_up import fill, record, study


def test_one_seed_is_described_and_not_judged(tmp_path: Path) -> None:
    plan = replace(study(seeds=(1,), imbalances=(100, 50)), tries_seeds=5)
    fill(tmp_path, plan, {"aol": 0.05, "frequency": 0.08}, noise=0.0)
    text = page(tmp_path, [plan])
    assert (
        "- No verdict, with one seed: aol, its setting chosen on validation, gains +5.00 points over none, mean over 2 "
        "cells (+5.00 to +5.00; above zero in 2); the paper has +1.20. Others there: frequency +8.00."
    ) in text
    assert (
        "- Nothing chosen, all settings of aol gain +5.00 on average; 3 of 3, 3 of 3 are above none, cell by cell."
    ) in text
    assert "Two plain runs with different seeds differ by " in text  # told from six plain runs
    assert "Read at the best epoch of the best setting" in text
    assert "Shown at its best" not in text
    row = next(line for line in text.splitlines() if "aol: 4 tries" in line)
    assert row.split(" | ")[4:] == ["–", "–", "– |"]


def test_settings_that_lose_are_counted_where_one_is_chosen(tmp_path: Path) -> None:
    plan = replace(study(seeds=(1,), rhos=(0.1, 0.5, 0.7, 0.9)), tries_seeds=0)
    store, gain = Store(tmp_path), {0.1: 0.04, 0.5: -0.01, 0.7: -0.02, 0.9: 0.0}
    for run in plan.all_runs():
        level = 0.7 + (gain[run.rho] if run.weighting == "aol" else 0.0)
        store.put(record(run, level, level))
    text = page(tmp_path, [plan])
    assert "gains +4.00 points over none" in text
    assert "- Nothing chosen, all settings of aol gain +0.25 on average; 1 of 4 are above none. They share" in text


def test_one_seed_also_stands_beside_the_mean_of_all_plain_runs(tmp_path: Path) -> None:
    """The plain run of seed 1 is five points below the others: what age has over it is not what age has over plain."""
    plan = replace(study(seeds=(1,)), tries_seeds=4)
    store = Store(tmp_path)
    for run in plan.all_runs():
        level = 0.70 + (0.05 if run.weighting == "aol" else -0.02 if run.seed == 1 else 0.03)
        store.put(record(run, level, 0.7))
    text = page(tmp_path, [plan])
    assert "aol, its setting chosen on validation, gains +7.00 points over none" in text
    # (0.68 + 4 · 0.73) / 5 = 0.72
    assert "Beside the mean of all runs of none (up to 5 seeds a cell) aol has +3.00." in text


def test_one_plain_run_is_not_called_the_best_of_many(tmp_path: Path) -> None:
    plan = replace(study(seeds=(1,)), tries_seeds=0)
    fill(tmp_path, plan, {"aol": 0.05}, noise=0.0)
    text = page(tmp_path, [plan])
    rows = [line.split(" | ") for line in text.splitlines() if "aol: 4 tries" in line]
    assert [row[-1] if place else row[3] for place, row in enumerate(rows)] == ["–", "– |"]
    assert "The best of 4 runs" not in text
    assert "~" not in text
    assert "Two plain runs" not in text
