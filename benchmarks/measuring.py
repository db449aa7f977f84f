"""Shared by the benchmarks: the machine, options, records, tables, and comparisons with one figure per seed."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch

import aol

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
from comparison import interval

RESULTS = Path(__file__).parent / "results"
Record: TypeAlias = dict[str, Any]  # as JSON has it


def machine() -> dict[str, object]:
    """Return the hardware and versions that figures belong to, and how busy the machine was."""
    model = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [line.split(":", 1)[1].strip() for line in info.read_text().splitlines() if "model name" in line]
        model = names[0] if names else model
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "load_before": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        "system": platform.system(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "aol": aol.__version__,
    }


def table(rows: Sequence[dict[str, str]]) -> str:
    """Return rows as a Markdown table, which also reads well in a terminal."""
    heads = list(rows[0])
    width = {head: max(len(head), *(len(row[head]) for row in rows)) for head in heads}
    lines = [" | ".join(head.ljust(width[head]) for head in heads), " | ".join("-" * width[head] for head in heads)]
    lines += [" | ".join(row[head].ljust(width[head]) for head in heads) for row in rows]
    return "\n".join(f"| {line} |" for line in lines)


def options(description: str, result: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--out", type=Path, default=RESULTS / result, help="file of the record")
    return parser


def write(record: Record, out: Path) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(record, indent=2, ensure_ascii=False) + "\n")


def setting(*packages: str) -> dict[str, object]:
    """Return the hardware and versions that figures belong to."""
    return machine() | {"packages": {name: version(name) for name in packages}}


def seed_options(description: str, result: str, seeds: int) -> argparse.ArgumentParser:
    """Return the options that all comparisons have."""
    parser = options(description, result)
    parser.add_argument("--seeds", type=int, default=seeds, help="runs of each method")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--processes", type=int, default=1, help="seeds at a time")
    return parser


def report(
    one_seed: Callable[..., list[Record]],
    cases: Iterable[tuple[object, ...]],
    given: argparse.Namespace,
    *,
    keys: Sequence[str],
    settings: Sequence[str],
    packages: Sequence[str],
    text: Callable[[Record], str],
) -> int:
    """Run every case with every seed, print the tables and write the record, with the named options in it."""
    before = setting(*packages)
    jobs = [(*case, seed) for case in cases for seed in range(given.first, given.first + given.seeds)]
    runs = compare(one_seed, jobs, keys, given.processes)
    chosen = {name: getattr(given, name) for name in settings}
    record: Record = {"machine": before, "seeds": given.seeds, **chosen, "cases": runs}
    write_cases(record, given.out)
    print(text(record))
    return 0


def packed(name: str) -> Record | None:
    """Return the arrays of NAME.npz in the folder `$BENCHMARK_DATA`, for machines without the packages of the data."""
    file = Path(os.environ.get("BENCHMARK_DATA", "nowhere"), f"{name}.npz")
    return dict(np.load(file)) if file.is_file() else None


def compare(
    one_seed: Callable[..., list[Record]], jobs: Sequence[tuple[object, ...]], keys: Sequence[str], processes: int
) -> list[Record]:
    """Run all jobs, several at a time, and return their runs as cases: one per value of `keys`, a figure per seed.

    A job is one seed and returns a run for each method.
    """
    with ProcessPoolExecutor(processes) as pool:
        runs = [run for job in pool.map(one_seed, *zip(*jobs, strict=True)) for run in job]
    cases: dict[tuple[object, ...], Record] = {}
    for run in runs:
        case = cases.setdefault(tuple(run[key] for key in keys), {key: run[key] for key in keys})
        for name in [name for name in run if name not in keys]:
            case.setdefault(name, []).append(run[name])
    return list(cases.values())


def write_cases(record: Record, out: Path) -> None:
    """Write a record with one line per case, for readable diffs."""
    head = json.dumps({key: value for key, value in record.items() if key != "cases"}, indent=2, ensure_ascii=False)
    lines = ",\n    ".join(json.dumps(case, ensure_ascii=False) for case in record["cases"])
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(f'{head.rstrip("}").rstrip()},\n  "cases": [\n    {lines}\n  ]\n}}\n')


def belongs_to(record: Record) -> str:
    """Return the line above the tables: n, hardware and versions."""
    found = record["machine"]
    packages = ", ".join(f"{name} {number}" for name, number in found["packages"].items())
    seeds = f"{record['seeds']} seeds; " if "seeds" in record else ""
    return (
        f"{seeds}{found['cpu']}, {found['cores']} cores; Python {found['python']}, {packages}, "
        f"NumPy {found['numpy']}, torch {found['torch']}, aol {found['aol']}."
    )


def cell(now: Sequence[float], before: Sequence[float] | None) -> str:
    """Return a mean in percent, and its difference to another, with a star if the interval excludes zero.

    >>> cell([0.61, 0.62], [0.5, 0.52])
    '61.5 (+10.5*)'
    """
    mean = f"{100 * np.mean(now):.1f}"
    if before is None:
        return mean
    apart = 100 * (np.asarray(now) - np.asarray(before))
    low, high = interval(apart)
    return f"{mean} ({apart.mean():+.1f}{'' if low <= 0 <= high else '*'})"


def tables(record: Record, *, rows: tuple[str, str], column: str, measures: Mapping[str, str], baseline: str) -> str:
    """Return one table per measure: a row for each pair of `rows`, a column for each value of `column`.

    One of the three is "method"; its `baseline` is what the others are compared with, seed by seed.
    """
    names = (*rows, column)
    found = {tuple(case[name] for name in names): case for case in record["cases"]}
    values = [list(dict.fromkeys(key[i] for key in found)) for i in range(3)]

    def shown(key: tuple[str, ...], measure: str) -> str:
        if key not in found:
            return ""
        plain = tuple(baseline if name == "method" else value for name, value in zip(names, key, strict=True))
        return cell(found[key][measure], None if key == plain else found[plain][measure])

    parts = []
    for measure, title in measures.items():
        lines = [
            {rows[0]: outer, rows[1]: inner} | {across: shown((outer, inner, across), measure) for across in values[2]}
            for outer in values[0]
            for inner in values[1]
            if any((outer, inner, across) in found for across in values[2])
        ]
        parts.append(f"**{title}**\n\n{table(lines)}")
    return "\n\n".join(parts)
