"""The CUDA kernel of whole stages, compiled for a CPU and run thread by thread, against plain convolutions."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from aol.lab.nets.fused import blocks, stage
from tests.support.emulated import (
    BF16,
    MAPS,
    call,
    compiled,
    conv,
    generator,
    halved,
    maps,
    named,
    near,
    packed,
    table_of,
)

CUTS = sorted({blocks.shape_for(c, m) for c in stage.SIDES for m in MAPS}, key=lambda shape: shape.key)
MANY = [shape for shape in CUTS if shape == blocks.shape_for(shape.channels, 1 << 30)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("blocks")


class Case:
    """A stage of R networks with its input: `found` by the kernel, `wanted` by plain convolutions in float64."""

    def __init__(self, shape: stage.Shape, count: int, runs: int, batch: int, *, halve: bool, stem: int = 3) -> None:
        source, c, s = generator(), shape.channels, shape.side
        self.shape, self.runs, self.batch = shape, runs, batch
        self.way = blocks.Way(stem if c == 16 else 0, halve)
        self.x = maps(runs, batch, c, s, source).relu()
        self.shortcut: Tensor | None = maps(runs, batch, c // 2, s, source).relu()
        self.weights = [torch.randn((runs * c, c, 3, 3), generator=source) / (3 * c**0.5) for _ in range(count)]
        if self.way.stem:
            self.x, self.shortcut = torch.randn((runs, batch, stem, s, s), generator=source), None
            self.weights[0] = torch.randn((runs * c, stem, 3, 3), generator=source) / (3 * stem**0.5)
        self.tables = [table_of(4, runs, c, source).flatten(1) for _ in range(count)]
        self.behind = torch.randn((runs * 2 * c, c, 3, 3), generator=source) / (3 * c**0.5)
        self.behind_table = torch.randn((4, runs * 2 * c), generator=source)
        for table in self.tables:
            table[0] = table[0].abs() / 2 + 0.5  # scales of trained norms: maps neither vanish nor grow

    def found(self, folder: Path, *, each: int, late: bool = False) -> tuple[Tensor, Tensor | None]:
        """What the kernel gives; `late`: its copies arrive when waited for, not at once."""
        library = compiled(folder, self.shape, (*self.way.words, "PACK", *(("LATE",) if late else ())))
        runs, c, s = self.runs, self.shape.channels, self.shape.side
        steps = list(zip(self.weights, self.tables, strict=True))
        out, half = torch.full((runs, self.batch, s, s, c), torch.nan, dtype=BF16), None
        if self.way.halve:
            steps += blocks._halves(self.behind, self.behind_table, runs)
            half = torch.full((runs, self.batch, s // 2, s // 2, c), torch.nan, dtype=BF16)
            out = torch.full((runs, self.batch, s // 2, s // 2, 2 * c), torch.nan, dtype=BF16)
        ahead = torch.stack([
            packed(library, torch.cat([w, w.new_zeros(len(w), c - w.shape[1], 3, 3)], 1), runs, self.shape)[0]
            for w, _ in steps
        ])  # fmt: skip
        call(
            library.run_blocks, self.x, self.shortcut, ahead, torch.stack([table for _, table in steps]), out, half,
            len(self.weights), runs, self.batch, each, *self.x.stride(), -(-self.batch // each),
            blocks.shared_bytes(self.shape, len(steps)),
        )  # fmt: skip
        return out, half

    def wanted(self, run: int) -> tuple[Tensor, Tensor]:
        """The stage's own output, and that of the convolution behind it."""
        x: Tensor = self.x[run]
        beside: Tensor | float = 0.0
        if self.shortcut is None:
            x = x.movedim(1, -1).to(BF16)
        else:
            beside = torch.nn.functional.pad(self.shortcut[run].double(), (self.shape.channels // 4,) * 2)
        x = (self._normed(x, 0, run) + beside).relu().to(BF16)
        for number in range(1, len(self.weights), 2):
            inner = self._normed(x, number, run).relu().to(BF16)
            x = (self._normed(inner, number + 1, run) + x.double()).relu().to(BF16)
        c = 2 * self.shape.channels
        y = conv(x, self.behind[run * c : (run + 1) * c], stride=2)
        scale, shift = self.behind_table[:2, run * c : (run + 1) * c]
        return x, (y * scale + shift).relu()

    def _normed(self, x: Tensor, number: int, run: int) -> Tensor:
        own = slice(run * self.shape.channels, (run + 1) * self.shape.channels)
        scale, shift = self.tables[number][:2, own]
        return conv(x, self.weights[number][own]) * scale + shift


def check(case: Case, found: Tensor, half: Tensor | None) -> None:
    for run in range(case.runs):
        end, behind = case.wanted(run)
        near(found[run], behind if case.way.halve else end)
        if case.way.halve:
            assert half is not None
            near(half[run], halved(end, 0))


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize(
    ("shape", "halve"),
    [pytest.param(s, h, id=f"{named(s)}-{h}") for s in CUTS for h in (False, True) if s.channels < 64 or not h],
)
def test_a_stage_in_one_kernel_is_its_convolutions_one_by_one(
    shape: stage.Shape, halve: bool, late: bool, folder: Path
) -> None:
    batch = 2 * shape.images + 1  # two groups a block of threads, and one that is not full
    case = Case(shape, 3, runs=2, batch=batch, halve=halve)
    check(case, *case.found(folder, each=2 * shape.images, late=late))


@pytest.mark.parametrize("shape", MANY, ids=named)
def test_a_whole_stage_of_resnet32_in_one_kernel(shape: stage.Shape, folder: Path) -> None:
    first, halve = shape.channels == 16, shape.channels < 64
    case = Case(shape, 11 if first else 9, runs=3, batch=1, halve=halve)
    check(case, *case.found(folder, each=shape.images))


@pytest.mark.parametrize("stem", [1, 7])
def test_images_of_other_channels_and_layouts(stem: int, folder: Path) -> None:
    case = Case(MANY[0], 1, runs=2, batch=2, halve=False, stem=stem)
    case.x = case.x.transpose(3, 4).contiguous().transpose(3, 4)
    check(case, *case.found(folder, each=1))
    case.x = case.x[:1].expand(2, -1, -1, -1, -1)  # one set of images for all runs
    check(case, *case.found(folder, each=1))


@pytest.mark.parametrize("shape", MANY, ids=named)
def test_a_run_or_an_image_that_is_not_a_number_stays_alone(shape: stage.Shape, folder: Path) -> None:
    batch, c = shape.images + 1, shape.channels
    case = Case(shape, 3, runs=3, batch=batch, halve=c < 64)
    before = [found for found in case.found(folder, each=batch) if found is not None]
    case.weights[0][c : 2 * c] = torch.nan
    case.x[2, 0] = torch.nan
    after = [found for found in case.found(folder, each=batch) if found is not None]
    for old, new in zip(before, after, strict=True):
        assert new[1].isnan().all()
        assert new[2, 0].isnan().all()
        assert torch.equal(new[0], old[0])
        assert torch.equal(new[2, 1:], old[2, 1:])


@pytest.mark.parametrize("shape", CUTS, ids=named)
def test_cutting_a_batch_leaves_no_image_out(shape: stage.Shape) -> None:
    for runs in (1, 7, 64):
        for batch in (1, 2, 127, 512):
            count, each = blocks.chunks(shape, runs, batch)
            assert each % shape.images == 0
            assert (count - 1) * each < batch <= count * each
