"""Figures of runs in TensorBoard, Weights & Biases and MLflow, written epoch by epoch so that runs can be watched."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from aol.lab.settings import Settings, WrongSettingsError
from aol.records.metrics import MEASURES

if TYPE_CHECKING:
    from aol.lab.engine.loop import Loop

_FIGURES = (
    "train_loss", "train_accuracy", "test_accuracy", "validation_accuracy", "threshold", "lr",
    *(f"test_{name}" for name in MEASURES),
)  # fmt: skip
_BY_CLASS = {"class_age": "age", "offset": "offset"}  # what is logged of each class, and its name in the history
PROJECT = "aol"


class TensorBoard:
    """Event files in the folder of a run. A resumed run removes the events of later epochs."""

    def __init__(self, folder: Path, run: Settings, epoch: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(folder / "tensorboard"), purge_step=epoch + 1)

    def write(self, figures: Mapping[str, float], epoch: int) -> None:
        """Write the figures."""
        for name, value in figures.items():
            self._writer.add_scalar(name, value, epoch)
        self._writer.flush()

    def close(self, *, finished: bool) -> None:
        """Finish the file; a run that is not finished goes on later."""
        self._writer.close()


class WandB:
    """A run of Weights & Biases, in the project $WANDB_PROJECT or "aol". A resumed run goes on under its id."""

    def __init__(self, folder: Path, run: Settings, epoch: int) -> None:
        import wandb

        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            id=_id(folder, run),
            name=_name(run),
            group=run.method,
            config=run.as_dict(),
            dir=str(folder),
            resume="allow",
            reinit="create_new",  # the runs of a group are open at the same time
        )

    def write(self, figures: Mapping[str, float], epoch: int) -> None:
        """Log the figures at the step of their epoch."""
        self._run.log(dict(figures), step=epoch, commit=True)

    def close(self, *, finished: bool) -> None:
        """Finish the run, or mark it as one that goes on."""
        self._run.finish(exit_code=0 if finished else 1)


class MLflow:
    """A run of MLflow, in the experiment $MLFLOW_EXPERIMENT_NAME or "aol". A resumed run is found by its tag."""

    def __init__(self, folder: Path, run: Settings, epoch: int) -> None:
        from mlflow import MlflowClient

        self._client, name = MlflowClient(), os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
        known = self._client.get_experiment_by_name(name)
        experiment = self._client.create_experiment(name) if known is None else known.experiment_id
        tag = _id(folder, run)
        before = self._client.search_runs([experiment], filter_string=f"tags.`aol.run` = '{tag}'")
        self._written = 0
        if before:
            self._run: str = before[0].info.run_id
            self._client.update_run(self._run, status="RUNNING")
            self._written = max((each.step for each in self._client.get_metric_history(self._run, "lr")), default=0)
            return
        self._run = self._client.create_run(experiment, run_name=_name(run), tags={"aol.run": tag}).info.run_id
        for key, value in run.as_dict().items():
            self._client.log_param(self._run, key, value)

    def write(self, figures: Mapping[str, float], epoch: int) -> None:
        """Log the figures at the step of their epoch, unless they are there."""
        if epoch > self._written:
            for name, value in figures.items():
                self._client.log_metric(self._run, re.sub(r"[^\w\-. /]", "_", name), value, step=epoch)

    def close(self, *, finished: bool) -> None:
        """Set the state of the run."""
        self._client.set_terminated(self._run, status="FINISHED" if finished else "KILLED")


Logger: TypeAlias = TensorBoard | WandB | MLflow
_KINDS: dict[str, type[Logger]] = {"tensorboard": TensorBoard, "wandb": WandB, "mlflow": MLflow}
_MODULES = {"tensorboard": "torch.utils.tensorboard"}


def check_loggers(names: Iterable[str]) -> None:
    """Raise if the package of a logger is missing, before hours of training."""
    for name in names:
        try:
            import_module(_MODULES.get(name, name))
        except ImportError as error:
            raise WrongSettingsError(
                f"--log {name} needs the package {name}: pip install '.[{name}]' in a checkout of aol."
            ) from error


class Loggers:
    """The loggers of a group of runs, each in its folder."""

    def __init__(self, names: Iterable[str], folders: list[Path], loop: Loop) -> None:
        self._loop = loop
        kinds = [_KINDS[name] for name in dict.fromkeys(names)]
        self._of_run: list[list[Logger]] = [
            [kind(folder, run, loop.epoch) for kind in kinds] for folder, run in zip(folders, loop.runs, strict=True)
        ]

    def epoch(self) -> None:
        """Log the last epoch's figures, and the age and offset of each class."""
        history, classes = self._loop.history, self._loop.classes
        figures = {name: history.last(name) for name in _FIGURES}
        by_class = {name: history.last(key, by_class=True) for name, key in _BY_CLASS.items()}
        for row, loggers in enumerate(self._of_run):
            found = {name: float(values[row]) for name, values in figures.items()}
            for name, values in by_class.items():
                found |= {f"{name}/{label}": float(value) for label, value in zip(classes, values[row], strict=True)}
            known = {name: value for name, value in found.items() if value == value}
            for logger in loggers:
                logger.write(known, self._loop.epoch)

    def close(self) -> None:
        """Close all loggers."""
        for run, loggers in zip(self._loop.runs, self._of_run, strict=True):
            for logger in loggers:
                logger.close(finished=self._loop.epoch >= run.epochs)


def _name(run: Settings) -> str:
    return f"{run.method}, seed {run.seed}"


def _id(folder: Path, run: Settings) -> str:
    """Return an id of a run in a folder: the same settings elsewhere are another run."""
    return f"{run.run_id}-{hashlib.sha256(str(folder.absolute()).encode()).hexdigest()[:8]}"
