"""The paper's figures by the settings of a run, from the tables in `aol/study/paper` (accuracies in percent).

A run that the paper does not have (another data set, a method that it did not try) has no figure.
"""

from __future__ import annotations

import csv
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources

from aol.lab.settings import Settings

# By the name of the paper's table, in its order: what it is about.
TABLES = {
    "offline": "long-tailed CIFAR, offline",
    "arrival": "balanced CIFAR, a part arrives each epoch",
    "online_cifar10": "streams of CIFAR-10",
    "online_period10_seeds": "stream whose head moves, Period-10",
    "online_large_scale": "ImageNet-1k and Places365 as streams",
    "correlations_cifar100_resnet34": "class age against test accuracy",
}
Row = Mapping[str, str]


@dataclass(frozen=True)
class Published:
    """A figure of the paper, a fraction, the mean where it has several seeds; and the setting that was chosen."""

    accuracy: float
    setting: str


@cache
def rows(table: str) -> tuple[Row, ...]:
    """Return the rows of one of the `TABLES`."""
    text = (resources.files("aol.lab.study") / "paper" / f"{table}.csv").read_text(encoding="utf-8")
    return tuple(csv.DictReader(text.splitlines()))


def published(table: str | None, run: Settings) -> Published | None:
    """Return the paper's figure for the method and the cell of a run, or None.

    >>> found = published("offline", Settings(data="cifar10", imbalance=400, weighting="aol", rho=0.1))
    >>> found.accuracy, found.setting
    (0.6394, 'ρ=0.6 sample')
    """
    found = _rows_of(table, run)
    if not found:
        return None
    mean = statistics.fmean(float(row["accuracy"]) / 100.0 for row in found)
    # Binary sums give 0.7785000000000001; the paper has two digits.
    return Published(round(mean, 10), _setting(found[0]))


def published_gain(table: str | None, run: Settings, baseline: Settings) -> float | None:
    """Return the paper's gain over the baseline, the mean of gains paired by seed where it has seeds, or None."""
    theirs = {row.get("seed"): float(row["accuracy"]) for row in _rows_of(table, baseline)}
    pairs = [(float(row["accuracy"]), theirs.get(row.get("seed"))) for row in _rows_of(table, run)]
    gains = [round((ours - base) / 100.0, 10) for ours, base in pairs if base is not None]
    return statistics.fmean(gains) if gains else None


def _rows_of(table: str | None, run: Settings) -> list[Row]:
    """Return the rows of a table for the method and the cell of a run."""
    wanted = None if table is None else _place(table, run)
    return [] if table is None or wanted is None else [row for row in rows(table) if wanted.items() <= row.items()]


def published_correlations(table: str | None, run: Settings) -> dict[str, float]:
    """Return the paper's Pearson correlations with class age for the data of a run, by signal ("loss_train", ...).

    >>> published_correlations("correlations_cifar100_resnet34", Settings(data="cifar100", imbalance=200))["loss_train"]
    0.6697
    """
    if table != "correlations_cifar100_resnet34" or run.data != "cifar100":
        return {}
    found = [row for row in rows(table) if row["imbalance_factor"] == _imbalance(run)]
    return {row["class_signal"]: float(row["pearson_with_class_aol"]) for row in found}


def _place(table: str, run: Settings) -> dict[str, str] | None:
    """Return the columns of the paper's row for this run; None where the table has no such row."""
    method = _method(table, run)
    tail = _imbalance(run)
    if method is None:
        return None
    if table == "offline" and run.scenario == "offline":
        mechanism = "reweight" if method == "none" else run.mechanism
        return {
            "mechanism": mechanism, "dataset": run.data, "loss": run.loss, "method": method, "imbalance_factor": tail,
        }  # fmt: skip
    if table == "arrival" and run.scenario == "arrival":
        percent = _whole(100.0 * run.fraction)
        return {"dataset": run.data, "loss": run.loss, "arrival_percent": percent, "method": method}
    if run.scenario != "stream" or run.loss != "softmax" or run.mechanism != "reweight":
        return None
    if table == "online_cifar10" and run.data == "cifar10":
        stream = f"period{run.period}" if run.stream == "shifting" else f"access{_whole(100.0 * run.fraction)}pct"
        buffer = run.memory.replace(":", "")
        return {"stream": stream, "buffer": buffer, "imbalance_factor": tail, "method": method}
    if table in ("online_period10_seeds", "online_large_scale") and run.stream == "shifting" and run.period == 10:
        return {"dataset": run.data, "imbalance_factor": tail, "method": method}
    return None


def _method(table: str, run: Settings) -> str | None:
    if run.margin != "none":
        return None
    if run.weighting == "none":
        # Sampling with replacement and equal weights is a separate row in the paper.
        return "aol_rho0" if table == "offline" and run.mechanism == "resample" else "none"
    plain = run.temper == 1.0 and run.fuse == "ema" and run.threshold is None and run.start == 0.0
    return run.weighting if run.weighting in ("cb", "aol") and plain else None


def _imbalance(run: Settings) -> str:
    return _whole(1.0 if run.imbalance is None else run.imbalance)


def _whole(value: float) -> str:
    return f"{round(value, 6):g}"


def _setting(row: Row) -> str:
    value = row.get("selected_rho") or row.get("selected_beta_or_rho") or ""
    letter = "β" if row["method"].startswith("cb") else "ρ"
    return " ".join(word for word in (f"{letter}={value}" if value else "", row.get("selected_level") or "") if word)
