"""Built-in studies against the paper's own tables and protocol, and every one of them run, in small, to its end."""

from __future__ import annotations

import csv
import dataclasses
import json
from collections import Counter
from importlib import resources
from pathlib import Path

import numpy as np
import pytest

from aol.cli import main
from aol.lab.settings import word as word_of
from aol.lab.study import Study, builtin_names, load
from aol.records.store import Store

ROOT = Path(__file__).parents[3]
DONE = {path.stem: path for path in sorted((ROOT / "results" / "studies").glob("*.toml"))}
NAMES = builtin_names()
FIXED = [name for name in DONE if name.startswith("fixed-rho")]
OF_PAPER = [name for name in NAMES if name not in ("losses", "hidden-minorities")]  # those that follow its protocol


@pytest.fixture(autouse=True)
def _in_the_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)  # where results/studies are found by name


def test_there_are_ten_and_the_others_are_files_of_the_same_name() -> None:
    assert len(NAMES) == 10
    assert not set(NAMES) & DONE.keys()
    assert {load(name).name for name in DONE} == DONE.keys() == {load(path).name for path in DONE.values()}
    assert all(load(f"{name}-smoke").all_runs() for name in DONE)


MEMORIES = {"all": "all", "reservoir10000": "reservoir:10000", "reservoir50000": "reservoir:50000"}


def paper(table: str) -> list[dict[str, str]]:
    text = (resources.files("aol.lab.study") / "paper" / f"{table}.csv").read_text()
    return list(csv.DictReader(text.splitlines()))


def cells(study: Study, *axes: str) -> Counter[tuple[object, ...]]:
    """Return the cells of a study by some of their settings, each looked up in a run of it."""
    baseline = study.method(study.baseline)
    runs = [study.run(cell, baseline, {}, study.seeds[0]) for cell in study.cells_list()]
    named = [{**run.as_dict(), **cell} for run, cell in zip(runs, study.cells_list(), strict=True)]
    return Counter(tuple(each[axis] for axis in axes) for each in named)


def rows(table: list[dict[str, str]], method: str, *columns: str) -> Counter[tuple[object, ...]]:
    def told(column: str, text: str) -> object:
        if column == "arrival_percent":
            return int(text) / 100
        return MEMORIES[text] if column == "buffer" else int(text) if text.isdigit() else text

    return Counter(tuple(told(column, row[column]) for column in columns) for row in table if row["method"] == method)


_OFFLINE = {"dataset": "data", "loss": "loss", "imbalance_factor": "imbalance"}
_ONLINE = {"buffer": "memory", "imbalance_factor": "imbalance"}


@pytest.mark.parametrize(
    ("name", "table", "part", "axes", "kinds", "runs"),
    [
        # none, its 20 further seeds, cb, aol, three powers, two error rates; and uniform draws
        ("offline-reweighting", "offline", {"mechanism": "reweight"}, _OFFLINE, {}, 1 + 20 + 4 + 20 + 3 + 2),
        ("offline-resampling", "offline", {"mechanism": "resample"}, _OFFLINE, {}, 1 + 20 + 4 + 20 + 3 + 2 + 1),
        ("arrival", "arrival", {}, _OFFLINE | {"arrival_percent": "fraction"}, {"imbalance": 1.0}, 1 + 10 + 10 + 2),
        ("limited-access", "online_cifar10", {"stream": "access5pct"}, _ONLINE, {"stream": "access", "fraction": 0.05},
         1 + 10 + 10 + 3 + 2),
        ("period-1", "online_cifar10", {"stream": "period1"}, _ONLINE, {"period": 1}, 1 + 10 + 10 + 3 + 2),
        ("period-10-one-seed", "online_cifar10", {"stream": "period10"}, _ONLINE, {"period": 10}, 1 + 10 + 10 + 3 + 2),
        ("period-10", "online_period10_seeds", {"seed": "42"}, _OFFLINE, {"memory": "reservoir:50000", "period": 10},
         3 * (1 + 10 + 3 + 2) + 10),
        ("large-scale", "online_large_scale", {"seed": "42"}, _OFFLINE, {"net": "resnet34", "image_size": 224,
         "batch_size": 256, "lr": 0.01, "weight_decay": 1e-4, "memory": "reservoir:500000", "period": 10,
         "epochs": 200}, 1 + 10 + 10 + 3 + 2),
    ],
)  # fmt: skip
def test_a_study_of_the_paper_has_the_cells_and_methods_of_its_table(
    name: str, table: str, part: dict[str, str], axes: dict[str, str], kinds: dict[str, object], runs: int
) -> None:
    study = load(name)
    known = [row for row in paper(table) if part.items() <= row.items()]
    axes = {column: axis for column, axis in axes.items() if column in known[0]}
    for method in {"none", "cb", "aol"} & {row["method"] for row in known}:
        assert study.method(method)
        assert rows(known, method, *axes) == cells(study, *axes.values())
    assert len(study.all_runs()) == len(study.cells_list()) * runs
    for run in study.all_runs():
        assert {name: getattr(run, name) for name in kinds} == kinds


