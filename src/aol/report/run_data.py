"""The runs that a report is about: their records, with samples and a name of their own."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from aol.records.metrics import TABLES
from aol.records.record import DamagedRunError, Floats, Matrix, Run, read_run
from aol.records.store import find_runs
from aol.records.table import told_apart, unlike
from aol.report.samples import AnswersOnTest, Samples, answers_on_test, samples_of


@dataclass(frozen=True)
class RunData:
    """One run of a report."""

    name: str  # method and seed, unique among the runs of the report
    folder: Path
    run: Run  # its record, with at least one epoch
    samples: Samples | None = None  # None where they were not kept
    tested: AnswersOnTest | None = None

    def last(self, reading: str) -> Floats | None:
        """Return the last known values of a reading by class, `[C]`; None where it was never taken."""
        over_time = self.run.over_time.get(reading)
        return self.run.by_class.get(reading) if over_time is None else last_known(over_time)

    @property
    def age(self) -> Floats | None:
        """The last known ages of the classes, `[C]`; the smoothed age where there is no other, as in aol 0.1.0."""
        known = (age for age in map(self.last, ("age", "smoothed_age")) if age is not None and np.isfinite(age).any())
        return next(known, None)


def load(
    *paths: str | os.PathLike[str], damaged: Callable[[str], None] | None = None, whole: float = math.inf
) -> list[RunData]:
    """Return all runs in some folders that have finished an epoch, in the order in which they were asked for.

    A folder is the `--out` of a command, the folder of a study or of a `Recorder`, one run, or a folder of those.
    Where others can be read, damaged runs are left out and `damaged` gets the reasons; without it they are an error.
    Of runs after the first `whole`, only the readings that tables need are read, and no samples.
    """
    runs, problems, read = list[RunData](), list[DamagedRunError](), 0
    for folder in find_runs(*paths):
        try:
            more = len(runs) < whole
            data, read = _run_data(folder, read_run(folder, None if more else TABLES), more), read + 1
        except DamagedRunError as error:
            problems.append(error)
            continue
        if len(data.run.epochs):
            runs.append(data)
    for problem in problems:
        if damaged is None or not read:
            raise problem
        damaged(str(problem))
    # Runs of one name are told apart by the settings in which they differ, else by number.
    names = unlike(told_apart([data.name for data in runs], [data.run for data in runs]))
    return [replace(data, name=name) for data, name in zip(runs, names, strict=True)]


def _run_data(folder: Path, run: Run, with_samples: bool) -> RunData:
    samples, tested = (samples_of(folder, run), answers_on_test(folder, run)) if with_samples else (None, None)
    # The two files of a run that is being trained, or was resumed, may be some epochs apart.
    if samples is not None and len(run.epochs) != len(samples.answers):
        epochs = min(len(run.epochs), len(samples.answers))
        answers = samples.answers.first(epochs)
        run, samples = run.first(epochs), replace(samples, answers=answers, age=answers.last())
    return RunData(run.method if run.seed is None else f"{run.method}, seed {run.seed}", folder, run, samples, tested)


def last_known(values: Floats | Matrix) -> Floats:
    """Return the last values of columns that are a number, `[E, ...] → [...]`; NaN where there is none.

    >>> last_known(np.array([[1.0, 2.0, np.nan], [3.0, np.nan, np.nan]])).tolist()
    [3.0, 2.0, nan]
    """
    known = np.isfinite(values)
    place = np.where(known, np.arange(len(values)).reshape(-1, *[1] * (values.ndim - 1)), 0).max(0, initial=0)
    last = np.take_along_axis(values, place[None], 0)[0] if len(values) else np.nan
    return np.where(known.any(0), last, np.nan)


def trend(values: Matrix) -> Floats:
    """Return by how much columns changed over their last quarter, `[E, C] → [C]`.

    >>> trend(np.array([[4.0], [4.0], [3.0], [3.0], [1.0]])).tolist()
    [-2.0]
    """
    return last_known(values) - last_known(values[: max(1, len(values) - max(1, len(values) // 4))])
