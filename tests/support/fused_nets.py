"""Small stacked ResNets and CNNs with their oracle, for the kernels' tests on the interpreter and on a GPU."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from aol.lab.nets.cnn import CNN
from aol.lab.nets.fused import FusedStack
from aol.lab.nets.layers import Network
from aol.lab.nets.resnet import resnet32
from aol.lab.nets.stacked import Stacked

CLASSES = 3


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def stacked(runs: int, blocks: tuple[int, ...] = (1, 1, 1), *, classes: int = CLASSES, channels: int = 3) -> Stacked:
    """R ResNets whose scales, shifts and statistics differ by run and channel."""
    return _varied(runs, lambda: resnet32(classes, channels, blocks=blocks))


def stacked_cnns(runs: int, *, classes: int = CLASSES, channels: int = 3) -> Stacked:
    """R small CNNs, varied as `stacked`."""
    return _varied(runs, lambda: CNN(classes, channels))


def _varied(runs: int, make: Callable[[], Network]) -> Stacked:
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        nets = [make() for _ in range(runs)]
    for run, net in enumerate(nets):
        source = generator(run)
        for value in [*net.parameters(), *(b for b in net.buffers() if b.is_floating_point())]:
            if value.dim() == 1:
                value.data.add_(torch.rand(value.shape, generator=source) / 2)
    return Stacked(nets)


def images(runs: int, batch: int, size: int = 8, *, channels: int = 3, seed: int = 0) -> Tensor:
    return torch.randn(runs, batch, channels, size, size, generator=generator(seed))


def loss(logits: Tensor, seed: int = 0) -> Tensor:
    """A loss in which every logit matters differently."""
    weights = torch.randn(logits.shape, generator=generator(seed)).to(logits)
    return (logits * weights).sum() + F.cross_entropy(
        logits.flatten(0, 1), torch.zeros(logits.shape[0] * logits.shape[1], dtype=torch.long, device=logits.device)
    )


def twins(net: Stacked, dtype: torch.dtype) -> tuple[FusedStack, Stacked]:
    """The same networks for the kernels, and in fp64 for the plain path."""
    oracle = copy.deepcopy(net).double()
    return FusedStack(net, dtype=dtype), oracle


def error(found: Tensor, wanted: Tensor) -> float:
    """‖found − wanted‖ / ‖wanted‖, in fp64; NaN compares as infinite."""
    distance = (found.detach().double() - wanted.detach().double()).norm() / (wanted.detach().double().norm() + 1e-12)
    return float(torch.nan_to_num(distance, nan=float("inf")))


def errors_of_a_step(fused: torch.nn.Module, oracle: Stacked, x: Tensor) -> dict[str, float]:
    """Relative errors of logits, all gradients and all buffers after one training step's passes."""
    found, wanted = fused(x), oracle(x.double())
    loss(found).backward()
    loss(wanted).backward()
    result = {"logits": error(found, wanted)}
    theirs = dict(oracle.named_parameters()) | dict(oracle.named_buffers())
    for name, value in fused.get_submodule("stacked").named_parameters():
        assert value.grad is not None
        result[f"{name}.grad"] = error(value.grad, theirs[name].grad)  # type: ignore[arg-type]
    for name, value in fused.get_submodule("stacked").named_buffers():
        result[name] = error(value, theirs[name])
    return result


@contextmanager
def cuts(pixels: int | None = None, fewest: int = 0) -> Iterator[None]:
    """Cut tiles to `pixels` so that small maps have several, and choose when images are walked by rows."""
    from aol.lab.nets.fused import tiles

    table, limit = dict(tiles.TILES), tiles.FEWEST
    default = tiles.tile_for("none")
    try:
        if pixels is not None:
            kinds = ("forward", "forward_rows", "backward_input", "backward_rows", "backward_weight")
            kinds += ("halving_input", "halving_weight")
            for key in {*table, *((kind, c) for kind in kinds for c in (16, 32, 64))}:
                tiles.TILES[key] = replace(table.get(key, default), pixels=pixels)
        tiles.FEWEST = fewest
        yield
    finally:
        tiles.TILES.clear()
        tiles.TILES.update(table)
        tiles.FEWEST = limit
