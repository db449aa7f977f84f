"""Methods side by side: what is called a gain, in which measure, and how seldom noise has a winner."""

from __future__ import annotations

import numpy as np
import pytest

from aol.records.compare import MethodRow, Methods, by_method, methods_of
from aol.report.run_data import RunData
from aol.stats import Gain, paired_gain
from tests.support.made_runs import changed, frame, make_data


def of(**gains: list[float]) -> Methods:
    rows = [MethodRow("", name, "none", len(own), 0.8, 0.01, paired_gain(own), {}) for name, own in gains.items()]
    return Methods([MethodRow("", "none", "none", 3, 0.8, 0.01, None, {}), *rows])


def test_of_pure_noise_a_best_is_named_in_less_than_one_case_of_twenty() -> None:
    """22 methods, three seeds: each has its gain over the same three baseline runs."""
    rng, cases, named, uncorrected = np.random.default_rng(0), 500, 0, 0
    for _ in range(cases):
        differences = rng.normal(size=(22, 3)) - rng.normal(size=3)
        spread = differences.std(1, ddof=1)
        gains = [Gain(mean, 3, own) for mean, own in zip(differences.mean(1), spread, strict=True)]
        methods = Methods([MethodRow("", f"m{k}", "none", 3, 0.8, 0.01, gain, {}) for k, gain in enumerate(gains)])
        named += "Best here" in methods.answer()
        uncorrected += any(gain.interval is not None and gain.interval[0] > 0 for gain in gains)
    assert named / cases < 0.05
    assert uncorrected / cases > 0.2


def test_a_clear_gain_is_named_and_the_choice_is_said_to_be_made_on_test_data() -> None:
    answer = of(cb=[0.05, 0.06, 0.07], aol=[0.10, 0.101, 0.102]).answer()
    assert answer.startswith("Best here: aol gained +10.1 points of accuracy")
    assert "Also: cb gained" in answer
    assert "chosen on test data" in answer
    assert "chosen" not in of(cb=[0.05, 0.06, 0.07]).answer()


def test_a_loss_is_never_called_a_gain() -> None:
    methods = of(cb=[-0.05, -0.06, -0.07], aol=[-0.10, -0.101, -0.102])
    assert "The best: cb lost 6.0 points of accuracy (-8.5 to -3.5, 3 seeds) against none" in methods.answer()
    assert "gained +" not in methods.answer()
    assert methods.verdicts == {"cb": "worse", "aol": "worse"}


@pytest.mark.parametrize("balanced", [True, False])
def test_where_the_test_set_is_not_balanced_balanced_accuracy_decides(balanced: bool) -> None:
    """The method has more right answers and worse classes: on an unbalanced test set it loses."""
    runs: list[RunData] = []
    for seed in range(3):
        for name, change in (("none", 0.0), ("aol", -0.1 - 0.001 * seed)):
            data = make_data(f"{name}, seed {seed}", seed=seed, samples=False)
            by_class = data.run.over_time["test_accuracy"] / 2 + 0.3 + change
            curve = by_class.mean(1) if balanced else by_class.mean(1) - 2 * change
            runs.append(changed(data, over_time={"test_accuracy": by_class}, curves={"test_accuracy": curve}))
    methods = methods_of(frame(*runs))
    _, aol = methods.rows
    assert aol.gain is not None
    assert aol.gain.mean == pytest.approx(-0.101, abs=1e-6)
    assert methods.verdicts == {"aol": "worse"}
    assert methods.balanced == balanced
    assert methods.measure == ("accuracy" if balanced else "balanced accuracy")
    assert ("accuracy" in aol.measures) != balanced
    unread = methods_of(frame(*(changed(data, over_time={}, by_class={}) for data in runs)))
    assert (unread.measure, unread.balanced) == ("accuracy", False)


def test_of_many_methods_the_best_come_first_behind_the_baseline() -> None:
    names = [f"m{place}" for place in range(13)]
    runs = [make_data(f"{name}, seed 0", seed=0, samples=False) for name in (*names, "none")]
    runs.append(make_data("unpaired, seed 1", seed=1, samples=False))
    for place, data in enumerate(runs):
        readings = {"test_accuracy": np.full_like(data.run.over_time["test_accuracy"], 0.3 + place % 13 / 100)}
        data.run.settings.pop("weighting")
        runs[place] = changed(data, over_time=readings, curves={"test_accuracy": readings["test_accuracy"][:, 0]})
    assert [row.name for row in methods_of(frame(*runs)).rows] == ["none", *reversed(names), "unpaired"]


def test_methods_are_runs_that_differ_in_their_seed_alone() -> None:
    def settings(**given: object) -> dict[str, object]:
        return {"weighting": "aol", "rho": 0.5, "imbalance": 50.0, "seed": 0} | given

    runs = [
        make_data("aol, seed 0", settings=settings()),
        make_data("none, seed 0", settings=settings(weighting="none")),
        make_data("aol, seed 1", settings=settings(seed=1)),
        make_data("aol, seed 0", settings=settings(imbalance=10.0)),
    ]
    methods = by_method(frame(*runs))
    assert [(name, len(method)) for name, method in methods.items()] == [
        ("aol imbalance=50.0", 2), ("none", 1), ("aol imbalance=10.0", 1),
    ]  # fmt: skip
    assert by_method(frame()) == {}
