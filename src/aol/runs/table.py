"""Runs as pandas DataFrames: a row a run, a row an epoch, a row a class. The input of every table, plot and page."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from aol.runs.figures import run_figures
from aol.runs.record import Run, read_run
from aol.runs.store import find_runs

if TYPE_CHECKING:
    from collections.abc import Callable

_VERSIONS = ("aol", "torch", "python", "device")


class RunFrame(pd.DataFrame):
    """Runs as a DataFrame, a row a run, indexed by the run's id.

    Columns: what a run is (`folder`, `method`, `seed`, `finished`, `failed_at_epoch`, `epochs_done`, `planned`,
    `seconds`, `trained_together`, `aol`, `torch`, `python`, `device`), every setting by its name, and the accuracies
    `test_last`, `test_best`, `test_tail_mean` and `test_second_half_mean` as fractions, the same for `validation_` and
    `averaged_`. NaN where nothing was measured; a run that diverged counts as chance.

    A part of the frame is a frame of those runs: `frame[frame.weighting == "aol"].epochs()`.
    """

    _metadata = ["_runs"]  # noqa: RUF012 (pandas reads it)
    _runs: Mapping[str, Run]

    @property
    def _constructor(self) -> Callable[..., RunFrame]:
        return RunFrame

    @property
    def runs(self) -> dict[str, Run]:
        """The records of these runs, by id."""
        return {str(name): self._runs[str(name)] for name in self.index}

    def epochs(self) -> pd.DataFrame:
        """Return a row for each run and epoch: `id`, `epoch`, and every curve."""
        parts = [pd.DataFrame({"id": name, "epoch": run.epochs, **run.curves}) for name, run in self.runs.items()]
        return _joined(parts, ["id", "epoch"])

    def classes(self, *, over_time: bool = False) -> pd.DataFrame:
        """Return a row for each run and class, with the readings of the last epoch; or for each epoch as well."""
        parts = []
        for name, run in self.runs.items():
            size = len(run.classes)
            counts = [None] * size if run.counts is None else run.counts
            named = {"class": np.arange(size), "name": run.classes, "count": counts}
            if over_time:
                epochs = len(run.epochs)
                named = {key: np.tile(np.asarray(value), epochs) for key, value in named.items()}
                readings = {key: value.ravel() for key, value in run.over_time.items()}
                parts.append(pd.DataFrame({"id": name, "epoch": np.repeat(run.epochs, size), **named, **readings}))
            else:
                parts.append(pd.DataFrame({"id": name, **named, **run.by_class}))
        return _joined(parts, ["id", *(["epoch"] if over_time else []), "class", "name", "count"])


def _joined(parts: Sequence[pd.DataFrame], columns: Sequence[str]) -> pd.DataFrame:
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=list(columns))


def load_runs(*folders: str | os.PathLike[str]) -> RunFrame:
    """Return all runs in some folders as a DataFrame, a row a run.

    A folder is the `--out` of a command, the folder of a study or of a `Recorder`, one run, or a folder of those.
    A record that is damaged raises `DamagedRunError` and names the file.

    >>> import tempfile
    >>> from aol import Recorder, SampleAges
    >>> ages = SampleAges([0, 0, 1])
    >>> folder = tempfile.mkdtemp()
    >>> recorder = Recorder(folder, ages, name="mine", seed=3)
    >>> ages.observe([0, 1, 2], [True, True, False])
    >>> ages.advance()
    >>> recorder.advance(test_accuracy=0.75)
    >>> load_runs(folder)[["method", "seed", "test_last"]].to_dict("records")
    [{'method': 'mine', 'seed': 3, 'test_last': 0.75}]
    """
    return frame_of((folder, read_run(folder)) for folder in find_runs(*folders))


def frame_of(runs: Iterable[tuple[Path | None, Run]]) -> RunFrame:
    """Return records as a frame; a run that occurs twice (in two folders) gets a number behind its id."""
    by_id: dict[str, Run] = {}
    rows = []
    for folder, run in runs:
        name, again = run.id, 1
        while name in by_id:
            again += 1
            name = f"{run.id}-{again}"
        by_id[name] = run
        rows.append(_row(folder, run))
    index = pd.Index(list(by_id), name="id", dtype="object")
    names = dict.fromkeys(name for row in rows for name in row)
    frame = RunFrame({name: _column([row.get(name) for row in rows], index) for name in names}, index=index)
    frame._runs = by_id
    return frame


def _column(values: list[object], index: pd.Index) -> pd.Series:
    """Return a column; text is kept as Python objects, because a path that is not UTF-8 cannot be a pandas string."""
    return pd.Series(values, index=index, dtype=object if any(isinstance(each, str) for each in values) else None)


def _row(folder: Path | None, run: Run) -> dict[str, object]:
    own: dict[str, object] = {
        "folder": None if folder is None else str(folder),
        "method": run.method,
        "seed": run.seed,
        "finished": run.finished,
        "failed_at_epoch": run.failed_at_epoch,
        "epochs_done": len(run.epochs),
        "planned": run.planned,
        "seconds": run.seconds,
        "trained_together": run.trained_together,
        **{name: run.versions.get(name) for name in _VERSIONS},
        **run_figures(run),
    }
    settings = {name if name not in own else f"setting_{name}": value for name, value in run.settings.items()}
    settings.pop("setting_seed", None)  # the same number
    return own | settings


def differing_settings(runs: Sequence[Run], but: Collection[str] = ()) -> list[str]:
    """Return the names of the settings that tell runs apart, as few as possible; `but` are left out."""

    def distinct(names: list[str]) -> int:
        return len({tuple(repr(run.settings.get(name)) for name in names) for run in runs})

    names = dict.fromkeys(name for run in runs for name in run.settings if name not in but)
    chosen = [name for name in names if distinct([name]) > 1]
    for name in reversed(chosen):
        rest = [other for other in chosen if other != name]
        if distinct(rest) == distinct(chosen):
            chosen = rest
    return chosen
