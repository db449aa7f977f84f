"""Long-tailed digits in Lightning: plain, weighted by frequency, weighted by age, resampled by age; one table.

All runs of a seed share the data, the initial weights and (except for resampling) the order of batches, so that
differences are paired. Nothing was tuned on these data.
"""

from __future__ import annotations

import logging
import sys
import time
import warnings

import lightning
import torch
from comparison import CLASSES, FOOTNOTE, accuracy, digits, network, options, table, tail_mean
from torch import Tensor
from torch.utils.data import TensorDataset

import aol
from aol.plugins.lightning import AgeOfLearning

METHODS = ("none", "frequency^-0.5", "AoL class", "AoL sample", "AoL class, resampled")


class Classifier(lightning.LightningModule):
    """A small network; its loss is weighted by class, by age, or not at all."""

    def __init__(self, method: str, seed: int, aging: AgeOfLearning, class_weight: Tensor) -> None:
        super().__init__()
        self.net, self.aging = network(seed), aging
        self.aged = method in ("AoL class", "AoL sample")
        self.register_buffer("class_weight", class_weight)
        self.curve: list[float] = []

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        return self.net(x)

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        """Return the weighted loss."""
        x, y, index = batch
        losses = aol.softmax_loss(self(x), y)
        if self.aged:
            return aol.weighted_mean(losses, self.aging.weight(index))
        return aol.weighted_mean(losses, self.class_weight[y])

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        """Record the test accuracy of this epoch."""
        images, labels = batch
        self.curve.append(accuracy(self.net, images, labels))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return plain SGD with momentum."""
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9, weight_decay=2e-4)


def train(method: str, seed: int, epochs: int, imbalance: float) -> dict[str, float]:
    """Train one network and return its accuracy on the balanced test set."""
    pool = digits(seed)
    kept = aol.long_tail(pool.labels, imbalance, seed=seed)
    labels = pool.labels[kept]
    counts = torch.bincount(labels, minlength=CLASSES)
    power = 0.5 if method.startswith("frequency") else 0.0

    level = "sample" if method == "AoL sample" else "class"
    aging = AgeOfLearning(aol.SampleAges(labels, num_classes=CLASSES, level=level))
    model = Classifier(method, seed, aging, aol.frequency_weight(counts, power))
    data = TensorDataset(pool.images[kept], labels)
    loader = aging.loader(data, batch_size=32, seed=seed, resample=method.endswith("resampled"))
    test = torch.utils.data.DataLoader(TensorDataset(pool.test_images, pool.test_labels), batch_size=1000)
    trainer = lightning.Trainer(
        max_epochs=epochs,
        callbacks=[aging],
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
    )
    trainer.fit(model, loader, test)
    return {"last epoch": model.curve[-1], "tail mean": tail_mean(model.curve)}


def main(words: list[str] | None = None) -> int:
    parser = options(
        "Train on long-tailed digits in Lightning and compare weightings.",
        epochs=(60, 1, "epochs of each run"),
        seeds=(10, 2, "runs of each method"),
        imbalance=(50.0, 1, "the largest class over the smallest"),
    )
    given = parser.parse_args(words)
    warnings.filterwarnings("ignore", module="lightning")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    began = time.perf_counter()
    results: dict[str, list[dict[str, float]]] = {method: [] for method in METHODS}
    for seed in range(given.seeds):
        for method in METHODS:
            results[method].append(train(method, seed, given.epochs, given.imbalance))
        print(f"seed {seed + 1} of {given.seeds}, {time.perf_counter() - began:.0f} s", file=sys.stderr)
    print(f"\nDigits in Lightning {lightning.__version__}, imbalance {given.imbalance:g}, ", end="")
    print(f"{given.epochs} epochs, {given.seeds} seeds, test accuracy in %\n")
    print(table(results, "none"))
    print(f"\n{FOOTNOTE}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
