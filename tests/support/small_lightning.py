"""A small set, a module that asks for weights, and a Trainer that prints nothing: what the Lightning tests share."""

from __future__ import annotations

import logging
import os
import warnings

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor, nn
from torch.utils.data import BatchSampler, DataLoader, TensorDataset

import aol
from aol.plugins.lightning import WatchCallback

SAMPLES, CLASSES, SIZE = 60, 3, 16  # four batches an epoch, the last one of 12

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
warnings.filterwarnings("ignore", module="lightning")
os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")


def labelled(samples: int = SAMPLES) -> tuple[Tensor, Tensor]:
    """Return noise with labels of its own: nothing here can be learnt well, so that ages grow."""
    generator = torch.Generator().manual_seed(3)
    return torch.randn(samples, 5, generator=generator), torch.randint(CLASSES, (samples,), generator=generator)


IMAGES, LABELS = labelled()
DATA, TEST = TensorDataset(IMAGES, LABELS), TensorDataset(IMAGES[:20], LABELS[:20])


class Net(LightningModule):
    """Two layers; training weighs by the age of what the batch's last element names."""

    def __init__(self, ages: aol.SampleAges | None = None, divide_by: str = "weight") -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(1)
            self.net = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, CLASSES))
        self.weigh = None if ages is None else lambda index: ages.weight(index)  # no submodule of this one
        self.divide_by = divide_by
        self.losses: list[float] = []

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        x, y, index = batch
        loss = aol.weighted_mean(aol.softmax_loss(self(x), y), self.weigh(index), divide_by=self.divide_by)
        self.losses.append(loss.item())
        return loss

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        self.log("val_loss", aol.softmax_loss(self(batch[0]), batch[1]).mean())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.3, momentum=0.9)

    def weights(self) -> Tensor:
        return nn.utils.parameters_to_vector(self.net.parameters()).detach().clone()


def trainer(*callbacks: object, **options) -> Trainer:
    """Return a Trainer on the CPU that prints and writes nothing by itself."""
    settings = {
        "accelerator": "cpu",
        "devices": 1,
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "max_epochs": 3,
        "num_sanity_val_steps": 0,
    }
    return Trainer(callbacks=list(callbacks), **{**settings, **options})


def sample_ages(**options) -> aol.SampleAges:
    return aol.SampleAges(LABELS, num_classes=CLASSES, **{"rho": 0.5, "level": "sample", **options})


def loader(order: object = None, size: int = SIZE) -> DataLoader:
    """Return batches with the index of each sample, in an order of `aol`'s."""
    order = aol.ShuffledSampler(SAMPLES, seed=2) if order is None else order
    return DataLoader(aol.Indexed(DATA), batch_sampler=BatchSampler(order, size, drop_last=False))


def fitted(callback: WatchCallback, model: Net | None = None, *, batches=None, others=(), **options) -> Net:
    """Fit a module that is weighted by the ages of a callback."""
    model = model or Net(callback.ages)
    trainer(callback, *others, **options).fit(model, loader() if batches is None else batches)
    return model
