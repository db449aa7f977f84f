"""Settings: what is equal, what is refused, names, defaults that follow others, grids."""

from __future__ import annotations

import json
import math
from dataclasses import fields

import pytest

from aol.lab.engine.learner import rate_at
from aol.lab.settings import MARGINS, PER_RUN, WEIGHTINGS, Settings, WrongSettingsError, grid, memory_capacity


@pytest.mark.parametrize(
    "given",
    [
        {"epochs": 2.5}, {"epochs": True}, {"seed": -1}, {"warmup": math.nan}, {"warmup": "5"}, {"lr": -1.0},
        {"lr": math.inf}, {"start": -0.1}, {"samples": 0}, {"noise": 1.0}, {"threshold": "mode"}, {"image_size": 0},
        {"augment": 1}, {"net": "resnet18"}, {"data": 3}, {"memory": "reservoir:²"}, {"memory": "some"},
        {"margin_steps": 2.5}, {"retrain": -1}, {"retrain": 30},
    ],
    ids=str,
)  # fmt: skip
def test_a_wrong_setting_is_refused_by_name(given: dict[str, object]) -> None:
    (name,) = given
    with pytest.raises(WrongSettingsError, match=name):
        Settings(**given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"weighting": "error", "signal": "none"}, "signal"),
        ({"weighting": "old", "scenario": "stream"}, "weighting='old'"),
        ({"weighting": "old", "signal": "none"}, "signal"),
        ({"weighting": "sample-loss", "signal": "train"}, "signal"),
        ({"mixup": 1.0, "margin": "probability", "margin_steps": 5}, "mixup"),
        ({"retrain": 5, "margin": "counts"}, "margin"),
        ({"retrain": 5, "scenario": "stream"}, "scenario"),
        ({"weighting": "aol-seen", "mechanism": "resample"}, "mechanism"),
    ],
    ids=str,
)
def test_settings_that_contradict_each_other_are_refused(given: dict[str, object], named: str) -> None:
    with pytest.raises(WrongSettingsError, match=named):
        Settings(**given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"imbalance": 50}, {"imbalance": 50.0}),
        ({"gamma": 3.0}, {}),
        ({"start": 0.8}, {}),
        ({"tau": 2.0, "gain": 0.5}, {}),
        ({"margin": "counts", "gain": 0.5}, {"margin": "counts", "tau": 1}),
        ({"margin": "age", "tau": 3.0}, {"margin": "age"}),
        ({"margin": "counts", "margin_steps": 5}, {"margin": "counts"}),
        ({"conflicts": 0.3}, {}),
        ({"fraction": 0.2}, {}),
        ({"period": 3, "memory": "none", "threshold": 0.5, "stream": "access"}, {}),
        ({"schedule": "fixed", "warmup": 3}, {"schedule": "fixed"}),
        ({"divide_by": "weight"}, {}),
        ({"loss": "focal", "divide_by": "count"}, {"loss": "focal"}),
        ({"weighting": "aol", "fuse": "peak", "rho": 0.2}, {"weighting": "aol", "fuse": "peak"}),
        ({"weighting": "aol", "after": 9, "factor": 9.0}, {"weighting": "aol"}),
        ({"weighting": "old", "level": "sample", "rho": 0.2, "temper": 2.0}, {"weighting": "old"}),
        ({"scenario": "stream", "fuse": "peak"}, {"scenario": "stream"}),
        ({"warmup": 0.75}, {}),
        ({"scenario": "stream", "weighting": "aol", "threshold": "median"}, {"scenario": "stream", "weighting": "aol"}),
        ({"scenario": "stream", "threshold": "mean"}, {"scenario": "stream"}),  # ages are not used
        ({"weighting": "aol", "threshold": "mean"}, {"weighting": "aol"}),
        ({"smoothing": 0.5}, {}),
        ({"margin": "probability-seen", "margin_steps": 10}, {"margin": "probability-seen"}),
    ],
    ids=str,
)
def test_what_cannot_matter_makes_no_other_run(one: dict[str, object], other: dict[str, object]) -> None:
    first, second = Settings(**one), Settings(**other)  # type: ignore[arg-type]
    assert first == second
    assert first.run_id == second.run_id
    assert Settings(**json.loads(json.dumps(first.as_dict()))) == first


def test_thresholds_differ_within_a_group_and_are_part_of_the_method() -> None:
    rules = [None, "mean", "positive-median", 0.25]
    runs = [Settings(scenario="stream", weighting="aol", threshold=rule) for rule in rules]
    assert len({run.group_key for run in runs}) == 1
    assert len({run.run_id for run in runs}) == 4
    assert [run.method.partition(" class")[2] for run in runs] == ["", " τ=mean", " τ=positive-median", " τ=0.25"]


def test_the_default_warm_up_is_a_fortieth_of_the_epochs() -> None:
    assert [Settings(epochs=epochs).warmup for epochs in (1, 30, 200)] == [0.025, 0.75, 5.0]
    assert Settings(epochs=200) == Settings(epochs=200, warmup=5)
    assert Settings(epochs=200, schedule="fixed").warmup == 0.0
    assert isinstance(Settings(warmup=5).warmup, float)


