"""Time and memory of one epoch (observe, advance, weights) with ages in a memory-mapped file.

The floor is a plain program that reads and writes the same bytes of a file of the same size in the same order, in large
blocks, and computes nothing: words are read and written by `observe`; labels, words and smoothed ages are read and
words and smoothed ages written, to the disk, by `advance`; smoothed ages are read by `weight_blocks`. "Cached" leaves
the file in the system's memory; "cold" drops it from there before each part. Times are those of a clock, because a disk
takes no CPU time. The record is written after each epoch; one with n = 0 is of the first epoch, which does not count.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

import numpy as np
import torch
from measuring import PeakMemory, Record, machine, options, table, write

import aol

Epoch: TypeAlias = Callable[[bool], dict[str, float]]  # cold or not: seconds of each part

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


def library(path: Path, labels: np.memmap, batch: int) -> Epoch:
    """Return a function that measures an epoch of `SampleAges` in a file."""
    samples = len(labels)
    ages = aol.SampleAges(torch.from_numpy(labels), num_classes=CLASSES, rho=0.5, level="sample", file=path)
    right = torch.rand(batch, generator=torch.Generator().manual_seed(0)) < 0.7

    def observe() -> float:
        seconds = 0.0
        for start in range(0, samples, batch):
            index = torch.arange(start, min(start + batch, samples))  # the caller has them
            began = time.perf_counter()
            ages.observe(index, right[: len(index)])
            seconds += time.perf_counter() - began
        return seconds

    def weights() -> None:
        for _ in ages.weight_blocks():
            pass

    return lambda cold: _timed(path, cold, observe, ages.advance, weights)


def floor(path: Path, samples: int) -> Epoch:
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

    return lambda cold: _timed(
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
        own = part()  # a part that also does what is not counted returns the seconds that are
        found[name] = own if isinstance(own, float) else time.perf_counter() - began
    return found


def _drop(path: Path) -> None:
    """Write a file to the disk, and drop it from the system's memory."""
    handle = os.open(path, os.O_RDONLY)
    os.fsync(handle)
    os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(handle)


def measure(
    samples: int, batch: int, files: list[str], repeats: int, threads: list[int], seconds: float, folder: str
) -> Iterator[Record]:
    """Measure epochs of both, by turns, and yield what is known after each; the first epoch of each does not count.

    No turn begins that would likely end after `seconds`.
    """
    began = time.perf_counter()
    torch.set_num_threads(threads[0])
    with tempfile.TemporaryDirectory(dir=folder) as place:
        plain = floor(Path(place, "plain"), samples)
        labels = inputs(Path(place, "labels.npy"), samples)
        labels.max()  # its pages are mapped before memory is counted
        with PeakMemory() as memory:
            making = time.perf_counter()
            own = library(Path(place, "ages"), labels, batch)
            known = {"samples": samples, "batch": batch, "made_s": time.perf_counter() - making}
            first = own(False)
        known["peak_extra_bytes"] = memory.extra
        longest = 2 * sum(first.values())
        yield {**known, "threads": threads[0], "cold": False, "repeats": 0, "library": first, "floor": plain(False)}
        for file, number in itertools.product(files, threads):
            torch.set_num_threads(number)
            turns: list[tuple[dict[str, float], dict[str, float]]] = []
            while len(turns) < repeats and time.perf_counter() - began + longest < seconds:
                turn = time.perf_counter()
                turns.append((own(file == "cold"), plain(file == "cold")))
                longest = max(longest if turns[1:] else 0.0, time.perf_counter() - turn)
                fastest = [
                    {part: min(turn[part] for turn in each) for part in PARTS} for each in zip(*turns, strict=True)
                ]
                yield {
                    **known,
                    "threads": number,
                    "cold": file == "cold",
                    "repeats": len(turns),
                    "library": fastest[0],
                    "floor": fastest[1],
                }


def apart(**settings: object) -> Iterator[Record]:
    """Measure one size in a separate process, and yield its records."""
    command = [sys.executable, __file__, "--case", json.dumps(settings)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield from map(json.loads, process.stdout)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)


def main(words: list[str] | None = None) -> int:
    parser = options("Measure the time and memory of sample ages in a file.", "mapped_ages.json")
    parser.add_argument("--samples", type=int, nargs="+", default=[100_000_000], help="sizes of the set")
    parser.add_argument("--batch", type=int, default=65_536, help="samples in one call of observe")
    parser.add_argument("--repeats", type=int, default=5, help="epochs that are measured; the fastest counts")
    parser.add_argument("--threads", type=int, nargs="+", default=[torch.get_num_threads()], help="threads of torch")
    parser.add_argument("--minutes", type=float, default=60.0, help="for one size; no later epoch is begun")
    parser.add_argument(
        "--folder", default=".", help="folder for the files: 35 bytes per sample, on the disk to measure"
    )
    parser.add_argument("--file", choices=("cached", "cold"), nargs="+", default=["cached", "cold"], help="see above")
    parser.add_argument("--case", help="run this one size (JSON) and print its results")
    given = parser.parse_args(words)
    if given.case:
        for each in measure(**json.loads(given.case)):
            print(json.dumps(each), flush=True)
        return 0
    record: Record = {"machine": machine(), "cases": []}
    newest: dict[tuple[int, bool, int], Record] = {}
    for samples in given.samples:
        for each in apart(
            samples=samples,
            batch=given.batch,
            files=given.file,
            repeats=given.repeats,
            threads=given.threads,
            seconds=60 * given.minutes,
            folder=given.folder,
        ):
            newest[samples, each["cold"], each["threads"]] = each
            record["cases"] = [case for case in newest.values() if case["repeats"]] or list(newest.values())
            write(record, given.out)
    print(text(record))
    return 0


def text(record: Record) -> str:
    """Return the table of a record."""
    setting = record["machine"]
    head = (
        f"{setting['cpu']}, {setting['cores']} cores, threads of torch and four for the file; Python "
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
            "threads": str(case["threads"]),
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
