"""The CUDA kernels of `stage.cu`, compiled for a CPU and run thread by thread, against plain convolutions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from aol.lab.nets.fused import stage
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


def shapes(choose: Callable[[int, int], stage.Shape]) -> list[stage.Shape]:
    return sorted({choose(channels, maps) for channels in stage.SIDES for maps in MAPS}, key=lambda shape: shape.key)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("stage")


@pytest.mark.parametrize("shape", shapes(stage.forward_shape), ids=named)
@pytest.mark.parametrize("entry", [False, True])
def test_a_convolution_leaves_its_output_and_the_moments_of_each_channel(
    shape: stage.Shape, entry: bool, folder: Path
) -> None:
    c, s = shape.channels, shape.side
    source = generator()
    # Chunks of two images and of one: groups one after the other, and not full; more chunks than are finished at once.
    runs, each, batch = 2, 2, 11 if c == 64 else 3
    chunks = (batch + 1) // 2
    library = compiled(folder, shape, ("FORWARD", "PACK", f"ENTRY={int(entry)}", "EXIT=0", "BORDER=0"))
    x = maps(runs, batch, c, s, source) + 0.5
    weight = torch.randn((runs * c, c, 3, 3), generator=source) / (3 * c**0.5)
    table = table_of(2, runs, c, source)
    ahead, _ = packed(library, weight, runs, shape)
    out = torch.full_like(x, torch.nan)
    partial = torch.full((runs, chunks, 2, c), torch.nan)
    norm = torch.rand((8, runs, c), generator=source) + 0.5  # weight, bias, running mean and variance; four rows made
    before, arrived = norm.clone(), torch.zeros(runs, dtype=torch.int32)
    call(
        library.run_forward, x, table, ahead, out, partial, None, None, (*norm[:5], arrived), 0.1, 1e-5,
        runs, batch, each, chunks, shape.forward_bytes,
    )  # fmt: skip
    for run in range(runs):
        read = x[run]
        if entry:
            read = (read.float() * table[0, run] + table[1, run]).relu().to(BF16)
        y = conv(read, weight[run * c : (run + 1) * c])
        near(out[run], y)
        for chunk, part in enumerate(y.split(each)):
            flat = part.reshape(-1, c)
            torch.testing.assert_close(partial[run, chunk, 0].double(), flat.mean(0), rtol=1e-4, atol=1e-4)
            deviations = (flat - flat.mean(0)).square().sum(0)
            torch.testing.assert_close(partial[run, chunk, 1].double(), deviations, rtol=1e-3, atol=1e-3)
        weight_, bias, mean, var, *made = norm[:, run].double()
        moved = torch.nn.BatchNorm2d(c, momentum=0.1, eps=1e-5).double()
        moved.load_state_dict(
            {"weight": weight_, "bias": bias, "running_mean": before[2, run], "running_var": before[3, run]},
            strict=False,
        )
        moved(y.movedim(-1, 1))
        torch.testing.assert_close(mean, moved.running_mean, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(var, moved.running_var, rtol=1e-4, atol=1e-4)
        flat = y.reshape(-1, c)
        deviation = (flat.var(0, correction=0) + 1e-5).rsqrt()
        wanted = [weight_ * deviation, bias - flat.mean(0) * weight_ * deviation, flat.mean(0), deviation]
        torch.testing.assert_close(torch.stack(made), torch.stack(wanted), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("shape", "border"),
    [
        pytest.param(shape, border, id=f"{named(shape)}-{border}")
        for shape in shapes(stage.forward_shape)
        for border in (None, 0, "half")
        if border != "half" or shape.channels > 16  # the first stage has no larger one before it
    ],
)
def test_a_convolution_finishes_a_block_on_its_way_out(shape: stage.Shape, border: object, folder: Path) -> None:
    c, s = shape.channels, shape.side
    source = generator()
    runs, batch = 2, 2
    side = c // 4 if border == "half" else 0
    library = compiled(
        folder, shape, ("FORWARD", "PACK", "ENTRY=0", f"EXIT={1 if border is None else 2}", f"BORDER={side}")
    )
    x = maps(runs, batch, c, s, source)
    short = maps(runs, batch, c - 2 * side, 2 * s if side else s, source)
    weight = torch.randn((runs * c, c, 3, 3), generator=source) / (3 * c**0.5)
    table = table_of(2, runs, c, source)
    ahead, _ = packed(library, weight, runs, shape)
    out = torch.full_like(x, torch.nan)
    call(
        library.run_forward, x, None, ahead, out, None, table, short, (None,) * 6, 0.0, 0.0, runs, batch, batch, 1,
        shape.forward_bytes,
    )  # fmt: skip
    for run in range(runs):
        wanted = conv(x[run], weight[run * c : (run + 1) * c]) * table[0, run] + table[1, run]
        if side:
            wanted = wanted + halved(short[run], side)
        elif border == 0:
            wanted = wanted + short[run].double()
        near(out[run], wanted.relu())


@pytest.mark.parametrize("shape", shapes(stage.backward_shape), ids=named)
@pytest.mark.parametrize("inner", [False, True])
@pytest.mark.parametrize("late", [False, True], ids=["at once", "late"])
def test_one_pass_gives_both_gradients_and_their_sums(
    shape: stage.Shape, inner: bool, late: bool, folder: Path
) -> None:
    c, s = shape.channels, shape.side
    source = generator()
    runs, each, batch = 2, 3, 14 if c == 64 else 5  # of 64 channels, more chunks than are finished at once
    chunks = (batch + 2) // 3
    late_copies = ("LATE",) if late else ()
    library = compiled(folder, shape, ("BACKWARD", "PACK", f"INNER={int(inner)}", *late_copies))
    g, y, x, short, under = (maps(runs, batch, c, s, source) for _ in range(5))
    weight = torch.randn((runs * c, c, 3, 3), generator=source) / (3 * c**0.5)
    through, table = table_of(3, runs, c, source), table_of(4, runs, c, source)
    below = x if inner else under
    _, back = packed(library, weight, runs, shape)
    out = torch.full_like(x, torch.nan)
    partial = torch.full((runs, chunks, 2, c), torch.nan)
    sums = torch.full((runs, chunks, 9, c, c), torch.nan)
    norm, arrived = torch.full((5, runs, c), torch.nan), torch.zeros(runs, dtype=torch.int32)
    call(
        library.run_backward, g, y, through, back, x, below, table, None if inner else short, out, partial, sums,
        (*norm[:3], arrived), runs, batch, each, chunks, shape.backward_bytes,
    )  # fmt: skip
    for run in range(runs):
        own = weight[run * c : (run + 1) * c].to(BF16).double().requires_grad_()
        dy = (g[run].float() * through[0, run] + (y[run].float() * through[1, run] + through[2, run])).to(BF16)
        read = x[run]
        if inner:
            read = (read.float() * table[0, run] + table[1, run]).relu().to(BF16)
        entered = read.double().requires_grad_()
        F.conv2d(entered.movedim(-1, 1), own, padding=1).movedim(1, -1).backward(dy.double())
        assert entered.grad is not None
        assert own.grad is not None
        grad = entered.grad + (0 if inner else short[run].double())
        grad = grad.masked_fill(read <= 0, 0.0)
        near(out[run], grad)
        near(sums[run].sum(0), own.grad.permute(2, 3, 1, 0).reshape(9, c, c), 1e-5)
        away = grad * (below[run].double() - table[2, run])
        for chunk, (part, moved) in enumerate(zip(grad.split(each), away.split(each), strict=True)):
            near(partial[run, chunk, 0], part.reshape(-1, c).sum(0), 1e-4)
            near(partial[run, chunk, 1], moved.reshape(-1, c).sum(0), 1e-4)
        total, (scale, _, mean, deviation) = batch * s * s, table[:, run].double()
        plain, moment = grad.reshape(-1, c).sum(0), away.reshape(-1, c).sum(0) * deviation
        beta = -scale * deviation * moment / total
        coefficients = scale, beta, -scale * plain / total - beta * mean
        near(norm[:, run], torch.stack([moment, plain, *coefficients]), 1e-4)


@pytest.mark.parametrize(("has", "fits"), [(227 * 1024, True), (163 * 1024, False)], ids=["H100", "A100"])
def test_a_gpu_with_too_little_shared_memory_takes_the_other_kernels(
    has: int, fits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stage.nvrtc, "available", lambda: True)
    monkeypatch.setattr(stage.nvrtc, "most_shared_bytes", lambda device: has)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    stage.usable.cache_clear()
    try:
        assert stage.usable() is fits
    finally:
        stage.usable.cache_clear()


def test_convolutions_of_a_size_leave_their_sums_apart_and_are_added_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from aol.lab.nets.fused import launch_back

    monkeypatch.setattr(stage, "weight_sums", lambda y, number: torch.zeros((number, 2, 3, 9 * y.shape[4], y.shape[4])))
    monkeypatch.setattr(launch_back, "_add_chunks", lambda sums, *_: sums.mean((1, 2, 3)))  # [convolutions · R]
    chunked = launch_back.ChunkedSums({16: 2, 32: 1})
    maps = {channels: torch.zeros((2, 1, 1, 1, channels)) for channels in (16, 32)}
    counters = []
    for value, channels in ((1.0, 32), (2.0, 16), (3.0, 16)):  # from the last convolution to the first
        sums, arrived = chunked.next(maps[channels])
        sums += value
        counters.append(arrived)
    assert all(counter.tolist() == [0, 0] for counter in counters)
    assert len({counter.data_ptr() for counter in counters}) == 3
    gradients = {channels: [own.tolist() for own in grads] for channels, grads in chunked.gradients().items()}
    assert gradients == {32: [[1.0, 1.0]], 16: [[3.0, 3.0], [2.0, 2.0]]}
