"""Three processes over gloo against one: the same numbers to the last bit, or the same error on all of them."""

from __future__ import annotations

import numpy as np
import pytest

from aol.report.run_data import load
from tests.support import scenarios
from tests.support.processes import Processes

STATES = {
    "class level": {"rho": 0.3},
    "peak": {"fuse": "peak", "level": "sample"},
    "runs": {"rho": [0.3, 0.0, 1.0], "absent": "grow"},
    "runs with samples of their own": {"rho": [0.3, 0.7], "own": True, "level": "sample"},
    "as a padding sampler shows them": {"rho": 0.3, "padded": True},
}


@pytest.fixture(scope="module")
def processes():
    made = Processes(3)
    yield made
    made.stop()


@pytest.fixture(scope="module")
def two_processes():
    made = Processes(2)
    yield made
    made.stop()


@pytest.mark.parametrize("settings", STATES.values(), ids=STATES)
def test_sample_ages_agree_with_one_process_to_the_last_bit(processes, settings):
    alone = scenarios.sample_ages(0, processes.world, alone=True, **settings)
    for found in processes.run("sample_ages", **settings):
        assert found == alone


def test_ages_inside_a_model_that_ddp_wraps_keep_what_each_process_observed(processes):
    alone = scenarios.sample_ages(0, processes.world, alone=True, rho=0.3)
    assert processes.run("inside_ddp", broadcast=False) == [alone] * processes.world
    # With the broadcast of DDP, each forward pass replaces what was observed by what the first process observed.
    first = scenarios.sample_ages(0, processes.world, rho=0.3)
    assert processes.run("inside_ddp", broadcast=True) == [first] * processes.world


@pytest.mark.parametrize(
    "settings",
    [
        {"kind": "ClassAges", "rho": 0.3},
        {"kind": "ClassAges", "rho": [0.3, 0.0], "threshold": ["mean", 0.4], "own": True},
        {"kind": "ErrorRates", "rho": 0.3},
        {"kind": "ErrorRates", "rho": [0.3, 0.9], "own": True},
    ],
    ids=str,
)
def test_class_states_agree_with_one_process_to_the_last_bit(processes, settings):
    alone = scenarios.class_states(0, processes.world, alone=True, **settings)
    for found in processes.run("class_states", **settings):
        assert found == alone


@pytest.mark.parametrize(
    "settings",
    [
        {"signal": "probability"},
        {"signal": "age", "gain": [0.1, 0.4], "rho": [0.3, 1.0], "own": True},
        {"signal": "age", "stored": True, "padded": True},
        {"signal": "error", "stored": True, "gain": [0.1, 0.2]},
    ],
    ids=str,
)
def test_margins_agree_with_one_process_to_the_last_bit(processes, settings):
    alone = scenarios.margins(0, processes.world, alone=True, **settings)
    for found in processes.run("margins", **settings):
        assert found == alone


def test_without_sync_a_process_keeps_to_itself(processes):
    for rank, found in enumerate(processes.run("apart")):
        assert found == [[2 if i == rank else 1 for i in range(3)]] * 2


@pytest.mark.parametrize("case", ["labels", "epoch", "classes", "runs", "margins"])
def test_processes_at_odds_are_told_so_on_all_of_them(processes, case):
    for rank, (first, second, epoch) in enumerate(processes.run("errors", case=case)):
        assert first.startswith("ValueError: Processes disagree")
        assert second == first
        assert epoch == (rank if "epoch" in case else 0)


@pytest.mark.parametrize("case", ["stray index", "stray label", "stray label and answer"])
def test_a_stray_on_one_process_is_reported_on_all_and_then_left_out(processes, case):
    for first, second, epoch in processes.run("errors", case=case):
        assert first.startswith(f"IndexError: {case.removeprefix('stray ')} must")
        assert second == "went on"
        assert epoch == 1


@pytest.mark.parametrize("case", ["class", "counted class"])
def test_predicted_classes_in_place_of_truths_on_one_process_are_reported_on_all(processes, case):
    for first, second, epoch in processes.run("errors", case=case):
        assert first.startswith("IndexError:")
        assert "correct be true or false (not predicted classes)" in first
        assert second == "went on"
        assert epoch == 1


