"""The status of a study: complete, in progress, missing, damaged; by cell and in sentences."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np

from aol.lab.study.status import by_cell, study_status
from aol.records.store import Store
from tests.support.made_up import record, study, write

PLAN = study(imbalances=(100, 50))


def test_a_folder_that_does_not_exist_has_nothing_and_is_not_made(tmp_path: Path) -> None:
    status = study_status(PLAN, Store(tmp_path / "none"))
    assert (len(status.runs), len(status.missing), status.complete) == (36, 36, set())
    assert not (tmp_path / "none").exists()


def test_every_run_is_in_one_of_four_states(tmp_path: Path) -> None:
    runs = PLAN.all_runs()
    store = write(tmp_path, [record(run, 0.5, 0.5) for run in runs[:4]])
    store.write(record(runs[3], 0.5, 0.5, failed=2))
    (store.path(runs[0].run_id) / "run.json").write_text("{")
    begun = record(runs[5], 0.5, 0.5)
    cut = {name: values[:7] for name, values in begun.curves.items()}
    store.write(replace(begun, finished=False, epochs=np.arange(1, 8), curves=cut))
    group = tmp_path / "work" / "group"
    group.mkdir(parents=True)
    (group / "group.json").write_text(json.dumps({"runs": [run.as_dict() for run in runs[4:6]]}))
    (tmp_path / "work" / "other").mkdir()
    (tmp_path / "work" / "other" / "group.json").write_text("{")  # damaged: the driver removes it
    status = study_status(PLAN, store)
    told = status.as_dict()
    assert (told["runs"], told["complete"], told["in_progress"], told["missing"]) == (36, 3, 2, 31)
    assert told["groups"] == [{"runs": 2, "epoch": 7, "epochs": 20}]
    assert told["failed"] == {runs[3].run_id: 2}
    assert [each["file"] for each in told["damaged"]] == [str(store.path(runs[0].run_id) / "run.json")]  # type: ignore[attr-defined]
    text = "\n".join(status.lines())
    assert "3/36 runs complete, 2 in progress, 31 missing, 1 damaged" in text
    assert "epoch 7/20" in text
    assert (tmp_path / "work" / "other").exists()  # nothing is written


def test_a_run_without_what_the_study_keeps_is_missing(tmp_path: Path) -> None:
    plan = replace(study(), keep=("age",))
    runs = plan.all_runs()
    made = [record(run, 0.5, 0.5) for run in runs]
    made[0] = replace(made[0], over_time={"age": np.ones((20, 10), np.float32)})
    assert study_status(plan, write(tmp_path, made)).complete == {runs[0].run_id}


def test_cells_count_the_additional_seeds_of_the_baseline() -> None:
    (first, second) = by_cell(PLAN, [run.run_id for run in PLAN.all_runs() if run.imbalance == 100])
    assert first == ({"imbalance": 100}, 18, 18)
    assert second == ({"imbalance": 50}, 0, 18)
