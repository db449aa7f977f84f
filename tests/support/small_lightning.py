"""A small set, a module that asks for weights, and a Trainer that prints nothing: what the Lightning tests share."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Iterator

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor, nn
from torch.utils.data import IterableDataset, TensorDataset

import aol
from aol.plugins.lightning import AgeOfLearning

SAMPLES, CLASSES = 60, 3

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
warnings.filterwarnings("ignore", module="lightning")
os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")


def labelled(samples: int = SAMPLES) -> tuple[Tensor, Tensor]:
    """Return noise with labels of its own: nothing here can be learnt well, so that ages grow."""
    generator = torch.Generator().manual_seed(3)
    return torch.randn(samples, 5, generator=generator), torch.randint(CLASSES, (samples,), generator=generator)


IMAGES, LABELS = labelled()
DATA = TensorDataset(IMAGES, LABELS)


class Net(LightningModule):
    """Two layers; training weighs by the age of what the batch's last element names, and adds margins."""

    def __init__(self, aging: AgeOfLearning | None = None, signal: str = "pass", divide_by: str = "weight") -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(1)
            self.net = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, CLASSES))
        self.aging, self.signal, self.divide_by = aging, signal, divide_by
        self.seen: list[list[int]] = []
        self.losses: list[float] = []

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        y, key, logits = batch[1], batch[-1], self(batch[0])
        if self.signal == "training":
            self.aging.observe(logits, y, key)
        losses = aol.softmax_loss(self.aging.adjust(logits), y)
        loss = aol.weighted_mean(losses, self.aging.weight(key), divide_by=self.divide_by)
        self.seen.append(key.tolist())
        self.losses.append(loss.item())
        return loss

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        self.log("val_loss", aol.softmax_loss(self(batch[0]), batch[1]).mean())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.3, momentum=0.9)

    def weights(self) -> Tensor:
        return nn.utils.parameters_to_vector(self.net.parameters()).detach().clone()


def rate(step: int) -> float:
    """Return the factor of the learning rate: a warm-up over six steps, then a decay, also within epochs."""
    return min(1.0, (step + 1) / 6) * 0.95**step


class Scheduled(Net):
    """The learning rate follows `rate`."""

    def configure_optimizers(self) -> dict[str, object]:
        optimizer = super().configure_optimizers()
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def made_margins(signal: str) -> aol.Margins:
    """Return margins that move easily."""
    return aol.Margins(CLASSES, signal=signal, gain=0.5, width=0.0)


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


def plain_loop(
    ages: aol.SampleAges, order: aol.ShuffledSampler | aol.AgeSampler, *, epochs: int = 3, batch_size: int = 16
) -> tuple[Tensor, list[float]]:
    """Train the same network as the README does, and return its weights and losses."""
    model = Net()
    optimizer = model.configure_optimizers()
    losses = []
    for _ in range(epochs):
        for index in torch.tensor(list(order)).split(batch_size):
            weight = ages.weight(index)
            loss = aol.weighted_mean(aol.softmax_loss(model(IMAGES[index]), LABELS[index]), weight)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        with torch.no_grad():
            ages.observe(range(SAMPLES), aol.is_correct(model(IMAGES), LABELS))
        ages.advance()
    return model.weights(), losses


def fitted(
    aging: AgeOfLearning, model: Net | None = None, *, signal: str = "pass", loader=None, callbacks=(), **options
) -> Net:
    """Fit a module, with the loader of the callback unless another is given."""
    model = model or Net(aging, signal)
    loader = aging.loader(DATA, batch_size=16, seed=2) if loader is None else loader
    trainer(aging, *callbacks, **options).fit(model, loader)
    return model


class Stream(IterableDataset):
    """Samples in the order of their numbers, without a length."""

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return iter(zip(IMAGES, LABELS, strict=True))
