"""Speed of `Reservoir.add`, compared with the textbook loop over single items."""

from __future__ import annotations

import random
import sys

import torch
from measuring import Record, in_words, machine, options, seconds, summary, table, write
from torch import Tensor

import aol


class OneAtATime:
    """The textbook reservoir: one Python step per item."""

    def __init__(self, capacity: int) -> None:
        self.capacity, self.seen, self.items = capacity, 0, []
        self._random = random.Random(0)

    def add(self, indices: Tensor) -> None:
        """Add these indices, one after another."""
        for index in indices.tolist():
            self.seen += 1
            if len(self.items) < self.capacity:
                self.items.append(index)
                continue
            place = self._random.randrange(self.seen)
            if place < self.capacity:
                self.items[place] = index


def measure(step: int, capacity: int, repeats: int) -> Record:
    """Measure `add` of one step on a reservoir that is full already."""
    indices = torch.arange(step)
    own, other = aol.Reservoir(capacity), OneAtATime(capacity)
    for memory in (own, other):
        memory.add(torch.arange(capacity))
    library = summary(seconds(lambda: own.add(indices), repeats))
    loop = summary(seconds(lambda: other.add(indices), repeats))
    return {"step": step, "capacity": capacity, "library": library, "loop": loop}


def main(words: list[str] | None = None) -> int:
    parser = options("Measure the throughput of a reservoir.", "reservoir.json")
    parser.add_argument("--steps", type=int, nargs="+", default=[11_000, 1_000_000], help="indices in one call of add")
    parser.add_argument("--capacities", type=int, nargs="+", default=[10_000, 500_000], help="sizes of the reservoir")
    parser.add_argument("--repeats", type=int, default=9, help="repeats of each case; the median counts")
    given = parser.parse_args(words)

    setting = machine()
    cases = [measure(step, capacity, given.repeats) for step in given.steps for capacity in given.capacities]
    record: Record = {"machine": setting, "repeats": given.repeats, "cases": cases}
    print(text(record))
    write(record, given.out)
    return 0


def text(record: Record) -> str:
    """Return the table of a record."""
    return in_words(record["machine"], record["repeats"]) + "\n\n" + table([_row(case) for case in record["cases"]])


def _row(case: Record) -> dict[str, str]:
    step, own, other = case["step"], case["library"]["median_s"], case["loop"]["median_s"]
    return {
        "step": f"{step:,}",
        "capacity": f"{case['capacity']:,}",
        "Reservoir.add": f"{own * 1e3:.2f} ms",
        "indices a second": f"{step / own / 1e6:.0f} M",
        "one at a time": f"{other * 1e3:.0f} ms",
        "ratio": f"{other / own:.0f}",
    }


if __name__ == "__main__":
    sys.exit(main())
