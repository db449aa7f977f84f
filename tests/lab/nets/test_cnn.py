from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from aol.lab.nets import make, stack


def test_two_stacked_runs_learn_the_digits_in_seconds() -> None:
    digits = pytest.importorskip("sklearn.datasets").load_digits()
    x = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 8 - 1
    y = torch.tensor(digits.target)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    train, test = order[:1297], order[1297:]
    nets = stack([make("cnn", num_classes=10, in_channels=1, seed=seed) for seed in (0, 1)])
    optimiser = torch.optim.SGD(nets.parameters(), lr=0.1, momentum=0.9, weight_decay=2e-4)
    for epoch in range(4):
        for batch in train[torch.randperm(len(train), generator=torch.Generator().manual_seed(epoch))].split(64):
            loss = F.cross_entropy(nets(x[batch]).transpose(1, 2), y[batch].expand(2, -1), reduction="none")
            optimiser.zero_grad()
            loss.mean(1).sum().backward()
            optimiser.step()
    with torch.no_grad():
        right = nets.eval()(x[test]).argmax(2) == y[test]
    assert (right.float().mean(1) > 0.95).all()