def test_the_epochs_before_the_head_is_retrained_are_those_of_a_run_of_so_many() -> None:
    run, plain = Settings(epochs=220, retrain=20).as_dict(), Settings(epochs=200).as_dict()
    assert {name for name, value in run.items() if value != plain[name]} == {"epochs", "retrain"}


def test_every_setting_but_the_scenario_has_help_and_a_group() -> None:
    for option in fields(Settings):
        assert option.name == "scenario" or (option.metadata["help"] and option.metadata["group"]), option.name


def test_ids_are_those_of_the_first_release() -> None:
    assert Settings(warmup=5).run_id == "696734ddde3b"
    assert Settings(weighting="aol", rho=0.3, data="cifar10", epochs=200).run_id == "e0b4dafa51c5"


@pytest.mark.parametrize("schedule", ["paper", "cosine", "fixed"])
@pytest.mark.parametrize("warmup", [0, 0.1, 0.5, 1, 2.4])
def test_rates_follow_the_schedule_step_by_step(schedule: str, warmup: float) -> None:
    run, steps = Settings(schedule=schedule, warmup=warmup, epochs=20, lr=0.3), 7
    warm = 0 if schedule == "fixed" else round(warmup * steps)
    for step in range(20 * steps):
        epoch = step // steps + 1
        if step < warm:
            wanted = 0.3 * (step + 1) / warm
        elif schedule == "cosine":
            wanted = 0.15 * (1 + math.cos(math.pi * (step - warm) / (20 * steps - warm)))
        else:
            wanted = 0.3 * (1e-4 if epoch >= 18 else 1e-2 if epoch >= 16 else 1.0) if schedule == "paper" else 0.3
        assert rate_at(run, step, steps) == pytest.approx(wanted, rel=1e-12), step


def test_a_warm_up_longer_than_training_is_never_over() -> None:
    run = Settings(warmup=10, epochs=2, lr=1.0)
    assert [rate_at(run, step, 3) for step in range(6)] == pytest.approx([(step + 1) / 30 for step in range(6)])


def test_methods_name_what_is_done_and_no_seed() -> None:
    assert Settings(seed=3).method == "none"
    assert Settings(weighting="aol", rho=0.3, temper=0.5).method == "aol ρ=0.3 class temper=0.5"
    assert Settings(weighting="cb", beta=0.99, divide_by="count").method == "cb β=0.99 divided by count"
    assert Settings(weighting="cb", start=0.8, mechanism="resample").method == "cb β=0.9999 from 0.8 resample"
    assert Settings(weighting="old", after=3, factor=50).method == "old after=3 ×50"
    assert Settings(weighting="jtt").method == "jtt after=5 balanced"
    assert Settings(weighting="aol", fuse="peak", level="sample", temper=1.5).method == "aol peak sample temper=1.5"
    assert Settings(margin="counts", mixup=1).method == "logit adjustment (τ = 1) + mixup (α = 1)"
    assert Settings(retrain=20).method == "over-smoothing (20 epochs, 0.98)"
    assert Settings(margin="counts-seen", mixup=1).baseline == Settings(retrain=20).baseline == "none"
    assert Settings(weighting="frequency", power=0.25, loss="focal", gamma=2).method == "frequency p=0.25 focal γ=2"


def test_a_grid_has_every_combination_once() -> None:
    runs = grid({"epochs": 3}, weighting=["none", "cb", "aol"], rho=[0.1, 0.2], seed=[0, 1])
    assert len(runs) == len(set(runs)) == 2 * (1 + 1 + 2)
    assert {run.epochs for run in runs} == {3}


def test_groups_hold_runs_that_differ_only_in_what_may_differ() -> None:
    runs = grid({}, lr=[0.1, 0.2], weighting=["none", "aol"], seed=range(5))
    by_key: dict[object, list[Settings]] = {}
    for run in runs:
        by_key.setdefault(run.group_key, []).append(run)
    assert [{run.lr for run in part} for part in by_key.values()] == [{0.1}, {0.2}]
    for key, part in by_key.items():
        assert {name for name, _ in key} == set(part[0].as_dict()) - set(PER_RUN)  # type: ignore[attr-defined]


def test_a_memory_has_a_capacity_where_it_is_a_reservoir() -> None:
    assert [memory_capacity(memory) for memory in ("all", "none", "reservoir:7")] == [None, None, 7]


def test_every_combination_of_weights_and_margins_has_a_name_of_its_own() -> None:
    runs = grid({}, weighting=list(WEIGHTINGS), margin=list(MARGINS))
    assert len({run.method for run in runs}) == len(runs) == len(WEIGHTINGS) * len(MARGINS)


def test_late_weights_are_used_in_the_last_epoch_at_least() -> None:
    assert Settings(weighting="cb", start=0.99, epochs=30).first_weighted_epoch == 29
