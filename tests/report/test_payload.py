from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime

import numpy as np
import pytest

from aol.lab.methods import MARGINS, WEIGHTINGS
from aol.lab.settings import Settings
from aol.records.history import Answers, pack
from aol.report.page import as_script
from aol.report.payload import add_picture, choose, doubtful_first, oldest_first, payload
from aol.report.run_data import confusion_matrix, last_known, trend
from tests.report.test_codec import restored, unpacked
from tests.support.made_runs import changed, grey_png, make_data, make_large_data


def test_it_is_json_and_says_when_and_what() -> None:
    found = payload([make_data()], now=datetime(2026, 1, 2, 3, 4, 5))
    assert json.loads(as_script(found)) == json.loads(json.dumps(found))
    assert str(found["written"]).startswith("2026-01-02 03:04:05")


def test_readings_by_class_come_back_epoch_by_epoch() -> None:
    data = make_data(epochs=9)
    run = payload([data])["runs"][0]  # type: ignore[index,call-overload]
    for name, values in data.run.over_time.items():
        packed = run["byClass"][name]
        assert packed["epochs"] == list(range(1, 10))
        np.testing.assert_allclose(np.reshape(unpacked(packed), values.shape), values, atol=1e-3)
        np.testing.assert_allclose(unpacked(run["last"][name]), values[-1], atol=1e-3)


def test_epochs_without_a_reading_are_not_kept() -> None:
    data = make_data(epochs=200, samples=False)
    values = np.full((200, 6), np.nan)
    values[9::10] = 0.5
    run = payload([changed(data, over_time={"test_accuracy": values})])["runs"][0]  # type: ignore[index,call-overload]
    assert run["byClass"]["test_accuracy"]["epochs"] == list(range(10, 201, 10))


def test_a_very_long_stream_of_few_classes_is_thinned_to_what_a_browser_can_draw() -> None:
    data = make_data(names=["a", "b"], counts=[30, 4], epochs=200_000, samples=False)
    found = payload([data])
    epochs = found["runs"][0]["byClass"]["age"]["epochs"]  # type: ignore[index,call-overload]
    assert len(epochs) <= 10_000
    assert (epochs[0], epochs[-1]) == (1, 200_000)
    assert any("of 200,000 epochs" in str(note) for note in found["notes"])  # type: ignore[union-attr]


def test_seeds_share_class_names_and_pictures() -> None:
    one, two = make_data(seed=0), make_data("none, seed 1", seed=1)
    alone, both = payload([one]), payload([one, two])
    assert len(both["classSets"]) == 1  # type: ignore[arg-type]
    assert len(set(both["pictures"])) == len(both["pictures"])  # type: ignore[arg-type]
    assert len(both["pictures"]) <= 256  # type: ignore[arg-type]
    assert alone["notes"] == []


def test_histories_and_counts_of_samples_are_those_of_the_story() -> None:
    data = make_data(epochs=9)
    samples = data.samples
    assert samples is not None
    found = payload([data])["runs"][0]["samples"]  # type: ignore[index,call-overload]
    rows = {str(index): row for row, index in enumerate(samples.index)}
    for place, name in enumerate(found["id"]):
        row = rows[name]
        assert restored(found["history"][place], 9) == samples.answers.ages(np.array([row]))[:, 0].tolist()
        assert found["label"][place] == samples.label[row]
        assert found["age"][place] == samples.age[row]
        assert found["wrongEpochs"][place] == (samples.answers.ages(np.array([row]))[:, 0] > 1).sum()
        assert found["seenEpochs"][place] == 9
    assert found["wrong"] == (samples.age > 1).sum()
    unknown = replace(samples, prediction=np.full(len(samples), -1, np.int32))
    assert payload([changed(data, samples=unknown)])["runs"][0]["samples"]["wrong"] == found["wrong"]  # type: ignore[index,call-overload]
    assert sum(count for _, _, count in found["ages"]) == len(samples)
    for low, high, count in found["ages"]:
        assert count == ((samples.age >= low) & (samples.age <= high)).sum()
    assert found["likely"] == 5
    first = [int(found["id"][place]) for place in found["doubtful"][:5]]
    assert sorted(first) == [0, 3, 6, 9, 12]