@pytest.mark.parametrize("kind", ["ShuffledSampler", "AgeSampler", "WeightedSampler"])
@pytest.mark.parametrize("even", [True, False])
def test_processes_share_the_order_of_one(processes, kind, even):
    world = processes.world
    (whole, _, begun, rest), *_ = [scenarios.samplers(0, 1, kind=kind, even=even)]
    second = begun + rest
    found = processes.run("samplers", kind=kind, even=even)
    for rank, (first, length, begun, rest) in enumerate(found):
        assert length == len(first)
        for order, got in ((whole, first), (second, begun + rest)):
            padded = order + order[: -len(order) % world] if even else order
            assert got == padded[rank::world]


@pytest.mark.parametrize("divide_by", ["weight", "count"])
@pytest.mark.parametrize(("loss", "sharded"), [("softmax", False), ("sigmoid", True)], ids=["DDP", "FSDP2"])
def test_micro_batches_on_several_processes_add_up_to_one_large_batch(processes, divide_by, loss, sharded):
    alone = scenarios.gradients(0, processes.world, divide_by=divide_by, loss=loss, alone=True)
    for found in processes.run("gradients", divide_by=divide_by, loss=loss, sharded=sharded):
        for mine, wanted in zip(found, alone, strict=True):
            np.testing.assert_allclose(mine, wanted, rtol=1e-12, atol=1e-14)


def test_no_weight_anywhere_under_ddp_gives_gradients_of_zero(processes):
    for mean, *gradients in processes.run("gradients", divide_by="weight", loss="softmax", nothing=True):
        assert mean == 0.0
        assert all(not np.any(gradient) for gradient in gradients)


@pytest.mark.parametrize("absent", ["keep", "grow"])
def test_what_several_processes_record_is_what_one_would_have(processes, absent, tmp_path):
    scenarios.recorder(0, processes.world, alone=True, folder=str(tmp_path / "one"), rho=0.3, absent=absent)
    processes.run("recorder", folder=str(tmp_path / "many"), rho=0.3, absent=absent)
    one, many = load(tmp_path / "one"), load(tmp_path / "many")
    assert len(one) == len(many) == 1
    for mine, theirs in zip(one, many, strict=True):
        assert theirs.run.finished
        assert mine.run.over_time.keys() == theirs.run.over_time.keys()
        for name, values in mine.run.over_time.items():
            np.testing.assert_allclose(theirs.run.over_time[name], values, rtol=5e-5, err_msg=name)
        for name in mine.run.curves.keys() - {"seconds"}:
            np.testing.assert_allclose(theirs.run.curves[name], mine.run.curves[name], rtol=1e-5, err_msg=name)
        rows = np.arange(len(mine.samples))
        assert (mine.samples.answers.ages(rows) == theirs.samples.answers.ages(rows)).all()
        for name in ("seen", "wrong", "episodes", "prediction"):
            assert (getattr(mine.samples, name) == getattr(theirs.samples, name)).all(), name
        for name in ("confidence", "top", "mean_confidence", "mean_other"):
            np.testing.assert_allclose(getattr(theirs.samples, name), getattr(mine.samples, name), rtol=1e-5)


@pytest.mark.parametrize(
    "settings",
    [
        {"kind": "LogitAdjustedLoss"},
        {"kind": "LogitAdjustedLoss", "compiled": True},
        {"kind": "LogitAdjustedLoss", "memory": 20.0},
        {"kind": "MarginLoss", "every": 2},
        {"kind": "AgeWeightedLoss", "every": 15},
    ],
    ids=lambda settings: " ".join(map(str, settings.values())),
)
def test_losses_learn_from_the_uneven_batches_of_all_processes_what_one_process_learns(
    processes, two_processes, settings
):
    for several in (processes, two_processes):
        alone = scenarios.criterion(0, several.world, alone=True, **settings)
        first, *others = several.run("criterion", **settings)
        assert all(other == first for other in others)
        for ours, whole in zip(first, alone, strict=True):
            np.testing.assert_allclose(ours, whole, rtol=1e-5, atol=1e-6)


def test_a_failing_process_is_shown_and_the_others_are_not_left_hanging(processes):  # the last one: it ends them all
    with pytest.raises(AssertionError, match="has no attribute 'nothing_of_that_name'"):
        processes.run("nothing_of_that_name")
