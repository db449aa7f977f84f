"""Long-tailed digits: does the Age of Learning help? Several weightings, several seeds, one table.

All runs of a seed share the data, the initial weights and the order of batches (except resampling, which changes the
order), so that differences are paired. Settings are defaults of the library or common values (β = 0.99,
frequency^-0.5); none was tuned on these data, and no epoch is chosen by its test accuracy.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from statistics import mean
from typing import NamedTuple

import torch
from comparison import CLASSES, FOOTNOTE, accuracy, digits, each_seed, network, options, table, tail_mean
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

import aol

METHODS = (
    "none",
    "class-balanced",
    "frequency^-0.5",
    "error rate",
    "AoL class",
    "AoL sample",
    "AoL class, resampled",
)


class Run(NamedTuple):
    """Test accuracy; and after each epoch the training accuracy and the largest AoL weight."""

    test: dict[str, float]
    right: list[float]
    heaviest: list[float]


def train(method: str, seed: int, epochs: int, imbalance: float) -> Run:
    """Train one network."""
    pool = digits(seed)
    kept = aol.long_tail(pool.labels, imbalance, seed=seed)
    images, labels = pool.images[kept], pool.labels[kept]
    counts = torch.bincount(labels, minlength=CLASSES)

    ages = aol.SampleAges(labels, num_classes=CLASSES, rho=0.5)
    rates = aol.ErrorRates(CLASSES)

    # A weighting is a function from indices to weights.
    uniform = torch.ones(CLASSES)
    balanced = aol.class_balanced_weight(counts, 0.99)
    frequency = aol.frequency_weight(counts, 0.5)
    weightings: dict[str, Callable[[Tensor], Tensor]] = {
        "none": lambda index: uniform[labels[index]],
        "class-balanced": lambda index: balanced[labels[index]],
        "frequency^-0.5": lambda index: frequency[labels[index]],
        "error rate": lambda index: rates.weight(labels[index]),
        "AoL class": ages.weight,
        "AoL sample": lambda index: ages.sample_weight[index],
        "AoL class, resampled": lambda index: uniform[labels[index]],
    }
    weight = weightings[method]
    resampled = method.endswith("resampled")
    sampler = aol.AgeSampler(ages, seed=seed) if resampled else aol.ShuffledSampler(len(labels), seed=seed)

    model = network(seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=2e-4)
    loader = DataLoader(aol.Indexed(TensorDataset(images, labels)), batch_size=32, sampler=sampler)
    curve, fitted, heaviest = [], [], []
    for _ in range(epochs):
        for x, y, index in loader:
            loss = aol.weighted_mean(aol.softmax_loss(model(x), y), weight(index))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        # The clean pass at the end of an epoch.
        with torch.no_grad():
            right = aol.is_correct(model(images), labels)
        ages.observe(range(len(labels)), right)
        ages.advance()
        rates.observe(labels, right)
        rates.advance()
        curve.append(accuracy(model, pool.test_images, pool.test_labels))
        fitted.append(float(right.double().mean()))
        heaviest.append(float(ages.class_weight.max()))
    return Run({"last epoch": curve[-1], "tail mean": tail_mean(curve)}, fitted, heaviest)


def weights_over_time(runs: list[Run]) -> str:
    """Describe for how long the AoL runs had unequal weights: if nothing is wrong, all ages are one."""
    epochs = len(runs[0].right)
    firsts = [run.right.index(1.0) + 1 for run in runs if 1.0 in run.right]
    when = f", first at epoch {min(firsts)} to {max(firsts)}" if firsts else ""
    peak, last = (mean(pick(run.heaviest) for run in runs) for pick in (max, lambda curve: curve[-1]))
    return (
        f"AoL class: of {len(runs)} runs, {len(firsts)} had their whole training set right within {epochs} epochs"
        f"{when}.\n"
        f"The largest class weight was {peak:.2f} at its peak and {last:.2f} at the end, on average."
    )


def main(words: list[str] | None = None) -> int:
    parser = options(
        "Train on long-tailed digits with several weightings and compare them.",
        epochs=(60, 1, "epochs of each run"),
        seeds=(10, 2, "runs of each method"),
        imbalance=(50.0, 1, "the largest class over the smallest"),
    )
    given = parser.parse_args(words)
    runs = each_seed(METHODS, given.seeds, lambda method, seed: train(method, seed, given.epochs, given.imbalance))

    pool = digits(0).labels
    counts = torch.bincount(pool[aol.long_tail(pool, given.imbalance)])
    print(f"\nDigits, imbalance {given.imbalance:g} ({counts[0]} to {counts[-1]} samples a class), ", end="")
    print(f"{given.epochs} epochs, {given.seeds} seeds, test accuracy in %\n")
    print(table({method: [run.test for run in each] for method, each in runs.items()}, "none"))
    print(f"\n{FOOTNOTE}")
    print(f"\n{weights_over_time(runs['AoL class'])}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
