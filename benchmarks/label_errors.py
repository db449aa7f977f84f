"""How well are wrong labels told from one training, and what does a second training gain? Small networks on a CPU.

Labels by people (CIFAR-10N, aggregate labels), and planted noise: `symmetric` to any other class, `alike` to the next
one (Fashion-MNIST; lines of Python's standard library, told apart by package). One network is trained on all labels
with `aol.Recorder`, and every score ranks the samples of that run; cleanlab also gets probabilities of networks that
did not see the sample. Then, for CIFAR-10N, the network is trained again: without what is flagged, with the suggested
labels, and without as many at random.

The score, its epochs' weights and its bound were chosen on digits and CIFAR-10 with other labels (random_label2,
random_label3, symmetric noise) and other seeds, before any figure here was seen.

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
from collections.abc import Callable
from importlib import import_module, metadata
from pathlib import Path

import numpy as np
import torch
from measuring import RESULTS, Record, machine
from torch import Tensor, nn
from torch.nn import functional as F

import aol
from aol.lab.nets.cnn import CNN

PACKAGES = ("asyncio", "email", "unittest", "xml", "multiprocessing", "distutils", "tkinter", "http")
EPOCHS, BATCH, FOLDS = 10, 256, 3
# Set, noise, share of labels that are changed, samples, seeds, and what else is trained.
CASES = [
    ("text", "symmetric", 0.1, 8000, (100, 101, 102), ("crossed",)),
    ("cifar10n", "people", 0.0, 20_000, (100,), ("crossed",)),
    ("cifar10n", "people", 0.0, 20_000, (101, 102, 103, 104, 105), ("again",)),
    ("fashion-mnist", "symmetric", 0.1, 8000, (100, 101), ("crossed",)),
    ("fashion-mnist", "alike", 0.1, 8000, (100, 101), ("crossed",)),
]
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
    for name in ("without", "corrected", "random") if again else ():
        gain = aol.stats.paired_gain([100 * (row[name] - row["plain"]) for row in again])
        lines.append(f"\nTrained again, {name}: {gain.mean:+.2f} points {gain.interval or ''} (n = {len(again)})")
    return "\n".join(lines)


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--cifar10n", type=Path, required=True, help="labels by people; not part of the project")
    flags.add_argument("--data-dir", type=Path, required=True, help="folder of cifar-10-batches-py")
    flags.add_argument("--most", type=int, help="train at most this many cases")
    flags.add_argument("--out", type=Path, default=RESULTS / "label_errors.json")
    given = flags.parse_args()
    torch.set_num_threads(1)
    record = json.loads(given.out.read_text()) if given.out.exists() else {"cases": []}
    record["machine"] = {**machine(), "threads": 1, "cleanlab": metadata.version("cleanlab")}
    keys = ("data", "noise", "rate", "samples", "seed")
    known = [tuple(case[key] for key in keys) for case in record["cases"]]
    wanted = [(row, extras) for *rest, seeds, extras in CASES for seed in seeds if (row := (*rest, seed)) not in known]
    for row, extras in wanted[: given.most]:
        data = text(2000) if row[0] == "text" else images(row[0], given.data_dir, given.cifar10n)
        record["cases"].append(measure(dict(zip(keys, row, strict=True)), data, extras))
        given.out.write_text(json.dumps(record, indent=1) + os.linesep)
        print(row, flush=True)
    print(table(record["cases"]))


if __name__ == "__main__":
    main()
