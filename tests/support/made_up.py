"""Records that were never trained: a run's figures are drawn, so that a test knows what is true."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from aol.engine.settings import Settings
from aol.study.records import Record, Store
from aol.study.spec import Method, Study

VERSIONS = {"aol": "1.0", "torch": "2.0", "python": "3.11", "device": "made up"}


def record(settings: Settings, test: float, validation: float | None = None, *, failed: int | None = None) -> Record:
    """A run whose accuracies were the same at every epoch."""
    curves: dict[str, list[float | None]] = {"test_accuracy": [test] * settings.epochs}
    if validation is not None:
        curves["validation_accuracy"] = [validation] * settings.epochs
    by_class: dict[str, list[float | None]] = {"test_accuracy": [test] * 10}
    return Record(settings, curves, by_class, VERSIONS, 36.0, 4, failed)


def study(
    *, seeds: Sequence[int] = (1, 2, 3), rhos: Sequence[float] = (0.1, 0.5, 0.9), imbalances: Sequence[float] = (100,)
) -> Study:
    """A small study: plain training, age over a grid, one rival."""
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


def records(runs: Iterable[Settings], draw: Callable[[Settings], tuple[float, float]]) -> dict[Settings, Record]:
    """Records of all runs; `draw` gives a run's test and validation accuracy."""
    return {run: record(run, *draw(run)) for run in runs}


def luck(run: Settings, *, salt: int = 0) -> float:
    """A standard normal number of the run's own: the same for the same run, unrelated to others'."""
    return float(np.random.default_rng([int(run.run_id, 16), salt]).standard_normal())


def seed_effect(run: Settings, *, salt: int = 0) -> float:
    """A standard normal number that all runs of a seed and cell share."""
    return luck(replace(run, weighting="none", mechanism="reweight"), salt=salt + 7919)


def fill(folder: Path, plan: Study, gains: dict[str, float], noise: float = 0.003) -> None:
    """Put records of a whole plan into a folder; `gains` are by weighting, `noise` is that of a run."""

    def draw(run: Settings) -> tuple[float, float]:
        level = 0.7 + 0.01 * seed_effect(run) + gains.get(run.weighting, 0.0)
        return level + noise * luck(run), level + noise * luck(run, salt=1)

    store = Store(folder)
    for each in records(plan.all_runs(), draw).values():
        store.put(each)
