"""Shared by the benchmarks: time, memory, a description of the machine, a table, and the record."""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch

import aol

RESULTS = Path(__file__).parent / "results"
Record: TypeAlias = dict[str, Any]  # as JSON has it


def seconds(work: Callable[[], object], repeats: int) -> list[float]:
    """Return the CPU time of each of several calls, after one that is not counted.

    CPU time, because other work on the same cores does not count in it; with one thread it is what a clock would show
    on an idle machine.
    """
    work()
    times = []
    for _ in range(repeats):
        began = time.process_time()
        work()
        times.append(time.process_time() - began)
    return times


def summary(times: Sequence[float]) -> dict[str, float]:
    """Return the median of some times, and how far they spread."""
    return {"median_s": statistics.median(times), "fastest_s": min(times), "slowest_s": max(times)}


class PeakMemory:
    """The most memory this process has held since the start of the block, over what it held then, in bytes.

    Linux only: elsewhere `extra` stays None.
    """

    extra: int | None = None

    def __enter__(self) -> PeakMemory:
        self._start = None
        try:
            Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew from what is held now
            self._start = _status("VmRSS")
        except OSError:
            pass
        return self

    def __exit__(self, *_: object) -> None:
        if self._start is not None:
            self.extra = max(0, _status("VmHWM") - self._start)


def _status(key: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{key}:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"no {key} in /proc/self/status")


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


def in_words(setting: Record, repeats: int) -> str:
    """Return the line above every table."""
    return (
        f"{setting['cpu']}, {setting['cores']} cores, {setting['threads']} thread(s); Python {setting['python']}, "
        f"torch {setting['torch']}, NumPy {setting['numpy']}, aol {setting['aol']}; CPU time, median of {repeats}; "
        f"load {setting['load_before']} at the start."
    )


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
