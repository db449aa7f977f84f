"""Tiny data, a tiny network, and loops on them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from aol.lab.data.images import Augmentation, ImageSet, Pair, centred, mean_std
from aol.lab.engine.loop import Loop
from aol.lab.nets.cnn import CNN
from aol.lab.nets.registry import NETWORKS, Entry
from aol.lab.settings import Settings

CPU = torch.device("cpu")
CLASSES = ("a", "b", "c")
PLAIN = "tests.support.tiny_runs:plain"  # a network that cannot be grouped


def _split(counts: tuple[int, ...], seed: int, name: str) -> ImageSet:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.cat([torch.full((count,), label) for label, count in enumerate(counts)])
    labels = labels[torch.randperm(labels.numel(), generator=generator)]
    pattern = torch.randint(0, 256, (len(counts), 1, 8, 8), generator=torch.Generator().manual_seed(99))
    noise = torch.randint(0, 256, (labels.numel(), 1, 8, 8), generator=generator)
    images = (0.35 * pattern[labels] + 0.65 * noise).to(torch.uint8)
    return ImageSet(images, labels, CLASSES, name)


def tiny_pair() -> Pair[ImageSet]:
    """Three classes of 8×8 images, noisy enough that some stay wrong for a while."""
    return Pair(
        name="tiny",
        train=_split((30, 30, 30), 1, "tiny/train"),
        test=_split((8, 8, 8), 2, "tiny/test"),
        classes=CLASSES,
        normalisation=centred(1),
        standardised=mean_std((0.4,), (0.2,)),
        augmentation=Augmentation(pad=1, flip=True),
    )


def settings(**given: object) -> Settings:
    """Settings that fit the tiny data: 49 samples in batches of 15, the last of four."""
    start: dict[str, object] = {
        "data": "tiny", "net": "cnn", "imbalance": 5.0, "epochs": 5, "batch_size": 15, "lr": 0.02, "warmup": 1,
        "augment": False,
    }  # fmt: skip
    return Settings(**(start | given))  # type: ignore[arg-type]


def stream_settings(**given: object) -> Settings:
    start: dict[str, object] = {
        "scenario": "stream", "schedule": "fixed", "warmup": 0, "rho": 0.3, "fraction": 0.3, "period": 2,
    }  # fmt: skip
    return settings(**(start | given))


def plain(classes: int, channels: int, size: int) -> nn.Module:
    """A network with a layer norm, which mixes channels."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(channels * size**2, 16), nn.LayerNorm(16), nn.ReLU(), nn.Linear(16, classes)
    )


def small_networks(monkeypatch: pytest.MonkeyPatch) -> None:
    cnn = Entry(lambda classes, channels, size: CNN(classes, channels, width=4), 8, smallest=4)
    monkeypatch.setitem(NETWORKS, "cnn", cnn)


def make_loop(runs: list[Settings], pair: Pair[ImageSet] | None = None, **conduct: bool) -> Loop:
    return Loop(runs, pair or tiny_pair(), device=CPU, **conduct)


def run_to_end(loop: Loop) -> Loop:
    while not loop.done:
        loop.run_epoch()
    return loop


def network(loop: Loop, row: int = 0) -> dict[str, Tensor]:
    return loop.learner.network(row)


def same_network(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> None:
    """Assert equality but for rounding, which on rare occasions carries an activation across the kink of a ReLU."""
    assert found.keys() == wanted.keys()
    differences = [(found[name].double() - value.double()).abs().flatten() for name, value in wanted.items()]
    assert float(torch.cat(differences).median()) < 2e-6
    assert float(torch.cat(differences).max()) < 5e-3
