"""A training that no rounding can change the answers of: each is four logits ahead, and steps are small.

What must come out is worked out by plain loops in float64, whatever a host, a device or a precision made of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import aol
from tests.support.oracle import fold

SAMPLES, CLASSES, RHO, RATE = 24, 3, 0.5, 0.02
EPOCHS, SIZE, SEED = 3, 6, 2  # of a training; the size is that of an optimiser step
ANSWERS = torch.arange(SAMPLES) % CLASSES  # what the model says
WRONG = torch.isin(torch.arange(SAMPLES), torch.tensor([1, 2, 5, 8, 11, 13, 14, 17, 20]))  # more of one class
LABELS = torch.where(WRONG, (ANSWERS + 1) % CLASSES, ANSWERS)
IMAGES = 4.0 * torch.eye(CLASSES)[ANSWERS]
DATA = TensorDataset(IMAGES, LABELS)
KINDS = ("sample", "class", "ages of classes")  # of ages


def ages(kind: str, device: str = "cpu") -> aol.SampleAges | aol.ClassAges:
    if kind == "ages of classes":
        return aol.ClassAges(CLASSES, rho=RHO, threshold=0.6, device=device)
    return aol.SampleAges(LABELS, rho=RHO, level=kind, device=device)


def network() -> nn.Linear:
    """Return the model, whose answer is the place of the largest number."""
    model = nn.Linear(CLASSES, CLASSES, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.eye(CLASSES))
    return model


def histories(kind: str, epochs: int) -> list[list[int]]:
    """Return the ages after each epoch, of each sample or class, by the rule alone."""
    right = (ANSWERS == LABELS).tolist()
    if kind == "ages of classes":
        share = [[r for r, y in zip(right, LABELS.tolist(), strict=True) if y == c] for c in range(CLASSES)]
        right = [sum(each) / len(each) >= 0.6 for each in share]
    return [[1 if each else epoch + 2 for epoch in range(epochs)] for each in right]


def weights(kind: str, epochs: int) -> list[float]:
    """Return what each sample weighs after so many epochs."""
    if epochs == 0:
        return [1.0] * SAMPLES
    smooth = [fold(each, RHO) for each in histories(kind, epochs)]
    if kind == "sample":
        return [each / (sum(smooth) / SAMPLES) for each in smooth]
    if kind == "class":
        found = [[a for a, y in zip(smooth, LABELS.tolist(), strict=True) if y == c] for c in range(CLASSES)]
        smooth = [sum(each) / len(each) for each in found]
    return [smooth[y] / (sum(smooth) / CLASSES) for y in LABELS.tolist()]


def moved_by_hand(kind: str, steps: Sequence[Sequence[Sequence[int]]]) -> Tensor:
    """Return how training moves the model, `[C, C]`: `steps` are the samples of each optimiser step of each epoch."""
    weight = torch.eye(CLASSES, dtype=torch.float64, requires_grad=True)
    for epoch, samples in enumerate(steps):
        w = torch.tensor(weights(kind, epoch), dtype=torch.float64)
        for step in samples:
            index = torch.tensor(step)
            loss = nn.functional.cross_entropy(IMAGES[index].double() @ weight.T, LABELS[index], reduction="none")
            (gradient,) = torch.autograd.grad((w[index] * loss).sum() / w[index].sum(), weight)
            weight = (weight - RATE * gradient).detach().requires_grad_()
    return (weight - torch.eye(CLASSES)).detach()


def shuffled_steps(epochs: int, size: int, seed: int) -> list[list[list[int]]]:
    """Return the samples of each step in the order of `ShuffledSampler`."""
    order = aol.ShuffledSampler(SAMPLES, seed=seed)
    return [[each.tolist() for each in torch.tensor(list(order)).split(size)] for _ in range(epochs)]


def check_ages(found: aol.SampleAges | aol.ClassAges, kind: str, epochs: int) -> None:
    """Compare ages with the rule: exactly, but for the rounding of weights."""
    expected = histories(kind, epochs)
    assert found.epoch == epochs
    assert found.age.tolist() == [each[-1] for each in expected]
    assert found.ema.tolist() == [fold(each, RHO) for each in expected]  # halves are exact in float32
    key = LABELS if kind == "ages of classes" else torch.arange(SAMPLES)
    torch.testing.assert_close(found.weight(key).cpu(), torch.tensor(weights(kind, epochs)))


def check_moved(model: nn.Linear, kind: str, steps: Sequence[Sequence[Sequence[int]]], off: float = 1e-4) -> None:
    """Compare how far a model has moved with what it should have, up to a part of the way."""
    expected = moved_by_hand(kind, steps)
    found = model.weight.detach().cpu().double() - torch.eye(CLASSES)
    way = float(expected.abs().max())
    assert way > 0.01
    assert float((found - expected).abs().max()) < off * way


@contextmanager
def no_waiting(device: str) -> Iterator[None]:
    """Fail, on a CUDA device, if the host waits for it."""
    if device == "cpu":
        yield
        return
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")
