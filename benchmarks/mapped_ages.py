"""Time and memory of one epoch (observe, advance, weights) with ages in a memory-mapped file.

The floor is a plain program that reads and writes the same bytes of a file of the same size in the same order, in large
blocks, and computes nothing: words are read and written by `observe`; labels, words and smoothed ages are read and
words and smoothed ages written, to the disk, by `advance`; smoothed ages are read by `weight_blocks`. "Cached" leaves
the file in the system's memory; "cold" drops it from there before each part. Times are those of a clock, because a disk
takes no CPU time.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from measuring import PeakMemory, Record, machine, options, table, write

import aol

CLASSES, BLOCK = 100, 1 << 22
PARTS = ("observe", "advance", "weights")
# Bytes per sample that each part reads and writes: word 4, smoothed age 4, label 1.
BYTES = {"observe": 8, "advance": 9 + 8, "weights": 4}


def inputs(path: Path, samples: int) -> np.memmap:
    """Return labels, in a file of their own."""
    labels = np.lib.format.open_memmap(path, "w+", np.uint8, (samples,))
    for start in range(0, samples, BLOCK):
        labels[start : start + BLOCK] = np.random.default_rng(start).integers(
            CLASSES, size=min(BLOCK, samples - start), dtype=np.uint8
        )
    labels.flush()
    return labels


def library(path: Path, labels: np.memmap, batch: int, cold: bool) -> Callable[[], dict[str, float]]:
    """Return a function that measures an epoch of `SampleAges` in a file."""
    samples = len(labels)
    ages = aol.SampleAges(torch.from_numpy(labels), num_classes=CLASSES, rho=0.5, level="sample", file=path)
    right = torch.rand(batch, generator=torch.Generator().manual_seed(0)) < 0.7

    def observe() -> None:
        for start in range(0, samples, batch):
            index = torch.arange(start, min(start + batch, samples))
            ages.observe(index, right[: len(index)])

    def weights() -> None:
        for _ in ages.weight_blocks():
            pass

    return lambda: _timed(path, cold, observe, ages.advance, weights)


def floor(path: Path, samples: int, cold: bool) -> Callable[[], dict[str, float]]:
    """Return a function that measures a plain program with the same bytes."""
    size = {"label": samples, "word": 4 * samples, "ema": 4 * samples}
    starts = dict(zip(("label", "word", "ema", "new word", "new ema"), _running(size), strict=True))
    lazy, synced = (os.open(path, os.O_RDWR | os.O_CREAT | how) for how in (0, os.O_DSYNC))
    os.posix_fallocate(lazy, 0, 17 * samples)
    room = {width: memoryview(bytearray(width * BLOCK)) for width in (1, 4)}

    def move(reads: tuple[str, ...], writes: tuple[str, ...], handle: int) -> None:
        for first in range(0, samples, BLOCK):
            many = min(BLOCK, samples - first)
            for name in reads:
                width = 1 if name == "label" else 4
                os.preadv(lazy, [room[width][: width * many]], starts[name] + width * first)
            for name in writes:
                os.pwrite(handle, room[4][: 4 * many], starts[name] + 4 * first)

    return lambda: _timed(
        path,
        cold,
        lambda: move(("word",), ("word",), lazy),
        lambda: move(("label", "word", "ema"), ("new word", "new ema"), synced),
        lambda: move(("new ema",), (), lazy),
    )


def _running(size: dict[str, int]) -> list[int]:
    label, word, ema = size.values()
    return [0, label, label + word, label + word + ema, label + 2 * word + ema]


def _timed(path: Path, cold: bool, *work: Callable[[], object]) -> dict[str, float]:
    found = {}
    for name, part in zip(PARTS, work, strict=True):
        if cold:
            _drop(path)
        began = time.perf_counter()
        part()
        found[name] = time.perf_counter() - began
    return found


def _drop(path: Path) -> None:
    """Write a file to the disk, and drop it from the system's memory."""
    handle = os.open(path, os.O_RDONLY)
    os.fsync(handle)
    os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(handle)


