"""CPU time of whole epochs of eight digits runs through the engine: trained as one, and one after the other.

An epoch is everything `aol train` does for one: orders, augmentation, training steps, the clean pass over the training
set, ages and weights, the test pass, records. Both ways train the same runs and are timed alternately, so
that both see the same load. Groups of two and four are timed too: the default on a CPU follows from the table
(`aol.lab.train.groups.likely_best`). Prints it and writes benchmarks/results/engine.json.

    python benchmarks/engine.py [--runs 8] [--epochs 3] [--repeats 5]
"""

from __future__ import annotations

import time
from statistics import median

import torch
from measuring import machine, options, write

from aol.lab.data import open_data
from aol.lab.engine import OfflineLoop, Settings, grid

CPU = torch.device("cpu")


def cpu_seconds(loops: list[OfflineLoop], epochs: int) -> float:
    start = time.process_time()  # of this process alone: the cores may be shared
    for loop in loops:
        for _ in range(epochs):
            loop.run_epoch()
    return time.process_time() - start


def loops_of(runs: list[Settings], together: int) -> list[OfflineLoop]:
    pair = open_data("digits")
    return [OfflineLoop(runs[start : start + together], pair, device=CPU) for start in range(0, len(runs), together)]


def compare(batch: int, runs: int, epochs: int, repeats: int) -> dict[str, float]:
    total = epochs * (repeats + 1)
    settings = grid({"weighting": "aol", "batch_size": batch, "epochs": total}, seed=list(range(runs)))
    ways = {together: loops_of(settings, together) for together in (1, 2, 4, runs)}
    for loops in ways.values():
        cpu_seconds(loops, epochs)  # warm-up
    times = [{together: cpu_seconds(loops, epochs) for together, loops in ways.items()} for _ in range(repeats)]
    row: dict[str, float] = {"batch": batch}
    for together in ways:
        row[f"cpu_ms_per_run_and_epoch_{together}_together"] = (
            median(each[together] for each in times) / epochs / runs * 1e3
        )
        ratios = [each[1] / each[together] for each in times]
        row[f"ratio_{together}_together"] = median(ratios)
        row[f"ratio_{together}_together_min"] = min(ratios)
        row[f"ratio_{together}_together_max"] = max(ratios)
    return row


def main() -> None:
    words = options("Time whole epochs of digits runs, as one and one after the other.", "engine.json")
    words.add_argument("--runs", type=int, default=8)
    words.add_argument("--epochs", type=int, default=3, help="epochs of one repeat")
    words.add_argument("--repeats", type=int, default=5)
    words.add_argument("--batch-sizes", type=int, nargs="+", default=[8, 16, 32, 64, 128, 256])
    given = words.parse_args()
    record: dict[str, object] = {
        "what": "CPU time of an epoch through the engine: cnn, long-tailed digits (imbalance 50), aol weighting",
        "command": "python benchmarks/engine.py",
        **machine(),
        "runs": given.runs,
        "training_samples": int(OfflineLoop([Settings()], open_data("digits"), device=CPU).labels.numel()),
        "epochs": given.epochs,
        "repeats": given.repeats,
    }
    print("\n".join(f"{key:16} {value}" for key, value in record.items()))
    print("CPU ms a run and epoch; in brackets how many times less than one after the other (least to most of repeats)")
    print(f"{'batch':>5} {'1 by 1':>8} " + " ".join(f"{f'{n} together':>30}" for n in (2, 4, given.runs)))
    rows = []
    for batch in given.batch_sizes:
        row = compare(batch, given.runs, given.epochs, given.repeats)
        rows.append(row)
        cells = [
            f"{row[f'cpu_ms_per_run_and_epoch_{n}_together']:8.1f} ({row[f'ratio_{n}_together']:4.2f}×, "
            f"{row[f'ratio_{n}_together_min']:4.2f} to {row[f'ratio_{n}_together_max']:4.2f})"
            for n in (2, 4, given.runs)
        ]
        print(
            f"{batch:5} {row['cpu_ms_per_run_and_epoch_1_together']:8.1f} " + " ".join(f"{cell:>30}" for cell in cells)
        )
    write({**record, "rows": rows}, given.out)


if __name__ == "__main__":
    main()
