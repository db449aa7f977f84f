"""Lightning on a device: tests that ask for `device`, run on the CPU and on CUDA."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.plugins.precision import MixedPrecision
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader

import aol
from aol.plugins.lightning import WatchCallback
from tests.support.small_lightning import trainer
from tests.support.wide_margins import (
    DATA,
    EPOCHS,
    RATE,
    SAMPLES,
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

    def __init__(self, state: aol.SampleAges) -> None:
        super().__init__()
        self.net, self.weigh = network(), lambda index: state.weight(index)

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        x, y, index = batch
        logits = self(x)
        with no_waiting(x.device.type):
            return aol.weighted_mean(aol.softmax_loss(logits, y), self.weigh(index))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=RATE)


def fitted(
    kind: str, device: str, folder: Path, *, epochs: int = EPOCHS, start: Path | None = None, **options
) -> tuple[Linear, aol.SampleAges, Trainer]:
    callback = WatchCallback(folder, DATA, ages=ages(kind))
    model, order = Linear(callback.ages), aol.ShuffledSampler(SAMPLES, seed=SEED)
    batches = DataLoader(
        aol.Indexed(DATA), batch_sampler=BatchSampler(order, SIZE, drop_last=False), pin_memory=device == "cuda"
    )
    settings = {"accelerator": ACCELERATORS[device], "max_epochs": epochs}
    if options.get("precision") == "16-mixed":  # with a scale that no gradient here outgrows: no step is left out
        scaler = torch.amp.GradScaler(device, init_scale=256.0)
        settings["plugins"] = [MixedPrecision(options.pop("precision"), device, scaler)]
    fitting = trainer(callback, **{**settings, **options})
    fitting.fit(model, batches, ckpt_path=start)
    return model, callback.ages, fitting


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("kind", ["sample", "class"])
def test_a_fit_keeps_the_ages_and_moves_the_model_as_by_hand(
    kind: str, precision: str, device: str, tmp_path: Path
) -> None:
    if precision == "16-mixed" and device == "cpu":
        pytest.skip("Lightning has no 16-mixed on the CPU")
    model, state, _ = fitted(kind, device, tmp_path, precision=precision)
    check_ages(state, kind, EPOCHS)
    check_moved(model.net, kind, shuffled_steps(EPOCHS, SIZE, SEED), PRECISIONS[precision])


@pytest.mark.parametrize("turned", [False, True])
def test_a_fit_goes_on_from_a_checkpoint_that_the_other_device_wrote(turned: bool, device: str, tmp_path: Path) -> None:
    first, second = ("cpu", device) if turned else (device, "cpu")
    *_, before = fitted("sample", first, tmp_path / "run", epochs=2)
    before.save_checkpoint(tmp_path / "two.ckpt")
    model, state, _ = fitted("sample", second, tmp_path / "run", epochs=4, start=tmp_path / "two.ckpt")
    check_ages(state, "sample", 4)
    check_moved(model.net, "sample", shuffled_steps(4, SIZE, SEED))
