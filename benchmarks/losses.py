"""The losses as modules: microseconds per call beside cross-entropy, and what they gain on small long-tailed problems.

The problems are digits (inside scikit-learn) and mixtures: 20 classes of two Gaussian clusters in 32 dimensions. On
the stream, the classes swap sizes every 6,400 labels; each sample is shown once.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterator

import numpy as np
import torch
from measuring import Record, interval, machine, options, table, write
from torch import Tensor, nn
from torch.nn import functional as F

import aol

MOVES_EVERY, STEP, PERIODS, IMBALANCE = 6_400, 64, 16, 50
Criterion = Callable[[Tensor, Tensor], Tensor]


class Loop:
    """`aol.Margins` in the documented loop: observed in training, advanced every ten steps."""

    def __init__(self, num_classes: int) -> None:
        self.margins, self.calls = aol.Margins(num_classes), 0

    def __call__(self, logits: Tensor, label: Tensor) -> Tensor:
        """Return the loss, and move the offsets when it is time."""
        loss = F.cross_entropy(self.margins.adjust(logits), label)
        self.margins.observe(label, logits.detach().softmax(1))
        self.calls += 1
        if self.calls % 10 == 0:
            self.margins.advance()
        return loss


OFFLINE: dict[str, Callable[[Tensor], Criterion]] = {
    "cross-entropy": lambda counts: F.cross_entropy,
    "`LogitAdjustedLoss`, known counts": lambda counts: aol.LogitAdjustedLoss(len(counts), counts=counts),
    "`LogitAdjustedLoss`": lambda counts: aol.LogitAdjustedLoss(len(counts)),
    "`MarginLoss`": lambda counts: aol.MarginLoss(len(counts)),
    "`Margins` every ten steps": lambda counts: Loop(len(counts)),
    "`AgeWeightedLoss`, online": lambda counts: aol.AgeWeightedLoss(len(counts)),
}
STREAM: dict[str, Callable[[int], Criterion]] = {
    "cross-entropy": lambda size: F.cross_entropy,
    "memory of all": lambda size: aol.LogitAdjustedLoss(size),
    **{
        f"memory {labels:,}": lambda size, labels=labels: aol.LogitAdjustedLoss(size, memory=labels)
        for labels in (6_400, 1_280, 320, 64)
    },
    "`MarginLoss`": lambda size: aol.MarginLoss(size),
    "`AgeWeightedLoss`, online": lambda size: aol.AgeWeightedLoss(size),
}


def digits(seed: int) -> tuple[Tensor, ...]:
    from sklearn.datasets import load_digits

    pixels, label = (torch.from_numpy(values) for values in load_digits(return_X_y=True))
    order = torch.randperm(len(label), generator=torch.Generator().manual_seed(seed))
    x, label = (pixels[order] / 16).float(), label[order]
    kept = aol.long_tail(label[600:], IMBALANCE, seed=seed)
    return x[600:][kept], label[600:][kept], x[:600], label[:600]


def mixtures(seed: int) -> tuple[Tensor, ...]:
    draw = mixture(seed)
    counts = aol.long_tail_counts(600, 20, IMBALANCE)
    return *draw(torch.arange(20).repeat_interleave(counts)), *draw(torch.arange(20).repeat_interleave(60))


def mixture(seed: int) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    centres = 0.75 * torch.randn(20, 2, 32, generator=generator)

    def draw(label: Tensor) -> tuple[Tensor, Tensor]:
        cluster = torch.randint(0, 2, label.shape, generator=generator)
        return centres[label, cluster] + torch.randn(len(label), 32, generator=generator), label

    return draw


def network(x: Tensor, num_classes: int, seed: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(x.shape[1], 128), nn.ReLU(), nn.Linear(128, num_classes))
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)


def balanced_accuracy(model: nn.Module, x: Tensor, label: Tensor) -> float:
    with torch.no_grad():
        right = (model(x).argmax(1) == label).double()
    return 100 * float(torch.stack([right[label == c].mean() for c in label.unique()]).mean())


def offline(data: Callable[[int], tuple[Tensor, ...]], epochs: int, method: str, seed: int) -> float:
    x, label, *test = data(seed)
    counts = torch.bincount(label)
    model, optimizer = network(x, len(counts), seed)
    criterion = OFFLINE[method](counts)
    rate = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    for _ in range(epochs):
        for rows in torch.randperm(len(label)).split(STEP):
            step(model, optimizer, criterion, x[rows], label[rows])
        rate.step()
    return balanced_accuracy(model, *test)


def stream(method: str, seed: int) -> float:
    """Return the mean balanced accuracy at the ends of the later half of the periods."""
    draw = mixture(seed)
    test = draw(torch.arange(20).repeat_interleave(60))
    model, optimizer = network(test[0], 20, seed)
    criterion, accuracy = STREAM[method](20), []
    for prior in priors(seed):
        for label in torch.multinomial(prior, MOVES_EVERY, replacement=True).split(STEP):
            step(model, optimizer, criterion, *draw(label))
        accuracy.append(balanced_accuracy(model, *test))
    return statistics.fmean(accuracy[PERIODS // 2 :])


def priors(seed: int) -> Iterator[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    counts = aol.long_tail_counts(600, 20, IMBALANCE).float()
    for _ in range(PERIODS):
        yield counts[torch.randperm(20, generator=generator)]


def step(model: nn.Module, optimizer: torch.optim.Optimizer, criterion: Criterion, x: Tensor, label: Tensor) -> None:
    loss = criterion(model(x), label)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def cost(num_classes: int, repeats: int) -> dict[str, float]:
    """Return microseconds of one call, forward and backward, at batch 64: medians of interleaved calls."""
    logits = torch.randn(64, num_classes, requires_grad=True)
    label = torch.randint(0, num_classes, (64,))
    criteria: dict[str, Criterion] = {
        "cross-entropy": F.cross_entropy,
        "`LogitAdjustedLoss`": aol.LogitAdjustedLoss(num_classes),
        "`MarginLoss`": aol.MarginLoss(num_classes),
        "`AgeWeightedLoss`, online": aol.AgeWeightedLoss(num_classes),
    }
    times: dict[str, list[float]] = {name: [] for name in criteria}
    for _ in range(repeats):
        for name, criterion in criteria.items():
            logits.grad = None
            began = time.perf_counter()
            criterion(logits, label).backward()
            times[name].append(1e6 * (time.perf_counter() - began))
    return {name: statistics.median(values) for name, values in times.items()}


def gain(values: list[float], plain: list[float]) -> str:
    mean, apart = statistics.fmean(values), np.asarray(values) - np.asarray(plain)
    if not apart.any():
        return f"{mean:.1f}"
    low, high = interval(apart)
    return f"{apart.mean():+.1f} ({low:+.1f}, {high:+.1f})"


def rows(problems: dict[str, dict[str, list[float]]]) -> str:
    methods = list(next(iter(problems.values())))
    cells = {
        name: {method: gain(runs[method], runs["cross-entropy"]) for method in methods}
        for name, runs in problems.items()
    }
    return table([{"loss": method} | {name: cells[name][method] for name in problems} for method in methods])


def text(record: Record) -> str:
    calls = [
        {"loss": name} | {f"[64, {size}]": f"{values[name]:.0f} µs" for size, values in record["cost"].items()}
        for name in next(iter(record["cost"].values()))
    ]
    words = "Balanced accuracy of cross-entropy, and gains over it in points"
    return "\n\n".join(
        [
            f"{record['machine']}, median of {record['repeats']} calls",
            f"One call, forward and backward, interleaved:\n\n{table(calls)}",
            f"{words}, {record['seeds']} seeds:\n\n{rows(record['offline'])}",
            f"A stream whose classes swap sizes every {MOVES_EVERY:,} labels:\n\n{rows(record['stream'])}",
        ]
    )


def main(arguments: list[str] | None = None) -> int:
    parser = options(str(__doc__).splitlines()[0], "losses.json")
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=2000, help="calls of each loss")
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    seeds = range(given.seeds)
    record: Record = {"machine": machine(), "seeds": given.seeds, "repeats": given.repeats}
    record["cost"] = {str(size): cost(size, given.repeats) for size in (10, 1000)}
    record["offline"] = {
        name: {method: [offline(data, epochs, method, seed) for seed in seeds] for method in OFFLINE}
        for name, data, epochs in (("digits, 30 epochs", digits, 30), ("mixtures, 10 epochs", mixtures, 10))
    }
    record["stream"] = {"mixtures": {method: [stream(method, seed) for seed in seeds] for method in STREAM}}
    print(text(record))
    write(record, given.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
