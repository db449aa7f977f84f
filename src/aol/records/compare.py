"""Methods side by side: mean and spread over seeds, and the gain over training without weights, paired by seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from aol.records import METHOD_SETTINGS
from aol.records.record import Run
from aol.records.table import differing_settings
from aol.stats import Gain, paired_gain

BASELINES = ("none", "plain", "baseline")  # what the baseline may be called in a loop of one's own


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

    @property
    def name(self) -> str:
        """Method and conditions."""
        return f"{self.method} {self.conditions}".rstrip()


def compare(runs: Sequence[Run], figures: Sequence[float], measures: pd.DataFrame | None = None) -> list[MethodRow]:
    """Return a row a method, the baseline first: what its runs have of a figure, and of other measures, a column each.

    The baseline is the run without weighting and margin, with the same conditions, loss and seed; among runs of a loop
    of one's own, the one that is called none, plain or baseline. A run without the figure is left out.
    """
    trained = ["weighting" in run.settings for run in runs]  # by `aol train`, not by a loop of one's own
    names = differing_settings([run for run, own in zip(runs, trained, strict=True) if own], but=METHOD_SETTINGS)
    plain = next((run.method for run in runs if run.method.lower() in BASELINES), None)
    table = pd.DataFrame(
        {
            "conditions": [
                " ".join(f"{name}={run.settings.get(name)}" for name in names) if own else ""
                for run, own in zip(runs, trained, strict=True)
            ],
            "method": [run.method for run in runs],
            "seed": pd.Series([run.seed for run in runs], dtype="Int64"),
            "baseline": [run.baseline or (None if own else plain) for run, own in zip(runs, trained, strict=True)],
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
    spreads, means = by_method["figure"].std(), by_method[["figure", *others]].mean()
    rows = []
    for (_, part), spread, (mean, *more) in zip(by_method, spreads.tolist(), means.to_numpy().tolist(), strict=True):
        conditions, name, baseline = (part[column].iloc[0] for column in ("conditions", "method", "baseline"))
        gains = part["gain"].dropna().tolist()
        gain = paired_gain(gains) if gains else None
        measured = dict(zip(map(str, others), more, strict=True))
        rows.append(MethodRow(conditions, name, baseline, len(part), mean, spread, gain, measured))
    return sorted(
        rows, key=lambda row: (row.conditions, row.method != row.baseline and not row.method.startswith("none"))
    )
