"""Records that decode well and still cannot be those of a run with their settings."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from aol.lab.settings import Settings
from aol.lab.train.validate import is_complete, problem, read_valid, settings_of
from aol.records.record import DamagedRunError, Run
from aol.records.store import Store
from tests.support.made_up import record

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
