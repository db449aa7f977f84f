"""`aol show`: the worst classes, methods over seeds, JSON and CSV."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from aol import load_runs
from aol.cli import main
from aol.lab.settings import Settings
from aol.records.record import Run, write_run
from aol.records.store import Store, write_request
from tests.support.small_runs import small_run


def made_up(settings: Settings, accuracy: float, *, finished: bool = True, failed: int | None = None) -> Run:
    classes = ["cat", "dog", "hen"]
    return Run(
        id=settings.run_id,
        method=settings.method,
        seed=settings.seed,
        settings=settings.as_dict(),
        baseline=settings.baseline,
        classes=classes,
        counts=[500, 50, 5],
        epochs=np.arange(1, 3),
        curves={"test_accuracy": np.array([0.1, accuracy])},
        by_class={
            "test_accuracy": np.array([0.9, 0.5, 0.25]),
            "age": np.array([1.0, 2.5, 7.25]),
            "smoothed_age": np.array([1.0, 2.0, 5.0]),
            "weight": np.array([0.5, 1.0, 1.5]),
        },
        planned=2,
        finished=finished,
        failed_at_epoch=failed,
        seconds=2.0,
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    store = Store(tmp_path / "runs of mine")
    accuracies = {"none": (0.50, 0.52, 0.54), "aol": (0.55, 0.56, 0.60)}
    for weighting, values in accuracies.items():
        for seed, value in enumerate(values):
            store.write(made_up(Settings(weighting=weighting, seed=seed, epochs=2), value))
    return store.folder


def shown(capsys: pytest.CaptureFixture[str], *words: str | Path) -> tuple[int, str, str]:
    status = main(["show", *map(str, words)])
    said = capsys.readouterr()
    return status, said.out, said.err


def test_the_worst_classes_the_gains_and_what_to_do_next(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = shown(capsys, folder)
    assert (status, err) == (0, "")
    lines = [line.split() for line in out.replace("│", " ").splitlines()]
    assert ["none", "3", "52.00", "2.00"] in lines
    assert ["aol", "ρ=0.5", "class", "3", "57.00", "2.65", "+5.00*", "+2.52", "to", "+7.48"] in lines
    worst = ["hen:", "25.0", "%", "(n", "=", "5,", "age", "7.2)"]  # raw age, not the smoothed one
    (first,) = (line for line in lines if line[:1] == ["none"] and line[1:9] == worst)
    assert first[9:11] == ["dog:", "50.0"]
    assert lines.index(first) < lines.index(["none", "3", "52.00", "2.00"])
    assert f"aol report '{folder}'" in out
    assert "aol resume" not in out


def test_the_classes_that_accuracy_hides_have_a_table_and_are_in_the_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = Store(tmp_path)
    for seed, worst in enumerate((0.2, 0.3)):
        run = made_up(Settings(seed=seed, epochs=2), (1.3 + worst) / 3)
        run.over_time["test_accuracy"] = np.array([[0.5, 0.5, 0.5], [0.8, 0.5, worst]], dtype=np.float32)
        run.curves["test_macro_f1"] = np.array([0.1, 0.4])
        store.write(run)
    _, out, _ = shown(capsys, tmp_path)
    lines = [line.split() for line in out.replace("│", " ").replace("┃", " ").splitlines()]
    assert ["method", "worst", "class", "head", "middle", "tail"] in lines  # accuracy and its mean by class agree
    assert ["none", "25.00", "80.00", "50.00", "25.00"] in lines
    assert "mean, over runs, of each run's lowest class accuracy" in " ".join(out.split())
    for run in json.loads(shown(capsys, tmp_path, "--json")[1], parse_constant=pytest.fail)["runs"]:
        worst = (0.2, 0.3)[run["config"]["seed"]]
        assert run["worst_class"] == pytest.approx({"last": worst, "tail_mean": worst, "best": 0.5}, abs=1e-4)
        assert run["macro_f1"] == {"last": 0.4, "tail_mean": 0.4, "best": 0.4}
        assert run["head_accuracy"]["last"] == pytest.approx(0.8, abs=1e-4)
        assert run["per_class_precision"] == [None] * 3


def test_where_the_test_set_is_a_tail_gains_are_of_balanced_accuracy_and_methods_have_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = Store(tmp_path)
    accuracies = {"none": (0.9, [1.0, 0.25, 0.25]), "counts": (0.8, [0.8, 0.7, 0.6])}
    for margin, (accuracy, by_class) in accuracies.items():
        run = made_up(Settings(margin=margin, tau=1.0, epochs=2), accuracy)
        run.over_time["test_accuracy"] = np.array([[0.5, 0.5, 0.5], by_class], dtype=np.float32)
        run.over_time["age"] = np.ones((2, 3), dtype=np.float32)  # memorised, and wrong on test
        run.by_class = {"test_accuracy": np.array(by_class), "age": np.ones(3)}
        run.curves["test_macro_f1"] = np.array([0.1, accuracy / 2])
        store.write(run)
    _, out, _ = shown(capsys, tmp_path)
    lines = [line.split() for line in out.replace("│", " ").replace("┃", " ").splitlines()]
    assert ["logit", "adjustment", "(τ", "=", "1)", "1", "70.00", "+20.00"] in lines
    assert ["logit", "adjustment", "(τ", "=", "1)", "80.00", "40.00", "60.00", "80.00", "70.00", "60.00"] in lines
    assert ["method", "accuracy", "macro-F1", "worst", "class", "head", "middle", "tail"] in lines
    worst = next(line for line in lines if line[:1] == ["none"])
    assert worst[1:6] == ["dog:", "25.0", "%", "(n", "="]
    assert "gained +20.0 points of balanced accuracy" in out


def test_what_is_missing_can_be_continued(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [Settings(weighting=w, seed=s, epochs=2) for w in ("none", "aol") for s in range(4)]
    write_request(
        folder, {"command": "train", "ids": [run.run_id for run in runs], "runs": [run.as_dict() for run in runs]}
    )
    Store(folder).write(made_up(runs[3], 0.5, finished=False))
    _, out, _ = shown(capsys, folder)
    assert "6/8 runs complete" in out
    assert f"aol resume '{folder}'" in out  # the folder's name has spaces
    assert f"aol report '{folder}' --open" in out


def test_a_diverged_run_is_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Store(folder).write(made_up(Settings(weighting="cb", seed=3, epochs=2), 0.2, failed=2))
    _, out, _ = shown(capsys, folder)
    assert "Failed: cb β=0.9999, seed 3" in out
    assert ["cb", "β=0.9999", "1", "33.33"] in [line.split() for line in out.replace("│", " ").splitlines()]  # chance
    _, out, _ = shown(capsys, folder, "--json")
    (failed,) = (run for run in json.loads(out)["runs"] if run["failed_at_epoch"])
    assert failed["accuracy"] == dict.fromkeys(("last", "best", "tail_mean"), pytest.approx(1 / 3))


def test_the_share_of_steps_with_a_threshold_of_zero(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = Store(tmp_path / "runs")
    for rule, values in ((None, [0.0, 0.0]), ("mean", [0.0, 0.5])):
        run = made_up(Settings(scenario="stream", weighting="aol", threshold=rule, epochs=2), 0.5)
        run.curves["threshold"] = np.array(values)
        store.write(run)
    _, out, _ = shown(capsys, store.folder)
    assert "was 0 in 100% of the steps" in out  # of the runs by the median
    assert "positive-median" in out
    _, out, _ = shown(capsys, store.folder, "--json")
    shares = {run["config"]["threshold"]: run["zero_threshold"] for run in json.loads(out)["runs"]}
    assert shares == {None: 1.0, "mean": 0.5}
    assert sorted(load_runs(store.folder)["zero_threshold"]) == [0.5, 1.0]


def test_for_programs(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, err = shown(capsys, folder, "--json")
    assert err == ""
    runs = json.loads(out, parse_constant=pytest.fail)["runs"]
    assert len(runs) == 6
    one = next(run for run in runs if run["config"]["weighting"] == "aol" and run["config"]["seed"] == 2)
    assert one["accuracy"] == {"last": 0.6, "best": 0.6, "tail_mean": 0.6}
    assert one["per_class_accuracy"] == [0.9, 0.5, 0.25]
    assert one["class_age"] == [1.0, 2.0, 5.0]
    assert one["raw_class_age"] == [1.0, 2.5, 7.25]
    assert Path(one["out"]).name == Settings(weighting="aol", seed=2, epochs=2).run_id
    _, out, _ = shown(capsys, folder, "--format", "csv")
    frame = pd.read_csv(io.StringIO(out))
    assert len(frame) == 6
    assert frame["test_last"].max() == 0.6


def test_no_text_id_or_head_of_the_csv_is_a_formula(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = replace(small_run(id="=a1"), settings={"=2+3": "a;=1", "lr": 0.1})
    write_run(tmp_path / "run", run)
    _, out, _ = shown(capsys, tmp_path, "--format", "csv")
    frame = pd.read_csv(io.StringIO(out), index_col="id")
    assert (frame.index[0], frame["'=2+3"].iloc[0], frame["lr"].iloc[0]) == ("'=a1", "a;=1", 0.1)
    assert '"a;=1"' in out


def test_a_damaged_run_is_named_and_the_others_are_shown(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = Store(folder).path(Settings(seed=0, epochs=2).run_id) / "run.json"
    path.write_text("{")
    status, out, err = shown(capsys, folder)
    assert status == 1
    assert str(path) in err
    assert "57.00" in out


@pytest.mark.parametrize(("make", "says"), [(None, "no such folder"), ("empty", "no runs")], ids=["none", "empty"])
def test_folders_without_runs_are_refused_in_a_line(
    make: str | None, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "some"
    if make:
        (folder / "runs" / "x").mkdir(parents=True)
    status, out, err = shown(capsys, folder)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert says in err


@pytest.mark.parametrize("flags", [(), ("--json",), ("--format", "csv")])
def test_a_closed_standard_output_is_no_error(
    flags: tuple[str, ...], folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout", None)  # as Python has it after `aol show FOLDER >&-`
    assert main(["show", str(folder), *flags]) == 0
    assert capsys.readouterr().err == ""


def test_json_and_another_format_contradict_each_other(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert shown(capsys, folder, "--json", "--format", "csv")[0] == 2


def test_runs_in_progress_are_shown_with_their_epoch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(tmp_path / "runs" / "a", small_run(id="a", finished=False, planned=9, seed=7))
    assert main(["show", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "4/9" in said
    assert "aol resume" not in said  # nothing says what was asked for
    (tmp_path / "request.json").write_text("{")  # damaged: the runs are shown all the same
    assert main(["show", str(tmp_path)]) == 0
    assert f"aol resume {tmp_path}" in capsys.readouterr().out.replace("\n", "")
