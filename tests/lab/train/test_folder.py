"""What was asked for in a folder, records that cannot be those of their settings, and damaged checkpoints."""

from __future__ import annotations

import json
from argparse import Namespace
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from aol.cli import UsageError
from aol.lab.cli import add_noted
from aol.lab.settings import Settings, WrongSettingsError
from aol.lab.train.folder import (
    is_complete,
    load_checkpoint,
    prepare,
    problem,
    read_valid,
    requested_runs,
    save_checkpoint,
    settings_of,
)
from aol.records.record import DamagedRunError, Run
from aol.records.store import Store, read_request
from tests.support.made_up import record
from tests.support.tiny_runs import make_loop, settings

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
    args = Namespace(device="cuda")
    options = {"device": "cpu", "together": 2, "minutes": 5.0, "ray": "stranger:6379", "fresh": True}
    add_noted(args, {"options": options})
    assert (args.device, args.together, args.minutes, args.ray) == ("cuda", 2, None, None)
    add_noted(args, {"choice": {"only": ["data=digits"], "ray": "stranger:6379"}}, "choice", {"only": [], "set": []})
    assert (args.only, args.set, args.ray, hasattr(args, "fresh")) == (["data=digits"], [], None, False)


@pytest.mark.parametrize(
    "given",
    [
        {"device": None}, {"together": 0}, {"workers": -1}, {"only": [5]}, {"seeds": [1]}, {"workers": True},
        {"checkpoint_seconds": float("nan")}, {"stacking": "x"},
    ],
)  # fmt: skip
def test_a_value_of_a_request_that_no_flag_can_have_is_named(given: dict[str, object]) -> None:
    with pytest.raises(UsageError, match=rf"request\.json: {min(given)} cannot be"):
        add_noted(Namespace(), {"options": given})


SETTINGS = Settings(epochs=4, eval_every=2)
NAN = float("nan")


def made(**changes: object) -> Run:
    run = record(SETTINGS, 0.5, 0.5)
    return replace(run, **changes)  # type: ignore[arg-type]


def with_curve(*values: float, name: str = "test_accuracy") -> Run:
    run = made()
    return replace(run, curves={**run.curves, name: np.array(values)})


@pytest.mark.parametrize(
    "run",
    [
        made(),
        with_curve(NAN, 0.5, NAN, 0.5),
        made(failed_at_epoch=2, epochs=np.array([1, 2]), curves={}, by_class={}),
        made(finished=False, epochs=np.array([1]), curves={}, by_class={}),
        made(finished=False, epochs=np.array([], dtype=np.int64)),
    ],
)
def test_what_a_run_can_have_written_is_accepted(run: Run) -> None:
    assert problem(run, SETTINGS) is None


@pytest.mark.parametrize(
    ("run", "why"),
    [
        (made(id="0123456789ab"), "its id is 0123456789ab"),
        (made(settings=replace(SETTINGS, lr=0.2).as_dict()), "other settings"),
        (made(settings={"colour": "red"}), "other settings"),
        (made(epochs=np.array([1, 2, 3])), "3 epochs instead of 4"),
        (made(curves={}), "no test_accuracy"),
        (with_curve(0.5, 0.5, 0.5, NAN), "no test_accuracy"),
    ],
)
def test_what_no_run_of_the_settings_can_have_written_is_named(run: Run, why: str) -> None:
    assert why in str(problem(run, SETTINGS))


def test_a_record_that_does_not_fit_is_damaged_and_not_used(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.write(made(settings=replace(SETTINGS, lr=0.2).as_dict()))
    with pytest.raises(DamagedRunError, match="other settings"):
        read_valid(store, SETTINGS)
    store.write(made())
    assert read_valid(store, SETTINGS) is not None


def test_a_run_is_complete_when_it_is_finished_and_has_what_is_required() -> None:
    aged = made(over_time={"age": np.ones((4, 10), np.float32)})
    assert is_complete(made())
    assert not is_complete(made(finished=False))
    assert not is_complete(None)
    assert (is_complete(made(), ["age"]), is_complete(aged, ["age"])) == (False, True)
    without = Settings(epochs=4, signal="none")
    assert is_complete(record(without, 0.5), ["age"])  # it cannot have any


def test_runs_of_other_programs_have_no_settings_of_the_engine() -> None:
    assert settings_of(made()) == SETTINGS
    assert settings_of(made(settings={"epochs": "many"})) is None


def test_a_flipped_bit_anywhere_is_found_or_makes_no_difference(tmp_path: Path) -> None:
    runs = [settings(weighting="aol", margin="age", lr=0.001)]
    loop, other = make_loop(runs), make_loop(runs)
    loop.run_epoch()
    state = loop.state_dict()
    path = tmp_path / "checkpoint.pt"
    save_checkpoint(path, state)
    whole, generator = path.read_bytes(), torch.Generator().manual_seed(0)
    refused = 0
    for place in torch.randint(0, 8 * len(whole), (300,), generator=generator).tolist():
        damaged = bytearray(whole)
        damaged[place // 8] ^= 1 << place % 8
        path.write_bytes(damaged)
        try:
            other.load_state_dict(load_checkpoint(path))
        except ValueError:
            refused += 1
            continue
        torch.testing.assert_close(other.learner.state_dict()["net"], state["learner"]["net"], rtol=0, atol=0)
    assert refused > 200
