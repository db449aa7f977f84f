"""Correlations against NumPy's and SciPy's; their verdict at its edges; holes and classes without ages."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from aol.lab.settings import Settings
from aol.lab.study.spec import load
from aol.lab.study.stats import (
    NO_RUNS,
    NOT_JUDGED,
    OTHER,
    SAME,
    SIGNALS,
    SIGNS,
    UNCLEAR,
    Correlation,
    correlations,
    fisher,
    judge_correlations,
    pearson,
)
from aol.lab.study.tables import render, tables
from aol.records.record import Run
from tests.support.made_up import record, results


def _record(seed: int, *, classes: int = 100, settings: Settings | None = None) -> Run:
    rng = np.random.default_rng(seed)
    age = 1 + rng.random(classes) * 5
    names = {signal: "_".join(reversed(signal.split("_"))) for signal in SIGNALS}
    by_class = {names[signal]: SIGNS[signal] * age + 0.5 * rng.standard_normal(classes) for signal in SIGNALS}
    accuracy = by_class["test_accuracy"]
    by_class["test_accuracy"] = (accuracy - accuracy.min()) / np.ptp(accuracy)  # from 0 to 1, with the same r
    made = record(settings or Settings(data="cifar100", seed=seed), 0.5)
    return replace(made, by_class=by_class | {"mean_age": age})


def test_classes_without_a_reading_are_left_out() -> None:
    def r(first: list[float], second: list[float]) -> tuple[float, int] | None:
        return pearson(np.array(first), np.array(second))

    nan = float("nan")
    assert r([1.0, 2.0, 4.0, nan, 5.0], [1.0, 2.0, 4.0, 9.0, nan]) == (pytest.approx(1.0), 3)
    assert r([1.0, nan, 3.0], [1.0, 2.0, 3.0]) is None
    assert r([1.0, 1.0, 1.0, 1.0], [1.0, 2.0, 3.0, 4.0]) is None
    assert r([0.1] * 3, [1.0, 2.0, 4.0]) is None  # whose mean is not 0.1 to the last bit


def test_the_interval_is_scipys() -> None:
    x, y = np.random.default_rng(1).random((2, 50))
    known = stats.pearsonr(x, y)
    r, low, high, _ = fisher([float(known.statistic)], 50)
    ends = known.confidence_interval(0.95)
    assert (r, low, high) == pytest.approx((known.statistic, ends.low, ends.high), abs=1e-9)


def test_seeds_are_averaged_and_the_classes_stay_the_sample() -> None:
    both = correlations([_record(0), _record(1)])
    one = correlations([_record(0)])
    assert [each.seeds for each in both] == [2] * 5
    assert [each.classes for each in both] == [100] * 5
    width = [np.arctanh(each.high) - np.arctanh(each.low) for each in (*both, *one)]
    assert width == pytest.approx([width[0]] * 10)


def test_runs_without_ages_and_runs_that_diverged_say_nothing() -> None:
    made = _record(0)
    without = replace(made, by_class={name: values for name, values in made.by_class.items() if name != "mean_age"})
    assert correlations([without, replace(made, failed_at_epoch=2), _record(0, classes=3)]) == []
    assert correlations([]) == []


def _each(
    r: float, half: float, p: float, *, paper: float | None = None, signal: str = "loss_test", classes: int = 100
) -> Correlation:
    return Correlation(signal, r, r - half, r + half, p, classes, 1, p_corrected=p, paper=paper)


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([_each(0.5, 0.1, 0.001, paper=0.5), _each(-0.5, 0.1, 0.001, signal="accuracy_test")], (SAME, "1 of 1")),
        ([_each(0.5, 0.1, 0.001, paper=0.7), _each(0.2, 0.3, 0.05, paper=0.4)], (UNCLEAR, "1 of 2")),
        ([_each(0.5, 0.1, 0.001, paper=0.5), _each(-0.2, 0.1, 0.001)], (OTHER, "1 of 1")),
        ([_each(-0.1, 0.19, 0.3, paper=0.8)], (UNCLEAR, "0 of 1")),
        ([], (NO_RUNS, "")),
        ([_each(0.5, 0.1, 0.001), _each(-0.2, 0.1, 0.001)], (NOT_JUDGED, "")),  # the paper says nothing of these
    ],
)
def test_correlations_are_judged_by_their_signs_and_by_the_papers_size(
    rows: list[Correlation], words: tuple[str, str]
) -> None:
    signs, _, size = judge_correlations(rows).partition("; ")
    assert (signs, size[:6].strip()) == words


def test_a_study_in_which_nothing_is_compared_shows_correlations_beside_the_papers() -> None:
    study = load("correlations")
    known = {run: _record(3, settings=run) for run in study.all_runs()}
    table = results(study, known)
    assert [len(own) for _, own in table.correlations] == [5, 5]
    by_signal = {each.signal: each for each in table.correlations[1][1]}
    assert by_signal["margin_test"].paper == -0.3883
    assert all(each.p_corrected >= each.p for each in [each for _, own in table.correlations for each in own])
    assert judge_correlations([r for _, own in table.correlations for r in own]).startswith(SAME)
    part = results(study, {run: each for run, each in known.items() if run.imbalance == 200})
    told = json.loads(render(part, "json"))
    assert told["verdicts"][0]["verdict"].startswith(SAME)
    assert [row["paper_r"] for row in told["correlations"]] == [-0.8225, 0.6697, -0.6633, 0.43, -0.3883]
    (frame,) = tables(part).values()
    assert frame["cell"].unique().tolist() == ["imbalance 200"]
