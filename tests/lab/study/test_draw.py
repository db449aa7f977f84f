"""Figures of studies: every number drawn is recomputed from the records, run by run."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from aol.lab.settings import Settings, WrongSettingsError
from aol.lab.study.draw import draw
from aol.lab.study.results import StudyResults
from aol.lab.study.spec import Method, Study
from aol.records.record import Run
from tests.support.made_up import luck, record, records, results, study

SIZES = [9, 300, 20]


def _lone(**changes: object) -> Study:
    common = {"data": "cifar10", "epochs": 6, **changes}
    return Study("aged", "Ages", common, {"imbalance": (50, 10)}, (1, 2, 3), (Method("none"),), tries_seeds=0)  # type: ignore[arg-type]


def _aged(run: Settings, **changes: object) -> Run:
    ages = np.random.default_rng([run.seed, int(run.imbalance or 0)]).uniform(1, 9, (run.epochs, 3)).astype(np.float32)
    known = {"over_time": {"age": ages}, "by_class": {"test_accuracy": np.full(3, 0.5)}}
    return replace(record(run, 0.5), classes=["a", "b", "c"], counts=SIZES, **known | changes)  # type: ignore[arg-type]


def _table(of: Study, **changed: Run) -> StudyResults:
    return results(of, {run: changed.get(f"seed_{run.seed}_{run.imbalance:g}", _aged(run)) for run in of.all_runs()})


def test_ages_are_means_over_seeds_with_the_head_on_top() -> None:
    table = _table(_lone())
    first, second, bar = draw(table, "ages").axes
    for axes, imbalance in ((first, 50), (second, 10)):
        own = [run.over_time["age"] for run in table.runs.runs.values() if run.settings["imbalance"] == imbalance]
        wanted = np.mean(own, axis=0)[:, [1, 2, 0]].T
        assert np.asarray(axes.images[0].get_array()) == pytest.approx(wanted, rel=1e-6)
        assert axes.get_title(loc="left") == f"imbalance {imbalance}, mean over 3 seeds"
    assert bar.get_ylabel() == "class age (epochs)"


@pytest.mark.parametrize(("epochs", "end"), [(6, 7.0), (99, 100.0), (200, 100.0)])
def test_colours_end_at_a_hundred_or_at_the_oldest_that_a_class_can_be(epochs: int, end: float) -> None:
    (first, *_) = draw(_table(_lone(epochs=epochs)), "ages").axes
    assert first.images[0].norm.vmax == end


def test_runs_that_diverged_or_kept_no_ages_are_left_out() -> None:
    of = _lone()
    runs = {(run.seed, run.imbalance): run for run in of.all_runs()}
    diverged = _aged(runs[1, 50], failed_at_epoch=2, over_time={})
    first, second, _ = draw(_table(of, seed_1_50=diverged, seed_2_10=_aged(runs[2, 10], over_time={})), "ages").axes
    assert [axes.get_title(loc="left")[-7:] for axes in (first, second)] == ["2 seeds"] * 2
    with pytest.raises(WrongSettingsError, match="No complete run of aged has the ages"):
        draw(results(of, {run: _aged(run, failed_at_epoch=1, over_time={}) for run in of.all_runs()}), "ages")


def test_more_panels_than_a_page_has_room_for_are_refused() -> None:
    with pytest.raises(WrongSettingsError, match="room for 12 panels, not 13"):
        draw(_table(replace(_lone(), cells={"imbalance": tuple(range(2, 15))})), "ages")


def test_gains_are_those_of_the_table_with_the_papers() -> None:
    plan = study()
    table = results(plan, records(plan.all_runs(), lambda run: (0.7 + 0.02 * luck(run), 0.7)))
    axes = draw(table).axes[0]
    points = [float(line.get_xdata()[0]) for line in axes.lines if line.get_marker() == "s" and len(line.get_xdata())]
    assert points == pytest.approx([100 * gain.mean for gain in table.gains["gain"].dropna()])
    circles = [float(line.get_xdata()[0]) for line in axes.lines if line.get_marker() == "o" and len(line.get_xdata())]
    assert circles == pytest.approx([1.54])


def test_nothing_complete_is_refused() -> None:
    with pytest.raises(WrongSettingsError, match="There are no complete runs of made-up"):
        draw(results(study(), {}))
