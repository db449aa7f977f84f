"""Evaluation with all blocks of a stage in one kernel, and with a kernel a convolution; what ages then cost.

    PYTHONPATH=src python3 benchmarks/evaluation_kernels.py [--runs 64] [--sweep] [--out FILE]

Stages are medians, the cache flushed in between; whole passes are replayed CUDA graphs. `--sweep` tries other cuts.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import torch
import triton
from kernel_steps import BATCH, network_time
from stage_kernels import copy_bandwidth, microseconds
from torch import Tensor

from aol.lab.nets.fused import blocks, stage
from aol.lab.nets.fused.nvrtc import CannotCompile

# What the tests compare is what is measured.
sys.path.append(str(Path(__file__).parents[1]))
from tests.support.fused_stages import StageCase

CYCLES = {16: 28_200, 32: 23_500, 64: 20_500}  # predicted for an image in a stage, on one multiprocessor
CLOCK = 1.75e9
# Images, warps and blocks a multiprocessor; what does not fit in its registers or its shared memory says so.
OTHER_CUTS: dict[int, list[stage.Cut]] = {
    16: [(1, 8, 2), (1, 16, 1), (2, 16, 1), (1, 8, 1)],
    32: [(2, 8, 2), (1, 8, 2), (1, 4, 3), (4, 16, 1), (3, 12, 1)],
    64: [(6, 12, 1), (4, 8, 1), (2, 8, 2), (2, 4, 2), (4, 16, 1)],
}


def away(found: Tensor, wanted: Tensor) -> float:
    return float((found.double() - wanted.double()).norm() / wanted.double().norm())


def stages(runs: int, bandwidth: float) -> list[dict[str, object]]:
    found = []
    for channels, cycles in CYCLES.items():
        case = StageCase.random(channels, runs, BATCH)
        out, halved = case.together()
        moved = sum(one.nbytes for one in (case.x, case.shortcut, out, halved) if one is not None)
        found.append({
            "channels": channels, "apart_us": microseconds(case.apart), "together_us": microseconds(case.together),
            "of_which_packing_us": microseconds(lambda case=case: blocks._packed(case.convolutions, runs)),
            "predicted_us": 1e6 * cycles * runs * BATCH / (132 * CLOCK),
            "bytes_us": 1e6 * moved / bandwidth, "difference": away(out, case.apart()[0]),
        })  # fmt: skip
        print(found[-1], flush=True)
    return found


def sweep(runs: int) -> list[dict[str, object]]:
    found: list[dict[str, object]] = []
    for channels, cuts in OTHER_CUTS.items():
        usual = blocks.CUTS[channels]
        case = StageCase.random(channels, runs, BATCH)
        for cut in cuts:
            blocks.CUTS[channels] = (cut, cut)
            row: dict[str, object] = {"channels": channels, "cut": cut}
            try:
                row["us"] = microseconds(case.together)
            except CannotCompile as reason:
                row["obstacle"] = str(reason).splitlines()[0]
            found.append(row)
            print(row, flush=True)
        blocks.CUTS[channels] = usual
    return found


def passes(runs: int) -> dict[str, object]:
    """Time a training step and an evaluation both ways; ages cost an evaluation of every image that is trained on."""
    row: dict[str, object] = {"runs": runs}
    step = network_time("fused", runs)
    a_step = float(str(step["ms"])) / int(str(step["batch"]))
    row["step_ms"] = step["ms"]
    for name, on in (("apart", False), ("together", True)):
        blocks.enabled = on
        seen = network_time("fused evaluation", runs)
        row[f"{name}_ms"] = seen["ms"]
        row[f"{name}_thousand_images_a_second"] = seen["thousand_images_a_second"]
        row[f"{name}_ages_cost"] = float(str(seen["ms"])) / int(str(seen["batch"])) / a_step
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=64)
    parser.add_argument("--sweep", action="store_true")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "evaluation-kernels.json")
    chosen = parser.parse_args()
    if not torch.cuda.is_available() or not stage.usable():
        sys.exit("evaluation_kernels.py needs a GPU of compute capability 8.0 or newer, its driver, and NVRTC")
    found: dict[str, object] = {
        "device": torch.cuda.get_device_name(), "torch": torch.__version__, "triton": triton.__version__,
        "batch": BATCH, "runs": chosen.runs, "bandwidth": (bandwidth := copy_bandwidth()),
        "stages": stages(chosen.runs, bandwidth), "sweep": sweep(chosen.runs) if chosen.sweep else [],
    }  # fmt: skip
    rows = []
    for runs in sorted({1, 8, 16, chosen.runs}, reverse=True):
        rows.append(passes(runs))
        print(rows[-1], flush=True)
    chosen.out.parent.mkdir(parents=True, exist_ok=True)
    chosen.out.write_text(json.dumps({**found, "passes": rows}, indent=1) + "\n")
    for row in rows:
        print(
            f"{row['runs']} runs: evaluation {row['apart_ms']:.2f} → {row['together_ms']:.2f} ms, "
            f"{row['apart_thousand_images_a_second']:.0f} → {row['together_thousand_images_a_second']:.0f} thousand "
            f"images/s; ages cost {row['apart_ages_cost']:.1%} → {row['together_ages_cost']:.1%} of training"
        )


if __name__ == "__main__":
    main()
