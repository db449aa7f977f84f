"""The kernels of `aol.lab.nets.fused.stage` on this GPU, beside the bytes they must move, and the steps they make.

    PYTHONPATH=src python benchmarks/stage_kernels.py [--runs 64] [--out FILE]

Times are medians, the cache flushed in between; steps are replayed CUDA graphs. `--profile` names a step's kernels.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path

import torch
import triton
from kernel_steps import BATCH, network_time, profile
from torch import Tensor

from aol.lab.nets.fused import stage

# Maps read and written by each kernel.
PASSES = {"raw": 2, "norm in": 2, "finished": 2, "block end": 3, "backward inner": 4, "backward start": 6}


def microseconds(call: Callable[[], object]) -> float:
    return 1e3 * float(triton.testing.do_bench(call, warmup=8, rep=25, return_mode="median"))


def cases(channels: int, runs: int) -> dict[str, Callable[[], object]]:
    side = stage.SIDES[channels]

    def maps() -> Tensor:
        return torch.randn((runs, BATCH, side, side, channels), device="cuda").to(torch.bfloat16)

    x, y, grad, shortcut, below = (maps() for _ in range(5))
    weight = torch.randn((runs * channels, channels, 3, 3), device="cuda") / (3 * channels**0.5)
    table, through = (torch.rand((rows, runs, channels), device="cuda") for rows in (4, 3))
    ahead, back = stage.pack(weight, runs)
    return {
        "raw": lambda: stage.forward(x, ahead),
        "norm in": lambda: stage.forward(x, ahead, entry=table),
        "finished": lambda: stage.forward(x, ahead, table=table),
        "block end": lambda: stage.forward(x, ahead, table=table, shortcut=shortcut),
        "backward inner": lambda: stage.backward(grad, y, through, back, x, x, table, shortcut=None),
        "backward start": lambda: stage.backward(grad, y, through, back, x, below, table, shortcut=shortcut),
    }


def copy_bandwidth() -> float:
    """Bytes a second of a large copy, read and written."""
    one = torch.randn(2**28, device="cuda")
    two = torch.empty_like(one)
    return 2 * one.nbytes / microseconds(lambda: two.copy_(one)) * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=64)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "stage-kernels.json")
    parser.add_argument("--profile", action="store_true")
    chosen = parser.parse_args()
    device = torch.cuda.get_device_properties(0)
    bandwidth = copy_bandwidth()
    kernels = []
    for channels, side in stage.SIDES.items():
        bytes_of_a_map = 2 * chosen.runs * BATCH * side * side * channels
        for name, call in cases(channels, chosen.runs).items():
            floor = 1e6 * PASSES[name] * bytes_of_a_map / bandwidth
            kernels.append({"channels": channels, "kernel": name, "us": microseconds(call), "floor_us": floor})
            print(kernels[-1], flush=True)
    steps = []
    for way in ("fused", "fused evaluation"):
        for runs in (1, 8, 16, 64):
            for enabled in (True, False):
                stage.enabled = enabled
                steps.append({**network_time(way, runs), "whole_images": enabled})
                print(steps[-1], flush=True)
    stage.enabled = True
    found = {
        "device": device.name, "torch": torch.__version__, "triton": triton.__version__, "bandwidth": bandwidth,
        "runs": chosen.runs, "batch": BATCH, "kernels": kernels, "steps": steps,
        "profile": profile(chosen.runs) if chosen.profile else [],
    }  # fmt: skip
    chosen.out.parent.mkdir(parents=True, exist_ok=True)
    chosen.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
