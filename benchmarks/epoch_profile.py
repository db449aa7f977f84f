"""GPU time of a whole epoch of the engine by kernel: training, the clean pass for ages, the test pass.

    PYTHONPATH=src python3 benchmarks/epoch_profile.py [--runs 64] [--hidden] [--plain] [--out FILE]

Images are random, as many as in CIFAR-10 at imbalance 100; with --hidden, epochs are those of the study
hidden-minorities: CNNs, 4,000 samples of 28 pixels, batches of 64, weights by sample. --plain does without aol's
kernels for networks. The first epochs, with compilation and capture, are not timed.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

import torch

from aol.lab.bench.measure import random_pair
from aol.lab.engine import OfflineLoop
from aol.lab.nets import fused
from aol.lab.settings import Settings, Value
from aol.records.record import versions

COMMON: dict[str, Value] = {
    "data": "random", "imbalance": 100.0, "precision": "bf16", "epochs": 200, "weighting": "aol",
}  # fmt: skip
HIDDEN: dict[str, Value] = {
    **COMMON, "imbalance": None, "samples": 4000, "net": "cnn", "augment": False, "epochs": 30, "batch_size": 64,
    "lr": 0.05, "schedule": "cosine", "eval_every": 10, "weighting": "old", "after": 3, "factor": 50.0,
}  # fmt: skip


def kernels(loop: OfflineLoop) -> tuple[float, list[dict[str, object]]]:
    """Return the seconds of one epoch, and milliseconds and launches of its kernels, the slowest first."""
    activities = [torch.profiler.ProfilerActivity.CUDA]
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=activities) as seen:
        begun = time.perf_counter()
        loop.run_epoch()
        torch.cuda.synchronize()
        taken = time.perf_counter() - begun
    found = sorted(seen.key_averages(), key=lambda kernel: -kernel.self_device_time_total)
    return taken, [
        {"kernel": one.key[:90], "ms": one.self_device_time_total / 1e3, "launches": one.count}
        for one in found
        if one.self_device_time_total > 0
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=64)
    parser.add_argument("--hidden", action="store_true", help="epochs of the study hidden-minorities")
    parser.add_argument("--plain", action="store_true", help="without aol's kernels for networks")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "epoch-profile.json")
    chosen = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("epoch_profile.py needs a GPU")
    device = torch.device("cuda")
    runs = [Settings(**HIDDEN if chosen.hidden else COMMON, seed=seed) for seed in range(chosen.runs)]  # type: ignore[arg-type]
    pair = random_pair(train=50_000, test=10_000, size=28 if chosen.hidden else 32)
    if chosen.plain:
        fused.can_fuse = lambda net, size: False  # type: ignore[assignment]
    loop = OfflineLoop(runs, pair, device=device)
    for _ in range(2):
        loop.run_epoch()
    torch.cuda.synchronize()
    begun = time.perf_counter()
    loop.run_epoch()
    torch.cuda.synchronize()
    alone = time.perf_counter() - begun
    taken, found = kernels(loop)
    total = sum(float(str(one["ms"])) for one in found)
    chosen.out.parent.mkdir(parents=True, exist_ok=True)
    record = {
        "versions": versions(device), "runs": chosen.runs, "seconds": alone, "seconds_profiled": taken,
        "kernels_ms": total, "kernels": found[:40],
    }  # fmt: skip
    chosen.out.write_text(json.dumps(record, indent=1) + "\n")
    print(f"{chosen.runs} runs: {alone:.2f} s an epoch, {taken:.2f} s under the profiler, {total:.0f} ms of kernels")
    print(f"{chosen.runs * loop.labels.numel() / alone / 1e3:.0f} thousand training images/s, clean pass included")
    for one in found[:25]:
        print(f"{one['ms']:9.1f} ms {one['launches']:7} × {one['kernel']}")


if __name__ == "__main__":
    main()
