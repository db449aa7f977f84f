"""What a record says against what the engine kept of every sample and epoch."""

from __future__ import annotations

import pytest
import torch

from aol.engine.settings import Settings
from aol.study.plan import enough
from aol.study.recording import records_of, true_age
from aol.study.records import decoded, encoded
from tests.support.tiny_runs import make_loop, run_to_end


@pytest.mark.parametrize("fuse", ["ema", "mean"])
@pytest.mark.parametrize("rho", [0.1, 0.5, 1.0])
def test_age_is_that_of_samples_averaged_over_epochs_and_class(rho: float, fuse: str) -> None:
    runs = [
        Settings(weighting="aol", rho=rho, fuse=fuse, epochs=12, imbalance=3.0, lr=0.02, seed=seed) for seed in (1, 2)
    ]
    loop, ages = make_loop(runs), []
    while not loop.done:
        loop.run_epoch()
        ages.append(loop.ages.age.clone())
    for row, record in enumerate(records_of(loop, ("age",))):
        for label in range(3):
            mine = [
                [int(age) for age, own in zip(epoch[row], loop.labels, strict=True) if own == label] for epoch in ages
            ]
            means = [sum(epoch) / len(epoch) for epoch in mine]
            assert max(means) > 1
            assert [epoch[label] for epoch in record.over_time["age"]] == pytest.approx(means, rel=1e-3)
            assert record.by_class["mean_age"][label] == pytest.approx(sum(means) / len(means), rel=1e-5)


def test_age_on_a_stream_is_that_of_the_class() -> None:
    runs = [
        Settings(scenario="stream", weighting="aol", rho=rho, epochs=15, imbalance=3.0, lr=0.02) for rho in (0.2, 0.7)
    ]
    loop = make_loop(runs)
    seen = []
    while not loop.done:
        loop.run_epoch()
        seen.append(loop.ages.age.double())
    for row, record in enumerate(records_of(loop)):
        assert record.by_class["mean_age"] == pytest.approx(torch.stack(seen)[:, row].mean(0).tolist(), rel=1e-4)


def test_where_smoothing_cannot_be_undone_no_age_is_made_up() -> None:
    assert true_age(torch.ones(3, 2), Settings(weighting="aol", rho=0.0)) is None
    assert true_age(torch.ones(3, 2), Settings(scenario="arrival", fraction=0.5)) is None
    loop = run_to_end(make_loop([Settings(scenario="arrival", fraction=0.5, epochs=3, weighting="aol")]))
    (record,) = records_of(loop, ("age",))
    assert "mean_age" not in record.by_class
    assert enough(record, ("age",)), "it would be trained again and again"


def test_readings_are_those_of_the_last_epoch_and_curves_have_one_number_an_epoch() -> None:
    run = Settings(epochs=5, eval_every=2, validation=0.2, average=0.5, imbalance=3.0)
    loop = run_to_end(make_loop([run]))
    (record,) = records_of(loop)
    assert set(record.curves) == {
        "test_accuracy", "validation_accuracy", "averaged_accuracy", "train_accuracy", "train_loss",
    }  # fmt: skip
    assert [value is None for value in record.curves["test_accuracy"]] == [True, False, True, False, False]
    assert record.curves["train_loss"] == pytest.approx(loop.history.epoch("train_loss")[:, 0].tolist(), rel=1e-5)
    for name in ("test_accuracy", "weight", "train_count", "test_loss", "test_margin", "test_age", "train_margin"):
        assert record.by_class[name] == pytest.approx(loop.history.by_class(name)[-1, 0].tolist(), rel=1e-5)
    assert record.trained_together == 1
    assert record.failed_at_epoch is None


def test_epochs_that_a_stack_of_failures_never_reached_are_none() -> None:
    loop = run_to_end(make_loop([Settings(epochs=9, lr=1e6, imbalance=3.0)]))
    (record,) = records_of(loop)
    assert record.failed_at_epoch is not None
    assert len(loop.history) < 9
    assert len(record.curves["train_accuracy"]) == 9
    assert record.curves["train_accuracy"][-1] is None
    assert encoded(record)


@pytest.mark.parametrize(
    "given",
    [
        {"eval_every": 2, "validation": 0.2, "average": 0.5},
        {"eval_every": 7},
        {"signal": "none"},
        {"signal": "train", "weighting": "aol"},
        {"lr": 1e6},
        {"lr": 1e6, "eval_every": 3},
        {"scenario": "arrival", "fraction": 0.5, "weighting": "aol"},
        {"scenario": "stream", "stream": "access", "fraction": 0.3, "memory": "none"},
        {"scenario": "stream", "period": 2, "memory": "reservoir:20", "weighting": "aol"},
    ],
)
def test_whatever_a_loop_leaves_behind_is_a_record_that_is_read(given: dict[str, object]) -> None:
    runs = [Settings(data="tiny", epochs=5, imbalance=3.0, seed=seed, **given) for seed in (1, 2)]  # type: ignore[arg-type]
    for record in records_of(run_to_end(make_loop(runs)), ("age",)):
        assert decoded(encoded(record), record.run_id) == record


def test_a_run_that_failed_beside_one_that_did_not_is_read_too() -> None:
    runs = [Settings(data="tiny", epochs=5, imbalance=3.0, seed=seed) for seed in (1, 2)]
    loop = make_loop(runs)
    loop.run_epoch()
    with torch.no_grad():
        weight = next(loop.learner.net.parameters())
        weight[: len(weight) // 2] = torch.nan
    found = records_of(run_to_end(loop), ("age",))
    assert [record.failed_at_epoch for record in found] == [2, None]
    assert [decoded(encoded(record), record.run_id) for record in found] == found
