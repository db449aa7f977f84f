"""Methods side by side: mean and spread over seeds, and gains over training without weights, with significance."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pandas as pd

from aol.records import METHOD_SETTINGS
from aol.records.metrics import MEASURES, at_the_end, is_stream
from aol.records.record import Run, nan_mean
from aol.records.table import RunFrame, differing_settings, told_apart, unlike
from aol.stats import Gain, holm, paired_gain

BASELINES = ("none", "plain", "baseline")  # what the baseline may be called in a loop of one's own
LEVEL = 0.05  # of the error that any method is called better or worse
_MANY = 12  # methods; of more the best come first, behind their baseline: not all may be listed
_SAME, _ABOUT = 1e-4, 5e-3  # accuracy and balanced accuracy are the same, or about so, and only one of them is shown


@dataclass(frozen=True)
class MethodRow:
    """One method under one set of conditions."""

    conditions: str  # the settings besides the method in which the runs differ
    method: str
    baseline: str | None  # the method that it is compared with, where there is one
    seeds: int  # how many runs
    mean: float  # of the figure, over seeds
    spread: float  # its standard deviation; NaN for one seed
    gain: Gain | None  # over the baseline, paired by seed; None where there is no pair
    measures: dict[str, float]  # other measures by name, means over seeds
    runs: Sequence[Run] = ()

    @property
    def name(self) -> str:
        """Method and conditions."""
        return f"{self.method} {self.conditions}".rstrip()


def compare(runs: Sequence[Run], figures: Sequence[float], measures: pd.DataFrame | None = None) -> list[MethodRow]:
    """Return a row a method, the baseline first: what its runs have of a figure, and of other measures by column.

    The baseline is the run without weighting and margin, with the same conditions, loss and seed; among runs of a loop
    of one's own, the one in `BASELINES`. A run without the figure is left out. A run that trains its head alone in the
    end is compared with one of as many epochs as it had before.
    """
    before = [_before_head(run) for run in runs]
    trained = [run for run in before if "weighting" in run.settings]  # by `aol train`, not by a loop of one's own
    names = differing_settings(trained, but=METHOD_SETTINGS)
    plain = next((run.method for run in runs if run.method.lower() in BASELINES), None)
    when = [" ".join(f"{name}={run.settings.get(name)}" for name in names) for run in before]
    table = pd.DataFrame(
        {
            "conditions": [own if "weighting" in run.settings else "" for run, own in zip(runs, when, strict=True)],
            "method": [run.method for run in runs],
            "seed": pd.Series([run.seed for run in runs], dtype="Int64"),
            "baseline": [run.baseline or (None if "weighting" in run.settings else plain) for run in runs],
            "figure": figures,
        }
    )
    others = pd.DataFrame(index=table.index) if measures is None else measures.set_axis(table.index)
    table = table.join(others).dropna(subset="figure")
    method = ["conditions", "method"]
    table["seed"] = table["seed"].fillna(table.groupby(method).cumcount())
    table = table.drop_duplicates([*method, "seed"], keep="last")
    by_seed = table.set_index([*method, "seed"])["figure"]
    baseline = by_seed.reindex(pd.MultiIndex.from_frame(table[["conditions", "baseline", "seed"]])).to_numpy()
    table["gain"] = (table["figure"] - baseline).where(table["method"] != table["baseline"])
    by_method = table.groupby(method, sort=False)
    means, spreads, rows = by_method[["figure", *others]].mean(), by_method["figure"].std(), []
    for key, (mean, *more), spread in zip(means.index, means.to_numpy().tolist(), spreads.tolist(), strict=True):
        places = by_method.groups[key]
        gains, measured = table["gain"][places].dropna().tolist(), dict(zip(map(str, others), more, strict=True))
        gain, own = paired_gain(gains) if gains else None, [runs[place] for place in places]
        over = table["baseline"][places[0]]
        rows.append(MethodRow(key[0], key[1], over, len(own), mean, spread, gain, measured, own))
    return sorted(
        rows, key=lambda row: (row.conditions, row.method != row.baseline and not row.method.startswith("none"))
    )


def _before_head(run: Run) -> Run:
    """Return a run with the number of its epochs before the head is trained alone."""
    epochs, alone = run.settings.get("epochs"), run.settings.get("retrain")
    if not (isinstance(epochs, int) and isinstance(alone, int) and alone):
        return run
    return replace(run, settings={**run.settings, "epochs": epochs - alone})


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
        """Methods by name that are significantly "better" or "worse" than the baseline: by Holm, over all methods."""
        gains = {row.name: row.gain for row in self.rows if row.gain}
        if not gains:
            return {}
        adjusted = zip(gains.items(), holm([gain.p for gain in gains.values()]), strict=True)
        return {name: "better" if gain.mean > 0 else "worse" for (name, gain), p in adjusted if p < LEVEL}

    @property
    def better(self) -> list[MethodRow]:
        """The methods that are significantly better than the baseline, the largest gain first."""
        return [row for row in self.tried if self.verdicts.get(row.name) == "better"]

    @property
    def chosen(self) -> str:
        """A sentence on how the best method was chosen; empty where there is no choice."""
        many = f" The best of {len(self.tried)} methods was chosen on test data; on new data expect less."
        return many if len(self.tried) > 1 else ""

    def gain_text(self, row: MethodRow) -> str:
        """Return, say, "cb gained +6.0 points of accuracy (+3.5 to +8.5, 3 seeds) over none"."""
        if row.gain is None:
            return row.name
        gain, points = row.gain, 100 * row.gain.mean
        seeds = f"{gain.seeds} seeds" if gain.seeds > 1 else "one seed, so it may be chance"
        interval = "" if gain.interval is None else " to ".join(f"{100 * end:+.1f}" for end in gain.interval) + ", "
        change, over = (f"gained {points:+.1f}", "over") if points > 0 else (f"lost {abs(points):.1f}", "against")
        change = "changed 0.0" if abs(points) < 0.05 else change
        return f"{row.name} {change} points of {self.measure} ({interval}{seeds}) {over} {row.baseline}"

    def answer(self) -> str:
        """Return in few sentences which methods are better than none here; empty of one method."""
        if not self.tried:
            missing = "No gains: there is no baseline run of these seeds. Train one; in your own loop, call it “plain”."
            return missing if len(self.rows) > 1 else ""
        better = [self.gain_text(row) for row in self.better]
        if better:
            also = f" Also: {'; '.join(better[1:3])}." if better[1:] else ""
            return f"Best here: {better[0]}.{also}{self.chosen}"
        most, many = self.tried[0], f" (corrected for {len(self.tried)} methods). The best"
        none = f"No gain is significant{many if self.chosen else ''}: {self.gain_text(most)}."
        near = most.gain is not None and most.gain.interval is not None and most.gain.interval[0] > 0
        return f"{none}{' More seeds may make it significant.' if near else ''}{self.chosen}"

    def worst(self) -> str:
        """Return which class is worst on test: with the first method, and with the one of the largest gain."""
        said = [
            f"“{worst.name}” ({worst.accuracy:.0%} right)" + (f" with {row.name}" if len(self.rows) > 1 else "")
            for row in (*self.rows[:1], *self.tried[:1])
            for worst in worst_classes(row.runs, 1).dropna(subset="accuracy").itertuples()
        ]
        return f" Worst class on test: {', '.join(said)}." if said else ""

    def about(self, marked: str) -> str:
        """Return how the numbers were read; `marked` says how significant gains are."""
        text = "On test, at the end of training, mean over seeds."
        if self.tried:
            text += (
                f" Gains are points of {self.measure} over {self.tried[0].baseline}, paired by seed, with Student's "
                f"interval; those {marked} are significant at {LEVEL:.0%}, corrected for their number (Holm)."
            )
        if self.balanced:
            text += " The test set is balanced: accuracy is balanced accuracy."
        if any("worst_class" in row.measures and row.seeds > 1 for row in self.rows):
            text += (
                " Worst class is the mean, over runs, of each run's lowest class accuracy; "
                "the classes named above have the lowest mean accuracy."
            )
        if any("tail_accuracy" in row.measures for row in self.rows):
            text += " Head, middle and tail are thirds of the classes by training samples."
        return text


def methods_of(frame: RunFrame) -> Methods:
    """Return the methods of finished runs, where there are any, with the same classes as the first run."""
    frame = frame[frame["finished"].astype(bool)] if len(frame) and frame["finished"].any() else frame
    runs = list(frame.runs.values())
    alike = [run.classes == runs[0].classes for run in runs]
    by_run = ends(frame[alike]).dropna(axis=1, how="all") if runs else pd.DataFrame()
    if "accuracy" not in by_run:
        return Methods()
    measure, apart = "accuracy", math.nan  # NaN where it is unknown in a run
    if "balanced_accuracy" in by_run:
        apart = (by_run["balanced_accuracy"] - by_run["accuracy"]).abs().max()
    balanced = bool(apart <= _SAME)
    if balanced:
        by_run = by_run.drop(columns=["balanced_accuracy", "macro_f1"], errors="ignore")
    elif "balanced_accuracy" in by_run and by_run["balanced_accuracy"].notna().all():
        measure = "balanced_accuracy"
        if apart <= _ABOUT:
            by_run = by_run.drop(columns=["accuracy", "macro_f1"], errors="ignore")
    chosen = [run for run, own in zip(runs, alike, strict=True) if own]
    rows = compare(chosen, by_run.pop(measure).tolist(), by_run)
    if len(rows) > _MANY and (gains := [row for row in rows if row.gain]):
        gains.sort(key=lambda row: -row.gain.mean if row.gain else 0.0)
        first = [row for row in rows if (row.conditions, row.method) == (gains[0].conditions, gains[0].baseline)]
        rows = [*first, *gains, *(row for row in rows if not row.gain and row not in first)]
    return Methods(rows, measure.replace("_", " "), balanced)


def worst_classes(runs: Sequence[Run], most: int = 3) -> pd.DataFrame:
    """Return the classes with the lowest test accuracy at the end, mean over runs; the oldest, where none was read."""
    runs = [run for run in runs if run.failed_at_epoch is None]
    if not runs:
        return pd.DataFrame(columns=["name", "count", "accuracy", "age"])
    unread, name = np.full(len(runs[0].classes), np.nan), "test_accuracy"
    over_time = [run.over_time.get(name, run.by_class.get(name, unread)[None]) for run in runs]
    right = [at_the_end(values, stream=is_stream(runs[0])) for values in over_time]
    accuracy, age = nan_mean(right), nan_mean([run.by_class.get("age", unread) for run in runs])
    table = pd.DataFrame({"name": runs[0].classes, "count": runs[0].counts or np.nan, "accuracy": accuracy, "age": age})
    wrong = (table["accuracy"] < 1.0) | (table["accuracy"].isna() & (table["age"] > 1.0))
    return table[wrong].sort_values(["accuracy", "age"], ascending=[True, False], kind="stable").head(most)


def by_method(frame: RunFrame) -> dict[str, RunFrame]:
    """Return the runs by method, in the order of the frame: runs of one method differ in nothing but their seeds."""
    groups: dict[tuple[object, ...], list[str]] = {}
    runs = frame.runs
    for name, run in runs.items():
        rest = tuple((key, repr(value)) for key, value in sorted(run.settings.items()) if key != "seed")
        groups.setdefault((run.method, tuple(run.classes), rest), []).append(name)
    first = [runs[ids[0]] for ids in groups.values()]
    names = unlike(told_apart([run.method for run in first], first, but=("seed",)))
    return {name: frame.loc[ids] for name, ids in zip(names, groups.values(), strict=True)}


def ends(frame: RunFrame) -> pd.DataFrame:
    """Return a row a run: accuracy and `MEASURES` on test, at the end; the worst tenth if that is several classes."""
    streams = np.array([is_stream(run) for run in frame.runs.values()], dtype=bool)
    names = {"accuracy": "test"} | {measure: f"test_{measure}" for measure in MEASURES}
    half, tail = ([f"{name}_{part}" for name in names.values()] for part in ("second_half_mean", "tail_mean"))
    means = np.where(streams[:, None], frame[half].to_numpy(np.float64), frame[tail].to_numpy(np.float64))
    by_run = pd.DataFrame(means, index=frame.index, columns=list(names))
    several = (by_run["worst_tenth"] - by_run["worst_class"]).abs().gt(1e-9).any()
    return by_run if several else by_run.drop(columns="worst_tenth")
