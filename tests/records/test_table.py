"""Runs as frames: a row a run, an epoch, a class; with the figures that naive loops give."""

from __future__ import annotations

import math
import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import aol
from aol.metrics import NAMES, class_metrics
from aol.records.compare import worst_classes
from aol.records.metrics import MEASURES, METRICS, STREAM_MEASURES, TABLES, accuracy_metrics, run_metrics
from aol.records.record import DamagedRunError, Run, write_run
from aol.records.table import frame_of, read_runs
from tests.support.small_runs import small_run


def metrics_of(run: Run) -> dict[str, float]:
    return {name: float(values[0]) for name, values in run_metrics([run]).items()}


def test_a_row_is_a_run_with_its_settings_and_figures(tmp_path: Path) -> None:
    write_run(tmp_path / "a", small_run(id="one", seed=1))
    write_run(tmp_path / "b", small_run(id="two", seed=2))
    frame = aol.load_runs(tmp_path)
    assert isinstance(frame, pd.DataFrame)
    assert frame.index.tolist() == ["one", "two"]
    row = frame.loc["two"]
    assert (row.method, row.seed, row.weighting, row.rho, row.device) == ("aol ρ=0.5 class", 2, "aol", 0.5, "x86 CPU")
    assert (row.test_last, row.test_best, row.test_tail_mean) == (0.75, 0.75, 0.75)
    assert math.isnan(row.validation_last)
    assert math.isnan(row.test_second_half_mean)  # it is no stream
    assert row.folder == str((tmp_path / "b").resolve())


def test_a_record_without_epochs_has_no_measures(tmp_path: Path) -> None:
    run = small_run()
    nothing = {"test_accuracy": np.zeros((0, len(run.classes)), np.float32)}
    metrics = metrics_of(replace(run, epochs=np.zeros(0, np.int64), curves={}, by_class={}, over_time=nothing))
    assert all(math.isnan(value) for value in metrics.values())


def test_epochs_and_classes_are_rows(tmp_path: Path) -> None:
    run = small_run()
    frame = frame_of([(None, run), (None, small_run(id="other", counts=None))])
    epochs = frame.epochs()
    assert epochs.columns.tolist()[:4] == ["id", "method", "seed", "epoch"]
    assert epochs[["id", "epoch"]].values.tolist() == [[i, e] for i in ("0123456789ab", "other") for e in (1, 2, 3, 4)]
    assert epochs.train_loss.tolist() == [3.0, 2.0, 1.0, 0.5] * 2
    classes = frame.classes()
    assert classes["name"].tolist() == run.classes * 2
    assert classes["count"].tolist()[:3] == [30, 20, 10]
    assert classes["mean_age"].tolist() == pytest.approx(list(run.by_class["mean_age"]) * 2)
    over = frame[:1].classes(over_time=True)
    for epoch in range(4):
        for c in range(3):
            row = over[(over.epoch == epoch + 1) & (over["class"] == c)].iloc[0]
            assert row.age == run.over_time["age"][epoch, c]
            assert row["name"] == run.classes[c]


def test_a_part_of_the_frame_is_a_frame_of_those_runs() -> None:
    frame = frame_of([(None, small_run(id=str(seed), seed=seed)) for seed in range(5)])
    part = frame[frame.seed > 2].sort_values("seed", ascending=False)
    assert list(part.runs) == ["4", "3"]
    assert part.epochs()["id"].unique().tolist() == ["4", "3"]
    assert frame[frame.seed > 9].epochs().empty
    assert frame[frame.seed > 9].classes().empty


def test_one_run_in_two_folders_is_two_rows() -> None:
    frame = frame_of([(Path("a"), small_run()), (Path("b"), small_run(seed=9))])
    assert frame.index.tolist() == ["0123456789ab", "0123456789ab-2"]
    assert [run.seed for run in frame.runs.values()] == [3, 9]


def test_settings_with_the_name_of_a_column_are_left_out() -> None:
    frame = frame_of([(None, small_run(settings={"id": "x", "device": "tpu", "seed": 7, "lr": 0.1}))])
    assert frame.reset_index()[["id", "device", "seed", "lr"]].values.tolist() == [["0123456789ab", "x86 CPU", 3, 0.1]]


def test_a_run_that_diverged_counts_as_chance_in_every_figure() -> None:
    stream = {"scenario": "stream"}
    metrics = metrics_of(small_run(failed_at_epoch=2, settings=stream))
    for name in METRICS:  # those of a network that always gives the same answer, mean over which it is
        same = [class_metrics(np.eye(3)[k], precision=1 / 3 * np.eye(3)[k], counts=[30, 20, 10]) for k in range(3)]
        for measure in MEASURES:
            value = np.mean([float(own[measure]) for own in same])
            assert metrics.pop(f"test_{measure}_{name}") == pytest.approx(value), measure
    for measure in STREAM_MEASURES:
        assert {metrics.pop(f"{measure}_{name}") for name in METRICS} == {0.0}
    assert set(metrics.values()) == {1 / 3}
    offline = metrics_of(small_run(failed_at_epoch=2, counts=[10, 10, 10]))
    assert math.isnan(offline["test_second_half_mean"])
    assert math.isnan(offline["test_worst_class_second_half_mean"])
    assert math.isnan(offline["test_tail_accuracy_last"])  # there is no tail
    assert offline["test_worst_class_last"] == 0.0


