"""The stream of `stream.py` in Avalanche: a step is an experience, the reservoir is the memory, with or without replay.

For each experience: train on it once, add its samples to the memory, evaluate the network on the memory, and compute
the weights of the next experience. Settings are defaults or common values; none was tuned on these data.
"""

from __future__ import annotations

import logging
import sys

import torch
from avalanche.benchmarks import benchmark_from_datasets
from avalanche.benchmarks.utils import as_classification_dataset
from avalanche.training import Naive
from avalanche.training.plugins import EvaluationPlugin, ReplayPlugin
from avalanche.training.storage_policy import ReservoirSamplingBuffer
from comparison import CLASSES, FOOTNOTE, Digits, accuracy, digits, each_seed, network, stream_options, table, tail_mean
from torch import nn
from torch.utils.data import TensorDataset

import aol
from aol.plugins.avalanche import AgePlugin

METHODS = ("none", "error rate", "AoL rho 0.1", "AoL rho 0.5", "replay", "replay + AoL rho 0.5")


class Labelled(TensorDataset):
    """Tensors with the attribute `targets`, where Avalanche finds labels."""

    def __init__(self, pool: Digits, index: torch.Tensor) -> None:
        super().__init__(pool.images[index], pool.labels[index])
        self.targets = pool.labels[index].tolist()


def plugins(method: str, capacity: int, seed: int) -> list[object]:
    """Return the plug-ins of a method. Ages are estimated on the memory, with or without replay."""
    states = {
        "error rate": aol.ErrorRates(CLASSES),
        "AoL rho 0.1": aol.ClassAges(CLASSES, rho=0.1),
        "AoL rho 0.5": aol.ClassAges(CLASSES, rho=0.5),
        "replay + AoL rho 0.5": aol.ClassAges(CLASSES, rho=0.5),
    }
    memory = ReservoirSamplingBuffer(capacity)
    found: list[object] = []
    if method.startswith("replay"):
        found.append(ReplayPlugin(mem_size=capacity, storage_policy=memory))
    if method in states:
        found.append(AgePlugin(states[method], memory=memory, seed=seed))
    return found


def train(method: str, seed: int, steps: int, imbalance: float, period: int, capacity: int) -> dict[str, float]:
    """Train one network on one stream and return its accuracy on the balanced test set."""
    pool = digits(seed)
    stream = aol.ShiftingTail(pool.labels, imbalance, period=period, steps=steps, seed=seed)
    benchmark = benchmark_from_datasets(train=[as_classification_dataset(Labelled(pool, shown)) for shown in stream])

    model = network(seed)
    strategy = Naive(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=2e-4),
        criterion=nn.CrossEntropyLoss(),
        train_mb_size=32,
        plugins=plugins(method, capacity, seed),
        evaluator=EvaluationPlugin(),
    )
    torch.manual_seed(seed)  # Avalanche's loaders and buffers draw from the global generator
    curve = []
    for experience in benchmark.train_stream:
        strategy.train(experience)
        curve.append(accuracy(model.eval(), pool.test_images, pool.test_labels))
    return {"last step": curve[-1], "tail mean": tail_mean(curve), "second half": tail_mean(curve, 0.5)}


def main(words: list[str] | None = None) -> int:
    about = "Train along a stream with a shifting long tail in Avalanche, with several weightings, and compare them."
    given = stream_options(about).parse_args(words)
    settings = (given.steps, given.imbalance, given.period, given.capacity)
    results = each_seed(METHODS, given.seeds, lambda method, seed: train(method, seed, *settings))

    print(f"\nDigits in Avalanche, a long tail of imbalance {given.imbalance:g} that shifts every ", end="")
    print(f"{given.period} experiences,\nreservoir of {given.capacity}, {given.steps} experiences, ", end="")
    print(f"{given.seeds} seeds, test accuracy in %\n")
    print(table(results, "none"))
    print(f"\n{FOOTNOTE}")
    return 0


if __name__ == "__main__":
    logging.captureWarnings(True)  # Avalanche warns of its own old names at every call, whatever the filters say
    logging.getLogger("py.warnings").setLevel(logging.ERROR)
    sys.exit(main())
