"""Methods side by side: mean and spread over seeds, and the gain over training without weights, paired by seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pandas as pd

from aol.engine.settings import PER_RUN
from aol.runs.record import Run
from aol.runs.table import differing_settings
from aol.runs.validate import settings_of
from aol.stats import paired_gain

BASELINES = ("none", "plain", "baseline")  # what the baseline may be called in a loop of one's own


def compare(runs: Sequence[Run], figures: Sequence[float]) -> pd.DataFrame:
    """Return a row a method: `seeds`, `mean` and `spread` of a figure, its `baseline`, and its `gain`, if any.

    `conditions` are the settings besides the method in which the runs differ. The baseline is the run without
    weighting and margin, with the same conditions, loss and seed; among runs of a loop of one's own, the one that is
    called none, plain or baseline.
    """
    settings = [settings_of(run) if "weighting" in run.settings else None for run in runs]  # None: a user's own run
    names = differing_settings([run for run, own in zip(runs, settings, strict=True) if own], but=PER_RUN)
    plain = next((run.method for run in runs if run.method.lower() in BASELINES), None)
    table = pd.DataFrame(
        {
            "conditions": [
                " ".join(f"{name}={getattr(own, name)}" for name in names) if own else "" for own in settings
            ],
            "method": [run.method for run in runs],
            "seed": pd.Series([run.seed for run in runs], dtype="Int64"),
            "baseline": [
                replace(own, weighting="none", margin="none", mechanism="reweight").method if own else plain
                for own in settings
            ],
            "figure": figures,
        }
    ).dropna(subset="figure")
    method = ["conditions", "method"]
    table["seed"] = table["seed"].fillna(table.groupby(method).cumcount())
    table = table.drop_duplicates([*method, "seed"], keep="last")
    found = table.set_index([*method, "seed"])["figure"]
    baseline = found.reindex(pd.MultiIndex.from_frame(table[["conditions", "baseline", "seed"]])).to_numpy()
    table["gain"] = (table["figure"] - baseline).where(table["method"] != table["baseline"])
    by_method = table.groupby(method, sort=False)
    rows = by_method.agg(
        seeds=("figure", "size"), mean=("figure", "mean"), spread=("figure", "std"), baseline=("baseline", "first")
    )
    gains = [part.dropna().tolist() for _, part in by_method["gain"]]
    rows["gain"] = pd.Series([paired_gain(part) if part else None for part in gains], rows.index, dtype=object)
    rows = rows.reset_index()
    first = (rows["method"] == rows["baseline"]) | rows["method"].str.startswith("none")
    order = rows["conditions"] + first.map({True: "", False: "~"})
    return rows.loc[order.sort_values(kind="stable").index]  # by conditions, the baseline first
