"""Small studies that are really run, what they leave behind, and processes that run them."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path

from aol.study import Store

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


def written(folder: Path, text: str = SHORT) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "short.toml"
    path.write_text(text)
    return str(path)


def told(out: Path) -> dict[str, dict[str, object]]:
    """Return all records of a folder by run id, without what is different each time."""
    return {record.run_id: {**asdict(record), "seconds": 0.0} for record in Store(out)}


def unlike(one: Path, other: Path) -> list[str]:
    """Name what is not the same in the records of two folders, by run and field: a bare difference is cut in a log."""
    first, second = told(one), told(other)
    found = [f"{name} is in one of them" for name in first.keys() ^ second.keys()]
    for name in first.keys() & second.keys():
        pairs = ((field, first[name][field], second[name][field]) for field in first[name])
        found += [f"{name} {field}: {str(a)[:300]} | {str(b)[:300]}" for field, a, b in pairs if a != b]
    return found


def work_left(out: Path) -> list[str]:
    """Return what is left of stacks that are or were under way."""
    return [str(path.relative_to(out)) for folder in ("bound", "stacks") for path in (out / "work" / folder).glob("*")]


def forked_json(words: list[str], answer: Path) -> int:
    """Start the command line in a copy of this process, its JSON written to a file; return its id."""
    import sys

    from aol.cli import main

    child = os.fork()
    if child:
        return child
    status = 70
    try:
        with answer.open("w") as heard, open(os.devnull, "w") as nowhere:
            sys.stdout, sys.stderr = heard, nowhere
            status = main([*words, "--json"])
    finally:
        os._exit(status)


def answered(answer: Path) -> dict[str, object]:
    return json.loads(answer.read_text())
