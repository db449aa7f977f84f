"""The numbers behind the figures: runs by method, accuracy at the end of training, classes by size."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from aol import metrics
from aol._values import unlike
from aol.records.metrics import MEASURES, is_stream
from aol.records.record import Ints, Run
from aol.records.table import RunFrame, told_apart


def methods(frame: RunFrame) -> dict[str, RunFrame]:
    """Return the runs of each method, by name, in the order of the frame: runs that differ in nothing but their seeds.

    Methods of one name also show the settings that differ.
    """
    groups: dict[tuple[object, ...], list[str]] = {}
    for name, run in frame.runs.items():
        rest = tuple((key, repr(value)) for key, value in sorted(run.settings.items()) if key != "seed")
        groups.setdefault((run.method, tuple(run.classes), rest), []).append(name)
    first = [frame.runs[ids[0]] for ids in groups.values()]
    names = unlike(told_apart([run.method for run in first], first, but=("seed",)))
    return {name: frame.loc[ids] for name, ids in zip(names, groups.values(), strict=True)}


def time_unit(run: Run) -> str:
    """Return what the time of a run is counted in: "epoch", on a stream "step"."""
    return "step" if is_stream(run) else "epoch"


# Measures on test at the end: mean over the last 5 % of epochs, on a stream over its second half


def ends(frame: RunFrame) -> pd.DataFrame:
    """Return a row a run: accuracy and the `MEASURES` on test; the worst tenth where that is more than one class."""
    streams = [is_stream(run) for run in frame.runs.values()]
    names = {"accuracy": "test"} | {measure: f"test_{measure}" for measure in MEASURES}
    by_run = pd.DataFrame(
        {
            measure: frame[f"{name}_second_half_mean"].where(streams, frame[f"{name}_tail_mean"]).astype("float64")
            for measure, name in names.items()
        }
    )
    several = (by_run["worst_tenth"] - by_run["worst_class"]).abs().gt(1e-9).any()
    return by_run if several else by_run.drop(columns="worst_tenth")


def is_balanced(by_run: pd.DataFrame) -> bool:
    """Return whether balanced accuracy is known, and is accuracy to the digits that are shown."""
    if "balanced_accuracy" not in by_run:
        return False
    apart = (by_run["balanced_accuracy"] - by_run["accuracy"]).abs()
    return bool(apart.notna().any() and not apart.gt(1e-4).any())


def at_end(method: RunFrame, measure: str = "accuracy") -> tuple[float, float]:
    """Return mean and standard deviation of a measure over a method's runs, but for those that diverged."""
    values = ends(method[method["failed_at_epoch"].isna()])[measure]
    return float(values.mean()), float(values.std())


def class_table(frame: RunFrame) -> pd.DataFrame:
    """Return a row a method, mean over its seeds: the measures on test that say more than accuracy, at the end."""
    by_run = ends(frame)
    by_run = by_run.drop(columns=["accuracy", *(["balanced_accuracy", "macro_f1"] if is_balanced(by_run) else [])])
    rows = {name: by_run.loc[method.index].mean() for name, method in methods(frame).items()}
    return pd.DataFrame(rows).T.dropna(axis=1, how="all").dropna(how="all")


def parts(counts: Sequence[int] | Ints) -> dict[str, Ints]:
    """Return the classes of head, middle and tail by name: the parts of `aol.metrics.thirds` that have a class.

    A set that is about balanced, as that of a stream whose head moves, is one part.

    >>> {name: classes.tolist() for name, classes in parts([9, 5, 5, 1]).items()}
    {'head': [0], 'middle': [1, 2], 'tail': [3]}
    """
    if not metrics.has_tail(counts):
        return {"all": np.arange(len(counts))}
    third = metrics.thirds(counts).numpy()
    chosen = {name: np.flatnonzero(third == number) for number, name in enumerate(("head", "middle", "tail"))}
    return {name: classes for name, classes in chosen.items() if len(classes)}
