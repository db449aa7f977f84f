"""Bytes and kernels of a training step of one of several runs, called one by one and compiled: floors on a GPU.

    python benchmarks/compiled_bytes.py

Counted on a CPU: what operators read and write under bf16 autocast by `vmap`, and what Inductor's schedule does after
fusing them (`compiled-vmap`). On a GPU it fuses a little more: mean, variance and norm are one kernel there. SGD adds
20 bytes a parameter. Compiling takes a minute or two for each network.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from measuring import Record, options, write
from networks import BYTES, FLOPS
from torch import Tensor
from torch._inductor.graph import GraphLowering
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from aol.lab import nets
from aol.lab.bench.large import floors
from aol.lab.nets import ByRun

NETWORKS = ["vit", "user_networks:resnet18", "user_networks:group_norm_resnet18"]
RUNS, BATCH, SIZE = 2, 128, 32
OPTIMISER = 20  # bytes a parameter: read it, its gradient and its momentum, write two of them


class Count:
    """How many kernels, and what they read and write."""

    kernels = 0
    bytes = 0


class Operators(TorchDispatchMode, Count):
    """Counts operators that are called one by one; views move nothing."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if not func.is_view and not func._schema.name.startswith("aten::_unsafe_view"):
            moved = [each for each in tree_leaves((args, kwargs, out)) if isinstance(each, Tensor)]
            self.kernels += 1
            self.bytes += sum(each.untyped_storage().nbytes() if 0 in each.stride() else each.nbytes for each in moved)
        return out


@contextmanager
def schedules() -> Iterator[Count]:
    """Count what Inductor schedules: forward and backward pass."""
    found, plain = Count(), GraphLowering.compile_to_module

    def counted(self: GraphLowering, *given: Any, **named: Any) -> Any:
        module = plain(self, *given, **named)
        total, nodes, _ = self.count_bytes()
        found.bytes += total
        found.kernels += sum(quarter > 0 for _, quarter in nodes)  # neither views nor parts of a result
        return module

    GraphLowering.compile_to_module = counted  # type: ignore[method-assign]
    with torch._inductor.config.patch(fx_graph_cache=False), torch._functorch.config.patch(enable_autograd_cache=False):
        yield found
    GraphLowering.compile_to_module = plain  # type: ignore[method-assign]


def step(joint: ByRun) -> None:
    """Forward and backward pass of all runs."""
    images = torch.rand((RUNS, BATCH, SIZE, SIZE, 3), generator=torch.Generator().manual_seed(0)).movedim(-1, 2)
    with torch.autocast("cpu", torch.bfloat16):
        logits = joint(images)
    logits.float().square().mean().backward()  # type: ignore[no-untyped-call]


def counts(name: str) -> Record:
    """Return FLOPs, kernels and bytes of a step of one run."""
    made = [nets.make(name, num_classes=10, image_size=SIZE, seed=seed) for seed in range(RUNS)]
    parameters = sum(value.numel() for value in made[0].parameters())
    with Operators() as plain:
        step(ByRun(made).channels_last())
    with schedules() as compiled:
        step(ByRun(made, compiled=True).channels_last())
    return {
        "network": name,
        "parameters": parameters,
        "flops": floors(name, torch.device("cpu"), size=SIZE)["FLOPs"] * BATCH,
        "kernels": {"vmap": plain.kernels, "compiled-vmap": compiled.kernels},  # for all runs
        "bytes": {
            way: count.bytes / RUNS + OPTIMISER * parameters
            for way, count in (("vmap", plain), ("compiled-vmap", compiled))
        },
    }


def main() -> int:
    parser = options("Bytes and kernels of a training step, compiled and not", "compiled-bytes.json")
    parser.add_argument("--networks", nargs="+", default=NETWORKS)
    arguments = parser.parse_args()
    record: Record = {"torch": torch.__version__, "batch": BATCH, "runs": RUNS, "rows": []}
    for name in arguments.networks:
        found = counts(name)
        milliseconds = {way: each / BYTES * 1e3 for way, each in found["bytes"].items()}
        print(name, found, milliseconds, f"{found['flops'] / FLOPS * 1e3:.3f} ms by FLOPs", flush=True)
        record["rows"].append(found)
        write(record, arguments.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
