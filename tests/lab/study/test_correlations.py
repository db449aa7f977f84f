"""Correlations against NumPy's and SciPy's; their verdict at its edges; holes and classes without ages."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from aol.lab.settings import Settings
from aol.lab.study.correlations import (
    NOT_JUDGED,
    SIGNALS,
    SIGNS,
    Correlation,
    Interval,
    beyond,
    correlations,
    described,
    fisher,
    judge_correlations,
    partial,
)
from aol.lab.study.formats import notes, render
from aol.lab.study.spec import load
from aol.lab.study.verdict import FAILS, HOLDS, OPEN
from aol.records.record import Run
from aol.report.figures.summary import correlation
from tests.support.made_up import record, results


def _record(seed: int, *, classes: int = 100, noise: float = 0.5, settings: Settings | None = None) -> Run:
    rng = np.random.default_rng(seed)
    age = 1 + rng.random(classes) * 5
    by_class = {name: (SIGNS[signal] * age + noise * rng.standard_normal(classes)) for signal, name in SIGNALS.items()}
    accuracy = by_class["test_accuracy"]
    by_class["test_accuracy"] = (accuracy - accuracy.min()) / np.ptp(accuracy)  # from 0 to 1, with the same r
    made = record(settings or Settings(data="cifar100", seed=seed), 0.5)
    return replace(made, by_class=by_class | {"mean_age": age})


def test_classes_without_a_reading_are_left_out() -> None:
    def r(first: list[float], second: list[float]) -> tuple[float, int] | None:
        found = correlation(np.array(first), np.array(second))
        return None if found is None else (found.r, found.n)

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


def test_the_interval_covers() -> None:
    rng = np.random.default_rng(2)
    hits = 0
    for _ in range(2000):
        x, noise = rng.standard_normal((2, 100))
        found = correlation(x, 0.7 * x + np.sqrt(1 - 0.49) * noise)
        assert found is not None
        _, low, high, _ = fisher([found.r], 100)
        hits += low <= 0.7 <= high
    assert hits / 2000 == pytest.approx(0.95, abs=0.017)


def test_seeds_are_averaged_and_the_classes_stay_the_sample() -> None:
    both = correlations([_record(0), _record(1)])
    one = correlations([_record(0)])
    assert [each.seeds for each in both] == [2] * 5
    assert [each.classes for each in both] == [100] * 5
    width = [np.arctanh(each.high) - np.arctanh(each.low) for each in (*both, *one)]
    assert width == pytest.approx([width[0]] * 10)


def test_a_perfect_correlation_is_told_and_nothing_breaks() -> None:
    found = correlations([_record(0, noise=0.0)])
    assert [round(each.r, 6) for each in found] == [SIGNS[signal] for signal in SIGNALS]


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
    ("found", "word"),
    [
        ([_each(0.5, 0.1, 0.001, paper=0.5), _each(-0.5, 0.1, 0.001, signal="accuracy_test")], HOLDS),
        ([_each(0.5, 0.1, 0.001, paper=0.5), _each(0.2, 0.3, 0.05)], OPEN),
        ([_each(0.5, 0.1, 0.001, paper=0.5), _each(-0.2, 0.1, 0.001)], FAILS),  # the other sign
        ([_each(0.02, 0.07, 0.5, paper=0.05, classes=1000)], FAILS),  # shown to be below 0.1
        ([_each(0.02, 0.2, 0.8, paper=0.05)], OPEN),
        ([_each(0.2, 0.19, 0.04, paper=0.8)], FAILS),  # weaker than half of the paper's
        ([_each(0.2, 0.19, 0.08, paper=0.8), _each(0.2, 0.19, 0.08, paper=0.79)], OPEN),  # corrected for two, no more
        ([_each(-0.1, 0.19, 0.3, paper=0.8)], FAILS),  # none at all
        ([_each(0.6, 0.15, 0.01, paper=0.8)], HOLDS),
        ([], OPEN),
        ([_each(0.5, 0.1, 0.001), _each(-0.2, 0.1, 0.001)], NOT_JUDGED),  # the paper says nothing of these
    ],
)
def test_the_verdict_on_correlations_at_its_edges(found: list[Correlation], word: str) -> None:
    assert judge_correlations(found)[0] == word
    assert word in judge_correlations(found)[1]


def test_a_study_in_which_nothing_is_compared_shows_correlations_beside_the_papers() -> None:
    study = load("correlations")
    known = {run: _record(3, settings=run) for run in study.all_runs()}
    table = results(study, known)
    assert [len(own) for _, own in table.correlations] == [5, 5]
    by_signal = {each.signal: each for each in table.correlations[1][1]}
    assert by_signal["margin_test"].paper == -0.3883
    assert all(each.p_corrected >= each.p for each in [each for _, own in table.correlations for each in own])
    assert judge_correlations([each for _, own in table.correlations for each in own])[0] == HOLDS
    assert " cells" not in notes(table, "verdicts")[0]
    part = results(study, {run: each for run, each in known.items() if run.imbalance == 200})
    assert part.correlation_verdict[0] == HOLDS
    assert json.loads(render(part, "json"))["verdicts"] == [
        {"method": "none", "verdict": HOLDS, "sentence": notes(part, "verdicts")[0]}
    ]
    assert "5 of 5 correlations have the paper's sign" in notes(part, "verdicts")[0]
    assert "in 1 of 2 cells" in notes(part, "verdicts")[0]


def test_cells_that_differ_in_the_signal_of_their_runs_are_told_apart_in_csv() -> None:
    study = replace(load("heatmaps"), cells={"data": ("cifar100",), "signal": ("eval", "train")})
    table = results(study, {run: _record(3, settings=run) for run in study.all_runs()})
    rows = list(csv.DictReader(io.StringIO(render(table, "csv"))))
    assert {(row["setting_signal"], row["signal"]) for row in rows} == {
        (setting, signal) for setting in ("eval", "train") for signal in SIGNALS
    }


def test_without_the_papers_figures_it_is_said_what_was_found_and_nothing_holds() -> None:
    study = load("heatmaps")
    table = results(study, {run: _record(3, settings=run) for run in study.all_runs()})
    first, *cells = notes(table, "verdicts")
    assert NOT_JUDGED in first
    assert [each.split(":")[0] for each in cells] == ["cifar10", "cifar100"]
    assert [word in cells[0] for word in ("lower test accuracy", "higher test loss")] == [True, True]
    assert HOLDS not in " ".join([first, *cells])
    assert "the paper's" not in " ".join([first, *cells])


def test_a_correlation_that_may_be_none_has_no_direction() -> None:
    assert described([_each(0.1, 0.2, 0.3)]) == "older classes do not clearly differ in test loss."
    both = [_each(-0.5, 0.1, 0.001, signal="accuracy_test"), _each(0.1, 0.2, 0.3)]
    assert described(both) == "older classes have lower test accuracy; they do not clearly differ in test loss."


def _sized(seed: int, *, beyond: float) -> Run:
    """Age and accuracy follow class size; `beyond` that, what is left of age goes with what is left of accuracy."""
    rng = np.random.default_rng(seed)
    size = np.linspace(6.0, 1.0, 100)
    left = rng.standard_normal(100)
    age = 10 - size + left
    accuracy = 0.1 * size - 0.1 * beyond * left + 0.05 * rng.standard_normal(100)
    by_class = {"train_count": np.exp(size), "mean_age": age, "test_accuracy": accuracy}
    made = _record(seed)
    return replace(made, by_class=made.by_class | by_class)


def _found(runs: list[Run]) -> dict[str, dict[str, Interval | None]]:
    return {held: found for held, _, found in beyond(runs)}


def test_held_fixed_is_the_correlation_of_what_a_fit_leaves() -> None:
    made = _sized(0, beyond=0.5)
    age, accuracy, count = (np.array(made.by_class[name]) for name in ("mean_age", "test_accuracy", "train_count"))
    size = np.log(count)
    found = _found([made])
    for held, degree in (("nothing", 0), ("log size", 1), ("log size, cubic", 3)):
        for name, values in (("age", age), ("log_age", np.log(age))):
            left = [each - np.polyval(np.polyfit(size, each, degree), size) for each in (values, accuracy)]
            wanted = fisher([float(np.corrcoef(*left)[0, 1])], 100 - degree)[:3]
            assert found[held][name] == pytest.approx(wanted), (held, name)
        assert found[held]["error"] is None
    assert found["log size"]["age"] is not None
    assert found["log size"]["age"][2] < 0.0


def test_one_control_gives_the_textbook_formula() -> None:
    x, y, z = np.random.default_rng(5).random((3, 40))
    r = np.corrcoef([x, y, z])
    wanted = (r[0, 1] - r[0, 2] * r[1, 2]) / np.sqrt((1 - r[0, 2] ** 2) * (1 - r[1, 2] ** 2))
    assert partial(x, y, [z]) == pytest.approx(wanted)
    assert partial(x, y, [y, z]) is None  # nothing is left of y


def _mistaken(seed: int, *, age_tells: bool) -> Run:
    """Accuracy follows the error rate; age follows it too, and tells more only where that is asked for."""
    rng = np.random.default_rng(seed)
    error, more = rng.random(100), rng.standard_normal(100)
    age = np.exp(error + 0.1 * more)
    accuracy = 1 - error - 0.1 * age_tells * more + 0.05 * rng.standard_normal(100)
    by_class = {
        "mean_train_error": error,
        "mean_age": age,
        "test_accuracy": accuracy,
        "train_count": np.full(100, 500.0),
    }
    made = _record(seed)
    return replace(made, by_class=made.by_class | by_class)


@pytest.mark.parametrize("age_tells", [True, False])
def test_whether_age_tells_more_than_how_often_a_class_was_wrong(age_tells: bool) -> None:
    found = _found([_mistaken(seed, age_tells=age_tells) for seed in range(3)])
    assert set(found) == {"nothing", "error rate, cubic", "log age, cubic"}  # sizes are equal
    assert found["nothing"]["log_age"] is not None
    assert found["nothing"]["log_age"][2] < 0.0
    left = found["error rate, cubic"]
    assert beyond([_mistaken(seed, age_tells=age_tells) for seed in range(3)])[0][1] == 3
    assert left["error"] is None
    assert left["log_age"] is not None
    assert (left["log_age"][2] < 0.0) == age_tells


def test_age_that_only_repeats_class_size_has_nothing_beyond_it() -> None:
    found = _found([_sized(1, beyond=0.0)])["log size"]["age"]
    assert found is not None
    assert found[1] < 0.0 < found[2]


def test_runs_without_readings_and_too_few_classes_are_left_out() -> None:
    made = _sized(0, beyond=0.5)
    balanced = replace(made, by_class=made.by_class | {"train_count": np.full(100, 500.0)})
    assert set(_found([balanced])) == {"nothing"}
    few = replace(made, by_class={name: values[:7] for name, values in made.by_class.items()})
    assert "log size, cubic" not in _found([few])  # four classes are left for the interval
    assert beyond([replace(made, failed_at_epoch=3), _record(0)]) == []
    assert beyond([]) == []
