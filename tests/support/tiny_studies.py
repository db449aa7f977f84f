"""Small studies that are really trained, what they leave behind, and processes that train them."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import numpy as np

from aol.records.record import Run
from aol.records.store import Store

SHORT = """
name = "short"
title = "a few short runs"
seeds = [3, 5]
tries_seeds = 1
[common]
epochs = 6
batch_size = 128
validation = 0.1
[cells]
imbalance = [20, 5]
[[methods]]
name = "none"
[[methods]]
name = "aol"
weighting = "aol"
grid = { rho = [0.2, 0.9] }
"""
RUNS = 14
_CLOCK = ("seconds", "images_per_second", "evaluation_seconds")  # differ each time


def written(folder: Path, text: str = SHORT) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "short.toml"
    path.write_text(text)
    return str(path)


def content(run: Run) -> dict[str, object]:
    """Return a record as plain values, without what differs each time."""
    found = asdict(run) | {"seconds": 0.0, "versions": {**run.versions, "date": ""}}
    found["curves"] = {name: values for name, values in run.curves.items() if name not in _CLOCK}
    return {name: _plain(value) for name, value in found.items()}


def _plain(value: object) -> object:
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    return repr(value.tolist()) if isinstance(value, np.ndarray) else value


def told(out: Path) -> dict[str, dict[str, object]]:
    """Return all records of a folder by run id."""
    return {run.id: content(run) for run in Store(out)}


def unlike(one: Path, other: Path) -> list[str]:
    """Name what is not the same in the records of two folders, by run and field: a bare difference is cut in a log."""
    first, second = told(one), told(other)
    found = [f"{name} is in one of them" for name in first.keys() ^ second.keys()]
    for name in first.keys() & second.keys():
        pairs = ((field, first[name][field], second[name][field]) for field in first[name])
        found += [f"{name} {field}: {str(a)[:300]} | {str(b)[:300]}" for field, a, b in pairs if a != b]
    return found


def work_left(out: Path) -> list[str]:
    """Return what is left of groups that are or were in progress."""
    return [str(path.relative_to(out)) for path in (out / "work").glob("*")]
