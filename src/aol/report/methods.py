"""The methods of a report side by side: what each reached, and what it gained over training without weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from aol.plots.summary import ends
from aol.runs.compare import compare
from aol.runs.record import Run
from aol.runs.table import frame_of
from aol.stats import Gain


@dataclass(frozen=True)
class MethodRow:
    """One method under one set of conditions.

    Args:
        conditions: the settings besides the method in which the runs differ.
        method: its name.
        baseline: the name of what it is compared with, where there is one.
        seeds: how many runs.
        accuracy: on test at the end, mean over seeds.
        spread: its standard deviation; NaN for one seed.
        gain: over the baseline, paired by seed; None where there is no pair.
        measures: other measures at the end by name, means over seeds.
    """

    conditions: str
    method: str
    baseline: str | None
    seeds: int
    accuracy: float
    spread: float
    gain: Gain | None
    measures: dict[str, float]

    @property
    def name(self) -> str:
        """Method and conditions."""
        return f"{self.method} {self.conditions}".rstrip()


def method_rows(runs: Sequence[Run]) -> list[MethodRow]:
    """Return a row a method, the baseline first; of finished runs, where there are any.

    Only runs with the same classes are compared: those of the first run.
    """
    chosen = [run for run in runs if run.finished] or list(runs)
    chosen = [run for run in chosen if run.classes == chosen[0].classes]
    if not chosen:
        return []
    by_run = ends(frame_of((None, run) for run in chosen)).dropna(axis=1, how="all")
    if "accuracy" not in by_run:
        return []
    names = [name for name in by_run if name != "accuracy"]
    key = ["conditions", "method"]
    rows = compare(chosen, by_run["accuracy"].tolist())
    means = {name: compare(chosen, by_run[name].tolist()).set_index(key)["mean"] for name in names}
    index = pd.MultiIndex.from_frame(rows[key])
    table = pd.DataFrame({name: values.reindex(index).to_numpy() for name, values in means.items()})
    return [
        MethodRow(
            row["conditions"], row["method"], row["baseline"], int(row["seeds"]), float(row["mean"]),
            float(row["spread"]), row["gain"], {str(name): float(value) for name, value in more.items()},
        )
        for row, more in zip(rows.to_dict("records"), table.to_dict("records") or [{}] * len(rows), strict=True)
    ]  # fmt: skip


def gain_text(row: MethodRow) -> str:
    """Return what a method gained, in points of accuracy with its interval.

    >>> from aol.stats import paired_gain
    >>> gain_text(MethodRow("", "cb", "none", 3, 0.8, 0.01, paired_gain([0.05, 0.06, 0.07]), {}))
    'cb gained +6.0 points (+3.5 to +8.5, 3 seeds) over none'
    """
    gain = row.gain
    if gain is None:
        return row.name
    seeds = f"{gain.seeds} seeds" if gain.seeds > 1 else "one seed, so it may be chance"
    interval = "" if gain.interval is None else " to ".join(f"{100 * end:+.1f}" for end in gain.interval) + ", "
    return f"{row.name} gained {100 * gain.mean:+.1f} points ({interval}{seeds}) over {row.baseline}"


def is_better(row: MethodRow) -> bool:
    """Return whether the whole interval of the gain lies above zero."""
    return row.gain is not None and row.gain.interval is not None and row.gain.interval[0] > 0


def answer(rows: Sequence[MethodRow]) -> str:
    """Return in one sentence which methods are better than none here; empty where nothing was compared."""
    tried = [row for row in rows if row.gain is not None]
    if not tried:
        return ""
    best = sorted(tried, key=lambda row: -(row.gain.mean if row.gain else np.nan))
    better = [row for row in best if is_better(row)]
    if better:
        others = "; ".join(gain_text(row) for row in better[1:3])
        more = f" Also: {others}." if others else ""
        return f"Best here: {gain_text(better[0])}.{more}"
    what = "The method" if len(tried) == 1 else f"None of the {len(tried)} methods"
    said = "gained nothing for certain" if len(tried) == 1 else "gained anything for certain"
    return f"{what} {said} in test accuracy. The most: {gain_text(best[0])}."
