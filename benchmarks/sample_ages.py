"""CPU time of one epoch (observe, advance, weights) with ages of 10 million samples.

Compared, at smaller sizes, with the method of the paper's code: the ages of all epochs are stored, and the moving
average is computed again from the first epoch, here with whole-row tensor operations.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Sequence

import torch
from measuring import Record, machine, options, table, write
from torch import Tensor

import aol

CLASSES = 100
RHO = 0.5


def inputs(samples: int, shuffled: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Return labels, the order of observation, and answers of which seven in ten are right."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(CLASSES, (samples,), generator=generator)
    index = torch.randperm(samples, generator=generator) if shuffled else torch.arange(samples)
    return labels, index, torch.rand(samples, generator=generator) < 0.7


def library(samples: int, shuffled: bool, batch: int, repeats: int, epochs: int = 0) -> dict[str, object]:
    """Measure one epoch of `SampleAges`: observe all, advance, all weights of both levels; `whole_s`: all epochs."""
    labels, index, right = inputs(samples, shuffled)
    ages = aol.SampleAges(labels, num_classes=CLASSES, rho=RHO)
    parts: dict[str, list[float]] = {"observe": [], "advance": [], "weights": []}

    def observe() -> None:
        for where, answer in zip(index.split(batch or samples), right.split(batch or samples), strict=True):
            ages.observe(where, answer)

    def weights() -> None:
        _ = (ages.class_weight, ages.sample_weight)

    def epoch() -> None:
        for name, work in (("observe", observe), ("advance", ages.advance), ("weights", weights)):
            parts[name].append(_timed(work))

    whole = sum(_timed(epoch) for _ in range(epochs))
    times = seconds(epoch, repeats)
    held = sum(value.numel() * value.element_size() for value in ages.buffers())
    by_part = {f"{name}_s": statistics.median(times_of[-repeats:]) for name, times_of in parts.items()}
    return {**summary(times), **by_part, "whole_s": whole, "state_bytes": held}


def history(samples: int, epochs: int, repeats: int) -> dict[str, object]:
    """Measure the other way: one more row of ages, then all rows so far folded, then the same weights.

    `whole_s` is the sum over a whole training, in which the first epochs are cheap; the rest is about the last epoch.
    """
    labels, _, right = inputs(samples, shuffled=False)
    rows = torch.empty((epochs, samples), dtype=torch.int32)

    def epoch(e: int) -> None:
        rows[e] = aol.age_step(rows[e - 1] if e else torch.ones_like(rows[0]), right)
        ema = rows[0].to(torch.float32)
        for row in rows[1 : e + 1]:
            ema.lerp_(row.to(torch.float32), RHO)
        totals = torch.zeros(CLASSES).index_add_(0, labels, ema)
        class_age = totals / torch.bincount(labels, minlength=CLASSES)
        _ = (class_age / class_age.mean(), ema / ema.mean())

    whole = sum(_timed(lambda e=e: epoch(e)) for e in range(epochs))
    times = seconds(lambda: epoch(epochs - 1), repeats)
    return {**summary(times), "whole_s": whole, "state_bytes": rows.numel() * rows.element_size()}


def small_batches(samples: int, batch: int, repeats: int) -> dict[str, object]:
    """Measure what one training step pays: `weight` and `observe` of one batch."""
    labels, index, right = inputs(samples, shuffled=True)
    ages = aol.SampleAges(labels, num_classes=CLASSES, rho=RHO)
    where, answer, steps = index[:batch], right[:batch], 500

    def work() -> None:
        for _ in range(steps):
            ages.weight(where)
            ages.observe(where, answer)

    return {key: value / steps for key, value in summary(seconds(work, repeats)).items()}


def seconds(work: Callable[[], object], repeats: int) -> list[float]:
    """Return the CPU time of each of several calls, after one that is not counted.

    CPU time, because other work on the same cores does not count in it; with one thread it is what a clock would show
    on an idle machine.
    """
    work()
    return [_timed(work) for _ in range(repeats)]


def summary(times: Sequence[float]) -> dict[str, float]:
    """Return the median of some times, and how far they spread."""
    return {"median_s": statistics.median(times), "fastest_s": min(times), "slowest_s": max(times)}


def _timed(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def main(words: list[str] | None = None) -> int:
    parser = options("Measure the time and memory of sample ages.", "sample_ages.json")
    parser.add_argument("--samples", type=int, default=10_000_000, help="samples of the large set")
    parser.add_argument("--compared", type=int, nargs="+", default=[100_000, 1_000_000], help="sizes to compare at")
    parser.add_argument("--epochs", type=int, default=200, help="epochs of history at the comparison")
    parser.add_argument("--batch", type=int, default=65_536, help="samples in one call of observe")
    parser.add_argument("--repeats", type=int, default=5, help="repeats of each case; the median counts")
    given = parser.parse_args(words)
    before, repeats = machine(), given.repeats
    large = [
        {"samples": given.samples, "shuffled": shuffled, "batch": batch}
        | library(given.samples, shuffled, batch, repeats)
        for shuffled in (False, True)
        for batch in (0, given.batch)
    ]
    compared = [
        {
            "samples": size,
            "library": library(size, False, 0, repeats, given.epochs),
            "history": history(size, given.epochs, repeats),
        }
        for size in given.compared
    ]
    step = {"batch": 128} | small_batches(min(given.samples, 50_000), 128, repeats)
    record: Record = {
        "machine": before,
        "repeats": repeats,
        "epochs": given.epochs,
        "large": large,
        "compared": compared,
        "step": step,
    }
    print(text(record))
    write(record, given.out)
    return 0


def text(record: Record) -> str:
    """Return the tables of a record."""
    about, samples, epochs, step = record["machine"], record["large"][0]["samples"], record["epochs"], record["step"]
    return "\n\n".join(
        [
            f"{about['cpu']}, {about['threads']} thread(s); Python {about['python']}, torch {about['torch']}, "
            f"aol {about['aol']}; CPU time, median of {record['repeats']}; load {about['load_before']} at the start.",
            f"One epoch of {samples:,} samples:",
            table([_large_row(case) for case in record["large"]]),
            f"Library / whole history refolded, at epoch {epochs} and over all {epochs} epochs:",
            table([_pair_row(**pair) for pair in record["compared"]]),
            f"One training step of {step['batch']} samples, `weight` and `observe`: {1e6 * step['median_s']:.0f} µs.",
        ]
    )


def _large_row(case: Record) -> dict[str, str]:
    times = {name: f"{1e3 * case[f'{name}_s']:,.0f} ms" for name in ("observe", "advance", "weights")}
    times["epoch"] = f"{1e3 * case['median_s']:,.0f} ms"
    calls = "one call" if not case["batch"] else f"calls of {case['batch']:,}"
    observed = {"observed": f"{'shuffled' if case['shuffled'] else 'in order'}, {calls}"}
    return observed | times | {"state": f"{case['state_bytes'] / 1e6:.1f} MB"}


def _pair_row(samples: int, library: Record, history: Record) -> dict[str, str]:
    def both(key: str, unit: str, scale: float) -> str:
        own, other = scale * library[key], scale * history[key]
        return f"{own:,.1f} / {other:,.1f} {unit} ({other / max(own, 1e-9):.1f} ×)"

    return {
        "samples": f"{samples:,}",
        "last epoch": both("median_s", "ms", 1e3),
        "all epochs": both("whole_s", "s", 1.0),
        "state": both("state_bytes", "MB", 1e-6),
    }


if __name__ == "__main__":
    sys.exit(main())
