"""Records: written once, whole, and believed only when they are exactly what was written."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from aol.engine.settings import Settings
from aol.study.records import Record, Store, encoded, rounded


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
    from aol.study.records import _checksum

    store, one = Store(tmp_path), record()
    content = json.loads(encoded(one))
    del content["sha256"]
    content["settings"]["colour"] = "red"
    store.path(one.run_id).parent.mkdir()
    store.path(one.run_id).write_text(json.dumps({**content, "sha256": _checksum(content)}))
    ((_, why),) = store.damaged()
    assert why.startswith("this version of aol cannot read it")


def test_a_folder_in_the_place_of_a_record_is_reported(tmp_path: Path) -> None:
    store, one = Store(tmp_path), record()
    store.put(one)
    store.path("0123456789ab").mkdir()
    assert list(store) == [one]
    assert store.damaged() == [(store.path("0123456789ab"), "it is a folder")]


def test_a_record_of_two_hundred_epochs_is_small() -> None:
    curves = {f"c{number}": rounded(random.random() for _ in range(200)) for number in range(5)}
    by_class = {f"b{number}": rounded(random.random() for _ in range(10)) for number in range(10)}
    full = Record(Settings(epochs=200), curves, by_class, {"aol": "1"}, 1.0, 1)
    assert len(encoded(full)) < 20_000


def test_names_of_runs_stay_what_they_are() -> None:
    """Records of before are found by them: a change of a default, or of how names are made, loses all of them."""
    assert Settings().run_id == "696734ddde3b"
    assert Settings(weighting="aol", rho=0.3, data="cifar10", epochs=200).run_id == "e0b4dafa51c5"
