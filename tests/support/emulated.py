"""The CUDA kernels of `aol.lab.nets.fused`, compiled by g++ and run thread by thread, and what their tests share."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from aol.lab.nets.fused import blocks, nvrtc, stage

HERE = Path(__file__).parents[1] / "lab" / "nets" / "fused"
BF16 = torch.bfloat16
MAPS = [0, 1 << 30]  # few images and many are cut differently


def named(shape: stage.Shape) -> str:
    return "-".join(map(str, shape.key))


@cache
def compiled(folder: Path, shape: stage.Shape, words: tuple[str, ...]) -> ctypes.CDLL:
    if shutil.which("g++") is None:
        pytest.fail("g++ is needed to run the CUDA kernels on a CPU: install it (Debian: apt-get install g++).")
    name = "-".join(str(part) for part in (*shape.key, *words)).replace("=", "")
    library = folder / f"{name}.so"
    command = ["g++", "-O1", "-std=c++17", "-shared", "-fPIC", "-w", f"-I{HERE}"]
    command += [f'-DSTAGE="{stage.SOURCE}"', f'-DMORE="{blocks.SOURCE}"']
    command += [*(f"-D{word}" for word in shape.words(words)), str(HERE / "emulate.cpp"), "-o", str(library)]
    subprocess.run(command, check=True)
    return ctypes.CDLL(str(library))


def call(function: object, *arguments: nvrtc.Argument) -> None:
    function(*map(nvrtc._value, arguments))  # type: ignore[operator]


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def maps(runs: int, batch: int, c: int, s: int, source: torch.Generator) -> Tensor:
    return torch.randn((runs, batch, s, s, c), generator=source).to(BF16)


def packed(library: ctypes.CDLL, weight: Tensor, runs: int, shape: stage.Shape) -> tuple[Tensor, Tensor]:
    """Pack the weights of two convolutions, zeros and those given, and return the second."""
    ahead = torch.full((2 * runs, shape.weights, 8), torch.nan, dtype=BF16)
    back, zeros = torch.full_like(ahead, torch.nan), torch.zeros_like(weight)
    call(library.run_pack, (zeros, weight, *[zeros] * (stage._MOST_PACKED - 2)), ahead, back, runs, 2 * runs)
    assert not ahead[:runs].any()
    assert not back[:runs].any()
    return ahead[runs:], back[runs:]


def table_of(rows: int, runs: int, c: int, source: torch.Generator) -> Tensor:
    return torch.randn((rows, runs, c), generator=source)


def conv(x: Tensor, weight: Tensor, stride: int = 1) -> Tensor:
    """[B, S, S, C] and [N, C, 3, 3] → [B, S', S', N], in float64."""
    found = F.conv2d(x.double().movedim(-1, 1), weight.to(BF16).double(), padding=1, stride=stride)
    return found.movedim(1, -1)


def halved(shortcut: Tensor, side: int) -> Tensor:
    """[B, 2·S, 2·S, C'] → [B, S, S, C' + 2·side]: means of 2 × 2 pixels, zero channels on both sides, in float64."""
    pooled = F.avg_pool2d(shortcut.double().movedim(-1, 1), 2).movedim(1, -1)
    return F.pad(pooled, (side, side))


def near(found: Tensor, wanted: Tensor, least: float = 4e-3) -> None:
    away = (found.double() - wanted.double()).norm() / wanted.double().norm()
    assert torch.isfinite(found.float()).all()
    assert float(away) < least, float(away)