def test_the_oldest_come_first_and_every_class_has_some() -> None:
    data = make_data(names=[str(n) for n in range(40)], counts=[60] * 40)
    samples = data.samples
    assert samples is not None
    order = oldest_first(samples)
    assert sorted(order.tolist()) == np.flatnonzero(samples.age > 1).tolist()  # only what is wrong
    naive = sorted(order.tolist(), key=lambda row: (-samples.age[row], samples.confidence[row]))
    assert [(samples.age[row], samples.confidence[row]) for row in order] == [
        (samples.age[row], samples.confidence[row]) for row in naive
    ]
    chosen = choose(order, samples.label, 200, 40)
    for label in range(40):
        of_class = [row for row in order if samples.label[row] == label]
        assert set(of_class[:2]) <= set(chosen.tolist())
    assert chosen[:50].tolist() == order[:50].tolist()


def test_samples_as_old_as_each_other_come_from_the_classes_by_turns() -> None:
    data = make_data(names=list("abcde"), counts=[20, 20, 20, 20, 5], epochs=3)
    assert data.samples is not None
    same = np.full(85, 0.1, np.float32)
    nothing = replace(data.samples, age=np.full(85, 4, np.int32), confidence=same)
    first = nothing.label[oldest_first(nothing)]
    assert first[:15].tolist() == [0, 1, 2, 3, 4] * 3
    assert sorted(first.tolist()) == nothing.label.tolist()


def test_the_counts_under_about_are_those_of_the_lists() -> None:
    data = make_data(counts=[400, 300, 200, 100, 50, 20])
    other = changed(data, name="b")
    found = payload([data, other])
    samples = found["runs"][0]["samples"]  # type: ignore[index,call-overload]
    old, doubted = len(samples["oldest"]), len(samples["doubtful"])
    assert old < 1070
    said = f"of 1,070 samples: {old:,} are listed as oldest, {doubted:,} as doubtful."
    notes = [str(note) for note in found["notes"]]  # type: ignore[union-attr]
    assert [note for note in notes if "1,070" in note] == [f"{data.name}, {said}", f"b, {said}"]
    assert sum("--export" in note for note in notes) == 1


def test_a_run_without_the_measure_of_the_page_shows_no_other_under_its_name() -> None:
    data = make_data(samples=False)
    by_class = data.run.over_time["test_accuracy"] / 2
    uneven = {"over_time": {"test_accuracy": by_class}, "curves": {"test_accuracy": by_class.mean(1) + 0.2}}
    found = payload([changed(data, **uneven)])  # type: ignore[arg-type]
    assert found["methods"]["measure"] == "balanced accuracy"  # type: ignore[index,call-overload]
    run = found["runs"][0]  # type: ignore[index,call-overload]
    assert (run["lastAccuracy"], run["tailAccuracy"]) == (None, None)


