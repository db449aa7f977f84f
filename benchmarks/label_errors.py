"""Find wrong labels from one training, beside other scores, and train again without them.

By default small networks on a CPU; with `--gpu` ResNet-32 on all of CIFAR-10N, eight networks trained as one.

Labels by people (CIFAR-10N, aggregate labels), and planted noise: `symmetric` to any other class, `alike` to the next
one (Fashion-MNIST; lines of Python's standard library, told apart by package). One network is trained on all labels
with `aol.Recorder`, and every score ranks the samples of that run; cleanlab also gets probabilities of networks that
did not see the sample. Then, for CIFAR-10N, the network is trained again: without what is flagged, with the suggested
labels, and without as many at random.

The score, its epochs' weights and its bound were chosen with other labels (random_label2, and planted noise)
and other seeds. The bound was chosen anew after a first version was seen on aggre_label; its seeds here are fresh.

    pip install cleanlab==2.9.0 torch==2.13.0 scikit-learn
    python benchmarks/label_errors.py --cifar10n cifar10n.npz --data-dir FOLDER

Continues if it was stopped; writes benchmarks/results/label_errors.json and prints its table.
"""

from __future__ import annotations

import argparse
import inspect
import json
import os
import pickle
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measuring import RESULTS, Record, machine
from torch import Tensor, nn
from torch.nn import functional as F

import aol
from aol.lab.data.images import ImageSet, centred
from aol.lab.data.named import load_named
from aol.lab.engine.loop import Loop
from aol.lab.nets.cnn import CNN
from aol.lab.nets.registry import make
from aol.lab.settings import Settings
from aol.lab.train.group_training import Context, ExecutionOptions, write_records
from aol.lab.train.progress import Progress
from aol.records.store import Store
from aol.stats import paired_gain

PACKAGES = (
    "asyncio",
    "email",
    "unittest",
    "xml",
    "multiprocessing",
    "importlib",
    "ctypes",
    "http",
    "logging",
    "urllib",
)
EPOCHS, BATCH, FOLDS = 10, 256, 3
# Set, noise, share of labels that are changed, samples, seeds, and what else is trained.
CASES = [
    ("cifar10n", "people", 0.0, 20_000, (100,), ("crossed",)),
    ("cifar10n", "people", 0.0, 20_000, (101, 102, 103, 104, 105), ("again",)),
    ("fashion-mnist", "symmetric", 0.1, 8000, (100, 101), ("crossed",)),
    ("fashion-mnist", "alike", 0.1, 8000, (100, 101), ("crossed",)),
    ("text", "symmetric", 0.1, 8000, (100, 101, 102), ("crossed",)),
]
KEYS = ("data", "noise", "rate", "samples", "seed")
Set = tuple[Tensor, np.ndarray, np.ndarray, Tensor, np.ndarray]  # x, labels, true labels; test x and labels


def images(data: str, folder: Path, noisy: Path) -> Set:
    """Return a set of images at half of their size, normalised."""
    if data == "cifar10n":
        parts = [pickle.loads((folder / f"cifar-10-batches-py/{name}").read_bytes(), encoding="bytes")
                 for name in (*(f"data_batch_{place}" for place in range(1, 6)), "test_batch")]  # fmt: skip
        x = torch.from_numpy(np.concatenate([part[b"data"] for part in parts])).view(-1, 3, 32, 32)
        true = np.concatenate([part[b"labels"] for part in parts])
        given, train = np.load(noisy)["aggre_label"].astype(np.int64), 50_000
    else:
        from aol.lab.data import open_data

        pair = open_data("fashion-mnist")
        x = torch.cat([part.images for part in (pair.train, pair.test)])
        true, train = torch.cat([part.labels for part in (pair.train, pair.test)]).numpy(), len(pair.train.labels)
        given = true[:train].copy()
    x = F.avg_pool2d(x.float(), 2)
    x = ((x - x.mean((0, 2, 3), keepdim=True)) / x.std((0, 2, 3), keepdim=True)).to(memory_format=torch.channels_last)
    return x[:train], given, true[:train], x[train:], true[train:]