def case(samples: int, batch: int, cold: bool, repeats: int, folder: str) -> Record:
    """Measure both, by turns; the first epoch of each is not counted."""
    with tempfile.TemporaryDirectory(dir=folder) as place:
        plain = floor(Path(place, "plain"), samples, cold)
        labels = inputs(Path(place, "labels.npy"), samples)
        labels.max()  # its pages are mapped before memory is counted
        with PeakMemory() as memory:
            began = time.perf_counter()
            own = library(Path(place, "ages"), labels, batch, cold)
            made = time.perf_counter() - began
            own()
        plain()
        turns = [(own(), plain()) for _ in range(repeats)]
    fastest = {
        kind: {part: min(turn[place][part] for turn in turns) for part in PARTS}
        for place, kind in enumerate(("library", "floor"))
    }
    return {**fastest, "made_s": made, "peak_extra_bytes": memory.extra}


def apart(**settings: object) -> Record:
    """Run one case in a separate process and return its settings and results."""
    command = [sys.executable, __file__, "--case", json.dumps(settings)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return {**settings, **json.loads(done.stdout)}


def main(words: list[str] | None = None) -> int:
    parser = options("Measure the time and memory of sample ages in a file.", "mapped_ages.json")
    parser.add_argument("--samples", type=int, nargs="+", default=[100_000_000], help="sizes of the set")
    parser.add_argument("--batch", type=int, default=65_536, help="samples in one call of observe")
    parser.add_argument("--repeats", type=int, default=5, help="epochs that are measured; the fastest counts")
    parser.add_argument(
        "--folder", default=".", help="folder for the files: 35 bytes per sample, on the disk to measure"
    )
    parser.add_argument("--file", choices=("cached", "cold"), nargs="+", default=["cached", "cold"], help="see above")
    parser.add_argument("--case", help="run this one case (JSON) and print its result")
    given = parser.parse_args(words)
    if given.case:
        print(json.dumps(case(**json.loads(given.case))))
        return 0
    setting = machine()
    cases = [
        apart(samples=samples, batch=given.batch, cold=file == "cold", repeats=given.repeats, folder=given.folder)
        for samples in given.samples
        for file in given.file
    ]
    for each in cases:
        del each["folder"]
    record: Record = {"machine": setting, "cases": cases}
    print(text(record))
    write(record, given.out)
    return 0


def text(record: Record) -> str:
    """Return the table of a record."""
    setting = record["machine"]
    head = (
        f"{setting['cpu']}, {setting['cores']} cores, {setting['threads']} thread(s) and one that writes; Python "
        f"{setting['python']}, torch {setting['torch']}, aol {setting['aol']}; time of a clock, the fastest of n; "
        f"load {setting['load_before']} at the start."
    )
    return "\n\n".join([head, table([row for case in record["cases"] for row in _rows(case)])])


def _rows(case: Record) -> list[dict[str, str]]:
    whole = {kind: {**case[kind], "epoch": sum(case[kind].values())} for kind in ("library", "floor")}
    touched = {**BYTES, "epoch": sum(BYTES.values())}
    peak = case["peak_extra_bytes"]
    return [
        {
            "samples": f"{case['samples']:,}",
            "file": "cold" if case["cold"] else "cached",
            "n": str(case["repeats"]),
            "part": part,
            "bytes per sample": str(touched[part]),
            "floor": f"{whole['floor'][part]:.2f} s",
            "measured": f"{whole['library'][part]:.2f} s",
            "MB/s": f"{touched[part] * case['samples'] / whole['library'][part] / 1e6:,.0f}",
            "of the floor's speed": f"{whole['floor'][part] / whole['library'][part]:.0%}",
            "peak memory": "" if peak is None or part != "epoch" else f"{peak / 1e6:,.0f} MB",
        }
        for part in (*PARTS, "epoch")
    ]


if __name__ == "__main__":
    sys.exit(main())