def test_methods_have_seeds_gains_worst_classes_head_and_tail() -> None:
    runs = [make_data(seed=0), make_data("none, seed 1", seed=1)]
    runs += [make_data("aol, seed 0", seed=0), make_data("aol, seed 1", seed=1)]
    for data in runs:
        data.run.settings.pop("weighting")
    for data, more in zip(runs, (0.0, 0.0, 0.05, 0.07), strict=True):
        for readings in (data.run.curves, data.run.over_time):
            readings["test_accuracy"][:] = readings["test_accuracy"] / 2 + more
    found = payload(runs)["methods"]
    names = ["worst_class", "head_accuracy", "middle_accuracy", "tail_accuracy"]
    assert (found["measure"], found["measures"]) == ("accuracy", names)  # type: ignore[index,call-overload]
    assert "The test set is balanced" in str(found["about"])  # type: ignore[index,call-overload]
    none, aol = found["rows"]  # type: ignore[index,call-overload,misc]
    assert (none["name"], none["seeds"], none["gain"]) == ("none", 2, None)
    assert (aol["name"], aol["gain"]) == ("aol", pytest.approx(0.06))
    assert aol["interval"] == pytest.approx([0.06 - 0.12706, 0.06 + 0.12706], abs=1e-4)  # t(1) = 12.706, error 0.01
    assert "No gain is significant" in str(found["answer"])  # type: ignore[index,call-overload]
    last = np.stack([data.run.over_time["test_accuracy"][-1] for data in runs[:2]])  # six classes, largest first
    wanted = [last.min(1).mean(), last[:, :2].mean(), last[:, 2:4].mean(), last[:, 4:].mean()]
    assert none["measures"] == pytest.approx(wanted, abs=1e-3)
    assert [name for name, _ in none["worst"]] == ["class 5", "class 4"]
    assert none["worst"][0][1] == pytest.approx(last.mean(0).min(), abs=1e-3)
    assert "Worst class on test: “class 5” (" in str(found["answer"])  # type: ignore[index,call-overload]
    assert payload([])["methods"]["rows"] == []  # type: ignore[index,call-overload]


def test_the_title_names_the_data_and_the_date() -> None:
    when = datetime(2026, 1, 2)
    assert payload([make_data()], now=when)["title"] == "made up, 2026-01-02"
    own = make_data(settings={})
    assert payload([own], now=when)["title"] == f"{own.folder.name}, 2026-01-02"


def test_curves_of_the_classes_are_those_of_runs_with_details() -> None:
    data = make_data(samples=False)
    data.run.curves["test_worst_class"] = data.run.curves["test_accuracy"] / 2
    first, *_, last = payload([data] * 30)["runs"]  # type: ignore[misc]
    assert {"test_worst_class", "test_accuracy"} <= set(first["curves"])
    assert not last["details"]
    assert "test_worst_class" not in last["curves"]
    assert "test_accuracy" in last["curves"]


def test_the_accuracy_at_the_end_is_that_of_the_figures_on_a_stream_its_second_half() -> None:
    data = make_data(epochs=40)
    stream = changed(data, settings=data.run.settings | {"scenario": "stream"})
    ends = [run["tailAccuracy"] for run in payload([data, stream])["runs"]]  # type: ignore[index,union-attr,call-overload]
    accuracy = data.run.curves["test_accuracy"]
    assert ends == pytest.approx([accuracy[-2:].mean(), accuracy[20:].mean()], abs=1e-4)


def test_confusion_counts_like_a_loop() -> None:
    data = make_data()
    samples = data.samples
    assert samples is not None
    rng = np.random.default_rng(1)
    samples = replace(samples, prediction=rng.integers(-1, 6, len(samples)).astype(np.int32))
    answer, share = samples.confusion(6)
    for label in range(6):
        answers = samples.prediction[samples.label == label].tolist()
        wrong = [each for each in answers if each not in (-1, label)]
        counts = {each: wrong.count(each) for each in set(wrong)}
        assert share[label] == pytest.approx(max(counts.values()) / len(wrong))
        assert counts[int(answer[label])] == max(counts.values())


def test_last_known_and_trend_count_like_a_loop() -> None:
    rng = np.random.default_rng(2)
    values = rng.random((17, 9))
    values[rng.random((17, 9)) < 0.4] = np.nan
    values[:, 3] = np.nan
    for place in range(9):
        read = [v for v in values[:, place] if not np.isnan(v)]
        early = [v for v in values[: 17 - 4, place] if not np.isnan(v)]
        np.testing.assert_equal(last_known(values)[place], read[-1] if read else np.nan)
        np.testing.assert_equal(trend(values)[place], read[-1] - early[-1] if early else np.nan)


