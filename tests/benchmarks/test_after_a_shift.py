"""Weights that rest after the head of a stream moved: when they do, that nothing else differs, and the table."""

from __future__ import annotations

import importlib
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

from aol.lab.data import open_data
from aol.lab.engine import Settings, StreamLoop

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def shifts(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("after_a_shift")


def _loop(shifts: ModuleType, rests: list[range]) -> StreamLoop:
    common = Settings(
        data="digits", scenario="stream", net="cnn", period=4, epochs=9, imbalance=20, batch_size=32, seed=3
    )
    forms = [shifts.AGE] * len(rests)
    runs = [Settings(**form.settings(common)) for form in forms]
    loop = StreamLoop(runs, open_data("digits"), device=torch.device("cpu"))
    loop.weights = shifts.RestingWeighting(forms, rests, loop)
    while not loop.done:
        loop.run_epoch()
    return loop


def test_weights_are_one_at_the_steps_of_rest_and_only_there(shifts: ModuleType) -> None:
    weight = _loop(shifts, [range(0), range(1), range(3), range(3, 4)]).history.by_class("weight")  # [E, R, C]
    plain = (weight == 1.0).all(2)
    for run, steps in enumerate(([], [0, 4, 8], [0, 1, 2, 4, 5, 6, 8], [3, 7])):
        ones = plain[:, run].nonzero().flatten().tolist()
        assert set(ones) - {0, 1} == set(steps) - {0, 1}  # classes are not told apart at the very start


def test_until_the_first_rest_that_differs_nothing_differs(shifts: ModuleType) -> None:
    loss = _loop(shifts, [range(0), range(1)]).history.epoch("train_loss")
    torch.testing.assert_close(loss[:4, 0], loss[:4, 1])
    assert abs(float(loss[4, 0] - loss[4, 1])) > 1e-3


def test_the_table_has_paired_differences_by_place(shifts: ModuleType) -> None:
    rng = np.random.default_rng(0)
    cases = [
        {"form": form, "seeds": [1, 2, 3], "accuracy": rng.uniform(0.3, 0.6, (3, 10)).round(4).tolist()}
        for form in shifts.RESTING
    ]
    record = {"seeds": 3, "machine": shifts.setting("scipy"), "cases": cases}
    known = {case["form"]: 100 * np.array(case["accuracy"]) for case in cases}
    apart = known["age"] - known["none"]
    row = next(line for line in shifts.text(record).splitlines() if line.startswith("| age − none"))
    cells = [cell.strip().split(" ")[0] for cell in row.strip("|").split("|")[1:]]
    wanted = [apart[:, 0].mean(), apart[:, 1:4].mean(), apart.mean()]
    assert cells == [f"{value:+.1f}" for value in wanted]


def test_a_small_one_runs_to_its_record(shifts: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    world = shifts.WORLDS["digits stream"]
    small = replace(world, settings=replace(world.settings, epochs=20), per_class=20, tested=5)
    monkeypatch.setitem(shifts.WORLDS, "fashion stream", small)
    assert shifts.main(["--seeds", "2", "--out", str(tmp_path / "record.json")]) == 0
    assert "resting for three" in (tmp_path / "record.json").read_text()
