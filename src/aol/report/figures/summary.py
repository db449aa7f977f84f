"""The numbers behind the figures: runs by method, accuracy at the end of training, classes by size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd

from aol import metrics
from aol.records.metrics import MEASURES, is_stream
from aol.records.record import Floats, Ints, Run
from aol.records.table import RunFrame, told_apart

# Runs by method


@dataclass(frozen=True)
class Method:
    """Runs that differ in nothing but their seeds."""

    name: str
    frame: RunFrame

    @property
    def runs(self) -> list[Run]:
        """The records of the runs."""
        return list(self.frame.runs.values())


def methods(frame: RunFrame) -> list[Method]:
    """Return the runs by method, in the order of the frame; methods of one name also show the settings that differ."""
    groups: dict[tuple[object, ...], list[str]] = {}
    for name, run in frame.runs.items():
        rest = tuple((key, repr(value)) for key, value in sorted(run.settings.items()) if key != "seed")
        groups.setdefault((run.method, tuple(run.classes), rest), []).append(name)
    first = [frame.runs[ids[0]] for ids in groups.values()]
    names = told_apart([run.method for run in first], first, but=("seed",))
    return [Method(name, frame.loc[ids]) for name, ids in zip(names, groups.values(), strict=True)]


def by_sizes(methods: Sequence[Method]) -> list[list[Method]]:
    """Return methods by the sizes of their classes: head and tail are comparable only where the sizes are equal."""
    sizes = [tuple(sorted(method.runs[0].counts or ())) for method in methods]
    return [[method for method, own in zip(methods, sizes, strict=True) if own == one] for one in dict.fromkeys(sizes)]


def time_unit(run: Run) -> str:
    """Return what the time of a run is counted in: "epoch", on a stream "step"."""
    return "step" if is_stream(run) else "epoch"


# Accuracy and metrics of the classes at the end: mean over the last 5 % of epochs, on a stream over its second half

_REPEATS = 0.005  # balanced accuracy this close to accuracy in every run: the test set is about balanced


def _at_end(frame: RunFrame, measure: str) -> pd.Series:
    """Return a measure on test of each run at the end."""
    name = "test_" if measure == "accuracy" else f"test_{measure}_"
    streams = np.array([is_stream(run) for run in frame.runs.values()], dtype=bool)
    values = np.where(streams, frame[f"{name}second_half_mean"], frame[f"{name}tail_mean"])
    return pd.Series(values, frame.index, dtype="float64")


def at_end(method: Method, measure: str = "accuracy") -> tuple[float, float]:
    """Return mean and standard deviation of a measure over a method's runs, but for those that diverged."""
    values = _at_end(method.frame, measure)[method.frame["failed_at_epoch"].isna()]
    return float(values.mean()), float(values.std())


def ends(frame: RunFrame) -> pd.DataFrame:
    """Return a row a run: its accuracy on test at the end, and the measures that say more.

    Balanced accuracy and macro-F1 are there where the test set is not balanced, the worst tenth where it is more than
    one class, head, middle and tail where training counts have them.
    """
    by_run = pd.DataFrame({measure: _at_end(frame, measure) for measure in ("accuracy", *MEASURES)})
    if not ((by_run["balanced_accuracy"] - by_run["accuracy"]).abs() > _REPEATS).any():
        by_run = by_run.drop(columns=["balanced_accuracy", "macro_f1"])
    same = not (by_run["worst_tenth"] - by_run["worst_class"]).abs().gt(1e-9).any()
    return by_run.drop(columns="worst_tenth") if same else by_run


def class_table(frame: RunFrame) -> pd.DataFrame:
    """Return a row a method, mean over its seeds: the measures on test that say more than accuracy, at the end."""
    by_run = ends(frame).drop(columns="accuracy")
    rows = {method.name: by_run.loc[method.frame.index].mean() for method in methods(frame)}
    return pd.DataFrame(rows).T.dropna(axis=1, how="all").dropna(how="all")


# Classes by size


class Part(NamedTuple):
    """Some classes by their size: "head", "middle" or "tail"."""

    name: str
    classes: Ints
    fewest: int
    most: int


def parts(counts: Sequence[int] | Ints) -> list[Part]:
    """Return head, middle and tail, each with a class at least: the parts of `aol.metrics.thirds`, head first.

    A set that is about balanced, as that of a stream whose head moves, is one part.

    >>> [(part.name, part.classes.tolist()) for part in parts([9, 5, 5, 1])]
    [('head', [0]), ('middle', [1, 2]), ('tail', [3])]
    """
    sizes = np.asarray(counts, dtype=np.int64)
    if not metrics.has_tail(sizes):
        return [Part("all", np.arange(len(sizes)), int(sizes.min()), int(sizes.max()))]
    order = np.argsort(-sizes, kind="stable")
    third = metrics.thirds(sizes).numpy()[order]
    chosen = {name: order[third == number] for number, name in enumerate(("head", "middle", "tail"))}
    return [Part(name, own, int(sizes[own].min()), int(sizes[own].max())) for name, own in chosen.items() if len(own)]


# Correlation of readings by class


class Correlation(NamedTuple):
    """Pearson's r of n pairs."""

    r: float
    n: int


def correlation(x: Floats, y: Floats) -> Correlation | None:
    """Return Pearson's r; None below 3 pairs or without spread. NaNs are left out.

    >>> correlation(np.array([1.0, 2.0, 3.0, 4.0, np.nan]), np.array([1.0, 3.0, 2.0, 4.0, 5.0]))
    Correlation(r=0.8, n=4)
    """
    from scipy.stats import pearsonr

    known = np.isfinite(x) & np.isfinite(y)
    x, y = x[known], y[known]
    if len(x) < 3 or np.ptp(x) == 0 or np.ptp(y) == 0:
        return None
    return Correlation(float(pearsonr(x, y).statistic), len(x))