@pytest.mark.parametrize("most", [30, 3])
def test_the_confusion_matrix_counts_last_answers_of_the_classes_with_most_mistakes(most: int) -> None:
    samples = make_data(epochs=9).samples
    assert samples is not None
    answers = samples.prediction.copy()
    answers[7] = -1  # not known
    samples = replace(samples, prediction=answers)
    classes, counts = confusion_matrix(samples.label, samples.prediction, 6, most)
    wrong = [(a, b) for a, b in zip(samples.label, answers, strict=True) if b not in (a, -1)]
    often = [sum(c in pair for pair in wrong) for c in range(6)]
    assert sorted(often[c] for c in classes) == sorted(often)[-most:]
    for row, label in enumerate(classes):
        assert counts[row] == [int(((samples.label == label) & (answers == other)).sum()) for other in classes]


def test_likely_label_errors_are_old_sure_and_of_a_learnt_class() -> None:
    samples = make_data(epochs=12).samples
    assert samples is not None
    assert np.flatnonzero(samples.likely_mislabelled).tolist() == [0, 1, 2, 3, 4]
    assert set(doubtful_first(samples)[:5].tolist()) == {0, 1, 2, 3, 4}
    unsure = replace(samples, mean_margin=np.full(len(samples), -0.5, np.float32))
    assert not unsure.likely_mislabelled.any()


@pytest.mark.parametrize("lost", [0, 1])
def test_labels_are_doubted_only_where_label_and_answer_are_of_classes_that_the_model_knows(lost: int) -> None:
    samples = make_data(epochs=12).samples  # five samples of class 0 are taken for class 1
    assert samples is not None
    test = np.full(6, 0.9)
    assert replace(samples, test_accuracy=test).likely_mislabelled.sum() == 5
    test[lost] = 0.0
    found = replace(samples, test_accuracy=test)
    assert not found.likely_mislabelled.any()
    assert found.suspicion.max() <= 0.5


def test_samples_of_classes_that_were_never_learnt_are_doubted_last() -> None:
    samples = make_data(epochs=12).samples
    assert samples is not None
    never = samples.label == samples.label.max()
    right = np.repeat(~never[None], 12, axis=0)
    right[0, :3] = False  # of a class that was learnt: once, and with little doubt
    found = doubtful_first(
        replace(
            samples,
            answers=Answers(pack(right), None, len(samples)),
            mean_margin=np.where(never, 0.9, -0.4).astype(np.float32),
        )
    )
    assert set(found[:3].tolist()) == {0, 1, 2}
    assert sorted(found[3:].tolist()) == np.flatnonzero(never).tolist()


def test_pictures_are_kept_once_and_only_while_there_is_room() -> None:
    pictures: dict[str, int] = {}
    assert [add_picture(pictures, content) for content in (None, b"")] == [-1, -1]
    assert [add_picture(pictures, grey_png(value), 300) for value in (1, 1, 2, 3, 1)] == [0, 0, 1, -1, 0]
    assert all(url.startswith("data:image/png;base64,") for url in pictures)


def test_many_runs_are_listed_and_the_first_are_shown_in_detail() -> None:
    runs = [make_data(f"none, seed {seed}", seed=seed, epochs=4) for seed in range(40)]
    found = payload(runs)
    runs = found["runs"]
    assert isinstance(runs, list)
    assert [run["details"] for run in runs] == [True] * 24 + [False] * 16  # type: ignore[index,call-overload]
    assert any("40 runs are listed" in str(note) for note in found["notes"])  # type: ignore[union-attr]


def test_of_two_thousand_runs_some_are_listed_and_all_are_compared() -> None:
    one = make_data(samples=False)
    runs = [changed(one, seed=seed, id=f"{seed:x}") for seed in range(2000)]
    found = payload(runs)
    assert len(found["runs"]) == 500  # type: ignore[arg-type]
    assert found["methods"]["rows"][0]["seeds"] == 2000  # type: ignore[index,call-overload]
    assert any("500 of 2000 runs are listed" in str(note) for note in found["notes"])  # type: ignore[union-attr]
    assert len(as_script(found)) < 3e6


