"""What was asked for in a folder: noted, continued, refused, deleted; and what of it is believed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from aol.lab.settings import WrongSettingsError
from aol.lab.train.request import prepare, requested, requested_runs
from aol.records.store import Store, read_request
from tests.support.made_up import record
from tests.support.tiny_runs import settings

RUNS = [settings(epochs=2, seed=seed) for seed in (0, 1)]
OTHER = [settings(epochs=2, seed=7)]


def test_a_request_says_what_was_asked_for(tmp_path: Path) -> None:
    store = Store(tmp_path)
    prepare(RUNS, store, {"command": "train"})
    assert requested_runs(read_request(tmp_path) or {}) == RUNS
    prepare(OTHER, store, {"command": "train"})  # nothing was trained: the folder is free
    store.write(record(OTHER[0], 0.5))
    with pytest.raises(WrongSettingsError, match="already holds runs"):
        prepare(OTHER, store, {"command": "train"})
    with pytest.raises(WrongSettingsError, match="holds other runs"):
        prepare(RUNS, store, {"command": "train"}, resume=True)
    prepare(OTHER, store, {"command": "train"}, resume=True)
    assert store.ids() == [OTHER[0].run_id]


def test_fresh_deletes_the_runs_that_were_and_are_asked_for_and_no_others(tmp_path: Path) -> None:
    store = Store(tmp_path)
    prepare(OTHER, store, {"command": "train"})
    for run in (*OTHER, RUNS[0]):
        store.write(record(run, 0.5))
    prepare(RUNS, store, {"command": "train"}, fresh=True)
    assert store.ids() == []
    stranger = settings(epochs=2, seed=9)
    store.write(record(stranger, 0.5))
    with pytest.raises(WrongSettingsError, match="holds other runs"):
        prepare(RUNS, store, {"command": "train"}, fresh=True)
    assert store.ids() == [stranger.run_id]


def test_a_request_of_another_version_is_refused(tmp_path: Path) -> None:
    for run in ({"data": "tiny", "strength": 3}, 3):
        (tmp_path / "request.json").write_text(json.dumps({"ids": ["a"], "runs": [run]}))
        with pytest.raises(WrongSettingsError, match="another version of aol"):
            requested_runs(read_request(tmp_path) or {})


def test_an_address_and_deletion_are_not_taken_from_a_request() -> None:
    options = {"device": "cpu", "together": 2, "ray": "stranger:6379", "fresh": True, "out": "/"}
    assert requested("options", {"options": options}) == {"device": "cpu", "together": 2}
    assert requested("choice", {"choice": {"only": ["data=digits"], "ray": "stranger:6379"}}) == {
        "only": ["data=digits"]
    }
    assert requested("options", {}) == {}
