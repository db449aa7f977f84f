"""`aol train --log`: here, because the environment of Lightning has Weights & Biases and MLflow."""

from __future__ import annotations

from pathlib import Path

import mlflow
import pytest
from mlflow import MlflowClient
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from aol.cli import main
from aol.lab.settings import Settings
from aol.lab.train.loggers import MLflow, WandB
from aol.records.record import Run, read_run


@pytest.fixture(autouse=True)
def _offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = {"WANDB_MODE": "offline", "WANDB_SILENT": "true", "MLFLOW_TRACKING_URI": f"sqlite:///{tmp_path / 'm.db'}"}
    for name, value in names.items():
        monkeypatch.setenv(name, value)
    mlflow.set_tracking_uri(None)  # which loggers of Lightning set for good


def test_every_run_is_in_every_logger(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["train", "--epochs", "2", "--weighting", "none,aol", "--margin", "age", "--json"]
    assert main([*words, "--log", "wandb,mlflow,tensorboard", "--out", str(tmp_path / "out")]) == 0
    runs: list[Run] = [read_run(path.parent) for path in sorted((tmp_path / "out").rglob("run.json"))]
    assert len(runs) == 2
    client = MlflowClient()
    logged = client.search_runs([client.get_experiment_by_name("aol").experiment_id])
    assert {each.info.status for each in logged} == {"FINISHED"}
    by_name = {each.info.run_name: each for each in logged}
    for run in runs:
        folder = tmp_path / "out" / "runs" / run.id
        metrics = by_name[f"{run.method}, seed {run.seed}"].data.metrics
        events = EventAccumulator(str(folder / "tensorboard")).Reload()
        for name in ("train_loss", "test_accuracy", "test_worst_class", "lr"):
            assert metrics[name] == pytest.approx(run.curves[name][-1], rel=1e-4)
            assert events.Scalars(name)[-1].value == pytest.approx(run.curves[name][-1], rel=1e-4)
        for c in range(10):
            assert metrics[f"class_age/{c}"] == pytest.approx(run.by_class["age"][c], rel=1e-4)
            assert metrics[f"offset/{c}"] == pytest.approx(run.by_class["offset"][c], rel=1e-4, abs=1e-5)
        assert len(list(folder.glob("wandb/offline-run-*/*.wandb"))) == 1


def test_a_resumed_run_of_mlflow_goes_on_without_repeats(tmp_path: Path) -> None:
    run, client = Settings(), MlflowClient()
    for epochs in ((1, 2, 3), (2, 3, 4)):
        logger = MLflow(tmp_path / "run", run, epochs[0] - 1)
        for epoch in epochs:
            logger.write({"lr": 0.1 * epoch, "class_age/a: <b>": 2.0}, epoch)
        logger.close(finished=epochs[-1] == 4)
    (found,) = client.search_runs([client.get_experiment_by_name("aol").experiment_id])
    assert found.info.status == "FINISHED"
    assert [each.step for each in client.get_metric_history(found.info.run_id, "lr")] == [1, 2, 3, 4]
    assert found.data.params["weighting"] == run.weighting
    MLflow(tmp_path / "elsewhere", run, 0)
    assert len(client.search_runs([found.info.experiment_id])) == 2


def test_runs_of_a_group_are_open_at_the_same_time_in_weights_and_biases(tmp_path: Path) -> None:
    runs = [Settings(seed=seed) for seed in (0, 1)]
    folders = [tmp_path / run.run_id for run in runs]
    for folder in folders:
        folder.mkdir()
    loggers = [WandB(folder, run, 0) for folder, run in zip(folders, runs, strict=True)]
    for epoch in (1, 2):
        for seed, logger in enumerate(loggers):
            logger.write({"test_accuracy": 0.1 * epoch + seed}, epoch)
    found = [logger._run.summary["test_accuracy"] for logger in loggers]
    assert found == pytest.approx([0.2, 1.2])
    assert [logger._run.config["seed"] for logger in loggers] == [0, 1]
    for logger in loggers:
        logger.close(finished=True)
