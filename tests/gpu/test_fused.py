"""The kernels on a real GPU, at sizes the interpreter cannot do: run by `make test-gpu`."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial

import pytest
import torch

from aol.lab.data import augment
from aol.lab.data.images import Augmentation, centred
from aol.lab.nets.fused import FusedStack, launch, launch_back, obstacle, stage
from aol.lab.nets.fused import images as read
from aol.lab.nets.stacked import Stacked
from tests.support.fused_nets import CLASSES, cuts, error, errors_of_a_step, images, loss, stacked, stacked_cnns, twins


@pytest.mark.parametrize(("fewest", "batch"), [(10**9, 10), (0, 10), (0, 1)], ids=["tiles", "rows", "one image"])
def test_a_step_in_fp32_equals_the_plain_one(fewest: int, batch: int) -> None:
    """In one of six batches: where fp32 and fp64 round a relu's input to two sides of zero, gradients differ.

    Plain PyTorch in fp32 differs from fp64 as much: by 3e-4 to 2e-2 in three of six such batches, else by 3e-6.
    """
    worst = []
    for seed in range(6):
        fused, oracle = twins(stacked(3, (2, 2, 2)).cuda(), torch.float32)
        with cuts(32, fewest):
            errors = errors_of_a_step(fused, oracle, images(3, batch, 32, seed=seed).cuda())
        assert errors["logits"] < 1e-5, errors
        worst.append(max(errors.values()))
        if worst[-1] < 1e-4:
            return
    pytest.fail(f"gradients differ in every batch: {worst}")


@pytest.mark.parametrize("fewest", [10**9, 0], ids=["tiles", "rows"])
def test_bf16_is_as_close_as_autocast(fewest: int) -> None:
    with cuts(None, fewest):
        assert_as_close_as_autocast(stacked(3, (2, 2, 2)).cuda(), images(3, 37, 32).cuda())


class Autocast(torch.nn.Module):
    """Plain PyTorch in bf16, with the parts of a `FusedStack` that the tests use."""

    def __init__(self, stacked: Stacked) -> None:
        super().__init__()
        self.stacked = stacked

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cuda", torch.bfloat16):
            return self.stacked(x).float()  # type: ignore[no-any-return]


def assert_as_close_as_autocast(net: Stacked, x: torch.Tensor) -> None:
    """Logits, gradients and statistics are about as far from fp64 as those of plain PyTorch in bf16."""
    plain, another = Autocast(copy.deepcopy(net)), copy.deepcopy(net).double()
    errors = errors_of_a_step(*twins(net, torch.bfloat16), x)
    for name, other in errors_of_a_step(plain, another, x).items():
        assert errors[name] < 2 * other + 0.02, (name, errors[name], other)


@pytest.mark.parametrize(("runs", "batch", "size", "channels"), [(210, 20, 28, 3), (2, 33, 8, 1)])
def test_cnns_in_bf16_are_as_close_as_autocast(runs: int, batch: int, size: int, channels: int) -> None:
    net = stacked_cnns(runs, channels=channels).cuda()
    assert obstacle(net, (size, size)) is None
    assert_as_close_as_autocast(net, images(runs, batch, size, channels=channels).cuda())


@pytest.mark.parametrize(("batch", "size", "channels"), [(10, 28, 3), (1, 8, 1)])
def test_a_step_of_cnns_in_fp32_equals_the_plain_one(batch: int, size: int, channels: int) -> None:
    fused, oracle = twins(stacked_cnns(3, channels=channels).cuda(), torch.float32)
    with cuts(32):
        errors = errors_of_a_step(fused, oracle, images(3, batch, size, channels=channels).cuda())
    assert errors["logits"] < 1e-5, errors
    assert sorted(errors.values())[len(errors) // 2] < 1e-4, errors  # a relu at zero may change some gradients


@pytest.mark.parametrize(
    ("runs", "batch", "size", "shared"), [(3, 37, 28, True), (210, 312, 28, False), (250, 8, 8, True)]
)
def test_cnns_evaluate_as_in_plain_pytorch(runs: int, batch: int, size: int, shared: bool) -> None:
    net = stacked_cnns(runs).cuda().eval()
    x = images(1, batch, size).cuda()[0] if shared else images(runs, batch, size).cuda()
    with torch.no_grad():
        found = FusedStack(net)(x)
        wanted = net(x)
    assert found.shape == (runs, batch, CLASSES)
    assert error(found, wanted) < 0.02


def test_a_cnn_that_diverged_stays_alone() -> None:
    def logits(poisoned: bool) -> torch.Tensor:
        fused, _ = twins(stacked_cnns(3).cuda(), torch.bfloat16)
        sgd = torch.optim.SGD(fused.parameters(), lr=0.1, momentum=0.9)
        for seed in range(3):
            if poisoned:
                fused.stacked.network.conv2.weight.data.view(3, -1)[1] = torch.nan  # type: ignore[union-attr]
            sgd.zero_grad()
            loss(fused(images(3, 64, 28, seed=seed).cuda())).backward()
            sgd.step()
        with torch.no_grad():
            return fused.eval()(images(3, 64, 28).cuda())

    clean, found = logits(poisoned=False), logits(poisoned=True)
    assert clean.isfinite().all()
    assert found[1].isnan().all()
    assert torch.equal(found[[0, 2]], clean[[0, 2]])


@pytest.mark.parametrize("make", [partial(stacked, blocks=(1, 1, 1)), stacked_cnns])
def test_a_step_can_be_captured_and_replayed(make: Callable[[int], Stacked]) -> None:
    fused, _ = twins(make(2).cuda(), torch.bfloat16)
    x = images(2, 16, 32).cuda()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(2):
            loss_of(fused, x).backward()
    torch.cuda.synchronize()
    fused.zero_grad(set_to_none=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = loss_of(fused, x)
        captured.backward()
    graph.replay()
    x.copy_(images(2, 16, 32, seed=1))  # counters of blocks begin at zero again
    before = [value.clone() for value in fused.buffers()]
    graph.replay()
    found = [p.grad.clone() for p in fused.parameters() if p.grad is not None]
    moved = [value.clone() for value in fused.buffers()]
    for value, old in zip(fused.buffers(), before, strict=True):
        value.copy_(old)
    fused.zero_grad(set_to_none=True)
    loss_of(fused, x).backward()
    for value, wanted in zip(found, [p.grad for p in fused.parameters()], strict=True):
        assert wanted is not None
        assert torch.equal(value, wanted)  # sums are added in one order, whichever block comes last
    assert all(torch.equal(*pair) for pair in zip(moved, fused.buffers(), strict=True))


def loss_of(net: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    logits = net(x)
    return (logits * logits).sum()


def relative(found: torch.Tensor, wanted: torch.Tensor) -> float:
    assert torch.isfinite(found.float()).all()
    return float((found.double() - wanted.double()).norm() / wanted.double().norm())


@pytest.mark.parametrize(("channels", "runs", "batch"), [(16, 70, 37), (32, 1, 5), (32, 70, 37), (64, 1, 128)])
def test_kernels_of_whole_images_do_what_those_of_tiles_do(
    channels: int, runs: int, batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    side = stage.SIDES[channels]

    def maps() -> torch.Tensor:
        return torch.randn((runs, batch, side, side, channels), device="cuda").to(torch.bfloat16)

    x, y, grad, shortcut, under = (maps() for _ in range(5))
    weight = torch.randn((runs * channels, channels, 3, 3), device="cuda") / (3 * channels**0.5)
    table, through = (torch.rand((rows, runs * channels), device="cuda") for rows in (4, 3))
    assert stage.fits(x, channels)
    ahead, back = (packed[1] for packed in stage.pack([torch.zeros_like(weight), weight], runs))
    tiled, tiled_back = launch.pack(weight, runs, torch.bfloat16)
    ones = [torch.ones_like(table[0]) for _ in range(4)]
    for settings in ({}, {"entry": table}, {"table": table}, {"table": table, "shortcut": shortcut}):
        own, others = ([one.clone() for one in ones] for _ in range(2))
        arrived = torch.zeros(runs, dtype=torch.int32, device="cuda")
        norm = None if "table" in settings else stage.Norm(*own, 0.1, 1e-5, arrived)
        found, made = stage.forward(x, ahead, norm=norm, **settings)
        wanted, sums = launch.conv_forward(x, tiled, 1, **settings)
        assert relative(found, wanted) < 5e-3
        if norm is not None:
            assert relative(made, launch.finish_forward(sums, *others, 0.1, 1e-5)) < 1e-3
            assert all(relative(*pair) < 1e-3 for pair in zip(own, others, strict=True))
    for settings in ({"below": under, "shortcut": shortcut, "x": x}, {"below": x}):
        chunked = launch_back.ChunkedSums({channels: 1})
        found = launch_back.conv_backward(grad, y, through, back, table=table, chunked=chunked, **settings)
        monkeypatch.setattr(stage, "enabled", False)
        wanted = launch_back.conv_backward(grad, y, through, tiled_back, table=table, chunked=chunked, **settings)
        monkeypatch.setattr(stage, "enabled", True)
        assert relative(found[0], wanted[0]) < 1e-2
        assert all(relative(*pair) < 1e-2 for pair in zip(found[1], wanted[1], strict=True))
        assert found[2] is None
        assert relative(chunked.gradients()[channels][0], wanted[2]) < 1e-2


def test_images_are_read_as_by_plain_operations() -> None:
    pixels = torch.randint(256, (50, 3, 32, 32), dtype=torch.uint8, device="cuda")
    index = torch.randint(50, (4, 9), device="cuda")
    generators = [torch.Generator("cuda").manual_seed(seed) for seed in range(4)]
    draws = augment.draw(9, Augmentation(pad=4, flip=True), generator=generators)
    normal = centred(3)
    numbers = {"scale": torch.tensor(normal.scale, device="cuda"), "shift": torch.tensor(normal.shift, device="cuda")}
    wanted = normal(augment.crop_flip(pixels, index, draws, pad=4))
    assert torch.equal(read.batch(pixels, index, draws, pad=4, **numbers), wanted)
    assert torch.equal(read.batch(pixels, index, None, pad=0, **numbers), normal(pixels[index]))