@pytest.mark.parametrize(
    ("name", "mechanism"), [("offline-reweighting", "reweight"), ("offline-resampling", "resample")]
)
def test_grids_of_the_offline_studies_have_every_setting_that_the_paper_chose(name: str, mechanism: str) -> None:
    table, study = [row for row in paper("offline") if row["mechanism"] == mechanism], load(name)
    for method, name in (("aol", "rho"), ("cb", "beta")):
        texts = [row["selected_beta_or_rho"].split(",") for row in table if row["method"] == method]
        assert {float(text) for own in texts for text in own if text} - {0.0} <= set(study.method(method).grid[name])
    uniform = any(row["method"] in ("cb_beta0", "aol_rho0") for row in table)
    assert uniform == ("uniform" in [method.name for method in study.methods])


def test_the_correlation_study_follows_the_protocol() -> None:
    study = load("correlations")
    assert {int(row["imbalance_factor"]) for row in paper("correlations_cifar100_resnet34")} == {1, 200}
    assert cells(study, "data", "imbalance") == {("cifar100", 1): 1, ("cifar100", 200): 1}
    for run in study.all_runs():
        assert (run.net, run.epochs, run.schedule, run.warmup) == ("resnet34-cifar", 100, "cosine", 0)
        assert (run.weight_decay, run.normalisation, run.weighting) == (5e-4, "standardised", "none")
        assert (run.batch_size, run.lr, run.momentum, run.validation) == (128, 0.1, 0.9, 0.0)


@pytest.mark.parametrize("name", [name for name in OF_PAPER if name not in ("correlations", "large-scale")])
def test_cifar_is_trained_as_the_protocol_says(name: str) -> None:
    study = load(name)
    assert set(study.seeds) == ({42, 1024, 2026} if name == "period-10" else {42})
    for run in study.all_runs():
        assert (run.net, run.epochs, run.batch_size, run.momentum) == ("resnet32", 200, 128, 0.9)
        assert (run.lr, run.momentum, run.weight_decay) == (0.1, 0.9, 2e-4)
        assert run.normalisation == "centred"
        assert run.augment
        streams = run.scenario == "stream"
        assert (run.schedule, run.warmup) == (("fixed", 0) if streams else ("paper", 5))
        assert not streams or run.loss == "softmax"


@pytest.mark.parametrize("name", FIXED)
def test_what_is_fixed_in_advance_is_a_setting_of_the_grid_on_the_seeds_of_its_baseline(name: str) -> None:
    study = load(name)
    assert not study.extra_seeds
    assert all(len(method.variants()) == 1 for method in study.methods)
    grids = [load(grid) for grid in (*OF_PAPER, "period-10-one-seed") if load(grid).paper == study.paper]
    known = {run for grid in grids for run in grid.all_runs()}
    alike = {dataclasses.replace(run, seed=0) for run in known}
    assert {dataclasses.replace(run, seed=0) for run in study.all_runs()} <= alike
    plain = {run for run in study.all_runs() if run.weighting == "none"}
    assert plain <= known  # the baseline's further seeds
    others = {run for run in study.all_runs() if run.weighting != "none"}
    assert not others & known  # seeds that were not seen when rho was fixed


