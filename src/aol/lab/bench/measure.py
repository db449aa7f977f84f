"""Measures whole epochs of the engine (data, augmentation, steps, evaluation, ages, history) and of a plain loop.

Images are random and of CIFAR-10's size: speed does not depend on their content. Figures are medians over epochs after
the first, which includes compilation and capture.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from aol._files import write_atomically
from aol.lab import nets
from aol.lab.bench.straightforward import seconds_per_epoch
from aol.lab.data.images import Augmentation, ImageSet, Pair, centred
from aol.lab.engine.learner import network_name
from aol.lab.engine.loop import Loop
from aol.lab.engine.offline import OfflineLoop
from aol.lab.engine.stream import StreamLoop
from aol.lab.settings import Value, grid
from aol.longtail import long_tail, long_tail_counts
from aol.records.record import versions

IMBALANCE = 100.0
_TABLE_RUNS, _TABLE_EPOCHS = 54, 200  # the grid of one column of the paper's offline table


@dataclass(frozen=True)
class Row:
    """One figure: what, value and unit, number of epochs, and peak memory in GiB."""

    what: str
    value: float
    unit: str
    n: int
    memory_gib: float | None = None


class Figures:
    """What was measured: `about` says on which data. Each figure is printed at once, and written with those before it.

    Args:
        device: where it is measured.
        about: the data, for the head of the table.
        out: file for all figures, as JSON, with hardware and versions; none by default.
    """

    def __init__(self, device: torch.device, about: str, out: Path | None = None) -> None:
        self.device, self.about, self._out = device, about, out
        self.rows: list[Row] = []

    def add(self, what: str, value: float, unit: str, n: int = 1, memory: float | None = None) -> None:
        """Keep a figure, print and write it."""
        print(f"{what}: {value:,.4g} {unit}", file=sys.stderr, flush=True)
        self.rows.append(Row(what, value, unit, n, memory))
        if self._out is not None:
            machine = {"versions": versions(self.device), "cores": os.cpu_count()}
            write_atomically(
                self._out, (json.dumps(machine | self.as_dict(), indent=1, ensure_ascii=False) + "\n").encode()
            )

    def as_dict(self) -> dict[str, object]:
        """Return the data and all figures, for JSON."""
        return {"data": self.about, "rows": [asdict(row) for row in self.rows]}

    def table(self) -> list[str]:
        """Return the figures as lines of a Markdown table, with hardware, versions and data before it."""
        head = ", ".join(f"{name} {value}" for name, value in versions(self.device).items())
        lines = [
            f"{head}, {os.cpu_count()} CPU cores, {platform.system()}; {self.about}",
            "",
            "| what | figure | n | memory |",
            "| --- | --- | --- | --- |",
        ]
        for row in self.rows:
            memory = "" if row.memory_gib is None else f"{row.memory_gib:.1f} GiB"
            lines.append(f"| {row.what} | {row.value:,.4g} {row.unit} | {row.n} | {memory} |")
        return lines


def random_pair(*, train: int, test: int, size: int = 32, channels: int = 3) -> Pair[ImageSet]:
    """Return a data set of the given size, 10 classes, with random pixels."""
    generator = torch.Generator().manual_seed(0)

    def split(per_class: int, name: str) -> ImageSet:
        pixels = torch.randint(256, (10 * per_class, channels, size, size), generator=generator, dtype=torch.uint8)
        labels = torch.arange(10).repeat_interleave(per_class)
        return ImageSet(pixels, labels, tuple("0123456789"), name)

    scale = centred(channels)
    return Pair(
        "random", split(train // 10, "train"), split(test // 10, "test"), tuple("0123456789"), scale, scale,
        Augmentation(pad=4, flip=True),
    )  # fmt: skip


class Bench:
    """A random data set of a share `scale` of CIFAR-10's size, and the figures that are measured on it."""

    def __init__(self, figures: Figures, *, scale: float, epochs: int, imbalance: float = IMBALANCE) -> None:
        self.device, self.epochs, self.imbalance, self.add = figures.device, epochs, imbalance, figures.add
        self.pair = random_pair(train=10 * max(10, int(5000 * scale)), test=10 * max(10, int(1000 * scale)))
        precision = "bf16" if self.device.type == "cuda" else "fp32"
        self.common: dict[str, Value] = {
            "data": "random",
            "imbalance": imbalance,
            "precision": precision,
            "epochs": 200,
        }

    @property
    def images(self) -> int:
        """How many images an epoch trains on."""
        return int(long_tail_counts(self.pair.train.labels.numel() // 10, 10, self.imbalance).sum())

    def time_epochs(self, number: int, *, stacking: str = "grouped", **settings: Value) -> tuple[float, float | None]:
        """Return the median seconds of an epoch, and the peak memory, of a group of runs."""
        runs = grid(self.common | {"weighting": "aol"} | settings, seed=range(number))
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
        kind = StreamLoop if runs[0].scenario == "stream" else OfflineLoop
        loop: Loop = kind(runs, self.pair, device=self.device, stacking=stacking)
        for _ in range(self.epochs + 1):
            loop.run_epoch()
        seconds = statistics.median(loop.history.epoch("seconds")[1:, 0].tolist())
        memory = torch.cuda.max_memory_allocated(self.device) / 2**30 if self.device.type == "cuda" else None
        return seconds, memory


def measure(figures: Figures, *, runs: Sequence[int], scale: float, epochs: int, workers: int) -> None:
    """Measure everything; `scale` shrinks the data set for a small machine."""
    bench = Bench(figures, scale=scale, epochs=epochs)
    images = bench.images
    plain = straightforward(bench, workers)
    timed: dict[int, float] = {}
    for number in runs:
        seconds, memory = bench.time_epochs(number, signal="eval")
        timed[number] = seconds
        engine = "engine, one run" if number == 1 else f"engine, {number} runs together"
        bench.add(f"{engine}, ages from a clean pass", seconds, "s an epoch", epochs, memory)
        bench.add(f"{engine}, straightforward loop over engine", plain * number / seconds, "×", epochs)
        if number == 1:
            bench.add(f"one run × {_TABLE_EPOCHS} epochs, from that epoch", seconds * _TABLE_EPOCHS, "s", epochs)
    most = max(runs)
    _whole_grid(bench, most, timed)
    base, _ = bench.time_epochs(most, weighting="none", signal="none", eval_every=1000)
    bench.add(f"training alone, {most} runs", images * most / base, "images/s", epochs)
    for signal in ("eval", "train"):
        seconds, _ = bench.time_epochs(most, signal=signal, eval_every=1000)
        bench.add(
            f"cost of ages over plain training, signal {signal}, {most} runs", 100 * (seconds / base - 1), "%", epochs
        )
    stream: dict[str, Any] = {"scenario": "stream", "schedule": "fixed", "memory": "all", "eval_every": 1000}
    seconds, memory = bench.time_epochs(most, **stream)
    bench.add(f"a step of a Period-10 stream, {most} runs", seconds, "s", epochs, memory)


def _whole_grid(bench: Bench, most: int, timed: Mapping[int, float]) -> None:
    """Time an epoch of the paper's grid in equal groups of at most `most` runs, whose size decides the speed."""
    parts = -(-_TABLE_RUNS // most)
    sizes = [_TABLE_RUNS // parts + (number < _TABLE_RUNS % parts) for number in range(parts)]
    taken = {size: timed.get(size) or bench.time_epochs(size, signal="eval")[0] for size in set(sizes)}
    each = " + ".join(str(size) for size in sizes) if parts < 5 else f"{sizes[0]} at a time"
    what = f"{_TABLE_RUNS} runs × {_TABLE_EPOCHS} epochs ({each}), from an epoch"
    bench.add(what, sum(taken[size] for size in sizes) * _TABLE_EPOCHS / 60, "min", bench.epochs)


def straightforward(bench: Bench, workers: int, net: str = "auto") -> float:
    """Measure an epoch of the plain loop and return its seconds."""
    train, test = bench.pair.train, bench.pair.test
    kept = long_tail(train.labels, bench.imbalance)
    name, (channels, size, _) = network_name(net, train.shape), train.shape
    made = nets.make(name, num_classes=10, in_channels=channels, image_size=size, seed=0)
    shown, held = (train.images[kept], train.labels[kept]), (test.images, test.labels)
    taken = seconds_per_epoch(made, shown, held, epochs=2, workers=workers, device=bench.device)
    what = "straightforward loop, one run" if net == "auto" else f"{net}, straightforward loop, one run"
    bench.add(what, taken[-1], "s an epoch", 1)
    return taken[-1]


def about(scale: float, imbalance: float = IMBALANCE) -> str:
    """Return what the random images are.

    >>> about(0.01)
    "0.01 of CIFAR-10's size, imbalance 100"
    """
    return f"{'' if scale == 1.0 else f'{scale:g} of '}CIFAR-10's size, imbalance {imbalance:g}"