def text(size: int) -> Set:
    """Return triples of lines of the standard library as hashed bags of words, labelled by package."""
    from sklearn.feature_extraction.text import HashingVectorizer

    lines, labels = [], []
    for place, package in enumerate(PACKAGES):
        root = Path(inspect.getfile(import_module(package))).parent
        for file in sorted(root.rglob("*.py")):
            kept = [line for line in file.read_text(errors="replace").splitlines() if len(line.split()) > 2]
            lines += ["\n".join(kept[start : start + 3]) for start in range(0, len(kept) - 2, 3)]
            labels += [place] * (len(lines) - len(labels))
    order = np.random.default_rng(0).permutation(len(lines))
    words = HashingVectorizer(n_features=2048, norm="l2", alternate_sign=False).transform(lines).toarray()
    x, true = torch.from_numpy(words[order]).float() * 8, np.array(labels)[order]
    return x[size:], true[size:].copy(), true[size:], x[:size], true[:size]


def network(x: Tensor, classes: int) -> nn.Module:
    if x.dim() == 2:
        return nn.Sequential(nn.Linear(x.shape[1], 64), nn.ReLU(), nn.Linear(64, classes))
    return CNN(classes, x.shape[1]).to(memory_format=torch.channels_last)


def answers(net: nn.Module, x: Tensor) -> Tensor:
    net.eval()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        logits = torch.cat([net(part).float() for part in x.split(1000)])
    net.train()
    return logits


