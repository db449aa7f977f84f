"""Whole training steps and evaluation passes of R stacked networks, for benchmarks/kernels.py, or alone.

    PYTHONPATH=src python3 benchmarks/kernel_steps.py [--net cnn] [--runs 210] [--batch 64] [--size 28]

Alone, it prints milliseconds and images/s of aol's kernels and of plain PyTorch, and where the kernels' time goes.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable
from dataclasses import replace
from statistics import median

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from aol.lab.nets import make, stack
from aol.lab.nets.fused import FusedStack, tiles

BATCH = 128
DEVICE = "cuda"


def step_time(net: nn.Module, forward_: Callable[[Tensor], Tensor], x: Tensor, y: Tensor) -> float:
    """Milliseconds of one training step, captured and replayed."""
    sgd = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=2e-4)

    def step() -> None:
        sgd.zero_grad(set_to_none=True)
        logits = forward_(x).float()
        F.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="none").view(y.shape).mean(1).sum().backward()
        sgd.step()

    return replayed(step)


def replayed(work: Callable[[], object]) -> float:
    """Milliseconds of a captured graph of `work`, the median of twenty."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            work()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    times = []
    for _ in range(24):
        a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        a.record()
        graph.replay()
        b.record()
        torch.cuda.synchronize()
        times.append(a.elapsed_time(b))
    return median(times[4:])


def network_time(
    way: str, runs: int, *, net_name: str = "resnet32", batch: int = BATCH, size: int = 32
) -> dict[str, object]:
    """Time a training step (or, where the way says so, an evaluation pass) of `runs` networks."""
    nets = [make(net_name, num_classes=10, image_size=size, seed=run) for run in range(runs)]
    net = stack(nets).cuda()
    evaluating = way.endswith("evaluation")
    batch = 4 * batch if evaluating else batch
    x = torch.randn(batch, size, size, runs, 3, device=DEVICE).permute(3, 0, 4, 1, 2)
    y = torch.randint(10, (runs, batch), device=DEVICE)
    target: Callable[[Tensor], Tensor]
    if way.startswith("fused"):
        x = x.contiguous()  # as the engine gathers images
        target = FusedStack(net)
    else:
        net = net.to(memory_format=torch.channels_last)
        inner = torch.compile(net) if way.startswith("compiled") else net

        def target(images: Tensor) -> Tensor:
            with torch.autocast("cuda", torch.bfloat16, cache_enabled=False):
                return inner(images)  # type: ignore[no-any-return]

    if evaluating:
        net.eval()
        if isinstance(target, nn.Module):
            target.eval()
        with torch.no_grad():
            ms = replayed(lambda: target(x))
    else:
        ms = step_time(net, target, x, y)
    return {"way": way, "runs": runs, "batch": batch, "ms": ms, "thousand_images_a_second": runs * batch / ms}


def profile(runs: int, *, net_name: str = "resnet32", batch: int = BATCH, size: int = 32) -> list[dict[str, object]]:
    """Where a fused step's time goes, by kernel."""
    net = stack([make(net_name, num_classes=10, image_size=size, seed=run) for run in range(runs)]).cuda()
    fused = FusedStack(net)
    x = torch.randn(runs, batch, 3, size, size, device=DEVICE)
    for _ in range(2):
        fused(x).square().sum().backward()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as seen:
        fused(x).square().sum().backward()
        torch.cuda.synchronize()
    rows = sorted(seen.key_averages(), key=lambda e: -e.self_device_time_total)[:16]
    return [{"kernel": e.key[:60], "ms": e.self_device_time_total / 1e3, "calls": e.count} for e in rows]


def network_errors() -> dict[str, float]:
    """Give the worst relative error of logits and gradients of a whole ResNet-32 against the plain path in fp64.

    For maps in fp32 and bf16; beside them what autocast does, which bf16 may be measured by.
    """
    first = stack([make("resnet32", num_classes=10, seed=run) for run in range(2)]).cuda()
    x = torch.randn(2, 9, 3, 32, 32, device=DEVICE)
    weights = torch.randn(2, 9, 10, device=DEVICE, dtype=torch.float64)

    def gradients(net: nn.Module, logits: Tensor) -> list[Tensor]:
        (logits.double() * weights).sum().backward()
        return [logits.detach(), *(p.grad for p in net.parameters() if p.grad is not None)]

    oracle = copy.deepcopy(first).double()
    wanted = gradients(oracle, oracle(x.double()))
    plain = copy.deepcopy(first)
    with torch.autocast("cuda", torch.bfloat16):
        logits = plain(x)
    found = {"autocast": gradients(plain, logits)}
    usual = dict(tiles.TILES)
    for dtype in (torch.bfloat16, torch.float32):
        if (
            dtype == torch.float32
        ):  # products without tensor cores, written out: small ones, or they compile for minutes
            kinds = ("forward", "backward_input")
            for key in {*usual, *((kind, c) for kind in kinds for c in (16, 32, 64))}:
                tiles.TILES[key] = replace(tiles.tile_for(*key), pixels=32)
        fused = FusedStack(copy.deepcopy(first), dtype=dtype)
        found[f"fused {dtype}"] = gradients(fused, fused(x))
    tiles.TILES.clear()
    tiles.TILES.update(usual)
    errors: dict[str, float] = {}
    for name, values in found.items():
        away = [float((a.double() - b).norm() / b.norm()) for a, b in zip(values, wanted, strict=True)]
        errors |= {f"network {name} logits": away[0], f"network {name} worst gradient": max(away[1:])}
    return errors


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--net", default="cnn")
    parser.add_argument("--runs", type=int, default=210)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--size", type=int, default=28)
    chosen = parser.parse_args()
    case = {"net_name": chosen.net, "batch": chosen.batch, "size": chosen.size}
    for way in ("fused", "plain", "fused evaluation", "plain evaluation"):
        row = network_time(way, chosen.runs, **case)
        rate = f"{row['thousand_images_a_second']:.0f} thousand images/s"
        print(f"{way:18s} {chosen.runs} × {row['batch']}: {row['ms']:8.3f} ms, {rate}", flush=True)
        torch.cuda.empty_cache()
    for row in profile(chosen.runs, **case):
        print(f"  {row['kernel']:60s} {row['ms']:8.3f} ms {row['calls']:4d}×")


if __name__ == "__main__":
    main()