def test_measures_of_the_classes_are_those_on_record_or_follow_from_the_accuracies() -> None:
    assert tuple(MEASURES) == NAMES
    run = small_run(counts=[30, 20, 10])
    accuracy = run.over_time["test_accuracy"].astype(float)
    metrics = metrics_of(run)
    assert metrics["test_worst_class_last"] == pytest.approx(accuracy[-1].min())
    assert metrics["test_worst_class_best"] == pytest.approx(accuracy.min(1).max())
    assert metrics["test_balanced_accuracy_tail_mean"] == pytest.approx(accuracy[-1].mean())
    assert metrics["test_tail_accuracy_last"] == pytest.approx(accuracy[-1, 2])
    assert math.isnan(metrics["test_macro_f1_last"])
    kept = {"test_worst_class": np.array([0.1, np.nan, 0.3, 0.2]), "test_macro_f1": np.full(4, 0.4)}
    stored = metrics_of(small_run(counts=[30, 20, 10], curves=run.curves | kept))
    assert (stored["test_worst_class_last"], stored["test_worst_class_best"]) == (0.2, 0.3)
    assert stored["test_macro_f1_last"] == 0.4
    assert stored["test_balanced_accuracy_last"] == metrics["test_balanced_accuracy_last"]


def test_records_of_the_last_epoch_alone_have_only_the_last_of_a_measure() -> None:
    run = small_run(over_time={}, counts=None)
    metrics = metrics_of(run)
    assert metrics["test_worst_class_last"] == pytest.approx(run.by_class["test_accuracy"].min())
    assert math.isnan(metrics["test_worst_class_tail_mean"])
    assert math.isnan(metrics["test_head_accuracy_last"])
    assert math.isnan(metrics_of(small_run(over_time={}, by_class={}))["test_worst_class_last"])


@pytest.mark.parametrize("epochs", [1, 2, 99])
@pytest.mark.parametrize("stream", [False, True])
def test_figures_are_what_naive_loops_give(epochs: int, stream: bool) -> None:
    rng = np.random.default_rng(epochs)
    values = np.where(rng.random(epochs) < 0.2, np.nan, rng.random(epochs))
    values[-1] = 0.5
    metrics = accuracy_metrics(values, stream=stream)
    read = [float(value) for value in values if value == value]
    tail = [float(value) for value in values[-max(1, round(0.05 * epochs)) :] if value == value]
    half = [float(value) for value in values[epochs // 2 :] if value == value]
    wanted = {"last": 0.5, "best": max(read), "tail_mean": sum(tail) / len(tail)}
    wanted |= {"second_half_mean": sum(half) / len(half)} if stream else {}
    assert metrics == pytest.approx(wanted, rel=1e-12)


def test_a_damaged_record_is_named(tmp_path: Path) -> None:
    write_run(tmp_path / "good", small_run())
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "run.json").write_text("{")
    with pytest.raises(DamagedRunError, match=r"bad/run\.json: it is incomplete"):
        aol.load_runs(tmp_path)


def test_frames_can_be_sorted_copied_and_reindexed() -> None:
    frame = frame_of([(None, small_run(id=name)) for name in ("one", "two")])
    assert list(frame.reset_index().runs) == ["one", "two"]
    assert list(pickle.loads(pickle.dumps(frame)).copy().runs) == ["one", "two"]
    with pytest.raises(KeyError, match="ids of runs from load_runs"):
        frame.set_index("seed").epochs()


@pytest.mark.parametrize("folders", [(), (["a", "b"],), (3,)])
def test_load_runs_takes_folders(folders: tuple[object, ...]) -> None:
    with pytest.raises(TypeError, match="one or more folders"):
        aol.load_runs(*folders)  # type: ignore[arg-type]


def test_figures_of_many_runs_are_those_of_each_alone_and_of_the_readings_for_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(0)
    runs = []
    for number in range(24):
        epochs = (4, 6)[number // 3 % 2]
        readings = {"test_accuracy": rng.random((epochs, 3)).astype(np.float32)}
        readings |= {"test_precision": rng.random((epochs, 3)).astype(np.float32)} if number % 4 else {}
        more = {"failed_at_epoch": 2} if number == 5 else {"counts": None} if number % 5 == 0 else {}
        names = ("test_accuracy", "threshold", "validation_accuracy", "train_loss")
        curves = {name: rng.random(epochs).round(1) for name in names[: 2 + number % 3]}
        runs.append(
            small_run(id=f"{number:x}", epochs=np.arange(1, epochs + 1), curves=curves, over_time=readings, **more)
        )
    together = frame_of((None, run) for run in runs)
    alone = pd.concat([frame_of([(None, run)]) for run in runs])
    names = [name for name in together if name.startswith("test_")]
    np.testing.assert_array_equal(together[names].to_numpy(), alone[names].to_numpy())
    monkeypatch.setattr("aol.records.metrics._TOGETHER", 40)  # numbers that are computed at once
    np.testing.assert_array_equal(frame_of((None, run) for run in runs)[names].to_numpy(), alone[names].to_numpy())
    assert together["test_tail_accuracy_last"].notna().sum() == 20
    for run in runs:
        write_run(tmp_path / run.id, run)
    whole, tables = aol.load_runs(tmp_path), frame_of(read_runs([tmp_path], [], TABLES))
    pd.testing.assert_frame_equal(tables, whole)
    assert whole["zero_threshold"].gt(0.0).any()
    one, other = (worst_classes(list(frame.runs.values())) for frame in (tables, whole))
    pd.testing.assert_frame_equal(one, other)
    assert not any({"train_loss", "age"} & (run.curves | run.over_time).keys() for run in tables.runs.values())
