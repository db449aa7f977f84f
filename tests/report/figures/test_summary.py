"""The figures behind the figures, against definitions written out and known examples."""

from __future__ import annotations

import math

import numpy as np
import pytest

from aol.records.metrics import at_the_end
from aol.report.figures.summary import at_end, methods, parts
from tests.support.made_runs import frame, make_data


def test_methods_are_runs_that_differ_in_their_seed_alone() -> None:
    def settings(**given: object) -> dict[str, object]:
        return {"weighting": "aol", "rho": 0.5, "imbalance": 50.0, "seed": 0} | given

    runs = [
        make_data("aol, seed 0", settings=settings()),
        make_data("none, seed 0", settings=settings(weighting="none")),
        make_data("aol, seed 1", settings=settings(seed=1)),
        make_data("aol, seed 0", settings=settings(imbalance=10.0)),
    ]
    found = methods(frame(*runs))
    assert [(name, len(method)) for name, method in found.items()] == [
        ("aol imbalance=50.0", 2), ("none", 1), ("aol imbalance=10.0", 1),
    ]  # fmt: skip
    assert methods(frame()) == {}


def test_a_measure_at_the_end_is_the_mean_and_deviation_of_the_runs_that_did_not_diverge() -> None:
    runs = [make_data(f"none, seed {seed}", seed=seed, epochs=40) for seed in range(3)]
    ends = [data.run.over_time["test_accuracy"][-2:].mean(0) for data in runs]
    lost = make_data("none, seed 3", seed=3, epochs=40, failed_at_epoch=7)
    (method,) = methods(frame(*runs, lost)).values()
    assert at_end(method) == pytest.approx((np.mean(ends), np.std([end.mean() for end in ends], ddof=1)), abs=1e-6)
    assert at_end(method, "balanced_accuracy") == pytest.approx(at_end(method), abs=1e-6)
    heads = [end[:2].mean() for end in ends]
    assert at_end(method, "head_accuracy") == pytest.approx((np.mean(heads), np.std(heads, ddof=1)), abs=1e-6)
    (single,) = methods(frame(runs[0])).values()
    assert math.isnan(at_end(single)[1])


@pytest.mark.parametrize(("epochs", "count"), [(1, 1), (10, 1), (30, 2), (100, 5), (200, 10)])
def test_the_end_of_training_is_its_last_twentieth(epochs: int, count: int) -> None:
    values = np.random.default_rng(0).random((epochs, 3))
    assert at_the_end(values, stream=False) == pytest.approx(values[-count:].mean(0))


def test_the_end_of_a_stream_is_its_second_half_and_gaps_are_left_out() -> None:
    values = np.array([0.0, 0.0, 0.0, 0.2, np.nan, 0.4, np.nan])
    assert float(at_the_end(values, stream=True)) == pytest.approx(0.3)
    assert math.isnan(float(at_the_end(np.full(5, np.nan), stream=True)))


PARTS = {
    "ten": ([100, 80, 60, 50, 40, 30, 20, 10, 5, 1], {"head": [0, 1, 2], "middle": [3, 4, 5, 6], "tail": [7, 8, 9]}),
    "not in order": ([1, 50, 9], {"head": [1], "middle": [2], "tail": [0]}),
    "two": ([1, 9], {"head": [1], "tail": [0]}),
    "one": ([5], {"all": [0]}),
    "about balanced": ([139, 146, 142, 146], {"all": [0, 1, 2, 3]}),
    "half as large again": ([2, 3], {"head": [1], "tail": [0]}),
    "balanced": ([7, 7, 7, 7], {"all": [0, 1, 2, 3]}),
    "step": ([9, 9, 9, 1, 1, 1], {"head": [0, 1, 2], "tail": [3, 4, 5]}),
    "empty classes": ([9, 3, 0, 0], {"head": [0], "middle": [1], "tail": [2, 3]}),
}


@pytest.mark.parametrize("name", PARTS)
def test_head_middle_and_tail_are_thirds_that_do_not_tear_equals_apart(name: str) -> None:
    counts, wanted = PARTS[name]
    assert {part: classes.tolist() for part, classes in parts(np.array(counts)).items()} == wanted
