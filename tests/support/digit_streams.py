"""Digits as Avalanche's benchmarks, a small network, and a strategy around it: what these tests share."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from avalanche.benchmarks import CLScenario, benchmark_from_datasets, nc_benchmark, with_classes_timeline
from avalanche.benchmarks.utils import AvalancheDataset, as_classification_dataset
from avalanche.training import Naive
from avalanche.training.plugins import EvaluationPlugin
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import aol

CLASSES = 10


class Labelled(TensorDataset):
    """Tensors with the attribute by which Avalanche finds labels."""

    def __init__(self, images: Tensor, labels: Tensor) -> None:
        super().__init__(images, labels)
        self.targets = labels.tolist()


def digits() -> tuple[Tensor, Tensor]:
    found = load_digits()
    return torch.tensor(found.data / 16.0, dtype=torch.float32), torch.tensor(found.target)


def part(index: Tensor) -> AvalancheDataset:
    images, labels = digits()
    return as_classification_dataset(Labelled(images[index], labels[index]))


def shifting_tail(steps: int, imbalance: float = 20.0) -> CLScenario:
    """A stream after the paper: each experience is long-tailed, and the order of classes changes every two."""
    _, labels = digits()
    stream = aol.ShiftingTail(labels, imbalance, period=2, steps=steps, seed=1)
    train, test = [part(shown) for shown in stream], [part(torch.arange(300))]
    return with_classes_timeline(benchmark_from_datasets(train=train, test=test))


def split_digits(task_labels: bool = False) -> CLScenario:
    """Five experiences of two classes each."""
    images, labels = digits()
    train, test = Labelled(images[:900], labels[:900]), Labelled(images[900:1200], labels[900:1200])
    return nc_benchmark(train, test, n_experiences=5, task_labels=task_labels, seed=3)


def network(*layers: nn.Module) -> nn.Sequential:
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(64, 32), *layers, nn.ReLU(), nn.Linear(32, CLASSES))


def naive(plugins: Sequence[object] = (), *, model: nn.Module | None = None, **settings: object) -> Naive:
    model = network() if model is None else model
    given: dict[str, object] = {
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
        "criterion": nn.CrossEntropyLoss(),
        "train_mb_size": 32,
        "eval_mb_size": 64,
        "evaluator": EvaluationPlugin(),
    }
    return Naive(model=model, plugins=list(plugins), **{**given, **settings})


def parameters(model: nn.Module) -> Tensor:
    return torch.cat([each.detach().flatten() for each in model.parameters()])


def contents(data: AvalancheDataset) -> tuple[Tensor, Tensor]:
    """Return the images and labels of a data set, in order."""
    items = [data[i] for i in range(len(data))]
    return torch.stack([item[0] for item in items]), torch.tensor([int(item[1]) for item in items])
