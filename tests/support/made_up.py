"""Runs that were never trained: their accuracies are drawn, so that a test knows what is true."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from aol.lab.data.named import NUM_CLASSES
from aol.lab.settings import Settings
from aol.lab.study.results import StudyResults
from aol.lab.study.spec import Method, Study
from aol.records.record import Run
from aol.records.store import Store
from aol.records.table import RunFrame, frame_of

VERSIONS = {"aol": "1.0", "torch": "2.0", "python": "3.11", "device": "made up"}


def record(settings: Settings, test: float, validation: float | None = None, *, failed: int | None = None) -> Run:
    """Return a finished run whose accuracies were the same at every epoch."""
    classes = NUM_CLASSES.get(settings.data, 10)
    curves = {"test_accuracy": np.full(settings.epochs, test)}
    if validation is not None:
        curves["validation_accuracy"] = np.full(settings.epochs, validation)
    return Run(
        id=settings.run_id,
        method=settings.method,
        seed=settings.seed,
        settings=settings.as_dict(),
        baseline=settings.baseline,
        classes=[str(each) for each in range(classes)],
        counts=None,
        epochs=np.arange(1, settings.epochs + 1),
        curves=curves,
        by_class={"test_accuracy": np.full(classes, test)},
        planned=settings.epochs,
        finished=True,
        failed_at_epoch=failed,
        seconds=36.0,
        trained_together=4,
        versions=VERSIONS,
    )


def study(
    *, seeds: Sequence[int] = (1, 2, 3), rhos: Sequence[float] = (0.1, 0.5, 0.9), imbalances: Sequence[float] = (100,)
) -> Study:
    """Return a small study: a baseline, age over a grid, one rival."""
    return Study(
        name="made-up",
        title="A made-up study",
        common={"data": "cifar10", "net": "resnet32", "epochs": 20, "validation": 0.1},
        cells={"imbalance": tuple(imbalances)},
        seeds=tuple(seeds),
        methods=(
            Method("none", {"weighting": "none"}),
            Method("aol", {"weighting": "aol"}, {"rho": tuple(rhos)}),
            Method("frequency", {"weighting": "frequency", "power": 0.5}),
        ),
        paper="offline",
    )


def records(runs: Iterable[Settings], draw: Callable[[Settings], tuple[float, float]]) -> dict[Settings, Run]:
    """Return records of all runs; `draw` gives a run's test and validation accuracy."""
    return {run: record(run, *draw(run)) for run in runs}


def frame(known: Mapping[Settings, Run]) -> RunFrame:
    """Return records as a frame."""
    return frame_of((None, run) for run in known.values())


def results(plan: Study, known: Mapping[Settings, Run], figure: str | None = None) -> StudyResults:
    """Return the results of a study from records."""
    return StudyResults(plan, frame(known), figure)


def luck(run: Settings, *, salt: int = 0) -> float:
    """Return a standard normal number of the run: the same for the same run, unrelated to those of others."""
    return float(np.random.default_rng([int(run.run_id, 16), salt]).standard_normal())


def seed_effect(run: Settings, *, salt: int = 0) -> float:
    """Return a standard normal number that all runs of a seed and cell share."""
    return luck(replace(run, weighting="none", mechanism="reweight"), salt=salt + 7919)


def fill(folder: Path, plan: Study, gains: dict[str, float], noise: float = 0.003) -> None:
    """Write records of a whole study into a folder; `gains` are by weighting, `noise` is that of a run."""

    def draw(run: Settings) -> tuple[float, float]:
        level = 0.7 + 0.01 * seed_effect(run) + gains.get(run.weighting, 0.0)
        return level + noise * luck(run), level + noise * luck(run, salt=1)

    write(folder, records(plan.all_runs(), draw).values())


def write(folder: Path, made: Iterable[Run]) -> Store:
    """Write records into a folder."""
    store = Store(folder)
    for each in made:
        store.write(each)
    return store
