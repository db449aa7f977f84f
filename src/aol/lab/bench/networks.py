"""Any network on images of CIFAR-10's size: one run, and several as one, against one after the other and a plain loop.

An epoch is that of `measure`, at imbalance 200, as in the correlation study. "One after the other" is as many epochs of
one run through the engine: captured steps, images on the device.
"""

from __future__ import annotations

import gc
from collections.abc import Sequence

import torch

from aol.lab.bench.large import floors
from aol.lab.bench.measure import Bench, Figures, straightforward
from aol.lab.engine.stacking import ALONE, Case, choose
from aol.lab.settings import Settings

IMBALANCE, EPOCHS = 200.0, 200  # of the correlation study, twice its epochs


def measure(
    figures: Figures, *, names: Sequence[str], runs: Sequence[int], scale: float, epochs: int, workers: int
) -> None:
    """Measure each network; `scale` shrinks the data set for a small machine."""
    bench = Bench(figures, scale=scale, epochs=epochs, imbalance=IMBALANCE)
    for name in names:
        plain = straightforward(bench, workers, name)
        one = _one(bench, name, plain)
        for number in runs:
            if number > 1:
                _several(bench, name, number, one, plain)


def _one(bench: Bench, name: str, plain: float) -> float:
    """Measure one run and what bounds it; return the seconds of an epoch."""
    seconds, memory = bench.time_epochs(1, net=name, stacking=ALONE)
    bench.add(f"{name}, one run, ages from a clean pass", seconds, "s an epoch", bench.epochs, memory)
    bench.add(f"{name}, one run, straightforward loop over engine", plain / seconds, "×", bench.epochs)
    bench.add(f"{name}, one run × {EPOCHS} epochs, from that epoch", seconds * EPOCHS, "s", bench.epochs)
    trained, tested = bench.images, bench.pair.test.labels.numel()
    for what, each in floors(name, torch.device("cpu"), size=bench.pair.train.shape[1]).items():
        # A training step is forward and backward; a clean image is forward only, a third of it.
        total = each * (trained + (trained + tested) / 3)
        unit, factor = ("TFLOP", 1e12) if what == "FLOPs" else ("GB", 1e9)
        bench.add(f"{name}, one run, {what} of an epoch", total / factor, unit, 1)
    return seconds


def _several(bench: Bench, name: str, number: int, one: float, plain: float) -> None:
    """Measure runs as one, the way that is chosen here, and by each other way that is possible."""
    case = Case(Settings(**bench.common | {"net": name}), bench.pair.train.shape, 10, bench.device, bench.images)  # type: ignore[arg-type]
    chosen = choose(case, number)
    what = f"{name}, {number} runs"
    bench.add(f"{what}, one after the other", one * number, "s an epoch", bench.epochs)
    for way, taken in chosen.timed.items():
        bench.add(f"{what}, a training step of one of them, {way}", taken, "ms", 1)
    if chosen.stacking == ALONE:
        bench.add(f"{what}, quickest one after the other: {chosen.reason}", 1.0, "×", 1)
        return
    seconds, memory = bench.time_epochs(number, net=name, stacking=chosen.stacking)
    bench.add(f"{what} as one ({chosen.stacking})", seconds, "s an epoch", bench.epochs, memory)
    bench.add(f"{what} as one, over one after the other", one * number / seconds, "×", bench.epochs)
    bench.add(f"{what} as one, straightforward loop over engine", plain * number / seconds, "×", bench.epochs)
    gc.collect()
    if bench.device.type == "cuda":
        torch.cuda.empty_cache()
