"""The kernels on a real GPU, at sizes the interpreter cannot do: run by `make test-gpu`."""

from __future__ import annotations

import pytest
import torch

from aol.data import augment
from aol.data.images import Augmentation, centred
from aol.nets.fused import images as read
from aol.nets.fused import launch, launch_back, stage
from tests.support.fused_nets import cuts, error, errors_of_a_step, images, loss, stacked, twins


@pytest.mark.parametrize("fewest", [10**9, 0], ids=["tiles", "rows"])
@pytest.mark.parametrize("batch", [10, 1])
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
    net = stacked(3, (2, 2, 2)).cuda()
    fused, oracle = twins(net, torch.bfloat16)
    _, plain = twins(net, torch.bfloat16)
    x = images(3, 37, 32).cuda()
    with cuts(None, fewest):
        errors = errors_of_a_step(fused, oracle, x)
    plain = plain.float()
    with torch.autocast("cuda", torch.bfloat16):
        logits = plain(x).float()
    loss(logits).backward()
    theirs = dict(oracle.named_parameters())
    for name, value in plain.named_parameters():
        assert errors[f"{name}.grad"] < 2 * error(value.grad, theirs[name].grad) + 0.02, name  # type: ignore[arg-type]


def test_a_step_can_be_captured_and_replayed() -> None:
    fused, _ = twins(stacked(2, (1, 1, 1)).cuda(), torch.bfloat16)
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
    found = [p.grad.clone() for p in fused.parameters() if p.grad is not None]
    fused.zero_grad(set_to_none=True)
    loss_of(fused, x).backward()
    for value, wanted in zip(found, [p.grad for p in fused.parameters()], strict=True):
        assert wanted is not None
        assert torch.equal(value, wanted)  # no atomics: the same sums in the same order


def loss_of(net: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    logits = net(x)
    return (logits * logits).sum()


def relative(found: torch.Tensor, wanted: torch.Tensor) -> float:
    assert torch.isfinite(found.float()).all()
    return float((found.double() - wanted.double()).norm() / wanted.double().norm())


@pytest.mark.parametrize("channels", [16, 32, 64])
@pytest.mark.parametrize(("runs", "batch"), [(1, 5), (1, 128), (70, 37)])
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
    ahead, back = stage.pack(weight, runs)
    tiled, tiled_back = launch.pack(weight, runs, torch.bfloat16)
    for settings in ({}, {"entry": table}, {"table": table}, {"table": table, "shortcut": shortcut}):
        found, partials = stage.forward(x, ahead, **settings)
        wanted, sums = launch.conv_forward(x, tiled, 1, **settings)
        assert relative(found, wanted) < 5e-3
        if partials is not None and sums is not None:
            statistics = [launch.finish_forward(p, *(torch.ones_like(table[0]) for _ in range(4)), 0.1, 1e-5)
                          for p in (partials, sums)]  # fmt: skip
            assert relative(*statistics) < 1e-3
    for settings in ({"below": under, "shortcut": shortcut, "x": x}, {"below": x}):
        found = launch_back.conv_backward(grad, y, through, back, table=table, **settings)
        monkeypatch.setattr(stage, "enabled", False)
        wanted = launch_back.conv_backward(grad, y, through, tiled_back, table=table, **settings)
        monkeypatch.setattr(stage, "enabled", True)
        assert relative(found[0], wanted[0]) < 1e-2
        assert relative(found[1].values.sum(1), wanted[1].values.sum(1)) < 1e-2
        assert relative(found[2], wanted[2]) < 1e-2


def test_images_are_read_as_by_plain_operations() -> None:
    pixels = torch.randint(256, (50, 3, 32, 32), dtype=torch.uint8, device="cuda")
    index = torch.randint(50, (4, 9), device="cuda")
    generators = [torch.Generator("cuda").manual_seed(seed) for seed in range(4)]
    draws = augment.draw(9, Augmentation(pad=4, flip=True), generator=generators)
    normal = centred(3)
    numbers = {"scale": torch.tensor(normal.scale, device="cuda"), "shift": torch.tensor(normal.shift, device="cuda")}
    wanted = augment.training_batch(pixels, index, draws, pad=4, normalisation=normal)
    assert torch.equal(read.batch(pixels, index, draws, pad=4, **numbers), wanted)
    assert torch.equal(read.batch(pixels, index, None, pad=0, **numbers), normal(pixels[index]))
