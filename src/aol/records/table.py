"""Runs as pandas DataFrames: a row a run, a row an epoch, a row a class. The input of every table, plot and page."""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from aol.records.metrics import RUN_COLUMNS, run_metrics, zero_threshold_share
from aol.records.record import DamagedRunError, Only, Run, read_run
from aol.records.store import find_runs

if TYPE_CHECKING:
    from collections.abc import Callable

_NAMED = ("id", "method", "seed")  # in every row of an epoch or a class
_NUMBER = re.compile(r"[+-]?[0-9]+(\.[0-9]+)?")


class RunFrame(pd.DataFrame):
    """Runs as a DataFrame, a row a run, by id; a part is a frame of those: `frame[frame.weighting == "aol"].epochs()`.

    Columns: what a run is (`folder`, `method`, `seed`, `finished`, `failed_at_epoch`, `epochs_done`, `planned`,
    `seconds`, `trained_together`, `stacking`, `aol`, `torch`, `python`, `device`), every setting by its name, and the
    accuracies `test_last`, `test_best`, `test_tail_mean` and `test_second_half_mean` as fractions, the same for
    `validation_` and for the metrics of `aol.metrics` on test: `test_worst_class_last` and so on. NaN where nothing was
    measured; a run that diverged counts as chance. `zero_threshold`: the share of a stream's steps in which the
    threshold was 0, so that no class grew older.
    """

    _metadata = ["_runs"]  # noqa: RUF012 (pandas reads it)
    _runs: Mapping[str, Run]

    @property
    def _constructor(self) -> Callable[..., RunFrame]:
        return RunFrame

    @property
    def runs(self) -> dict[str, Run]:
        """The records of these runs, by id."""
        names = [str(name) for name in (self["id"] if "id" in self.columns else self.index)]
        known = getattr(self, "_runs", {})
        if missing := [name for name in names if name not in known]:
            wanted = "the index, or a column 'id', must have the ids of runs from load_runs"
            raise KeyError(f"{wanted}; not {missing[0]!r}.")
        return {name: known[name] for name in names}

    def epochs(self) -> pd.DataFrame:
        """Return a row for every run and epoch: `id`, `method`, `seed`, `epoch`, and every curve."""
        parts = [pd.DataFrame(_named(*run) | {"epoch": run[1].epochs, **run[1].curves}) for run in self.runs.items()]
        return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=[*_NAMED, "epoch"])

    def classes(self, *, over_time: bool = False) -> pd.DataFrame:
        """Return a row for every run and class, with the readings of the last epoch; or for every epoch as well."""
        parts = []
        for name, run in self.runs.items():
            size, times = len(run.classes), len(run.epochs) if over_time else 1
            counts = [None] * size if run.counts is None else run.counts
            columns = _named(name, run) | ({"epoch": np.repeat(run.epochs, size)} if over_time else {})
            columns |= {"class": np.tile(np.arange(size), times), "name": run.classes * times, "count": counts * times}
            columns |= {key: value.ravel() for key, value in (run.over_time if over_time else run.by_class).items()}
            parts.append(pd.DataFrame(columns))
        empty = [*_NAMED, *(["epoch"] if over_time else []), "class", "name", "count"]
        return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=empty)


def _named(name: str, run: Run) -> dict[str, object]:
    return {"id": name, "method": run.method, "seed": run.seed}


