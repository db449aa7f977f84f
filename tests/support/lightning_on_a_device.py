"""Lightning on a device: tests that ask for `device`, run on the CPU and on CUDA."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.plugins.precision import MixedPrecision
from lightning.pytorch.strategies import DDPStrategy
from torch import Tensor

import aol
from aol.plugins.lightning import AgeOfLearning
from tests.support.small_lightning import trainer
from tests.support.wide_margins import (
    DATA,
    EPOCHS,
    RATE,
    SEED,
    SIZE,
    ages,
    check_ages,
    check_moved,
    network,
    no_waiting,
    shuffled_steps,
)

ACCELERATORS = {"cpu": "cpu", "cuda": "gpu"}
PRECISIONS = {"32-true": 1e-4, "bf16-mixed": 0.03, "16-mixed": 0.01}


class Linear(LightningModule):
    """The model with wide margins; what is asked of the ages may not wait."""

    def __init__(self, aging: AgeOfLearning, signal: str) -> None:
        super().__init__()
        self.aging, self.net, self.signal = aging, network(), signal

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        x, y = batch[:2]
        logits = self(x)
        with no_waiting(x.device.type):
            if self.signal == "training":
                self.aging.observe(logits, y, batch[-1])
            weight = self.aging.weight(batch[-1])
            return aol.weighted_mean(aol.softmax_loss(logits, y), weight)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=RATE)


def fitted(
    kind: str,
    device: str,
    *,
    signal: str = "pass",
    epochs: int = EPOCHS,
    start: Path | None = None,
    **options,
) -> tuple[Linear, AgeOfLearning, Trainer]:
    aging = AgeOfLearning(ages(kind), signal=signal)
    model = Linear(aging, signal)
    pinned = device == "cuda"
    loader = aging.loader(DATA, batch_size=SIZE, seed=SEED, pin_memory=pinned)
    settings = {"accelerator": ACCELERATORS[device], "max_epochs": epochs}
    if options.get("precision") == "16-mixed":  # with a scale that no gradient here outgrows: no step is left out
        scaler = torch.amp.GradScaler(device, init_scale=256.0)
        settings["plugins"] = [MixedPrecision(options.pop("precision"), device, scaler)]
    found = trainer(aging, **{**settings, **options})
    found.fit(model, loader, ckpt_path=start)
    return model, aging, found


def check(model: Linear, aging: AgeOfLearning, kind: str, epochs: int = EPOCHS, off: float = 1e-4) -> None:
    check_ages(aging.ages, kind, epochs)
    check_moved(model.net, kind, shuffled_steps(epochs, SIZE, SEED), off)


@pytest.mark.parametrize(
    ("kind", "signal", "precision"),
    [
        ("sample", "pass", "32-true"),
        ("sample", "training", "16-mixed"),
        ("class", "training", "bf16-mixed"),
        ("ages of classes", "pass", "bf16-mixed"),
        ("ages of classes", "training", "32-true"),
    ],
)
def test_a_fit_keeps_the_ages_and_moves_the_model_as_by_hand(
    kind: str, signal: str, precision: str, device: str
) -> None:
    if precision == "16-mixed" and device == "cpu":
        pytest.skip("Lightning has no 16-mixed on the CPU")
    model, aging, _ = fitted(kind, device, signal=signal, precision=precision)
    check(model, aging, kind, off=PRECISIONS[precision])


def test_a_module_in_half_precision_throughout_keeps_the_ages(device: str) -> None:
    _, aging, _ = fitted("sample", device, signal="training", precision="bf16-true")
    check_ages(aging.ages, "sample", EPOCHS)


@pytest.mark.parametrize(
    ("kind", "signal", "turned"),
    [("sample", "pass", False), ("class", "training", True), ("ages of classes", "training", False)],
)
def test_a_fit_goes_on_from_a_checkpoint_that_the_other_device_wrote(
    kind: str, signal: str, turned: bool, device: str, tmp_path: Path
) -> None:
    first, second = ("cpu", device) if turned else (device, "cpu")
    *_, before = fitted(kind, first, signal=signal, epochs=2)
    before.save_checkpoint(tmp_path / "two.ckpt")
    model, aging, _ = fitted(kind, second, signal=signal, epochs=4, start=tmp_path / "two.ckpt")
    check(model, aging, kind, 4)


def test_one_process_of_ddp_trains_alike(device: str) -> None:
    strategy = DDPStrategy(process_group_backend="nccl" if device == "cuda" else "gloo")
    try:
        model, aging, _ = fitted("sample", device, signal="training", strategy=strategy)
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
    check(model, aging, "sample")


def test_resampling_draws_alike_on_either_device(device: str) -> None:
    seen = []

    class Seen(Linear):
        def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
            seen[-1].append(batch[-1].tolist())
            return super().training_step(batch, batch_idx)

    for place in ("cpu", device):
        seen.append([])
        aging = AgeOfLearning(ages("sample"))
        loader = aging.loader(DATA, batch_size=SIZE, seed=SEED, resample=True)
        trainer(aging, accelerator=ACCELERATORS[place]).fit(Seen(aging, "pass"), loader)
        check_ages(aging.ages, "sample", 3)
    assert seen[0] == seen[1]
