"""A plain training loop for comparison: one run, a DataLoader with workers, an evaluation pass for each figure.

An epoch does what the paper's released code does: float32, deterministic kernels, per-image augmentation in worker
processes, four separate evaluation passes. Nothing of the engine is used.
"""

from __future__ import annotations

import time

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from aol import SampleAges, weighted_mean


class _Augmented(Dataset[tuple[Tensor, int, int]]):
    def __init__(self, pixels: Tensor, labels: Tensor, *, train: bool) -> None:
        self._pixels, self._labels, self._train = pixels, labels, train

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int, int]:
        image = self._pixels[index].float() / 128 - 1
        if self._train:
            top, left = torch.randint(9, (2,)).tolist()
            image = F.pad(image, (4, 4, 4, 4), value=-1.0)[:, top : top + 32, left : left + 32]
            image = image.flip(-1) if torch.rand(()) < 0.5 else image
        return image, int(self._labels[index]), index


def seconds_per_epoch(
    net: nn.Module,
    train: tuple[Tensor, Tensor],
    test: tuple[Tensor, Tensor],
    *,
    epochs: int,
    workers: int,
    device: torch.device,
) -> list[float]:
    """Train one network for some epochs and return the seconds of each."""
    net = net.to(device)
    deterministic = torch.backends.cudnn.deterministic
    torch.backends.cudnn.deterministic = True
    optimiser = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=2e-4)

    def loader(data: tuple[Tensor, Tensor], *, shown: bool) -> DataLoader[tuple[Tensor, int, int]]:
        dataset = _Augmented(*data, train=shown)
        return DataLoader(dataset, batch_size=128, shuffle=shown, num_workers=workers, pin_memory=device.type == "cuda")

    training, clean, held = loader(train, shown=True), loader(train, shown=False), loader(test, shown=False)
    ages = SampleAges(train[1], num_classes=int(train[1].max()) + 1)
    taken = []
    for _ in range(epochs):
        start = time.perf_counter()
        net.train()
        for images, label, index in training:
            loss = F.cross_entropy(net(images.to(device)), label.to(device), reduction="none")
            optimiser.zero_grad()
            weighted_mean(loss, ages.weight(index).to(device)).backward()  # type: ignore[no-untyped-call]
            optimiser.step()
        net.eval()
        with torch.no_grad():
            for data in (clean, clean, held, held):  # accuracy and ages, of the training and of the test set
                for images, label, index in data:
                    right = net(images.to(device)).argmax(1).cpu() == label
                    if data is clean:
                        ages.observe(index, right)
        ages.advance()
        taken.append(time.perf_counter() - start)
    torch.backends.cudnn.deterministic = deterministic
    return taken
