"""A small net on skewed data, and the same training written out by hand with nothing of `aol` or skorch."""

from __future__ import annotations

import math

import numpy as np
import torch
from skorch import NeuralNetClassifier
from torch import nn

from aol.plugins.skorch import AgeOfLearning
from tests.support.oracle import fold


def skewed(samples=120, classes=3, seed=0):
    rng = np.random.default_rng(seed)
    y = rng.choice(classes, samples, p=[0.7, 0.2, 0.1][:classes] if classes == 3 else None)
    X = rng.normal(size=(samples, 5)) + 1.5 * np.eye(classes, 5)[y]
    return X.astype(np.float32), y.astype(np.int64)


class Small(nn.Module):
    """The same first weights every time."""

    def __init__(self, hidden=6, classes=3, seed=0):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.layers = nn.Sequential(nn.Linear(5, hidden), nn.Tanh(), nn.Dropout(0.0), nn.Linear(hidden, classes))

    def forward(self, X):
        return self.layers(X)


def net(*callbacks, **words):
    kind = {
        "criterion": nn.CrossEntropyLoss,
        "max_epochs": 4,
        "lr": 0.3,
        "batch_size": 16,
        "train_split": None,
        "verbose": 0,
    }
    return NeuralNetClassifier(Small, callbacks=list(callbacks), **{**kind, **words})


def aged(*more, **words):
    """Return a net with ages and what they start with; other words are the net's own."""
    own = {name: words.pop(name) for name in ("rho", "level", "fuse") if name in words}
    return net(AgeOfLearning(**own), *more, **words)


def parameters(found) -> list[float]:
    return torch.cat([each.detach().flatten() for each in found.module_.parameters()]).tolist()


def by_hand(X, y, *, epochs, rho, level, order=None, class_weight=None, lr=0.3, batch=16):
    """Train with plain PyTorch and plain numbers; return the module, the history of ages, and the weights used last."""
    module, history = Small(), [[] for _ in y]
    weight = [1.0] * len(y)
    optimizer = torch.optim.SGD(module.parameters(), lr=lr)
    own = torch.ones(3) if class_weight is None else torch.tensor(class_weight)
    for _ in range(epochs):
        module.train()
        for index in torch.arange(len(y)).split(batch):
            target = torch.tensor(y)[index]
            loss = nn.functional.cross_entropy(module(torch.tensor(X)[index]), target, reduction="none") * own[target]
            w = torch.tensor([weight[i] for i in index.tolist()])
            optimizer.zero_grad()
            ((w * loss).sum() / (w * own[target]).sum()).backward()
            optimizer.step()
        module.eval()
        with torch.no_grad():
            right = (module(torch.tensor(X)).argmax(1).numpy() == y).tolist()
        for ages, answer in zip(history, right, strict=True):
            ages.append(1 if answer else (ages[-1] if ages else 1) + 1)
        used, ema = weight, [fold(ages, rho) for ages in history]
        of_class = {c: [e for e, label in zip(ema, y, strict=True) if label == c] for c in set(y.tolist())}
        mean = {c: math.fsum(found) / len(found) for c, found in of_class.items()}
        weight = [mean[label] for label in y.tolist()] if level == "class" else ema
    return module, history, used
