"""Evaluation with all blocks of a stage in one kernel, and with a kernel a convolution; what ages then cost.

    PYTHONPATH=src python3 benchmarks/evaluation_kernels.py [--runs 64] [--sweep] [--out FILE]

Stages are medians, the cache flushed in between; whole passes are replayed CUDA graphs. `--sweep` tries other cuts.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path

import torch
import triton
from kernel_steps import BATCH, network_time
from stage_kernels import copy_bandwidth, microseconds
from torch import Tensor

from aol.nets.fused import blocks, stage
from aol.nets.fused.nvrtc import CannotCompile

CYCLES = 2200  # predicted for a convolution of one image, on one multiprocessor
CLOCK = 1.75e9
# Images, warps and blocks a multiprocessor; what does not fit in its registers or its shared memory says so.
OTHER_CUTS: dict[int, list[stage.Cut]] = {
    16: [(1, 8, 2), (1, 16, 1), (2, 16, 1), (1, 8, 1)],
    32: [(2, 8, 2), (1, 8, 2), (1, 4, 3), (4, 16, 1), (3, 12, 1)],
    64: [(6, 12, 1), (4, 8, 1), (2, 8, 2), (2, 4, 2), (4, 16, 1)],
}


@dataclass
class Stage:
    """What a stage of R ResNet-32s reads: the output of the stem, or of the convolution that halved its map."""

    x: Tensor
    weights: list[Tensor]
    tables: list[Tensor]
    shortcut: Tensor | None

    @staticmethod
    def of(channels: int, runs: int, batch: int) -> Stage:
        side, first = stage.SIDES[channels], channels == 16

        def maps(c: int, s: int) -> Tensor:
            return torch.randn((runs, batch, s, s, c), device="cuda").relu().to(torch.bfloat16)

        count = 10 if first else 9
        shape = (runs * channels, channels, 3, 3)
        return Stage(
            maps(channels, side),
            [torch.randn(shape, device="cuda") / (3 * channels**0.5) for _ in range(count)],
            [torch.rand((4, runs * channels), device="cuda") for _ in range(count)],
            None if first else maps(channels // 2, 2 * side),
        )

    def apart(self) -> Tensor:
        """A kernel a convolution, weights packed each time, as evaluation does without `blocks`."""
        runs = self.x.shape[0]
        x, shortcut, end = self.x, self.shortcut, self.shortcut is not None
        for weight, table in zip(self.weights, self.tables, strict=True):
            ahead, _ = stage.pack(weight, runs)
            if not end:
                shortcut = x
            x, _ = stage.forward(x, ahead, table=table, shortcut=shortcut if end else None)
            end = not end
        return x

    def together(self) -> Tensor:
        """All of it in one kernel."""
        return blocks.forward(self.x, self.weights, self.tables, self.shortcut)


def away(found: Tensor, wanted: Tensor) -> float:
    return float((found.double() - wanted.double()).norm() / wanted.double().norm())


def stages(runs: int, bandwidth: float) -> list[dict[str, object]]:
    found = []
    for channels in stage.SIDES:
        case = Stage.of(channels, runs, BATCH)
        moved = 2 * case.x.nbytes + (0 if case.shortcut is None else case.shortcut.nbytes)
        found.append({
            "channels": channels, "apart_us": microseconds(case.apart), "together_us": microseconds(case.together),
            "predicted_us": 1e6 * CYCLES * len(case.weights) * runs * BATCH / (132 * CLOCK),
            "bytes_us": 1e6 * moved / bandwidth, "difference": away(case.together(), case.apart()),
        })  # fmt: skip
        print(found[-1], flush=True)
    return found


def sweep(runs: int) -> list[dict[str, object]]:
    found: list[dict[str, object]] = []
    for channels, cuts in OTHER_CUTS.items():
        usual = blocks.CUTS[channels]
        case = Stage.of(channels, runs, BATCH)
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
    """A training step, an evaluation both ways, and what an evaluation of each trained image adds to training."""
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
    blocks.enabled = False
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
