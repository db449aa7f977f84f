"""Shared by the examples: long-tailed digits, a small network, options, runs, and a table of paired differences."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn, TypeVar

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

CLASSES = 10
FOOTNOTE = "* The interval leaves out zero. It is not corrected for comparing several methods at once."

Run = TypeVar("Run")


@dataclass(frozen=True)
class Digits:
    """A balanced training pool and a balanced test set, both random parts of scikit-learn's digits."""

    images: Tensor
    labels: Tensor
    test_images: Tensor
    test_labels: Tensor


def digits(seed: int, test_per_class: int = 60) -> Digits:
    found = load_digits()
    images = torch.tensor(found.data / 16.0, dtype=torch.float32)
    labels = torch.tensor(found.target)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    by_class = [order[labels[order] == c] for c in range(CLASSES)]
    test = torch.cat([each[:test_per_class] for each in by_class])
    pool = torch.cat([each[test_per_class:] for each in by_class])
    return Digits(images[pool], labels[pool], images[test], labels[test])


def network(seed: int) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, CLASSES))


@torch.no_grad()
def accuracy(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    return float((model(images).argmax(1) == labels).double().mean()) * 100


def tail_mean(curve: Sequence[float], part: float = 0.05) -> float:
    """Return the mean over the last part of a curve, which is less noisy than the last point."""
    return float(np.mean(curve[-max(1, round(len(curve) * part)) :]))


def interval(differences: Sequence[float], draws: int = 10_000, level: float = 0.95) -> tuple[float, float]:
    """Return a bootstrap interval of the mean over seeds."""
    values = np.asarray(differences)
    chosen = np.random.default_rng(0).integers(len(values), size=(draws, len(values)))
    low, high = np.quantile(values[chosen].mean(1), [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def each_seed(methods: Sequence[str], seeds: int, train: Callable[[str, int], Run]) -> dict[str, list[Run]]:
    """Return the runs of each method, in the order of seeds; progress goes to standard error."""
    began = time.perf_counter()
    runs: dict[str, list[Run]] = {method: [] for method in methods}
    for seed in range(seeds):
        for method in methods:
            runs[method].append(train(method, seed))
        print(f"seed {seed + 1} of {seeds}, {time.perf_counter() - began:.0f} s", file=sys.stderr)
    return runs


def table(results: Mapping[str, Sequence[Mapping[str, float]]], baseline: str) -> str:
    """Return the results as text: mean and sd over seeds, and the difference to the baseline, paired by seed."""
    measures = list(results[baseline][0])
    lines = []
    for measure in measures:
        lines.append(f"{measure:<24}{'mean':>7}{'± sd':>7}   {'difference to ' + baseline + ' (95 % interval)'}")
        before = np.array([each[measure] for each in results[baseline]])
        for method, runs in results.items():
            now = np.array([each[measure] for each in runs])
            line = f"  {method:<22}{now.mean():7.2f}{now.std(ddof=1):7.2f}"
            if method != baseline:
                low, high = interval(now - before)
                clear = "" if low <= 0 <= high else "  *"
                line += f"   {np.mean(now - before):+6.2f}  ({low:+.2f} to {high:+.2f}){clear}"
            lines.append(line)
        lines.append("")
    return "\n".join(lines).rstrip()


def options(description: str, **defaults: tuple[int | float, int | float, str]) -> argparse.ArgumentParser:
    """Return a parser with one option per keyword: its default, smallest value and help."""
    parser = _Parser(description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    for name, (default, least, text) in defaults.items():
        parser.add_argument(f"--{name}", type=_at_least(type(default), least), default=default, help=text)
    return parser


def stream_options(description: str) -> argparse.ArgumentParser:
    """Return the options of a stream whose long tail shifts."""
    return options(
        description,
        steps=(100, 1, "steps of each stream"),
        seeds=(10, 2, "runs of each method"),
        imbalance=(50.0, 1, "the largest class of a step over the smallest"),
        period=(10, 1, "steps between two orders of the classes"),
        capacity=(300, 1, "samples in the reservoir"),
    )


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} (--help lists the options)\n")


def _at_least(kind: type, least: float) -> Callable[[str], float]:
    what = "a whole number" if kind is int else "a number"

    def number(text: str) -> float:
        try:
            value: float = kind(text)
        except ValueError:
            value = float("nan")
        if not least <= value < float("inf"):
            raise argparse.ArgumentTypeError(f"must be {what} of {least} or more, not {text!r}")
        return value

    return number
