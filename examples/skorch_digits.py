"""Long-tailed digits with skorch: a small network with the callback, and a criterion with balanced weights.

Settings are defaults of the library or common values; none was tuned on these data.
"""

from __future__ import annotations

import sys

import torch
from comparison import CLASSES, FOOTNOTE, accuracy, digits, each_seed, network, options, table
from skorch import NeuralNetClassifier
from torch import nn

import aol
from aol.plugins.skorch import AgeOfLearning, IndexedLoader

METHODS = ("none", "balanced", "AoL class", "AoL sample")


def train(method: str, seed: int, epochs: int, imbalance: float) -> dict[str, float]:
    """Train on a long tail and return the accuracy on the balanced test set, in percent."""
    pool = digits(seed)
    tail = aol.long_tail(pool.labels, imbalance, seed=seed)
    images, labels = pool.images[tail], pool.labels[tail]
    balance = aol.frequency_weight(torch.bincount(labels, minlength=CLASSES), 1.0) if method == "balanced" else None
    net = NeuralNetClassifier(
        network(seed),
        criterion=nn.CrossEntropyLoss,
        criterion__weight=balance,
        callbacks=[AgeOfLearning(level=method.removeprefix("AoL "))] if method.startswith("AoL") else None,
        optimizer__momentum=0.9,
        lr=0.1,
        batch_size=32,
        max_epochs=epochs,
        iterator_train=IndexedLoader,  # which level="sample" needs
        iterator_train__shuffle=True,
        iterator_train__generator=torch.Generator().manual_seed(seed),
        train_split=None,
        verbose=0,
    )
    net.fit(images.numpy(), labels.numpy())
    return {"last epoch": accuracy(net.module_.eval(), pool.test_images, pool.test_labels)}


def main(words: list[str] | None = None) -> int:
    parser = options(
        "Train a small network on long-tailed digits in skorch, with several weightings, and compare them.",
        epochs=(30, 1, "epochs of each run"),
        seeds=(10, 2, "runs of each method"),
        imbalance=(50.0, 1, "the largest class over the smallest"),
    )
    given = parser.parse_args(words)
    settings = (given.epochs, given.imbalance)
    results = each_seed(METHODS, given.seeds, lambda method, seed: train(method, seed, *settings))
    print(f"\nDigits in skorch, imbalance {given.imbalance:g}, {given.epochs} epochs, {given.seeds} seeds, ", end="")
    print("test accuracy in %\n")
    print(table(results, "none"))
    print(f"\n{FOOTNOTE}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
