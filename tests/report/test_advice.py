from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from aol.records.compare import MethodRow, Methods
from aol.records.history import Answers, pack
from aol.report.advice import advise
from aol.report.run_data import RunData
from aol.stats import paired_gain
from tests.support.made_runs import changed, make_data


def kinds(data: RunData) -> dict[str, list[int]]:
    return {each.kind: list(each.classes) for each in advise(data)}


def with_ages(ages: list[float], counts: list[int], **changes: object) -> RunData:
    data = make_data(names=[str(n) for n in range(len(ages))], counts=counts, samples=False)
    level = np.tile(np.array(ages), (len(data.run.epochs), 1))
    by_class = {"age": level, "weight": np.ones_like(level)}
    return changed(data, over_time=by_class, **changes)  # type: ignore[arg-type]


def test_old_and_rare_classes_are_to_be_given_margin() -> None:
    data = with_ages([1.1, 1.2, 1.1, 5.0, 7.0], [100, 90, 80, 5, 4])
    assert kinds(data) == {"rare": [4, 3]}
    text = advise(data)[0].text
    assert "2 classes are old and rare: mean age 6.0" in text
    assert "3.2% of the samples" in text
    assert "--margin counts" in text


def test_classes_are_old_by_their_own_age_though_most_are_as_old() -> None:
    assert kinds(with_ages([4.0, 5.0, 6.0, 1.0], [100, 90, 80, 70])) == {"hard": [2, 1, 0]}
    assert kinds(with_ages([1.1, 1.0, 1.9, 1.0], [100, 90, 80, 70])) == {"fine": []}
    stream = with_ages([4.0, 5.0, 6.0, 1.0], [100, 90, 80, 70], settings={"scenario": "stream"})
    assert kinds(stream) == {"hard": [2, 1]}


def unlearnt(train: list[float], test: list[float], right: float) -> RunData:
    data = with_ages([2.5] * len(train), [40] * len(train))
    data.run.over_time["train_accuracy"] = np.tile(np.float32(train), (12, 1))
    data.run.over_time["test_accuracy"] = np.tile(np.float32(test), (12, 1))
    data.run.curves["train_accuracy"] = np.full(12, right)
    return data


def test_a_model_that_has_not_learnt_is_told_so_first_and_nothing_of_labels() -> None:
    data = unlearnt([0.9] * 5 + [0.1] * 5, [0.8] * 5 + [0.0] * 5, right=0.5)
    assert kinds(data) == {"unlearnt": [5, 6, 7, 8, 9]}
    assert "5 of 10 classes are at about 0% on test" in advise(data)[0].text
    assert next(iter(kinds(changed(data, finished=False)))) == "unlearnt"
    poor = unlearnt([0.3] * 10, [0.3] * 10, right=0.3)  # no class is lost, but a constant answer gets 10 %
    assert list(kinds(poor)) == ["unlearnt"]
    assert "30% of the training answers are right, a constant answer gets 10%" in advise(poor)[0].text
    assert "unlearnt" not in kinds(unlearnt([0.5] * 10, [0.5] * 10, right=0.5))


def test_what_was_memorised_was_learnt_in_training() -> None:
    found = kinds(unlearnt([1.0] * 10, [0.9] * 5 + [0.0] * 5, right=1.0))
    assert "unlearnt" not in found
    assert sorted(found["memorised"]) == [5, 6, 7, 8, 9]


@pytest.mark.parametrize(
    ("differences", "said"),
    [([0.06, 0.07, 0.08], "Here cb gained +7.0 points of accuracy (+4.5 to +9.5, 3 seeds) over none: use it"),
     ([-0.1, 0.07, 0.08], "No gain here is significant; the best: cb gained +1.7 points"),
     ([-0.1, 0.02, 0.05], "No gain here is significant; the best: cb lost 1.0 points")],
)  # fmt: skip
def test_advice_on_rare_classes_is_what_was_gained_here(differences: list[float], said: str) -> None:
    data = with_ages([1.1, 1.2, 1.1, 5.0, 7.0], [100, 90, 80, 5, 4])
    rows = [MethodRow("", "cb", "none", 3, 0.8, 0.01, paired_gain(differences), {})]
    (rare,) = advise(data, Methods(rows))
    assert said in rare.text
    assert "--margin" not in rare.text


def test_the_method_that_gained_is_not_told_that_nothing_did() -> None:
    data = with_ages([1.1, 1.2, 1.1, 5.0, 7.0], [100, 90, 80, 5, 4], method="cb")
    (rare,) = advise(data, Methods([MethodRow("", "cb", "none", 3, 0.8, 0.01, paired_gain([0.06, 0.07, 0.08]), {})]))
    assert "Its method helps, cb gained +7.0 points of accuracy" in rare.text
    assert "use it" not in rare.text


