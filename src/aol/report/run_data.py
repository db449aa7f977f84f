"""The runs that a report is about: the record of each, with its samples and a name of its own."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from aol._values import unlike
from aol.records.record import DamagedRunError, Floats, Run, read_run
from aol.records.store import find_runs
from aol.records.table import told_apart
from aol.report.samples import Samples, samples_of

# Class ages, the best first: records that were converted from aol 0.1.0 have smoothed ages only.
_AGES = ("age", "smoothed_age")


@dataclass(frozen=True)
class RunData:
    """One run of a report.

    Args:
        name: method and seed, unique among the runs of the report.
        folder: of the run.
        run: its record, with at least one epoch.
        samples: what is known of each training sample, where that was kept.
    """

    name: str
    folder: Path
    run: Run
    samples: Samples | None = None

    def last(self, reading: str) -> Floats | None:
        """Return the last known value of a reading for each class, `[C]`; None where it was never taken."""
        over_time = self.run.over_time.get(reading)
        return self.run.by_class.get(reading) if over_time is None else last_known(over_time)

    @property
    def age(self) -> Floats | None:
        """The last known age of each class, `[C]`; the smoothed age where there is no other."""
        known = (age for age in map(self.last, _AGES) if age is not None and np.isfinite(age).any())
        return next(known, None)


def load(*paths: str | os.PathLike[str], damaged: Callable[[str], None] | None = None) -> list[RunData]:
    """Return all runs in some folders that have finished an epoch, in the order in which they were asked for.

    A folder is the `--out` of a command, the folder of a study or of a `Recorder`, one run, or a folder of those.
    Where others can be read, damaged runs are left out and `damaged` gets the reasons; without it they are an error.
    """
    runs, problems = [], []
    for folder in find_runs(*paths):
        try:
            runs.append(_read(folder))
        except DamagedRunError as error:
            problems.append(error)
    for problem in problems:
        if damaged is None or not runs:
            raise problem
        damaged(str(problem))
    known = [data for data in runs if data is not None]
    # Runs of one name are told apart by the settings in which they differ, else by number.
    names = unlike(told_apart([data.name for data in known], [data.run for data in known]))
    return [replace(data, name=name) for data, name in zip(known, names, strict=True)]


def _read(folder: Path) -> RunData | None:
    run = read_run(folder)
    samples = samples_of(folder, run)
    # The two files of a run that is being trained, or was resumed, may be some epochs apart.
    if samples is not None and len(run.epochs) != len(samples.answers):
        epochs = min(len(run.epochs), len(samples.answers))
        answers = samples.answers.first(epochs)
        run, samples = run.first(epochs), replace(samples, answers=answers, age=answers.last())
    if not len(run.epochs):
        return None
    name = run.method if run.seed is None else f"{run.method}, seed {run.seed}"
    return RunData(name, folder, run, samples)


def last_known(values: np.ndarray[tuple[int, ...], np.dtype[np.floating]]) -> Floats:
    """Return the last value of each column that is a number, `[E, ...] → [...]`; NaN where there is none.

    >>> last_known(np.array([[1.0, 2.0, np.nan], [3.0, np.nan, np.nan]])).tolist()
    [3.0, 2.0, nan]
    """
    if not len(values):
        return np.full(values.shape[1:], np.nan)
    known = np.isfinite(values)
    place = np.asarray(len(values) - 1 - known[::-1].argmax(0))
    return np.where(known.any(0), np.take_along_axis(values, place[None], 0)[0], np.nan)


def trend(values: np.ndarray[tuple[int, ...], np.dtype[np.floating]]) -> Floats:
    """Return by how much each column changed over its last quarter, `[E, C] → [C]`.

    >>> trend(np.array([[4.0], [4.0], [3.0], [3.0], [1.0]])).tolist()
    [-2.0]
    """
    return last_known(values) - last_known(values[: max(1, len(values) - max(1, len(values) // 4))])
