"""The paper's figures by the settings of a run, from the tables in `aol/lab/study/paper` (accuracies in percent).

A run that the paper does not have (another data set, a method that it did not try) has no figure.
"""

from __future__ import annotations

import csv
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from aol.lab.settings import Settings

# By the name of the paper's table, in its order: what it is about, and the settings of a run that make its cells.
TABLES: dict[str, tuple[str, tuple[str, ...]]] = {
    "offline": ("long-tailed CIFAR, offline", ("data", "mechanism", "loss", "imbalance")),
    "arrival": ("balanced CIFAR, a part arrives each epoch", ("data", "loss", "fraction")),
    "online_cifar10": ("streams of CIFAR-10", ("stream", "memory", "imbalance")),
    "online_period10_seeds": ("stream whose head moves, Period-10", ("data", "imbalance")),
    "online_large_scale": ("ImageNet-1k and Places365 as streams", ("data", "imbalance")),
    "correlations_cifar100_resnet34": ("class age against test accuracy", ("data", "imbalance")),
}
_OF_A_CELL = ("mechanism", "dataset", "loss", "arrival_percent", "stream", "buffer", "imbalance_factor")
Row = Mapping[str, str]


@dataclass(frozen=True)
class Published:
    """A figure of the paper, a fraction, the mean where it has several seeds; and the setting that was chosen.

    `gain` is over the baseline, the mean of gains paired by seed where it has seeds.
    """

    accuracy: float
    setting: str
    gain: float | None = None


@cache
def rows(table: str) -> tuple[Row, ...]:
    """Return the rows of one of the `TABLES`."""
    with (Path(__file__).with_name("paper") / f"{table}.csv").open(encoding="utf-8") as file:
        return tuple(csv.DictReader(file))


def cells_of(table: str) -> int:
    """Return the number of cells of a table."""
    return len({tuple(row.get(name) for name in _OF_A_CELL) for row in rows(table) if row.get("method") != "cb"})


def published(table: str | None, run: Settings, baseline: Settings | None = None) -> Published | None:
    """Return the paper's figure for the method and the cell of a run, or None.

    >>> figure = published("offline", Settings(data="cifar10", imbalance=400, weighting="aol", rho=0.1))
    >>> figure.accuracy, figure.setting
    (0.6394, 'ρ=0.6 sample')
    """
    own = _rows_of(table, run)
    if not own:
        return None
    mean = statistics.fmean(float(row["accuracy"]) / 100.0 for row in own)
    value = own[0].get("selected_rho") or own[0].get("selected_beta_or_rho")
    letter = "β" if own[0]["method"].startswith("cb") else "ρ"
    setting = " ".join(filter(None, (value and f"{letter}={value}", own[0].get("selected_level"))))
    base = {row.get("seed"): float(row["accuracy"]) for row in (_rows_of(table, baseline) if baseline else ())}
    pairs = [(float(row["accuracy"]), base[row.get("seed")]) for row in own if row.get("seed") in base]
    gains = [round((ours - theirs) / 100.0, 10) for ours, theirs in pairs]
    # Binary sums give 0.7785000000000001; the paper has two digits.
    return Published(round(mean, 10), setting, statistics.fmean(gains) if gains else None)


def published_correlations(table: str | None, run: Settings) -> dict[str, float]:
    """Return the paper's Pearson correlations with class age for the data of a run, by signal ("loss_train", ...).

    >>> published_correlations("correlations_cifar100_resnet34", Settings(data="cifar100", imbalance=200))["loss_train"]
    0.6697
    """
    if table != "correlations_cifar100_resnet34" or run.data != "cifar100":
        return {}
    own = [row for row in rows(table) if row["imbalance_factor"] == _whole(run.imbalance or 1.0)]
    return {row["class_signal"]: float(row["pearson_with_class_aol"]) for row in own}


def _rows_of(table: str | None, run: Settings) -> list[Row]:
    """Return the rows of a table for the method and the cell of a run."""
    wanted = None if table is None else _place(table, run)
    return [] if table is None or wanted is None else [row for row in rows(table) if wanted.items() <= row.items()]


def _place(table: str, run: Settings) -> dict[str, str] | None:
    """Return the columns of the paper's row for this run; None where the table has no such row."""
    method, tail, percent = _method(table, run), _whole(run.imbalance or 1.0), _whole(100.0 * run.fraction)
    scenario = table if table in ("offline", "arrival") else "stream"
    shifting = run.stream == "shifting"
    if method is None or run.scenario != scenario:
        return None
    if scenario == "stream" and (run.loss != "softmax" or run.mechanism != "reweight"):
        return None
    if table == "offline":
        mechanism = "reweight" if method == "none" else run.mechanism
        place = {"mechanism": mechanism, "dataset": run.data, "loss": run.loss, "imbalance_factor": tail}
    elif table == "arrival":
        place = {"dataset": run.data, "loss": run.loss, "arrival_percent": percent}
    elif table == "online_cifar10" and run.data == "cifar10":
        stream = f"period{run.period}" if shifting else f"access{percent}pct"
        place = {"stream": stream, "buffer": run.memory.replace(":", ""), "imbalance_factor": tail}
    elif table in ("online_period10_seeds", "online_large_scale") and shifting and run.period == 10:
        place = {"dataset": run.data, "imbalance_factor": tail}
    else:
        return None
    return place | {"method": method}


def _method(table: str, run: Settings) -> str | None:
    if run.margin != "none":
        return None
    if run.weighting == "none":
        # Sampling with replacement and equal weights is a separate row in the paper.
        return "aol_rho0" if table == "offline" and run.mechanism == "resample" else "none"
    plain = run.temper == 1.0 and run.fuse == "ema" and run.threshold is None and run.start == 0.0
    return run.weighting if run.weighting in ("cb", "aol") and plain else None


def _whole(value: float) -> str:
    return f"{round(value, 6):g}"
