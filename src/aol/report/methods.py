"""Methods side by side: runs by method, what each reached at the end, and what it gained over no weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd

from aol import metrics
from aol._values import unlike
from aol.records.compare import MethodRow, compare
from aol.records.metrics import MEASURES, is_stream
from aol.records.record import Ints, Run
from aol.records.table import RunFrame, frame_of, told_apart
from aol.stats import holm

LEVEL = 0.05  # of the error that any method is called better or worse


@dataclass(frozen=True)
class Methods:
    """Methods, the baseline first, compared in `measure`: accuracy, or balanced accuracy where the two differ."""

    rows: Sequence[MethodRow] = ()
    measure: str = "accuracy"
    balanced: bool = False  # whether the test set is known to be

    @cached_property
    def tried(self) -> list[MethodRow]:
        """The methods that have a gain, the largest first."""
        return sorted((row for row in self.rows if row.gain), key=lambda row: -row.gain.mean if row.gain else 0.0)

    @cached_property
    def verdicts(self) -> dict[str, str]:
        """Methods by name that are for certain "better" or "worse" than the baseline: by Holm, over all methods."""
        gains = {row.name: row.gain for row in self.rows if row.gain}
        adjusted = zip(gains.items(), holm([gain.p for gain in gains.values()]), strict=True)
        return {name: "better" if gain.mean > 0 else "worse" for (name, gain), p in adjusted if p < LEVEL}

    @property
    def better(self) -> list[MethodRow]:
        """The methods that are better than the baseline for certain, the largest gain first."""
        return [row for row in self.tried if self.verdicts.get(row.name) == "better"]

    @property
    def chosen(self) -> str:
        """A sentence on how the best method was chosen; empty where there is no choice."""
        many = f" The best of {len(self.tried)} methods was chosen on test data; on new data expect less."
        return many if len(self.tried) > 1 else ""

    def gain_text(self, row: MethodRow) -> str:
        """Return what a method gained or lost, in points with its interval.

        >>> from aol.stats import paired_gain
        >>> row = MethodRow("", "cb", "none", 3, 0.8, 0.01, paired_gain([0.05, 0.06, 0.07]), {})
        >>> Methods([row]).gain_text(row)
        'cb gained +6.0 points of accuracy (+3.5 to +8.5, 3 seeds) over none'
        """
        if row.gain is None:
            return row.name
        gain, points = row.gain, 100 * row.gain.mean
        seeds = f"{gain.seeds} seeds" if gain.seeds > 1 else "one seed, so it may be chance"
        interval = "" if gain.interval is None else " to ".join(f"{100 * end:+.1f}" for end in gain.interval) + ", "
        change, over = (f"gained {points:+.1f}", "over") if points > 0 else (f"lost {-points:.1f}", "against")
        return f"{row.name} {change} points of {self.measure} ({interval}{seeds}) {over} {row.baseline}"

    def answer(self) -> str:
        """Return in few sentences which methods are better than none here; empty where nothing was compared."""
        if not self.tried:
            return ""
        better = [self.gain_text(row) for row in self.better]
        if better:
            return (
                f"Best here: {better[0]}." + (f" Also: {'; '.join(better[1:3])}." if better[1:] else "") + self.chosen
            )
        none = f"None of the {len(self.tried)} methods gained anything" if self.chosen else "The method gained nothing"
        return f"{none} for certain. The most: {self.gain_text(self.tried[0])}.{self.chosen}"

    def about(self) -> str:
        """Return how the numbers were read."""
        text = "On test, at the end of training, mean over seeds."
        if self.tried:
            text += (
                f" Gains are points of {self.measure} over {self.tried[0].baseline}, paired by seed, with Student's "
            )
            text += f"interval; those in colour are certain at {LEVEL:.0%}, corrected for their number (Holm)."
        if self.balanced:
            text += " The test set is balanced: accuracy is balanced accuracy."
        if any("tail_accuracy" in row.measures for row in self.rows):
            text += " Head, middle and tail are thirds of the classes by training samples."
        return text


def methods_of(runs: Sequence[Run]) -> Methods:
    """Return the methods of finished runs, where there are any, with the same classes as the first run."""
    chosen = [run for run in runs if run.finished] or list(runs)
    chosen = [run for run in chosen if run.classes == chosen[0].classes]
    by_run = ends(frame_of((None, run) for run in chosen)).dropna(axis=1, how="all") if chosen else pd.DataFrame()
    if "accuracy" not in by_run:
        return Methods()
    balanced, measure = is_balanced(by_run), "accuracy"
    if balanced:
        by_run = by_run.drop(columns=["balanced_accuracy", "macro_f1"], errors="ignore")
    elif "balanced_accuracy" in by_run and by_run["balanced_accuracy"].notna().all():
        measure = "balanced_accuracy"
    return Methods(compare(chosen, by_run.pop(measure).tolist(), by_run), measure.replace("_", " "), balanced)


# Runs by method, and their classes by size


def by_method(frame: RunFrame) -> dict[str, RunFrame]:
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
    streams = np.array([is_stream(run) for run in frame.runs.values()], dtype=bool)
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
    rows = {name: by_run.loc[method.index].mean() for name, method in by_method(frame).items()}
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