OF_MARGINS = (
    "losses", "margins", "margins-fresh", "margins-balanced", "margins-fashion", "margins-fashion-balanced",
    "margins-digits", "margins-stream", "margins-short", "margins-short-cifar", "margins-short-cifar-balanced",
)  # fmt: skip


def test_the_studies_of_margins_choose_nothing_and_use_seeds_that_no_study_of_the_data_has() -> None:
    used = {(run.data, run.seed) for name in OF_PAPER for run in load(name).all_runs()}
    for name in OF_MARGINS:
        study = load(name)
        assert all(len(method.variants()) == 1 for method in study.methods)
        assert not used & {(run.data, run.seed) for run in study.all_runs()}
        assert study.extra_seeds == ()
        # One group of runs for each cell: none differs in what a group has in common.
        assert len({run.group_key for run in study.all_runs()}) == len(study.cells_list())


@pytest.mark.parametrize("name", [name for name in OF_PAPER if name != "correlations"])
def test_whatever_is_chosen_is_chosen_on_validation_and_beside_its_rivals(name: str) -> None:
    study = load(name)
    assert all(run.validation > 0 for run in study.all_runs())
    assert study.figure == ("second_half_mean" if study.common["scenario"] == "stream" else "tail_mean")
    names = [method.name for method in study.methods]
    assert {"none", "aol", "error", "error-ema"} <= set(names)
    if name != "arrival":  # whose classes are equally large
        assert study.method("frequency").grid["power"] == (0.25, 0.5, 1.0)
    assert study.method("error").fixed["rho"] == 1.0
    assert len(study.extra_seeds) == len(study.method("aol").variants())
    assert set(study.method("aol").grid["rho"]) == {tenth / 10 for tenth in range(1, 11)}


def test_hidden_minorities_are_trained_in_large_groups_and_two_methods_are_tuned() -> None:
    study = load("hidden-minorities")
    assert len(study.cells_list()) == 2 * 2 * 3 * 2
    assert [method.name for method in study.methods if method.grid] == ["old", "jtt"]
    settings = sum(len(method.variants()) for method in study.methods) - 3  # old-3x50 and so on are in the grid of old
    runs = study.all_runs()
    assert len(runs) == 24 * 10 * settings
    assert {(run.samples, run.epochs, run.batch_size) for run in runs} == {(4000, 30, 64)}
    assert all(run.validation > 0 for run in runs)
    assert len({run.group_key for run in runs}) == 24 * 2  # one group key of a cell, and one more for the peak ages


def test_small_variants_are_of_digits_and_have_the_methods_of_the_large() -> None:
    for name in NAMES:
        large, small = load(name), load(f"{name}-smoke")
        assert [method.name for method in small.methods] == [method.name for method in large.methods]
        runs = small.all_runs()
        assert {run.data for run in runs} == {"digits"}
        assert max(run.epochs for run in runs) <= 4
        assert len(small.seeds) == 2
        assert {run.scenario for run in runs} == {run.scenario for run in large.all_runs()}
        assert len(runs) <= 120


@pytest.mark.usefixtures("_warm")
def test_every_small_study_runs_to_its_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in NAMES:
        small = load(f"{name}-smoke")
        quick = [
            "--seeds",
            "42",
            "--set",
            "batch_size=512",
            *(["--set", "epochs=1"] if "epochs" not in small.cells else []),
        ]
        part = [word for axis in small.cells for word in ("--only", f"{axis}={word_of(small.cells[axis][-1])}")]
        assert main(["study", "run", f"{name}-smoke", *part, *quick, "--out", str(tmp_path), "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert found["complete"] == found["runs"] > 0
        assert (found["missing"], found["in_progress"], found["damaged"], found["failed"]) == (0, 0, [], {})
    for run in Store(tmp_path):
        assert not np.isnan(run.curves["test_accuracy"][-1])
        assert run.settings["eval_every"] > 1 or not np.isnan(run.curves["test_accuracy"]).any()
        assert "validation_accuracy" in run.curves or not run.settings["validation"]
        assert {"test_accuracy", "train_accuracy"} <= set(run.over_time)
        assert "age" in run.over_time or run.settings["signal"] == "none"
