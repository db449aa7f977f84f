"""The status of a study: complete, in progress, missing, damaged; by cell and in sentences."""

from __future__ import annotations

import json
from argparse import Namespace
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from aol.lab.study.cli import _print_status
from aol.lab.study.results import status_frame
from aol.records.store import Store
from tests.support.made_up import record, study, write

PLAN = study(imbalances=(100, 50))


def test_a_folder_that_does_not_exist_has_nothing_and_is_not_made(tmp_path: Path) -> None:
    frame = status_frame(PLAN, Store(tmp_path / "none"))
    assert frame["state"].value_counts().to_dict() == {"missing": 36}
    assert frame["cell"].value_counts().to_dict() == {"imbalance 100": 18, "imbalance 50": 18}  # with additional seeds
    assert not (tmp_path / "none").exists()


def test_every_run_is_in_one_of_four_states(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = PLAN.all_runs()
    store = write(tmp_path, [record(run, 0.5, 0.5) for run in runs[:4]])
    store.write(record(runs[3], 0.5, 0.5, failed=2))
    (store.path(runs[0].run_id) / "run.json").write_text("{")
    begun = record(runs[5], 0.5, 0.5)
    cut = {name: values[:7] for name, values in begun.curves.items()}
    store.write(replace(begun, finished=False, epochs=np.arange(1, 8), curves=cut))
    for name, text in (("group", json.dumps({"runs": [run.as_dict() for run in runs[4:6]]})), ("other", "{")):
        (tmp_path / "work" / name).mkdir(parents=True)
        (tmp_path / "work" / name / "group.json").write_text(text)
    assert _print_status(Namespace(json=True), PLAN, store, {})
    told = json.loads(capsys.readouterr().out)
    assert (told["runs"], told["complete"], told["in_progress"], told["missing"]) == (36, 3, 2, 31)
    assert told["failed"] == {runs[3].run_id: 2}
    assert [row["run"] for row in told["damaged"]] == [runs[0].run_id]
    _print_status(Namespace(json=False), PLAN, store, {})
    assert "3/36 runs complete, 2 in progress, 31 missing, 1 damaged" in capsys.readouterr().out


def test_a_run_without_what_the_study_keeps_is_missing(tmp_path: Path) -> None:
    plan = replace(study(), keep=("age",))
    made = [record(run, 0.5, 0.5) for run in plan.all_runs()]
    made[0] = replace(made[0], over_time={"age": np.ones((20, 10), np.float32)})
    frame = status_frame(plan, write(tmp_path, made))
    assert frame.index[frame["state"] == "complete"].tolist() == [made[0].id]