def test_a_thousand_classes_and_many_samples_stay_small_and_say_what_is_left_out() -> None:
    data = make_large_data(epochs=100, size=50_000)  # a million: tests/browser/test_browser_large.py
    found = payload([data, changed(data, name="b"), changed(data, name="c")])
    size = {name: len(json.dumps(value)) for name, value in found.items()}
    assert sum(size.values()) < 3_500_000, size
    notes = " ".join(str(note) for note in found["notes"])  # type: ignore[union-attr]
    assert "c, of 50,000 samples: " in notes
    assert "of 100 epochs" in notes
    assert "to stay small" in notes


def test_a_run_without_samples_ages_or_classes_is_told_too() -> None:
    bare = changed(make_data(samples=False), over_time={}, curves={}, settings={}, versions={}, command=None)
    lone = make_data(names=["only"], counts=[7])
    found = payload([bare, lone])
    assert [run["samples"] is None for run in found["runs"]] == [True, False]  # type: ignore[union-attr,index,call-overload]
    as_script(found)


def test_a_record_of_the_last_epoch_alone_is_shown_as_far_as_it_goes() -> None:
    whole = make_data(samples=False)
    last = {"smoothed_age": whole.run.by_class["age"], "test_accuracy": whole.run.by_class["test_accuracy"]}
    bare = changed(whole, over_time={}, by_class=last, counts=None)
    (run,) = payload([bare])["runs"]  # type: ignore[misc,union-attr]
    assert (run["counts"], run["byClass"], run["trend"]) == (None, {}, None)  # type: ignore[index,call-overload]
    np.testing.assert_allclose(unpacked(run["last"]["smoothed_age"]), last["smoothed_age"], atol=1e-3)  # type: ignore[index,call-overload]
    assert bare.age is not None
    assert whole.age == pytest.approx(whole.run.by_class["age"])


def test_classes_of_one_name_can_be_told_apart() -> None:
    found = payload([make_data(names=["cat", "cat", "x" * 300 + "a", "x" * 300 + "b"], counts=[5] * 4)])
    names = found["classSets"][0]  # type: ignore[index]
    assert names[:2] == ["cat", "cat (2)"]  # type: ignore[index]
    assert len(set(names)) == 4  # type: ignore[arg-type]
    assert len(names[2]) == 200  # type: ignore[index]


@pytest.mark.parametrize("name", ["weighting", "margin"])
def test_of_the_settings_of_methods_those_are_listed_that_the_method_uses(name: str) -> None:
    rules = {"weighting": WEIGHTINGS, "margin": MARGINS}[name]
    optional = {setting for rule in (*WEIGHTINGS.values(), *MARGINS.values()) for setting in rule.settings}
    for word, rule in rules.items():
        settings = Settings(**{name: word}).as_dict()  # type: ignore[arg-type]
        run = payload([make_data(settings=settings)])["runs"][0]  # type: ignore[arg-type,call-overload,index]
        used = {setting for setting in rule.settings if settings[setting] is not None}
        assert run["settings"].keys() & optional == used, word


@pytest.mark.parametrize(
    ("scenario", "used"),
    [("offline", set()), ("arrival", {"fraction"}), ("stream", {"fraction", "stream", "period", "memory"})],
)
def test_settings_that_have_no_meaning_in_a_scenario_are_not_listed(scenario: str, used: set[str]) -> None:
    settings = Settings().as_dict() | {"scenario": scenario}
    run = payload([make_data(settings=settings)])["runs"][0]  # type: ignore[arg-type,call-overload,index]
    optional = {"fraction", "stream", "period", "memory", "conflicts", "gamma", "smoothing", "mechanism", "start"}
    assert run["settings"].keys() & optional == used


def test_settings_of_a_loop_of_ones_own_are_all_listed() -> None:
    own = {"loss": "ldam", "gamma": 2.0, "margin": 0.5, "tau": 1.0, "weighting": "mine", "beta": 0.9, "retrain": 2}
    run = payload([make_data(settings=own)])["runs"][0]  # type: ignore[arg-type,call-overload,index]
    assert run["settings"] == own
