"""CPU time of training steps of R small networks: as one against one after the other.

Both ways train the same R digits-like runs (the `cnn` network, 1×8×8 images, SGD with momentum and weight
decay, each run on its own batches) and are timed alternately, so that both see the same load.
Both are timed in either memory layout, since CPU convolutions and batch norms are quicker with channels last.
Prints a table and writes benchmarks/results/stacked.json.

    python benchmarks/stacked.py [--runs 8] [--steps 21] [--repeats 9]
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import product
from statistics import median

import torch
import torch.nn.functional as F
from measuring import machine, options, write
from torch import Tensor, nn

from aol.lab.nets import make, stack


def optimiser(net: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9, weight_decay=2e-4)


def step(net: nn.Module, sgd: torch.optim.Optimizer, x: Tensor, y: Tensor) -> None:
    sgd.zero_grad()
    logits = net(x)
    loss = F.cross_entropy(logits.flatten(0, -2), y.flatten(), reduction="none").view(y.shape)
    loss.mean(-1).sum().backward()
    sgd.step()


def cpu_seconds(work: Callable[[], None]) -> float:
    start = time.process_time()  # of this process alone: the cores may be shared
    work()
    return time.process_time() - start


def compare(layout: str, runs: int, batch: int, steps: int, repeats: int) -> dict[str, float | str]:
    source = torch.Generator().manual_seed(0)
    x = torch.randn(steps, runs, batch, 1, 8, 8, generator=source)
    y = torch.randint(10, (steps, runs, batch), generator=source)
    memory = torch.channels_last if layout == "channels last" else torch.contiguous_format
    nets: list[nn.Module] = [make("cnn", num_classes=10, in_channels=1, seed=run) for run in range(runs)]
    stacked = stack(nets).to(memory_format=memory)
    nets = [net.to(memory_format=memory) for net in nets]
    own, joint = [optimiser(net) for net in nets], optimiser(stacked)

    def one_after_the_other() -> None:
        for run in range(runs):
            for i in range(steps):
                step(nets[run], own[run], x[i, run], y[i, run])

    def as_one() -> None:
        for i in range(steps):
            step(stacked, joint, x[i], y[i])

    for warm_up in (one_after_the_other, as_one):
        warm_up()
    times = [(cpu_seconds(one_after_the_other), cpu_seconds(as_one)) for _ in range(repeats)]
    ratios = [alone / together for alone, together in times]
    images = runs * batch * steps
    return {
        "layout": layout,
        "batch": batch,
        "sequential_cpu_ms_per_step": median(alone for alone, _ in times) / steps * 1e3,
        "stacked_cpu_ms_per_step": median(together for _, together in times) / steps * 1e3,
        "stacked_images_per_cpu_second": images / median(together for _, together in times),
        "ratio": median(ratios),
        "ratio_min": min(ratios),
        "ratio_max": max(ratios),
    }


def main() -> None:
    words = options("Time training steps of small networks, as one and one after the other.", "stacked.json")
    words.add_argument("--runs", type=int, default=8)
    words.add_argument("--steps", type=int, default=21, help="steps of one repeat (an epoch of 1,297 digits)")
    words.add_argument("--repeats", type=int, default=9)
    words.add_argument("--batch-sizes", type=int, nargs="+", default=[16, 64, 128])
    given = words.parse_args()
    record: dict[str, object] = {
        "what": "CPU time of a training step of all runs, cnn on 1×8×8 images",
        **machine(),
        "runs": given.runs,
        "steps": given.steps,
        "repeats": given.repeats,
    }
    print("\n".join(f"{key:11} {value}" for key, value in record.items()))
    print(f"{'layout':14} {'batch':>6} {'sequential':>12} {'stacked':>12} {'ratio':>7} {'(min to max)':>14}")
    rows = []
    for layout, batch in product(("contiguous", "channels last"), given.batch_sizes):
        row = compare(layout, given.runs, batch, given.steps, given.repeats)
        rows.append(row)
        print(
            f"{layout:14} {batch:6} {row['sequential_cpu_ms_per_step']:9.2f} ms "
            f"{row['stacked_cpu_ms_per_step']:9.2f} ms {row['ratio']:6.2f}× "
            f"{row['ratio_min']:6.2f} to {row['ratio_max']:.2f}"
        )
    write({**record, "rows": rows}, given.out)


if __name__ == "__main__":
    main()
