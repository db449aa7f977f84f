"""The library on a CUDA device: the same numbers as on the CPU, and no waiting where none is promised."""

from __future__ import annotations

import pytest
import torch

import aol
from tests.support.wide_margins import no_waiting


@pytest.mark.parametrize("rho", [0.3, torch.tensor([0.0, 0.3, 1.0])], ids=["single", "runs"])
@pytest.mark.parametrize("kind", ["keep", "grow", "classes"])
def test_ages_agree_with_the_cpu_and_never_wait(rho: float | torch.Tensor, kind: str) -> None:
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(7, (500,), generator=generator)
    here, there = (
        aol.ClassAges(500, rho=rho, device=device)
        if kind == "classes"
        else aol.SampleAges(labels, rho=rho, absent=kind, device=device)
        for device in ("cpu", "cuda")
    )
    shape = (200,) if isinstance(rho, float) else (3, 200)
    for _ in range(6):
        for _ in range(3):
            index = torch.randint(500, (200,), generator=generator)  # with repeats: the last one counts
            right = torch.rand(shape, generator=generator) < 0.4
            here.observe(index, right)
            on_device = index.cuda(), right.cuda()
            with no_waiting("cuda"):
                there.observe(*on_device)
                there.weight(on_device[0])
        here.advance()
        there.advance()
        assert torch.equal(here.age, there.age.cpu())
        torch.testing.assert_close(there.ema.cpu(), here.ema, rtol=1e-6, atol=0, equal_nan=True)
        torch.testing.assert_close(there.class_weight.cpu(), here.class_weight, rtol=1e-6, atol=0)


def test_a_stray_index_on_the_device_is_reported_and_loses_nothing() -> None:
    ages = aol.SampleAges([0, 1, 1], rho=0.5, device="cuda")
    ages.observe(torch.tensor([0, 7, -1], device="cuda"), torch.tensor([False, True, True], device="cuda"))
    with pytest.raises(IndexError, match="index must lie in 0 to 2"):
        ages.advance()
    ages.advance()
    assert ages.age.tolist() == [2, 1, 1]


def test_losses_are_float32_under_autocast() -> None:
    logits, target = torch.randn(4, 8, 10, device="cuda"), torch.randint(10, (8,), device="cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = aol.weighted_mean(aol.softmax_loss(logits.bfloat16(), target), torch.ones(8, device="cuda"))
    assert loss.dtype == torch.float32


@pytest.mark.parametrize("name", ["LogitAdjustedLoss", "MarginLoss", "AgeWeightedLoss"])
def test_a_compiled_loss_learns_and_answers_as_on_the_cpu(name: str) -> None:
    torch._dynamo.reset()
    here, there = getattr(aol, name)(7), getattr(aol, name)(7).cuda()
    compiled, generator = torch.compile(there, fullgraph=True), torch.Generator().manual_seed(0)
    waiting = []
    for _ in range(30):
        logits, y = torch.randn((20, 7), generator=generator), torch.randint(7, (20,), generator=generator)
        near, far = logits.requires_grad_(), logits.detach().cuda().requires_grad_()
        waiting.append((here(near, y), compiled(far, y.cuda()), near, far))
        if len(waiting) < 2:
            continue
        one, other, near, far = waiting.pop(0)  # backward after the next forward, as in accumulation
        torch.testing.assert_close(other.cpu(), one)
        torch.testing.assert_close(torch.autograd.grad(other, far)[0].cpu(), torch.autograd.grad(one, near)[0])
    for ours, theirs in zip(there.buffers(), here.buffers(), strict=True):
        torch.testing.assert_close(ours.cpu(), theirs, equal_nan=True)
