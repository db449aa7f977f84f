"""The CUDA kernel of whole stages, compiled for a CPU and run thread by thread, against plain convolutions."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from aol.nets.fused import blocks, stage
from emulated import BF16, MAPS, call, compiled, conv, generator, halved, maps, named, near, packed, table_of

CUTS = sorted({blocks.shape_for(c, m) for c in stage.SIDES for m in MAPS}, key=lambda shape: shape.key)
MANY = [shape for shape in CUTS if shape == blocks.shape_for(shape.channels, 1 << 30)]
DOUBLED = [shape for shape in CUTS if shape.channels > 16]  # the first stage has no larger one before it


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("blocks")


class Case:
    """R networks' stage with its input; `found` by the kernel, `wanted` by plain convolutions in float64."""

    def __init__(
        self, shape: stage.Shape, convolutions: int, runs: int, batch: int, *, doubled: bool = False,
        halve: bool = False,
    ) -> None:  # fmt: skip
        source, c, s = generator(), shape.channels, shape.side
        self.shape, self.runs, self.batch, self.halve = shape, runs, batch, halve
        self.side = c // 4 if doubled else 0
        self.x = maps(runs, batch, c, s, source).relu()
        self.shortcut = maps(runs, batch, c // 2, 2 * s, source).relu() if doubled else None
        self.weights = [torch.randn((runs * c, c, 3, 3), generator=source) / (3 * c**0.5) for _ in range(convolutions)]
        self.tables = torch.stack([table_of(4, runs, c, source) for _ in range(convolutions)])
        self.tables[:, 0] = self.tables[:, 0].abs() / 2 + 0.5  # scales of trained norms: maps neither vanish nor grow
        self.behind = torch.randn((runs * 2 * c, c, 3, 3), generator=source) / (3 * c**0.5)
        self.behind_table = torch.randn((4, runs, 2 * c), generator=source)
        self.halved: Tensor | None = None

    def found(self, folder: Path, *, each: int, late: bool = False, pooled: bool = False) -> Tensor:
        """What the kernel gives; `pooled`: its shortcut was halved before."""
        way = blocks.Way(self.side, halved=pooled, halve=self.halve)
        library = compiled(folder, self.shape, (*way.words, "PACK", *(("LATE",) if late else ())))
        weights, tables, out = self.weights, self.tables, torch.full_like(self.x, torch.nan)
        if self.halve:
            runs, c, s = self.runs, self.shape.channels, self.shape.side // 2
            parts = blocks._halves(self.behind, self.behind_table.flatten(1), runs)
            weights = [*weights, *(weight for weight, _ in parts)]
            tables = torch.cat([tables, *(table.reshape(1, 4, runs, c) for _, table in parts)])
            out = torch.full((runs, self.batch, s, s, 2 * c), torch.nan, dtype=BF16)
            self.halved = torch.full((runs, self.batch, s, s, c), torch.nan, dtype=BF16)
        ahead = torch.stack([packed(library, weight, self.runs, self.shape)[0] for weight in weights])
        shortcut = self.shortcut
        if pooled and shortcut is not None:
            shortcut = torch.stack([halved(own, 0).to(BF16) for own in shortcut])
        call(
            library.run_blocks, self.x, shortcut, ahead, tables, out, self.halved, len(self.weights), self.runs,
            self.batch, each, -(-self.batch // each), blocks.shared_bytes(self.shape, len(weights)),
        )  # fmt: skip
        return out

    def wanted(self, run: int) -> Tensor:
        c = self.shape.channels

        def normed(x: Tensor, number: int) -> Tensor:
            y = conv(x, self.weights[number][run * c : (run + 1) * c])
            return y * self.tables[number, 0, run] + self.tables[number, 1, run]

        x, first = self.x[run], 0
        if self.shortcut is not None:
            beside = halved(self.shortcut[run], self.side).to(BF16)
            x, first = (normed(x, 0) + beside.double()).relu().to(BF16), 1
        for number in range(first, len(self.weights), 2):
            inner = normed(x, number).relu().to(BF16)
            x = (normed(inner, number + 1) + x.double()).relu().to(BF16)
        return x

    def wanted_behind(self, x: Tensor, run: int) -> Tensor:
        c = 2 * self.shape.channels
        y = conv(x, self.behind[run * c : (run + 1) * c], stride=2)
        return (y * self.behind_table[0, run] + self.behind_table[1, run]).relu()


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("shape", CUTS, ids=named)
def test_two_blocks_in_one_kernel_are_four_convolutions(shape: stage.Shape, late: bool, folder: Path) -> None:
    batch = 2 * shape.images + 1  # two groups a block of threads, and one that is not full
    case = Case(shape, 4, runs=2, batch=batch)
    found = case.found(folder, each=2 * shape.images, late=late)
    for run in range(2):
        near(found[run], case.wanted(run))


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("shape", DOUBLED, ids=named)
@pytest.mark.parametrize("pooled", [False, True])
@pytest.mark.parametrize("convolutions", [1, 3])
def test_a_stage_may_begin_in_the_middle_of_a_block_that_halved_its_map(
    shape: stage.Shape, convolutions: int, pooled: bool, late: bool, folder: Path
) -> None:
    case = Case(shape, convolutions, runs=1, batch=shape.images + 1, doubled=True)
    found = case.found(folder, each=2 * shape.images, late=late, pooled=pooled)
    near(found[0], case.wanted(0))


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("shape", [shape for shape in CUTS if shape.channels < 64], ids=named)
def test_a_stage_may_end_with_the_convolution_that_halves_its_map(shape: stage.Shape, late: bool, folder: Path) -> None:
    batch = 2 * shape.images + 1
    case = Case(shape, 2, runs=2, batch=batch, halve=True)
    found = case.found(folder, each=2 * shape.images, late=late)
    assert case.halved is not None
    for run in range(2):
        x = case.wanted(run)
        near(found[run], case.wanted_behind(x, run))
        near(case.halved[run], halved(x, 0))


@pytest.mark.parametrize("shape", MANY, ids=named)
def test_a_whole_stage_of_resnet32_in_one_kernel(shape: stage.Shape, folder: Path) -> None:
    doubled, halve = shape.channels > 16, shape.channels < 64
    case = Case(shape, 9 if doubled else 10, runs=3, batch=1, doubled=doubled, halve=halve)
    found = case.found(folder, each=shape.images, pooled=doubled)
    for run in range(3):
        x = case.wanted(run)
        near(found[run], case.wanted_behind(x, run) if halve else x)


@pytest.mark.parametrize("shape", MANY, ids=named)
def test_a_run_or_an_image_that_is_not_a_number_stays_alone(shape: stage.Shape, folder: Path) -> None:
    batch = shape.images + 1
    case = Case(shape, 2, runs=3, batch=batch)
    c = shape.channels
    before = case.found(folder, each=batch)
    case.weights[0][c : 2 * c] = torch.nan
    case.x[2, 0] = torch.nan
    found = case.found(folder, each=batch)
    assert found[1].isnan().all()
    assert found[2, 0].isnan().all()
    assert torch.equal(found[0], before[0])
    assert torch.equal(found[2, 1:], before[2, 1:])


@pytest.mark.parametrize("shape", CUTS, ids=named)
def test_cutting_a_batch_leaves_no_image_out(shape: stage.Shape) -> None:
    for runs in (1, 7, 64):
        for batch in (1, 2, 127, 512):
            count, each = blocks.chunks(shape, runs, batch)
            assert each % shape.images == 0
            assert (count - 1) * each < batch <= count * each
