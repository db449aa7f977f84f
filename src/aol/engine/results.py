"""What is left of a run when it is over: figures, files, and a table over seeds.

Accuracies are fractions; the table prints percent. The best epoch is chosen on test and therefore marked optimistic.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from aol.engine.loop import Loop
from aol.engine.settings import Settings, Value
from aol.records.about import as_json
from aol.records.about import versions as versions
from aol.records.files import write_atomically
from aol.stats import paired_gain

Json: TypeAlias = "str | float | int | bool | list[Json] | dict[str, Json] | None"


def accuracies(values: Tensor, *, stream: bool) -> dict[str, float | None]:
    """Return the figures of one run from its test accuracies over time `[E]`, NaN where not read.

    `last`, `best` (optimistic: chosen on test), `tail_mean` over the last 5 % of epochs and, on a stream, the mean over
    its second half.

    >>> accuracies(torch.tensor([0.5, 0.75, 0.25, 0.5]), stream=True)
    {'last': 0.5, 'best': 0.75, 'tail_mean': 0.5, 'second_half_mean': 0.375}
    """
    values = values.to(torch.float64)
    tail = max(1, round(0.05 * values.numel()))
    read = values[~values.isnan()]
    found: dict[str, float | None] = {
        "last": _number(values[-1]),
        "best": _number(read.max()) if read.numel() else None,
        "tail_mean": _number(values[-tail:].nanmean()),
    }
    if stream:
        found["second_half_mean"] = _number(values[values.numel() // 2 :].nanmean())
    return found


def result(loop: Loop, run: int, folder: Path, hardware: dict[str, str]) -> dict[str, Json]:
    """Return the result of one run of a loop that is over."""
    history, settings = loop.history, loop.runs[run]
    config: dict[str, Value] = settings.as_dict()
    stream = settings.scenario == "stream"
    seconds = float(history.epoch("seconds")[:, run].sum())  # the clock of the stack, which every run's records show
    figures = accuracies(history.epoch("test_accuracy")[:, run], stream=stream)
    found: dict[str, Json] = {
        "id": settings.run_id,
        "method": settings.method,
        "config": dict(config),
        "accuracy": dict(figures),
        "per_class_accuracy": _numbers(history.by_class("test_accuracy")[-1, run]),
        "class_age": _numbers(history.by_class("smoothed_age")[-1, run]),
        "class_weight": _numbers(history.by_class("weight")[-1, run]),
        "seconds": seconds / len(loop.runs),
        "stack_seconds": seconds,
        "trained_together": len(loop.runs),
        "failed_at_epoch": loop.failed[run] or None,
        "out": str(folder),
        "versions": dict(hardware),
    }
    for name in ("validation_accuracy", "averaged_accuracy"):
        values = history.epoch(name)[:, run]
        if not bool(values.isnan().all()):
            found[name] = dict(accuracies(values, stream=stream))
    return found


def write_result(folder: Path, value: dict[str, Json]) -> None:
    """Write a result; a run whose result is there is over."""
    write_atomically(folder / "result.json", as_json(value))


def read_result(folder: Path) -> dict[str, Json] | None:
    """Return the result of a run that is over, or None."""
    try:
        found = json.loads((folder / "result.json").read_text())
    except (FileNotFoundError, json.JSONDecodeError, UnicodeDecodeError):
        return None
    return found if isinstance(found, dict) else None


@dataclass(frozen=True)
class Row:
    """One method over its seeds: mean and spread of a figure, and the paired difference to the baseline.

    `circumstances` are the settings besides the method in which the runs at hand differ.
    """

    circumstances: str
    method: str
    seeds: int
    mean: float
    spread: float
    difference: float | None
    interval: tuple[float, float] | None


def compare(results: Sequence[dict[str, Json]], figure: str) -> list[Row]:
    """Return a row a method; differences are paired by seed, with Student's interval of 95 % from two seeds on.

    The baseline is the run that does nothing about the imbalance: same circumstances, loss and mechanism none.
    """
    runs = [settings_of(each) for each in results]
    table: dict[tuple[str, str], dict[int, float]] = {}
    baseline: dict[tuple[str, str], tuple[str, str]] = {}
    for each, run in zip(results, runs, strict=True):
        accuracy = each["accuracy"]
        value = accuracy.get(figure) if isinstance(accuracy, dict) else None
        if isinstance(value, float) and not each.get("failed_at_epoch"):
            key = (_circumstances(run, runs), run.method)
            table.setdefault(key, {})[run.seed] = value
            plain = replace(run, weighting="none", mechanism="reweight").method
            baseline[key] = (key[0], plain)
    rows = []
    for key, by_seed in table.items():
        values = np.array(list(by_seed.values()))
        base = table.get(baseline[key], {}) if key != baseline[key] else {}
        pairs = [value - base[seed] for seed, value in by_seed.items() if seed in base]
        spread = float(values.std(ddof=1)) if values.size > 1 else math.nan
        gain = paired_gain(pairs) if pairs else None
        against = (gain.mean, gain.interval) if gain else (None, None)
        rows.append(Row(*key, values.size, float(values.mean()), spread, *against))
    return rows


def _circumstances(run: Settings, runs: Sequence[Settings]) -> str:
    """Return the settings, besides the method, that tell these runs apart, as few as will do."""
    keys = {other.group_key: dict(other.group_key) for other in runs}
    telling = [name for name, _ in run.group_key if len({key[name] for key in keys.values()}) > 1]
    for name in reversed(telling):
        rest = [other for other in telling if other != name]
        if len({tuple(key[other] for other in rest) for key in keys.values()}) == len(keys):
            telling = rest
    return " ".join(f"{name}={keys[run.group_key][name]}" for name in telling)


def _number(value: Tensor) -> float | None:
    found = float(value)
    return found if math.isfinite(found) else None


def _numbers(values: Tensor) -> list[Json]:
    """Return float32 values with the digits they have."""
    return [None if (found := _number(value)) is None else float(f"{found:.7g}") for value in values]


def settings_of(value: dict[str, Json]) -> Settings:
    """Return the settings a result came from."""
    config = value["config"]
    assert isinstance(config, dict)
    return Settings(**config)  # type: ignore[arg-type]
