"""Records: written once, whole, and believed only when they are exactly what was written."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pytest

from aol.engine.settings import Settings
from aol.records.files import UnusableFolderError
from aol.study import records
from aol.study.records import LARGEST, Record, Store, _checksum, encoded, rounded

ROOT = Path(__file__).parents[2]
Content: TypeAlias = dict[str, dict[str, object]]


def record(seed: int = 0, epochs: int = 200, classes: int = 10) -> Record:
    numbers = random.Random(seed)
    settings = Settings(weighting="aol", epochs=epochs, seed=seed)
    return Record(
        settings=settings,
        curves={name: rounded(numbers.random() for _ in range(epochs)) for name in ("test_accuracy", "train_loss")},
        by_class={name: rounded(numbers.random() for _ in range(classes)) for name in ("age", "test_accuracy")},
        versions={"aol": "1", "device": "a CPU"},
        seconds=1.5,
        trained_together=3,
    )


def forged(store: Store, one: Record, change: Callable[[Content], object]) -> list[str]:
    """Put a changed record into a store, under a checksum that fits; return what is said to be wrong."""
    content = json.loads(encoded(one))
    del content["sha256"]
    change(content)
    store.put(one)
    store.path(one.run_id).write_text(json.dumps({**content, "sha256": _checksum(content)}))
    assert (store.get(one.run_id) is None) == bool(store.damaged())
    return [why for _, why in store.damaged()]


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    store, one, two = Store(tmp_path), record(1), record(2)
    store.put(one)
    store.put(two)
    assert store.get(one.run_id) == one
    assert sorted(store, key=lambda each: each.settings.seed) == [one, two]
    assert store.damaged() == []
    assert Store(tmp_path / "nowhere").get(one.run_id) is None
    assert not (tmp_path / "nowhere").exists()


def test_records_that_were_copied_are_records(tmp_path: Path) -> None:
    here, there, one = Store(tmp_path / "here"), Store(tmp_path / "there"), record()
    here.put(one)
    there.path(one.run_id).parent.mkdir(parents=True)
    there.path(one.run_id).write_bytes(here.path(one.run_id).read_bytes())
    assert there.get(one.run_id) == one


def test_every_change_of_a_byte_is_noticed(tmp_path: Path) -> None:
    store, one = Store(tmp_path), record(epochs=3)
    whole = encoded(one)
    for place in range(len(whole) - 1):  # the last byte ends the line
        store.path(one.run_id).parent.mkdir(exist_ok=True)
        store.path(one.run_id).write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        assert store.get(one.run_id) is None, whole[place - 5 : place + 5]


@pytest.mark.parametrize("length", [0, 1, 100, 2000])
def test_a_record_that_was_cut_short_is_reported_and_not_used(tmp_path: Path, length: int) -> None:
    store, one = Store(tmp_path), record()
    store.put(record(7))
    store.path(one.run_id).write_bytes(encoded(one)[:length])
    assert store.get(one.run_id) is None
    assert [each.settings.seed for each in store] == [7]
    assert store.damaged() == [(store.path(one.run_id), "it is cut short or no JSON")]


def test_a_record_under_another_runs_name_is_not_used(tmp_path: Path) -> None:
    store, one, two = Store(tmp_path), record(1), record(2)
    store.put(one)
    store.path(two.run_id).write_bytes(store.path(one.run_id).read_bytes())
    assert store.get(two.run_id) is None
    assert store.damaged() == [(store.path(two.run_id), f"its settings are those of {one.run_id}, not of {two.run_id}")]


def test_a_record_of_a_version_with_other_settings_is_not_used(tmp_path: Path) -> None:
    (why,) = forged(Store(tmp_path), record(), lambda content: content["settings"].update(colour="red"))
    assert why.startswith("this version of aol cannot read it")


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_a_number_that_is_not_finite_is_reported_and_not_used(number: str, tmp_path: Path) -> None:
    store, one = Store(tmp_path), record(epochs=3)
    store.put(one)
    path = store.path(one.run_id)
    path.write_text(path.read_text().replace('"seconds":1.5', f'"seconds":{number}'))
    assert store.get(one.run_id) is None
    assert store.damaged() == [(path, "it has a number that is not finite")]


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, '{"a":' * 400 + "{}" + "}" * 400])
def test_what_is_nested_deeply_is_no_record(text: str, tmp_path: Path) -> None:
    store, one = Store(tmp_path), record()
    store.put(one)
    store.path(one.run_id).write_text(text)
    assert list(store) == []
    assert len(store.damaged()) == 1


def test_only_the_checksum_being_too_deep_is_damage_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def deep(_: object) -> str:
        raise RecursionError

    store, one = Store(tmp_path), record()
    store.put(one)
    monkeypatch.setattr(records, "_checksum", deep)
    assert store.damaged() == [(store.path(one.run_id), "it is nested too deeply for a record")]


def _without(part: str, name: str) -> Callable[[Content], object]:
    return lambda content: content[part].pop(name)


def _with(part: str, value: object, name: str | None = None) -> Callable[[Content], object]:
    return lambda content: (content if name is None else content[part]).update({name or part: value})  # type: ignore[dict-item]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (_with("curves", "x"), "its curves are not lists by name but 'x'"),
        (_with("curves", None), "its curves are not lists by name but None"),
        (_with("curves", 3, "test_accuracy"), "its curve test_accuracy is not a list of numbers but 3"),
        (_with("curves", ["x"] * 4, "train_loss"), "its curve train_loss is not a list of numbers but"),
        (_with("curves", [True] * 4, "test_accuracy"), "its curve test_accuracy is not a list of numbers but"),
        (_with("curves", [0.5] * 3, "test_accuracy"), "its curve test_accuracy has 3 numbers and its run 4 epochs"),
        (_with("curves", [0.5] * 5, "train_loss"), "its curve train_loss has 5 numbers and its run 4 epochs"),
        (_with("curves", [], "test_accuracy"), "its curve test_accuracy has 0 numbers and its run 4 epochs"),
        (_with("curves", [0.1, 1.5, 0.1, 0.2], "test_accuracy"), "goes from 0.1 to 1.5, and accuracies from 0 to 1"),
        (_with("curves", [0.1, -1.0, 0.1, 0.2], "validation_accuracy"), "goes from -1 to 0.2, and accuracies"),
        (_with("curves", [None] * 4, "test_accuracy"), "its curve test_accuracy lacks epochs that were to be read"),
        (_with("curves", [0.1, 0.1, None, 0.1], "validation_accuracy"), "validation_accuracy lacks epochs that were"),
        (_with("curves", [0.1, 0.1, 0.1, None], "averaged_accuracy"), "averaged_accuracy lacks epochs that were"),
        (_without("curves", "test_accuracy"), "it has no test_accuracy by epoch, and its run did not fail"),
        (_with("by_class", [1.0]), "its by_class is not lists by name but [1.0]"),
        (_with("by_class", {}), "it has no test_accuracy by class"),
        (_with("by_class", [1.0] * 3, "age"), "its age by class has 3 numbers, and there are 10 classes"),
        (_with("by_class", {"test_accuracy": [0.5] * 3}), "by class has 3 numbers, and there are 10 classes"),
        (_with("by_class", [2.0] * 10, "test_accuracy"), "its test_accuracy by class goes from 2 to 2"),
        (_with("by_class", "x", "weight"), "its weight by class is not a list of numbers but 'x'"),
        (_with("versions", 3), "its versions are not texts by name but 3"),
        (_with("versions", 3, "torch"), "its versions are not texts by name but {"),
        (_with("versions", "\ud800", "torch"), "its versions are not texts by name but {"),
        (_with("seconds", "x"), "its seconds are not a number of 0 or more but 'x'"),
        (_with("seconds", -1.0), "its seconds are not a number of 0 or more but -1.0"),
        (_with("trained_together", 0), "its trained_together is not a whole number of 1 or more but 0"),
        (_with("trained_together", True), "its trained_together is not a whole number of 1 or more but True"),
        (_with("failed_at_epoch", 5), "its failed_at_epoch is not one of its 4 epochs but 5"),
        (_with("failed_at_epoch", "2"), "its failed_at_epoch is not one of its 4 epochs but '2'"),
        (_with("over_time", "x"), "its over_time is not lists by name but 'x'"),
        (_with("over_time", {"age": [[1.0] * 10] * 3}), "its age over time has 3 rows and its run 4 epochs"),
        (_with("over_time", {"age": [[1.0] * 9] * 4}), "its age over time has rows of 9 numbers"),
        (_with("over_time", {"age": [3] * 4}), "its age over time is not a list of numbers but 3"),
        (_with("settings", 3), "this version of aol cannot read it"),
        (_with("settings", 3, "memory"), "this version of aol cannot read it: memory must be text, not 3"),
        (_with("settings", [1], "data"), "this version of aol cannot read it: data must be text, not [1]"),
    ],
)
def test_what_no_run_can_have_written_is_damage_however_well_its_checksum_fits(
    change: Callable[[Content], object], reason: str, tmp_path: Path
) -> None:
    (why,) = forged(Store(tmp_path), record(epochs=4), change)
    assert reason in why
    assert not why.endswith(".")


def test_of_data_in_a_folder_every_reading_has_as_many_classes_as_the_first(tmp_path: Path) -> None:
    photos = Settings(data="photos", epochs=1)
    whole = Record(photos, {"test_accuracy": [0.5]}, {"test_accuracy": [0.5] * 3, "age": [1.0] * 3}, {}, 1.0, 1)
    assert forged(Store(tmp_path), whole, lambda content: None) == []
    (why,) = forged(Store(tmp_path), whole, _with("by_class", [1.0] * 4, "age"))
    assert why == "its age by class has 4 numbers, and there are 3 classes"


def test_epochs_between_two_readings_and_those_after_a_failure_may_be_none(tmp_path: Path) -> None:
    one = Settings(epochs=5, eval_every=2)
    by_class = {"test_accuracy": rounded([0.5] * 10)}
    read = Record(one, {"test_accuracy": [None, 0.1, None, 0.2, 0.3]}, by_class, {}, 1.0, 1)
    assert forged(Store(tmp_path / "read"), read, lambda content: None) == []
    (why,) = forged(Store(tmp_path / "not"), read, _with("curves", [0.1, None, 0.1, 0.1, 0.1], "test_accuracy"))
    assert "lacks epochs" in why
    failed = Record(one, {"train_accuracy": [0.1, None, None, None, None]}, {}, {}, 1.0, 1, failed_at_epoch=1)
    assert forged(Store(tmp_path / "failed"), failed, lambda content: None) == []


def test_every_record_of_the_repository_is_read() -> None:
    store = Store(ROOT / "results")
    assert store.damaged() == []
    assert len(store.ids()) == len(store) >= 172


def test_a_folder_in_the_place_of_a_record_is_reported(tmp_path: Path) -> None:
    store, one = Store(tmp_path), record()
    store.put(one)
    store.path("0123456789ab").mkdir()
    assert list(store) == [one]
    assert store.damaged() == [(store.path("0123456789ab"), "it is a folder")]


def test_a_folder_in_the_place_of_a_record_is_moved_aside_for_it(tmp_path: Path) -> None:
    store, one = Store(tmp_path), record()
    (store.path(one.run_id) / "kept").mkdir(parents=True)
    store.put(one)
    assert list(store) == [one]
    assert [path.parent.name.startswith(f"{one.run_id}.json.") for path in tmp_path.rglob("kept")] == [True]


def test_what_cannot_be_a_record_is_not_read(tmp_path: Path) -> None:
    store, folder = Store(tmp_path), tmp_path / "records"
    folder.mkdir()
    os.mkfifo(folder / "a.json")
    (folder / "b.json").symlink_to("b.json")
    with (folder / "c.json").open("wb") as file:
        file.truncate(LARGEST + 1)
    (folder / "d.json").symlink_to("nowhere")  # the same as none: the next run writes over it
    assert [(path.name, why) for path, why in store.damaged()] == [
        ("a.json", "it is no regular file"),
        ("b.json", "it is a link to itself"),
        ("c.json", "it has 33,554,433 bytes, and a record at most 33,554,432"),
    ]


@pytest.mark.parametrize(("number", "reason"), [(30, "its file system is read-only"), (13, "permission denied")])
def test_a_folder_that_is_there_and_cannot_be_written_to_is_named(
    number: int, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(**_: object) -> None:
        raise OSError(number, os.strerror(number))

    (tmp_path / "records").mkdir()
    monkeypatch.setattr(records.tempfile, "TemporaryFile", refused)
    with pytest.raises(UnusableFolderError, match=f"^--out {tmp_path} cannot be written to: {reason}.$"):
        Store(tmp_path).prepare()


def test_a_folder_is_made_ready_and_left_empty(tmp_path: Path) -> None:
    Store(tmp_path / "new").prepare()
    assert list((tmp_path / "new").rglob("*")) == [tmp_path / "new" / "records"]


def test_a_record_of_two_hundred_epochs_is_small() -> None:
    curves = {f"c{number}": rounded(random.random() for _ in range(200)) for number in range(5)}
    by_class = {f"b{number}": rounded(random.random() for _ in range(10)) for number in range(10)}
    full = Record(Settings(epochs=200), curves, by_class, {"aol": "1"}, 1.0, 1)
    assert len(encoded(full)) < 20_000


def test_names_of_runs_stay_what_they_are() -> None:
    """Records of before are found by them: a change of a default, or of how names are made, loses all of them."""
    assert Settings(warmup=5).run_id == "696734ddde3b"
    assert Settings(weighting="aol", rho=0.3, data="cifar10", epochs=200).run_id == "e0b4dafa51c5"