def fit(x: Tensor, label: np.ndarray, classes: int, seed: int, each: Callable[[nn.Module], None] = lambda _: None):
    """Train one network: SGD, one cycle, images shifted and mirrored; `each` sees it after every epoch."""
    torch.manual_seed(seed)
    net, target = network(x, classes), torch.from_numpy(label)
    optimizer = torch.optim.SGD(net.parameters(), 0.2, 0.9, nesterov=True, weight_decay=5e-4)
    plan = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.2, total_steps=EPOCHS * -(-len(x) // BATCH) + 1)
    for _ in range(EPOCHS):
        for place in torch.randperm(len(x)).split(BATCH):
            batch = x[place]
            if x.dim() == 4:
                down, right = torch.randint(0, 3, (2,)).tolist()
                side = batch.shape[-1]
                batch = F.pad(batch, (1, 1, 1, 1), mode="reflect")[..., down : down + side, right : right + side]
                batch = torch.where(torch.rand(len(batch), 1, 1, 1) < 0.5, batch.flip(3), batch)
                batch = batch.contiguous(memory_format=torch.channels_last)
            with torch.autocast("cpu", torch.bfloat16):
                logits = net(batch)
            optimizer.zero_grad()
            F.cross_entropy(logits.float(), target[place]).backward()
            optimizer.step()
            plan.step()
        each(net)
    return net


def recorded(x: Tensor, label: np.ndarray, classes: int, seed: int):
    """Train with a recorder: return the network, the frame of label errors, all logits `[E, N, C]`, and the ages."""
    ages, logits, index = aol.SampleAges(label, num_classes=classes), [], torch.arange(len(x))
    with tempfile.TemporaryDirectory() as folder, aol.Recorder(folder, ages) as recorder:

        def each(net: nn.Module) -> None:
            logits.append(answers(net, x))
            ages.observe(index, aol.is_correct(logits[-1], ages.labels))
            recorder.observe(index, logits[-1])
            ages.advance()
            recorder.advance()

        net = fit(x, label, classes, seed, each)
        errors = aol.find_label_errors(recorder).sort_index()
    return net, errors, torch.stack(logits), ages.age.numpy()


def judged(wrong: np.ndarray, score: np.ndarray, flagged: np.ndarray | None = None) -> Record:
    """Return average precision, ties broken by lot, and precision, recall and F1 of what is flagged."""
    from sklearn.metrics import average_precision_score

    lot = np.random.default_rng(0).permutation(len(score))
    rank = np.empty(len(score))
    rank[lot[np.argsort(score[lot], kind="stable")]] = np.arange(len(score))
    values = {"ap": float(average_precision_score(wrong, rank))}
    if flagged is None:
        return values
    hits = int((flagged & wrong).sum())
    precision, recall = hits / max(1, int(flagged.sum())), hits / int(wrong.sum())
    return values | {"precision": precision, "recall": recall, "f1": 2 * hits / int(flagged.sum() + wrong.sum())}


def cleaned(label: np.ndarray, probability: np.ndarray, wrong: np.ndarray) -> Record:
    """Return what cleanlab makes of probabilities: ranked by self-confidence, flagged by its own default."""
    from cleanlab.filter import find_label_issues
    from cleanlab.rank import get_label_quality_scores

    quality = get_label_quality_scores(label, probability, method="self_confidence")
    return judged(wrong, -quality, np.asarray(find_label_issues(label, probability, n_jobs=1)))


def scored(errors, logits: Tensor, label: np.ndarray, age: np.ndarray, wrong: np.ndarray) -> Record:
    """Return how well every score of one run does."""
    target = torch.from_numpy(label).expand(len(logits), -1)[..., None]
    chance = logits.double().softmax(-1)
    own = chance.gather(-1, target)[..., 0].clamp(min=1e-12)
    other = chance.scatter(-1, target, 0.0).amax(-1)
    margin = logits.scatter(-1, target, -torch.inf).amax(-1) - logits.gather(-1, target)[..., 0]
    rivals = {
        "AUM (mean logit margin)": margin.mean(0),
        "mean loss": -own.log().mean(0),
        "mean margin": (other - own).mean(0),
        "cartography (mean confidence)": -own.mean(0),
        "share of epochs wrong": (other > own).double().mean(0),
        "last loss": -own[-1].log(),
        "age": torch.from_numpy(age),
    }
    values = {"aol.find_label_errors": judged(wrong, errors.score.to_numpy(), errors.flagged.to_numpy())}
    values |= {name: judged(wrong, score.double().numpy()) for name, score in rivals.items()}
    return values | {"cleanlab, same run": cleaned(label, chance[-1].numpy(), wrong)}


def crossed(x: Tensor, label: np.ndarray, classes: int, seed: int) -> np.ndarray:
    """Return probabilities by networks that did not see the sample."""
    fold = np.random.default_rng([seed, 2]).permutation(len(x)) % FOLDS
    chance = np.zeros((len(x), classes))
    for held in range(FOLDS):
        net = fit(x[torch.from_numpy(fold != held)], label[fold != held], classes, seed)
        chance[fold == held] = answers(net, x[torch.from_numpy(fold == held)]).double().softmax(-1).numpy()
    return chance


def measure(case: Record, data: Set, extras: tuple[str, ...]) -> Record:
    """Train one case, and return how well labels are judged and what training again gains."""
    started, draws = time.process_time(), np.random.default_rng([case["seed"], 1])
    x, given, true, test_x, test = data
    chosen = np.sort(draws.permutation(len(given))[: case["samples"]])
    x, label, true, classes, seed = (
        x[torch.from_numpy(chosen)],
        given[chosen].copy(),
        true[chosen],
        test.max() + 1,
        case["seed"],
    )
    if case["rate"]:
        changed = draws.permutation(len(label))[: round(case["rate"] * len(label))]
        step = draws.integers(1, classes, len(changed)) if case["noise"] == "symmetric" else 1
        label[changed] = (true[changed] + step) % classes
    wrong = label != true

    def accuracy(net: nn.Module) -> float:
        return float((answers(net, test_x).argmax(1).numpy() == test).mean())

    net, errors, logits, age = recorded(x, label, classes, seed)
    flagged = errors.flagged.to_numpy()
    values = {**case, "epochs": EPOCHS, "wrong": int(wrong.sum()), "flagged": int(flagged.sum()),
              "suggested_right": float((errors.suggested.to_numpy() == true)[wrong & flagged].mean()),
              "train_accuracy": float((logits[-1].argmax(1).numpy() == label).mean()),
              "scores": scored(errors, logits, label, age, wrong)}  # fmt: skip
    if "crossed" in extras:
        values["scores"][f"cleanlab, {FOLDS} folds"] = cleaned(label, crossed(x, label, classes, seed), wrong)
    if "again" in extras:
        keep, lot = ~flagged, np.ones(len(label), bool)
        lot[draws.permutation(len(label))[: flagged.sum()]] = False
        corrected = np.where(flagged, errors.suggested.to_numpy(), label)
        values["again"] = {"plain": accuracy(net)}
        for name, part, labels in (
            ("without", keep, label),
            ("corrected", lot | True, corrected),
            ("random", lot, label),
        ):
            values["again"][name] = accuracy(fit(x[torch.from_numpy(part)], labels[part], classes, seed))
    return values | {"cpu_seconds": round(time.process_time() - started, 1)}


# ResNet-32 on a GPU: CIFAR-10N, all 50,000 images, 60 epochs. The networks of a call are trained as one.

GPU_SEEDS, FOLD_SEEDS = tuple(range(330, 338)), tuple(range(320, 325))
AGAIN_SEEDS, AGAIN = GPU_SEEDS[:5], ("plain", "without", "corrected", "random")


def parted(parts: Sequence[np.ndarray]) -> type[Loop]:
    """Return a loop whose run k trains on the places `parts[k]`; all parts have as many images of each class."""

    class Parted(Loop):
        def _read(self, pair: Any, workers: int | None) -> None:
            super()._read(pair, workers)
            label = self.train.labels.cpu().numpy()
            pools = np.stack([part[np.argsort(label[part], kind="stable")] for part in parts])
            self.pool = torch.from_numpy(pools).to(self.device)
            self.labels = self.train.labels[self.pool[0]]
            self.counts = torch.bincount(self.labels, minlength=self.num_classes)

    return Parted


@dataclass
class People:
    """Labels by people for CIFAR-10, and how networks are trained on them."""

    pair: Any
    name: str
    label: np.ndarray
    device: torch.device
    epochs: int

    @property
    def wrong(self) -> np.ndarray:
        """Which labels are wrong."""
        return self.label != self.pair.train.labels.numpy()

    def trained(
        self,
        seeds: tuple[int, ...],
        *,
        label: np.ndarray | None = None,
        kind: type[Loop] = Loop,
        after_epoch: Callable[[Loop], None] | None = None,
    ) -> Loop:
        """Train a ResNet-32 for every seed as one network, with augmentation and a cosine."""
        common = {"data": "cifar10", "imbalance": None, "net": "resnet32", "epochs": self.epochs, "weight_decay": 5e-4,
                  "schedule": "cosine", "precision": "bf16", "eval_every": self.epochs}  # fmt: skip
        common |= {} if after_epoch else {"signal": "none"}
        label = torch.from_numpy(self.label if label is None else label)
        own = ImageSet(self.pair.train.images, label, self.pair.classes, "train")
        runs = [Settings(**common, seed=seed) for seed in seeds]
        loop = kind(runs, replace(self.pair, train=own), device=self.device, keep_samples=after_epoch is not None)
        while not loop.done:
            loop.run_epoch()
            if after_epoch:
                after_epoch(loop)
            if loop.epoch in (1, 2, self.epochs):
                print(f"{self.name}: epoch {loop.epoch} of {len(seeds)} networks", time.strftime("%X"), flush=True)
        return loop


def tested(loop: Loop) -> list[float]:
    return [round(float(value), 5) for value in loop.history.epoch("test_accuracy")[-1]]


def networks(people: People, flags: Path) -> Record:
    """Judge eight networks, alone and together, beside other scores of the same runs; keep what they flag together."""
    pair, wrong = people.pair, people.wrong
    sums: dict[str, Tensor] = defaultdict(lambda: torch.zeros(()))

    def add(loop: Loop) -> None:
        own, other = (loop.samples.state_dict()[name].double() for name in ("confidence", "other"))
        loss = -own.clamp(min=1e-12).log()
        sums["AUM (mean logit margin)"] = sums["AUM (mean logit margin)"] + loss + other.clamp(min=1e-12).log()
        sums["mean loss"] = sums["mean loss"] + loss
        sums["mean margin"] = sums["mean margin"] + other - own
        sums["cartography (mean confidence)"] = sums["cartography (mean confidence)"] - own
        sums["share of epochs wrong"] = sums["share of epochs wrong"] + (other > own).double()
        sums["last loss"] = loss

    loop = people.trained(GPU_SEEDS, after_epoch=add)
    place, scores = loop.pool.cpu(), dict[str, Any]()
    with tempfile.TemporaryDirectory() as folder:
        options = ExecutionOptions(loop.device, networks=False)
        write_records(
            loop, Context(Store(folder), {loop.settings.data: pair}, options, Progress(), keep=()), finished=True
        )
        frames = [aol.find_label_errors(Path(folder, "runs", run.run_id)).sort_index() for run in loop.runs]
        together = aol.find_label_errors(folder).sort_index()
    for title, errors in {"": frames, ", 8 together": [together]}.items():
        rows = [judged(wrong, frame.score.to_numpy(), frame.flagged.to_numpy()) for frame in errors]
        scores[f"aol.find_label_errors{title}"] = rows
    for rival, by_run in (sums | {"age": loop.ages.age.double()}).items():
        ordered = torch.zeros_like(by_run.cpu()).scatter(1, place, by_run.cpu()).numpy()
        scores[rival] = [judged(wrong, own) for own in ordered]
        scores[f"{rival}, 8 together"] = [judged(wrong, ordered.mean(0))]
    flagged, suggested = together.flagged.to_numpy(), together.suggested.to_numpy()
    np.savez_compressed(flags, flagged=flagged, suggested=suggested)
    known = (suggested == pair.train.labels.numpy())[wrong & flagged]
    return {"seeds": GPU_SEEDS, "samples": len(wrong), "test_accuracy": tested(loop),
            "wrong": int(wrong.sum()), "flagged": int(flagged.sum()),
            "suggested_right": float(known.mean()) if known.size else None, "scores": scores}  # fmt: skip


def folds(people: People) -> Record:
    """Judge what cleanlab makes of probabilities by networks that did not see the sample."""
    pair, label, number = people.pair, people.label, len(FOLD_SEEDS)
    mixed = np.random.default_rng(100).permutation(len(label))
    of_class = [mixed[label[mixed] == c] for c in range(len(pair.classes))]
    outside = [np.concatenate([own[fold::number] for own in of_class]) for fold in range(number)]
    # Every fold of a class leaves as many out, so that all runs have the same sizes.
    inside = [
        np.concatenate([np.delete(own, np.s_[fold::number])[: len(own) - -(-len(own) // number)] for own in of_class])
        for fold in range(number)
    ]
    loop = people.trained(FOLD_SEEDS, kind=parted(inside))
    chance, shown = np.zeros((len(label), len(pair.classes))), centred(3)(pair.train.images)
    for fold, places in enumerate(outside):
        net = make("resnet32", num_classes=len(pair.classes), seed=0)
        net.load_state_dict(loop.learner.network(fold))
        net.to(loop.device).eval()
        with torch.no_grad():
            logits = [net(part.to(loop.device)).cpu() for part in shown[torch.from_numpy(places)].split(1000)]
        chance[places] = torch.cat(logits).double().softmax(-1).numpy()
    right = float((chance.argmax(1) == pair.train.labels.numpy()).mean())
    scores = {"cleanlab, 5 folds": [cleaned(label, chance, people.wrong)]}
    return {"seeds": FOLD_SEEDS, "cleanlab": metadata.version("cleanlab"), "folds_right": right, "scores": scores}


def again(people: People, flags: Path, what: str) -> dict[str, Record]:
    """Train again: "corrected", or "without" what is flagged and, as one network with it, "random".

    At random, as many of each class are left out.
    """
    saved, label = np.load(flags), people.label
    flagged, every, number = saved["flagged"], np.arange(len(label)), len(AGAIN_SEEDS)
    if what == "corrected":
        loop = people.trained(AGAIN_SEEDS, label=np.where(flagged, saved["suggested"], label))
        return {what: {"seeds": AGAIN_SEEDS, "samples": len(label), "test_accuracy": tested(loop)}}
    lots = np.random.default_rng(0)
    drawn = [lots.choice(own, flagged[own].sum(), replace=False)
             for own in (every[label == c] for c in range(len(people.pair.classes)))]  # fmt: skip
    parts = {"without": every[~flagged], "random": np.delete(every, np.concatenate(drawn))}
    loop = people.trained(AGAIN_SEEDS * 2, kind=parted([part for part in parts.values() for _ in AGAIN_SEEDS]))
    accuracy = tested(loop)
    return {
        name: {"seeds": AGAIN_SEEDS, "samples": len(part), "test_accuracy": accuracy[k * number : (k + 1) * number]}
        for k, (name, part) in enumerate(parts.items())
    }


def on_gpu(given: argparse.Namespace) -> None:
    """Do one part of the comparison, and add its line to the record."""
    pair, name = load_named("cifar10", data_dir=given.data_dir), given.gpu
    label, started = np.load(given.cifar10n)[name].astype(np.int64), time.monotonic()
    if given.samples:
        first = torch.arange(given.samples)
        pair = replace(pair, train=pair.train.subset(first), test=pair.test.subset(first))
    device = torch.device(given.device)
    people = People(pair, name, label[: len(pair.train)], device, given.epochs)
    flags = given.out.with_name(f"flagged-{name}.npz")
    given.out.parent.mkdir(parents=True, exist_ok=True)
    if given.part in ("networks", "folds"):
        lines = {given.part: networks(people, flags) if given.part == "networks" else folds(people)}
    else:
        lines = again(people, flags, given.part)
    gpu = torch.cuda.get_device_name() if device.type == "cuda" else "none"
    about = {"epochs": given.epochs, "gpu": gpu, "torch": torch.__version__}
    about["seconds"] = round(time.monotonic() - started, 1)
    with given.out.open("a") as out:
        for part, values in lines.items():
            print(json.dumps({"labels": name, "part": part} | about | values), file=out)


def gpu_table(lines: list[Record]) -> str:
    """Return means over networks as Markdown: AP, and F1 (precision, recall) where something is flagged."""
    text = []
    for labels in dict.fromkeys(line["labels"] for line in lines):
        parts = {line["part"]: line for line in lines if line["labels"] == labels}
        text += [f"CIFAR-10N, {labels}", "", "| score | n | AP | F1 (precision, recall) |", "| --- | --- | --- | --- |"]
        for part in ("networks", "folds"):
            for name, rows in parts.get(part, {"scores": {}})["scores"].items():
                mean = {key: 100 * float(np.mean([row[key] for row in rows])) for key in rows[0]}
                f1 = f"{mean['f1']:.1f} ({mean['precision']:.0f}, {mean['recall']:.0f})" if "f1" in mean else ""
                text.append(f"| {name} | {len(rows)} | {mean['ap']:.1f} | {f1} |")
        known = [what for what in AGAIN[1:] if what in parts]
        if known:
            plain = 100 * np.array(parts["networks"]["test_accuracy"][: len(AGAIN_SEEDS)])
            text += ["", "| trained again | images | test accuracy, % | gain, points |", "| --- | --- | --- | --- |"]
            text.append(f"| plain | {parts['networks']['samples']:,} | {plain.mean():.2f} |  |")
        for what in known:
            now = 100 * np.array(parts[what]["test_accuracy"])
            text.append(f"| {what} | {parts[what]['samples']:,} | {now.mean():.2f} | {gain(now - plain)} |")
        text.append("")
    return "\n".join(text).strip()


def gain(differences: np.ndarray) -> str:
    known = paired_gain(differences.tolist())
    low, high = known.interval or (known.mean, known.mean)
    return f"{known.mean:+.2f} ± {(high - low) / 2:.2f}".replace("-", "−")


def table(cases: list[Record]) -> str:
    """Return means over seeds as Markdown: AP, and F1 (precision, recall) where something is flagged."""
    by_kind: dict[str, list[Record]] = defaultdict(list)
    for case in cases:
        by_kind[f"{case['data']}, {case['noise']}"].append(case)
    lines = ["| score | " + " | ".join(f"{kind} (n = {len(rows)})" for kind, rows in by_kind.items()) + " |",
             "| --- |" + " --- |" * len(by_kind)]  # fmt: skip
    for name in dict.fromkeys(name for case in cases for name in case["scores"]):
        cells = []
        for rows in by_kind.values():
            known = [case["scores"][name] for case in rows if name in case["scores"]]
            mean = {key: 100 * np.mean([row[key] for row in known]) for key in (known[0] if known else ())}
            cell = f"{mean['ap']:.1f}" if known else ""
            cells.append(
                cell + (f"; {mean['f1']:.1f} ({mean['precision']:.0f}, {mean['recall']:.0f})" if "f1" in mean else "")
            )
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    again = [case["again"] for case in cases if "again" in case]
    if again:
        lines += ["", "| trained again | test accuracy, % | gain, points |", "| --- | --- | --- |"]
    for name in AGAIN if again else ():
        plain, now = (100 * np.array([row[which] for row in again]) for which in ("plain", name))
        lines.append(f"| {name} | {now.mean():.2f} | {'' if name == 'plain' else gain(now - plain)} |")
    return "\n".join(lines)


def one_case(data_dir: Path, noisy: Path, wanted: tuple[tuple[Any, ...], tuple[str, ...]]) -> Record:
    torch.set_num_threads(1)
    row, extras = wanted
    data = text(2000) if row[0] == "text" else images(row[0], data_dir, noisy)
    return measure(dict(zip(KEYS, row, strict=True)), data, extras)


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--cifar10n", type=Path, help="labels by people; not part of the project")
    flags.add_argument("--data-dir", type=Path, help="folder of cifar-10-batches-py")
    flags.add_argument("--processes", type=int, default=1, help="cases at a time")
    flags.add_argument("--gpu", metavar="LABELS", help="ResNet-32 on these labels of CIFAR-10N, such as aggre_label")
    flags.add_argument(
        "--part", choices=("networks", "folds", "without", "corrected"), default="networks", help="with --gpu, what"
    )
    flags.add_argument("--device", default="cuda", help="with --gpu, where")
    flags.add_argument("--epochs", type=int, default=60, help="with --gpu, epochs of every network")
    flags.add_argument("--samples", type=int, help="with --gpu, the first images only, as a check")
    flags.add_argument("--tables", action="store_true", help="print the tables of --gpu, and run nothing")
    flags.add_argument("--out", type=Path, help="the record (label_errors.json; with --gpu, label_errors_gpu.jsonl)")
    given = flags.parse_args()
    on_gpu_only = given.gpu or given.tables
    given.out = given.out or RESULTS / ("label_errors_gpu.jsonl" if on_gpu_only else "label_errors.json")
    if given.gpu and not given.tables:
        on_gpu(given)
    if on_gpu_only:
        print(gpu_table([json.loads(line) for line in given.out.read_text().splitlines()]))
        return
    record = json.loads(given.out.read_text()) if given.out.exists() else {"cases": []}
    record["machine"] = {**machine(), "threads": 1, "cleanlab": metadata.version("cleanlab")}
    known = [tuple(case[key] for key in KEYS) for case in record["cases"]]
    wanted = [(row, extras) for *rest, seeds, extras in CASES for seed in seeds if (row := (*rest, seed)) not in known]
    with ProcessPoolExecutor(given.processes) as pool:
        for row, case in zip(wanted, pool.map(partial(one_case, given.data_dir, given.cifar10n), wanted), strict=True):
            record["cases"].append(case)
            given.out.write_text(json.dumps(record, indent=1) + os.linesep)
            print(row[0], flush=True)
    print(table(record["cases"]))


if __name__ == "__main__":
    main()
