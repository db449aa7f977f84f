"""Time and memory of one epoch (observe, advance, weights) with ages of 10 million samples.

Compared, at smaller sizes, with the method of the paper's code: the ages of all epochs are stored, and the moving
average is computed again from the first epoch, here with whole-row tensor operations. Each case runs in a separate
process, to measure its peak memory.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable

import torch
from measuring import PeakMemory, Record, in_words, machine, options, seconds, summary, table, write
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
    with PeakMemory() as memory:
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
    by_part = {f"{name}_s": summary(times_of[-repeats:])["median_s"] for name, times_of in parts.items()}
    return {**summary(times), **by_part, "whole_s": whole, "state_bytes": held, "peak_extra_bytes": memory.extra}


def history(samples: int, epochs: int, repeats: int) -> dict[str, object]:
    """Measure the other way: one more row of ages, then all rows so far folded, then the same weights.

    `whole_s` is the sum over a whole training, in which the first epochs are cheap; the rest is about the last epoch.
    """
    labels, _, right = inputs(samples, shuffled=False)
    with PeakMemory() as memory:
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
    held = rows.numel() * rows.element_size()
    return {**summary(times), "whole_s": whole, "state_bytes": held, "peak_extra_bytes": memory.extra}


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


def _timed(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


CASES: dict[str, Callable[..., dict[str, object]]] = {
    "library": library,
    "history": history,
    "small_batches": small_batches,
}


def apart(kind: str, **settings: object) -> dict[str, object]:
    """Run one case in a separate process and return its settings and results."""
    command = [sys.executable, __file__, "--case", json.dumps({"kind": kind, **settings})]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return {"kind": kind, **settings, **json.loads(done.stdout)}


def main(words: list[str] | None = None) -> int:
    parser = options("Measure the time and memory of sample ages.", "sample_ages.json")
    parser.add_argument("--samples", type=int, default=10_000_000, help="samples of the large set")
    parser.add_argument("--compared", type=int, nargs="+", default=[100_000, 1_000_000], help="sizes to compare at")
    parser.add_argument("--epochs", type=int, default=200, help="epochs of history at the comparison")
    parser.add_argument("--batch", type=int, default=65_536, help="samples in one call of observe")
    parser.add_argument("--repeats", type=int, default=5, help="repeats of each case; the median counts")
    parser.add_argument("--case", help="run this one case (JSON) and print its result")
    given = parser.parse_args(words)
    if given.case:
        settings = json.loads(given.case)
        print(json.dumps(CASES[settings.pop("kind")](**settings)))
        return 0

    setting, repeats = machine(), given.repeats
    large = [
        apart("library", samples=given.samples, shuffled=shuffled, batch=batch, repeats=repeats)
        for shuffled in (False, True)
        for batch in (0, given.batch)
    ]
    pairs = [
        (
            apart("library", **same, shuffled=False, batch=0),
            apart("history", **same),
        )
        for same in ({"samples": size, "epochs": given.epochs, "repeats": repeats} for size in given.compared)
    ]
    step = apart("small_batches", samples=min(given.samples, 50_000), batch=128, repeats=repeats)

    compared = [{"library": own, "history": other} for own, other in pairs]
    record: Record = {
        "machine": setting,
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
    samples, epochs = record["large"][0]["samples"], record["epochs"]
    micro = 1e6 * _number(record["step"], "median_s")
    return "\n\n".join(
        [
            in_words(record["machine"], record["repeats"]),
            f"One epoch of {samples:,} samples:",
            table([_large_row(case) for case in record["large"]]),
            f"Library / whole history refolded, at epoch {epochs} and over all {epochs} epochs:",
            table([_pair_row(pair["library"], pair["history"]) for pair in record["compared"]]),
            f"One training step of {record['step']['batch']} samples, `weight` and `observe`: {micro:.0f} µs.",
        ]
    )


def _number(case: dict[str, object], key: str) -> float:
    value = case[key]
    return float(value) if isinstance(value, int | float) else float("nan")


def _size(case: dict[str, object], key: str) -> str:
    return f"{_number(case, key) / 1e6:,.1f} MB"


def _milliseconds(case: dict[str, object], key: str) -> str:
    return f"{_number(case, key) * 1e3:,.0f} ms"


def _large_row(case: dict[str, object]) -> dict[str, str]:
    times = {name: _milliseconds(case, f"{name}_s") for name in ("observe", "advance", "weights")}
    calls = "one call" if not case["batch"] else f"calls of {case['batch']:,}"
    return {
        "observed": f"{'shuffled' if case['shuffled'] else 'in order'}, {calls}",
        **times,
        "epoch": _milliseconds(case, "median_s"),
        "state": _size(case, "state_bytes"),
        "peak over inputs": _size(case, "peak_extra_bytes"),
    }


def _pair_row(own: dict[str, object], other: dict[str, object]) -> dict[str, str]:
    def ratio(key: str) -> str:
        return f"{_number(other, key) / max(_number(own, key), 1e-9):.1f}"

    def both(key: str) -> str:
        return f"{_number(own, key) * 1e3:,.0f} / {_number(other, key) * 1e3:,.0f} ms ({ratio(key)} ×)"

    memory = f"{_size(own, 'state_bytes')} / {_size(other, 'state_bytes')} ({ratio('state_bytes')} ×)"
    return {
        "samples": f"{own['samples']:,}",
        "last epoch": both("median_s"),
        "all epochs": both("whole_s"),
        "state": memory,
    }


if __name__ == "__main__":
    sys.exit(main())
