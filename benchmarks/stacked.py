"""How many times as fast are R networks trained as one as a plain PyTorch loop that trains one? Measured in one run.

An epoch of the engine has data, augmentation, training, a clean pass for the ages, tests and readings; one of the plain
loop does what the paper's released code does: float32, deterministic kernels, a DataLoader with worker processes,
augmentation image by image, and four evaluation passes. Both train ResNet-32 on random images of CIFAR-10's size with a
long tail of imbalance 100. On a CPU both get a hundredth of the images.

    python -m benchmarks.stacked [--runs 1 16 64] [--epochs 3]
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

sys.path.insert(0, str(Path(__file__).parent))
from measuring import machine, options, table, write

from aol import SampleAges, long_tail, weighted_mean
from aol.lab.data.images import ImageSet, Pair
from aol.lab.engine.loop import Loop
from aol.lab.nets.registry import make
from aol.lab.settings import grid
from tests.support.random_images import random_pair

IMBALANCE = 100.0


class Augmented(Dataset[tuple[Tensor, int, int]]):
    """Images, randomly cropped and mirrored for training, as the plain loop reads them."""

    def __init__(self, images: Tensor, labels: Tensor, *, augment: bool) -> None:
        self.images, self.labels, self.augment = images, labels, augment

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int, int]:
        image = self.images[index].float() / 128 - 1
        if self.augment:
            top, left = torch.randint(9, (2,)).tolist()
            image = F.pad(image, (4, 4, 4, 4), value=-1.0)[:, top : top + 32, left : left + 32]
            image = image.flip(-1) if torch.rand(()) < 0.5 else image
        return image, int(self.labels[index]), index


def plain_seconds(net: nn.Module, pair: Pair[ImageSet], *, epochs: int, workers: int, device: torch.device) -> float:
    """Train one network in the plain loop; return the seconds of its last epoch."""
    net = net.to(device)
    torch.backends.cudnn.deterministic = True
    optimiser = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=2e-4)
    kept = long_tail(pair.train.labels, IMBALANCE)
    labels = pair.train.labels[kept]
    train, test = (pair.train.images[kept], labels), (pair.test.images, pair.test.labels)

    def loader(data: tuple[Tensor, Tensor], *, augment: bool) -> DataLoader[tuple[Tensor, int, int]]:
        pinned = device.type == "cuda"
        return DataLoader(
            Augmented(*data, augment=augment), batch_size=128, shuffle=augment, num_workers=workers, pin_memory=pinned
        )

    training, clean, held = loader(train, augment=True), loader(train, augment=False), loader(test, augment=False)
    ages = SampleAges(labels, num_classes=10)
    seconds = 0.0
    for _ in range(epochs):
        start = time.perf_counter()
        net.train()
        for images, label, index in training:
            loss = F.cross_entropy(net(images.to(device)), label.to(device), reduction="none")
            optimiser.zero_grad()
            weighted_mean(loss, ages.weight(index).to(device)).backward()
            optimiser.step()
        net.eval()
        with torch.no_grad():
            for data in (clean, clean, held, held):  # accuracy and ages, of the training and of the test set
                for images, label, index in data:
                    right = net(images.to(device)).argmax(1).cpu() == label
                    if data is clean:
                        ages.observe(index, right)
        ages.advance()
        seconds = time.perf_counter() - start
    torch.backends.cudnn.deterministic = False
    return seconds


def engine_speed(
    number: int, pair: Pair[ImageSet], *, epochs: int, device: torch.device, **settings: object
) -> tuple[float, float]:
    """Train some networks as one; return seconds and images per second of an epoch: medians without the first."""
    common = {
        "data": "random", "imbalance": IMBALANCE, "precision": "bf16" if device.type == "cuda" else "fp32",
        "epochs": 200, "weighting": "aol", "net": "resnet32", **settings,
    }  # fmt: skip
    loop = Loop(grid(common, seed=range(number)), pair, device=device)
    for _ in range(epochs + 1):
        loop.run_epoch()
    seconds, speed = (loop.history.epoch(name)[1:, 0].tolist() for name in ("seconds", "images_per_second"))
    return statistics.median(seconds), statistics.median(speed)


def main(words: list[str] | None = None) -> int:
    """Measure, print the table and write the record."""
    on_gpu = torch.cuda.is_available()
    parser: argparse.ArgumentParser = options("Time networks trained as one, and a plain loop.", "stacked.json")
    parser.add_argument("--runs", type=int, nargs="+", default=[1, 16, 64] if on_gpu else [1, 4])
    parser.add_argument("--scale", type=float, default=1.0 if on_gpu else 0.01, help="size of the data; 1: CIFAR-10's")
    parser.add_argument("--epochs", type=int, default=3 if on_gpu else 1, help="timed epochs of the engine")
    parser.add_argument("--workers", type=int, default=2, help="worker processes of the plain loop")
    given = parser.parse_args(words)
    device = torch.device("cuda" if on_gpu else "cpu")
    about = machine() | {"device": torch.cuda.get_device_name() if on_gpu else "CPU", "scale": given.scale}
    about |= {"workers": given.workers}
    pair = random_pair(train=max(100, int(50_000 * given.scale)), test=max(100, int(10_000 * given.scale)))
    net = make("resnet32", num_classes=10, in_channels=3, seed=0)
    plain = plain_seconds(net, pair, epochs=2, workers=given.workers, device=device)
    rows = []
    for number in given.runs:
        seconds, _ = engine_speed(number, pair, epochs=given.epochs, device=device)
        # Without clean passes and tests.
        alone: dict[str, object] = {"weighting": "none", "signal": "train", "eval_every": 200}
        _, speed = engine_speed(number, pair, epochs=given.epochs, device=device, **alone)
        rows.append({
            "runs": number, "seconds": seconds, "plain_seconds": plain, "ratio": plain * number / seconds,
            "training_images_per_second": speed,
        })  # fmt: skip
    print(", ".join(f"{name} {value}" for name, value in about.items()))
    print(table([
        {
            "networks as one": str(row["runs"]), "an epoch": f"{row['seconds']:.3g} s",
            "plain loop, one network": f"{plain:.3g} s", "times as fast": f"{row['ratio']:.1f}",
            "training alone": f"{row['training_images_per_second']:,.0f} images/s",
        }
        for row in rows
    ]))  # fmt: skip
    write({"machine": about, "epochs": given.epochs, "rows": rows}, given.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
