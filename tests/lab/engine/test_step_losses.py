"""What runs learn in every step against the loss modules, and as a CUDA graph needs it."""

from __future__ import annotations

import torch
from torch import Tensor

import aol
from aol.lab.engine.passes import _mix
from aol.lab.engine.run_rules import StepLosses
from aol.lab.engine.source import mixtures
from tests.support.pretended_device import no_waiting, pretended_device
from tests.support.tiny_runs import CPU, settings

RUNS = [
    settings(),
    settings(margin="counts-seen", tau=1.5),
    settings(margin="counts-seen", margin_memory=20),
    settings(margin="probability-seen", margin_steps=3, tau=1.2),
    settings(margin="probability-seen", margin_steps=1, weighting="aol-seen", rho=0.4),
    settings(weighting="aol-seen", rho=0.0),
]


def modules() -> list[list[aol.LogitAdjustedLoss | aol.MarginLoss | aol.AgeWeightedLoss]]:
    return [
        [],
        [aol.LogitAdjustedLoss(3, tau=1.5)],
        [aol.LogitAdjustedLoss(3, memory=20)],
        [aol.MarginLoss(3, every=3, tau=1.2)],
        [aol.MarginLoss(3, every=1), aol.AgeWeightedLoss(3, rho=0.4)],
        [aol.AgeWeightedLoss(3, rho=0.0)],
    ]


def batch(step: int, mixes: bool) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor] | None]:
    generator = torch.Generator().manual_seed(step)
    logits = torch.randn(len(RUNS), 10, 3, generator=generator) + torch.tensor([0.5, 0.0, 0.0])
    label, other = (3 * torch.rand(2, len(RUNS), 10, generator=generator) ** 2).long()
    share = 0.5 + torch.rand(len(RUNS), 1, generator=generator) / 2
    return logits, label, (other, share) if mixes else None


def test_all_runs_learn_what_their_modules_learn_from_the_same_batches() -> None:
    for mixes in (False, True):
        losses, others = StepLosses(RUNS, 3, CPU), modules()
        offset = torch.zeros(len(RUNS), 3)
        for step in range(20):
            logits, label, mixed = batch(step, mixes)
            if mixed is not None:  # labels of half of the pairs, as in a batch that is mixed with itself
                mixed = (label.flip(1), mixed[1])
            losses.before(label, offset)
            weight = losses.weighted(torch.ones_like(label, dtype=torch.float32), label, mixed)
            losses.after(label, logits.argmax(-1) == label, logits, mixed)
            for row, own in enumerate(others):
                target = label[row]
                soft = torch.nn.functional.one_hot(label[row], 3).float()
                if mixed is not None:
                    target = torch.lerp(torch.nn.functional.one_hot(mixed[0][row], 3).float(), soft, mixed[1][row])
                for module in own:
                    before = module.offsets if isinstance(module, aol.MarginLoss) else None
                    if isinstance(module, aol.AgeWeightedLoss):
                        wanted = (soft if mixed is None else target) @ module.class_weight
                        torch.testing.assert_close(weight[row], wanted)
                    module(logits[row].clone().requires_grad_(), target)
                    if not isinstance(module, aol.AgeWeightedLoss):
                        torch.testing.assert_close(offset[row], module.offsets if before is None else before)
        assert float(offset[1:5].abs().amin(0).max()) > 0.01
        assert not bool((losses.class_weight()[4] == 1).all())


def test_a_step_does_not_wait_for_the_device_and_keeps_its_memory() -> None:
    expected, found = [], []
    for place, told in ((CPU, expected), (torch.device("cuda", 0), found)):
        with pretended_device():
            losses, offset = StepLosses(RUNS, 3, place), torch.zeros(len(RUNS), 3, device=place)
            memory = {name: id(value) for name, value in losses.named_buffers()}
            for step in range(8):
                logits, label, mixed = batch(step, True)
                assert mixed is not None
                logits, label, other, share = (value.to(place) for value in (logits, label, *mixed))
                with no_waiting():
                    losses.before(label, offset)
                    weight = losses.weighted(torch.ones(label.shape, device=place), label, (other, share))
                    losses.after(label, logits.argmax(-1) == label, logits, (other, share))
                    images = _mix(other, share, logits[..., None, None], weight, label)[0]
            assert {name: id(value) for name, value in losses.named_buffers()} == memory
            told += [value.cpu() for value in (offset, weight, images, losses.ema.nan_to_num(-1.0))]
    for one, other in zip(expected, found, strict=True):
        torch.testing.assert_close(other, one)


def test_mixtures_are_within_batches_and_those_of_a_seed() -> None:
    runs = [settings(mixup=1.0), settings(mixup=0.2), settings(), settings(mixup=1.0, seed=1)]
    real = torch.ones(34, dtype=torch.bool)
    real[29] = False  # the last place of the second batch
    partner, share = mixtures(runs, real, 15, epoch=3)
    for row in partner.tolist():
        assert [sorted(row[start : start + 15]) for start in (0, 15, 30)] == [
            list(range(start, min(start + 15, 34))) for start in (0, 15, 30)
        ]
        assert row[29] == 29
    assert torch.equal(partner[0], partner[1])
    assert not torch.equal(partner[0], partner[3])
    assert share.shape == (4, 3)
    assert share[2].tolist() == [1, 1, 1]
    assert bool(((share[:2] >= 0.5) & (share[:2] < 1)).all())
    assert not torch.equal(mixtures(runs, real, 15, epoch=4)[1], share)
    many = torch.cat(
        [mixtures([settings(mixup=0.4, seed=seed)], real, 1, epoch=0)[1][0] for seed in range(200)]
    ).double()
    assert abs(float((2 * many - 1).square().mean()) - 1 / 1.8) < 0.02  # of 2λ - 1: 1 / (2α + 1)