def load_runs(*folders: str | os.PathLike[str]) -> RunFrame:
    """Return all runs in some folders as a DataFrame, a row a run.

    A folder is the `--out` of a command, the folder of a study or of a `Recorder`, one run, or a folder of those. Runs
    in progress are included. A damaged record raises `DamagedRunError`, which names the file.

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
    if not folders or not all(isinstance(folder, str | os.PathLike) for folder in folders):
        raise TypeError("load_runs takes one or more folders: load_runs('runs/a', 'runs/b').")
    problems: list[DamagedRunError] = []
    frame = frame_of(read_runs(folders, problems))
    if problems:
        raise problems[0]
    return frame


def read_runs(
    folders: Iterable[str | os.PathLike[str]], damaged: list[DamagedRunError], only: Only | None = None
) -> Iterator[tuple[Path, Run]]:
    """Yield the folder and the record of all runs in some folders; errors of damaged records are added to `damaged`."""
    for folder in find_runs(*folders):
        try:
            yield folder, read_run(folder, only)
        except DamagedRunError as error:
            damaged.append(error)


def frame_of(runs: Iterable[tuple[Path | None, Run]]) -> RunFrame:
    """Return records as a frame; a run that occurs twice (in two folders) gets a number behind its id."""
    records = list(runs)
    ids, own = unlike([run.id for _, run in records], "-{}"), [run for _, run in records]
    columns: dict[str, Any] = {
        "folder": [None if folder is None else str(folder) for folder, _ in records],
        "epochs_done": [len(run.epochs) for run in own],
        "zero_threshold": list(map(zero_threshold_share, own)),
        **run_metrics(own),
        **{name: [run.versions.get(name) for run in own] for name in ("aol", "torch", "python", "device")},
    }
    columns = {name: columns[name] if name in columns else [getattr(run, name) for run in own] for name in RUN_COLUMNS}
    for name in dict.fromkeys(name for run in own for name in run.settings if name not in columns and name != "id"):
        columns[name] = [run.settings.get(name) for run in own]
    index = pd.Index(ids, name="id", dtype=object)
    # Text is kept as Python objects, because a path that is not UTF-8 cannot be a pandas string.
    texts = {name for name, values in columns.items() if isinstance(values, list) and str in map(type, values)}
    series = {name: pd.Series(values, index, object if name in texts else None) for name, values in columns.items()}
    frame = RunFrame(series, index=index)
    frame._runs = dict(zip(ids, own, strict=True))
    return frame


def spreadsheet_text(cell: Any) -> Any:
    """Return a cell that a spreadsheet shows and does not compute; a number stays one."""
    computed = isinstance(cell, str) and cell.startswith(tuple("=+-@\t\r\n＝＋－＠")) and not _NUMBER.fullmatch(cell)
    return f"'{cell}" if computed else cell


def as_csv(frame: pd.DataFrame, **options: Any) -> str:
    """Return CSV: any text, ids and heads too, is quoted, and shown by spreadsheets, which would compute `=1+2`.

    >>> print(as_csv(pd.DataFrame({"=n": [1], "name": ["a;=1+2"]}, index=["-x"])), end="")
    "","'=n","name"
    "'-x",1,"a;=1+2"
    """
    words = {str(name): frame[name] for name in frame if not pd.api.types.is_numeric_dtype(frame[name])}
    shown = frame.assign(**{name: column.map(spreadsheet_text) for name, column in words.items()})
    shown = shown.rename(index=spreadsheet_text, columns=spreadsheet_text)
    return str(shown.to_csv(quoting=csv.QUOTE_NONNUMERIC, lineterminator="\n", **options))


def told_apart(names: Sequence[str], runs: Sequence[Run], but: Collection[str] = ()) -> list[str]:
    """Return names of runs; where several have one name, with the settings in which these differ, except `but`."""
    same: dict[str, list[Run]] = {}
    for name, run in zip(names, runs, strict=True):
        same.setdefault(name, []).append(run)
    keys = {name: differing_settings(some, but) for name, some in same.items()}
    words = [[f"{key}={run.settings.get(key)}" for key in keys[name]] for name, run in zip(names, runs, strict=True)]
    return [" ".join([name, *own]) for name, own in zip(names, words, strict=True)]


def differing_settings(runs: Sequence[Run], but: Collection[str] = ()) -> list[str]:
    """Return the names of the settings that tell runs apart, as few as possible; `but` are left out."""
    but = frozenset(but)
    rows = [tuple((name, repr(value)) for name, value in run.settings.items() if name not in but) for run in runs]
    settings = [dict(row) for row in dict.fromkeys(rows)]

    def distinct(names: Sequence[str]) -> int:
        return len({tuple(own.get(name, "None") for name in names) for own in settings})

    chosen = [name for name in dict.fromkeys(name for own in settings for name in own) if distinct([name]) > 1]
    for name in reversed(chosen):
        rest = [other for other in chosen if other != name]
        if distinct(rest) == distinct(chosen):
            chosen = rest
    return chosen


def unlike(names: Iterable[str], form: str = " ({})") -> list[str]:
    """Return unique names: the second of one name gets a number.

    >>> unlike(["cat", "dog", "cat"]), unlike(["a", "a", "a-2"], "-{}")
    (['cat', 'dog', 'cat (2)'], ['a', 'a-2', 'a-2-2'])
    """
    unique: dict[str, int] = {}  # the last number given to each name
    for name in names:
        chosen = name
        while chosen in unique:
            unique[name] += 1
            chosen = name + form.format(unique[name])
        unique[chosen] = 1
    return list(unique)