def test_a_loop_of_ones_own_is_advised_in_names_of_the_library() -> None:
    (rare,) = advise(with_ages([1.1, 1.2, 1.1, 5.0, 7.0], [100, 90, 80, 5, 4], settings={"lr": 0.1}))
    assert "aol.LogitAdjustedLoss" in rare.text
    assert "--" not in rare.text


def test_a_run_with_margins_is_not_told_to_try_them() -> None:
    data = with_ages([1.1, 1.2, 1.1, 5.0, 7.0], [100, 90, 80, 5, 4])
    data.run.over_time["offset"] = np.tile([0.5, 0.5, 0.0, -0.5, -0.5], (12, 1))
    assert "Try a larger tau" in advise(data)[0].text
    data.run.over_time["offset"] = np.zeros((12, 5))  # those of a run beside it
    assert "Try logit adjustment" in advise(data)[0].text


@pytest.mark.parametrize(("margin", "named"), [("probability", "each step"), ("counts", "a larger tau")])
def test_on_a_stream_only_margins_by_counts_are_advised_to_be_stronger(margin: str, named: str) -> None:
    given = {"scenario": "stream", "weighting": "none", "margin": margin}
    data = with_ages([1.1, 1.2, 1.1, 5.0, 7.0], [100, 90, 80, 5, 4], settings=given)
    data.run.over_time["offset"] = np.tile([0.5, 0.5, 0.0, -0.5, -0.5], (12, 1))
    assert named in advise(data)[0].text


@pytest.mark.parametrize(("settings", "named"), [({}, "(--margin counts)"), ({"scenario": "stream"}, "each step")])
def test_on_a_stream_the_counts_of_the_step_are_advised_and_no_margins(settings: dict[str, str], named: str) -> None:
    given = {"weighting": "none", **settings}
    rare = with_ages([1.1, 1.2, 1.1, 5.0, 7.0], [100, 90, 80, 5, 4], settings=given)
    learnt = with_ages([1.0, 1.0], [50, 40], curves={"train_accuracy": np.full(12, 0.999)}, settings=given)
    for data in (rare, learnt):
        (advice,) = advise(data)
        assert named in advice.text
        assert "probability" not in advice.text


def test_old_classes_of_unknown_size_are_neither_rare_nor_hard() -> None:
    assert kinds(changed(with_ages([1.1, 1.2, 1.1, 5.0], [1, 1, 1, 1]), counts=None)) == {"old": [3]}


def test_a_training_set_that_is_right_tells_ages_nothing_more() -> None:
    data = with_ages([1.0, 1.01, 1.0], [50, 40, 30], curves={"train_accuracy": np.full(12, 0.999)})
    assert list(kinds(data)) == ["learnt"]
    assert "counts" in advise(data)[0].text
    assert "counts" not in advise(changed(data, counts=[40, 40, 40]))[0].text  # equal ones adjust nothing


def test_what_is_learnt_by_heart_is_told() -> None:
    data = with_ages([1.0, 1.0, 1.0], [50, 40, 30])
    data.run.over_time["train_accuracy"] = np.tile([1.0, 0.99, 1.0], (12, 1))
    data.run.over_time["test_accuracy"] = np.tile([0.9, 0.5, 0.2], (12, 1))
    assert kinds(data) == {"memorised": [2, 1]}


def test_running_and_failed_runs_are_told() -> None:
    data = with_ages([1.0, 1.0], [50, 40], finished=False, planned=40)
    assert list(kinds(data)) == ["running"]
    assert "12 of 40 epochs" in advise(data)[0].text
    assert next(iter(kinds(changed(data, failed_at_epoch=7)))) == "failed"


def test_one_class_no_ages_and_nothing_known_give_a_sentence_too() -> None:
    assert list(kinds(with_ages([1.0], [9]))) == ["fine"]
    data = with_ages([1.0, 1.0], [5, 5])
    data.run.over_time["age"][:] = np.nan
    for silent in (data, changed(data, over_time={}, curves={})):  # none is known to be old, and none not to be
        (found,) = advise(silent)
        assert found.kind == "ageless"
        assert found.text.startswith("No ages were recorded")


def test_a_class_that_is_not_learnt_has_no_likely_label_errors() -> None:
    data = make_data(epochs=12)
    assert data.samples is not None
    right = np.array([[age == 1 for age in row] for row in data.samples.answers.ages(np.arange(len(data.samples)))])
    right[:, data.samples.label == 0] = False
    lost = changed(data, samples=replace(data.samples, answers=Answers(pack(right), None, len(data.samples))))
    assert "labels" in kinds(data)
    assert "labels" not in kinds(lost)


def test_streams_count_steps() -> None:
    running, _ = advise(changed(with_ages([6.0, 6.0], [9, 9]), settings={"scenario": "stream"}, finished=False))
    assert running.text.startswith("12 of 12 steps")
