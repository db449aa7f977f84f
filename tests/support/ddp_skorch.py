"""Trains nets of skorch on as many processes as torchrun started, and saves what came of it: for the tests."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch
from accelerate import Accelerator
from skorch import NeuralNetClassifier
from skorch.dataset import Dataset, ValidSplit
from skorch.hf import AccelerateMixin
from torch import nn

from aol.plugins.skorch import AgeOfLearning
from tests.support.small_skorch import Small, skewed

X, y = skewed(160)  # 128 without the validation split: 8 batches of 16


class OnCpu(Accelerator):
    """Leaves a criterion without parameters alone, as Accelerate does on GPUs but not on CPUs."""

    def prepare_model(self, model: nn.Module, *args, **kwargs) -> nn.Module:
        trained = any(each.requires_grad for each in model.parameters())
        return super().prepare_model(model, *args, **kwargs) if trained else model


class Net(AccelerateMixin, NeuralNetClassifier):
    """A net that Accelerate splits among processes."""


class Items(Dataset):
    """Has its samples under names that skorch does not know."""

    def __init__(self, X, y) -> None:
        self.first, self.second = X, y

    def __len__(self) -> int:
        return len(self.second)

    def __getitem__(self, index: int):
        return self.first[index], self.second[index]


def made(accelerator: Accelerator, aging: AgeOfLearning, *, batch_size: int = 16, items: bool = False) -> Net:
    return Net(
        Small,
        criterion=nn.CrossEntropyLoss,
        accelerator=accelerator,
        callbacks=[aging],
        callbacks__print_log__sink=lambda *_: None,
        max_epochs=4,
        lr=0.3,
        batch_size=batch_size,
        train_split=None if items else ValidSplit(5),
        dataset=Items if items else Dataset,
    )


def run(out: Path, *, parts: int = 1, items: bool = False, **options) -> None:
    """Train; the batch of an optimiser step is 16, however many processes and parts share it."""
    processes, rank = int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("RANK", 0))
    aging = AgeOfLearning(recorder=out / f"record-{processes}", **options)
    accelerator = OnCpu(cpu=True, gradient_accumulation_steps=parts)
    assert accelerator.num_processes == processes
    net = made(accelerator, aging, batch_size=16 // processes // parts, items=items)
    net.fit(X[:128] if items else X, y[:128] if items else y)
    losses = torch.tensor(net.history[:, "train_loss"])
    if processes > 1:
        torch.distributed.all_reduce(losses)
    found = {"age": aging.ages_.age, "ema": aging.ages_.ema, "losses": losses / processes}
    found["weights"] = torch.cat([each.detach().flatten() for each in net.module_.parameters()])
    if aging.margins_ is not None:
        found["offsets"] = aging.margins_.offsets
    torch.save(found, out / f"{processes}-{rank}.pt")


def run_all(out: Path, settings: list[dict]) -> None:
    """Train with each setting, into folders that are numbered."""
    for number, options in enumerate(settings):
        folder = out / str(number)
        folder.mkdir(parents=True, exist_ok=True)
        run(folder, **options)


if __name__ == "__main__":
    torch.set_num_threads(1)
    run_all(Path(sys.argv[1]), json.loads(sys.argv[2]))
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
