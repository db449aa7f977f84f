"""One run of a stack with NaN or infinite values: the others must not notice."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from aol.lab.nets.stacked import Stacked
from aol.lab.nets.stacked_layers import StackedConv2d
from tests.support.small_nets import images, labels, losses, several, sgd

RUNS, BAD = 3, 1
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


def poison(stacked: Stacked, x: Tensor, scale: Tensor, where: str, value: float) -> None:
    if where == "weights":
        for parameter in stacked.parameters():
            stacked.run_view(parameter.data)[BAD] = value
    elif where == "one weight":
        stacked.run_view(next(stacked.parameters()).data)[BAD, 0, 0, 0, 0] = value
    elif where == "statistics":
        for buffer in stacked.buffers():
            if buffer.is_floating_point():
                stacked.run_view(buffer)[BAD] = value
    elif where == "images":
        x[BAD] = value
    else:
        scale[BAD] = value


def three_steps(
    name: str, device: str, where: str | None, value: float, channels_last: bool
) -> dict[str, list[Tensor]]:
    """What three steps leave in the good runs: logits, gradients, then parameters and statistics."""
    stacked = Stacked(several(name, RUNS)).to(device)
    if channels_last:
        stacked = stacked.to(memory_format=torch.channels_last)
    optimiser, scale = sgd(stacked), torch.ones(RUNS, device=device)
    good = [run for run in range(RUNS) if run != BAD]
    seen: dict[str, list[Tensor]] = {"logits": [], "gradients": [], "states": []}
    for step in range(3):
        x, y = images(name, RUNS, seed=step).to(device), labels(RUNS, seed=step).to(device)
        if where is not None:
            poison(stacked, x, scale, where, value)
        optimiser.zero_grad()
        logits = stacked(x)
        (losses(logits, y) * scale).sum().backward()
        optimiser.step()
        seen["logits"].append(logits.detach()[good])
        seen["gradients"] += [stacked.run_view(p.grad)[good].clone() for p in stacked.parameters()]
    seen["states"] = [value for run in good for value in stacked.unstack(run).values()]
    with torch.no_grad():
        x = images(name, RUNS).to(device)
        seen["logits"] += [stacked.eval()(x)[good], stacked(x[0])[good]]  # own images, then shared ones
    return seen


@pytest.mark.parametrize(
    ("name", "where", "value", "channels_last"),
    [
        ("cnn", "weights", float("nan"), False),
        ("resnet32", "one weight", float("inf"), True),
        ("resnet34-cifar", "statistics", float("nan"), True),
        ("resnet34", "images", float("inf"), False),
        ("resnet32", "loss", -float("inf"), True),
    ],
)
@pytest.mark.parametrize(("device", "contains"), [*((device, None) for device in DEVICES), ("cpu", True)])
def test_a_diverging_run_does_not_touch_its_neighbours(
    name: str,
    where: str,
    value: float,
    channels_last: bool,
    device: str,
    contains: bool | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(StackedConv2d, "contains", contains)
    clean = three_steps(name, device, None, value, channels_last)
    beside = three_steps(name, device, where, value, channels_last)
    for what, values in clean.items():
        for ours, theirs in zip(beside[what], values, strict=True):
            assert torch.isfinite(ours).all(), what
            if device == "cpu":
                assert torch.equal(ours, theirs), what
            else:
                torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3)


def test_runs_that_are_kept_apart_learn_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = three_steps("resnet32", "cpu", None, 0.0, False)
    monkeypatch.setattr(StackedConv2d, "contains", True)
    apart = three_steps("resnet32", "cpu", None, 0.0, False)
    for what, values in plain.items():
        for ours, theirs in zip(apart[what], values, strict=True):
            assert torch.equal(ours, theirs), what


def test_without_the_guard_a_mixing_convolution_lets_a_run_reach_its_neighbours(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The convolution of CUDA as it was seen: all runs through one dense product, neighbours weighed with zeros."""
    dense = torch.nn.functional.conv2d

    def mixing(x: Tensor, weight: Tensor, bias: Tensor | None, *rest: object) -> Tensor:
        *geometry, groups = rest
        blocks = [part.movedim(1, 0) for part in weight.chunk(groups)]
        block = torch.zeros(x.shape[1], weight.shape[0], *weight.shape[2:])
        for group, part in enumerate(blocks):
            rows, columns = part.shape[:2]
            block[group * rows : (group + 1) * rows, group * columns : (group + 1) * columns] = part
        return dense(x, block.movedim(1, 0), bias, *geometry)

    monkeypatch.setattr(torch.nn.functional, "conv2d", mixing)
    finite = {}
    for contains in (False, True):
        monkeypatch.setattr(StackedConv2d, "contains", contains)
        seen = three_steps("resnet32", "cpu", "one weight", float("nan"), False)
        finite[contains] = all(bool(torch.isfinite(value).all()) for values in seen.values() for value in values)
    assert finite == {False: False, True: True}


@pytest.mark.parametrize("contains", [None, True])
def test_the_diverging_run_itself_shows_it(contains: bool | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StackedConv2d, "contains", contains)
    stacked = Stacked(several("resnet32", RUNS))
    x = images("resnet32", RUNS)
    x[BAD] = float("nan")
    logits = stacked(x)
    assert torch.isnan(logits[BAD]).all()
    losses(logits, labels(RUNS)).sum().backward()
    assert all(torch.isnan(stacked.run_view(p.grad)[BAD]).any() for p in [stacked.head.weight])
