"""How well do scores find labels that were changed on purpose? Average precision, and precision in the top 1 %.

A part of the labels is changed (symmetric: to any other class; by class: to one fixed class that looks alike). A
network is trained on them through the engine, and every score ranks the samples of that same run: `aol`'s suspicion;
loss, margin and cleanlab's confident learning after the last epoch; ages in many ways; and, in a few settings, cleanlab
on probabilities of networks that did not see the sample (five more trainings). Scores were chosen on the seeds 0 to 2;
what is reported comes from other seeds.

    pip install cleanlab==2.9.0 torch==2.13.0
    python benchmarks/label_noise.py [--sets digits fashion-mnist cifar10] [--part report] [--data-dir FOLDER]

Continues if it was stopped; writes benchmarks/results/label_noise.json and prints the tables of label_noise_page.py.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from label_noise_scores import Floats, scores
from measuring import RESULTS, machine

from aol import long_tail
from aol.lab.data import ImageSet, Pair, open_data
from aol.lab.engine.loop import OfflineLoop
from aol.lab.engine.source import Source
from aol.lab.settings import Settings
from aol.records.history import Answers

Ints = npt.NDArray[np.int64]
CPU = torch.device("cpu")
FOLDS = 5
# The class that each class is changed to by noise "class": one that looks alike.
ALIKE = {
    "digits": (6, 7, 3, 8, 9, 6, 5, 1, 3, 4),
    "fashion-mnist": (6, 3, 4, 1, 2, 7, 0, 9, 6, 7),
    "cifar10": (8, 9, 0, 5, 7, 3, 3, 4, 0, 1),
}
SEEDS = {
    "choice": {"digits": (0, 1), "fashion-mnist": (0,), "cifar10": (0,)},
    "report": {"digits": (10, 11, 12), "fashion-mnist": (10, 11, 12), "cifar10": (10, 11, 12)},
}


@dataclass(frozen=True)
class Case:
    """One training on planted noise. `memorises`: without augmentation, so that noise is learnt by heart in the end."""

    data: str
    size: int
    epochs: int
    noise: str
    rate: float
    imbalance: float
    memorises: bool
    crossed: bool
    seed: int

    @property
    def name(self) -> str:
        """What tells one case from another."""
        return json.dumps(asdict(self), sort_keys=True)

    @property
    def settings(self) -> Settings:
        """What the engine trains by."""
        return Settings(
            data=self.data, imbalance=None, epochs=self.epochs, net="cnn", seed=self.seed, augment=not self.memorises,
            eval_every=self.epochs,
        )  # fmt: skip


def cases(data: str, part: str) -> Iterator[Case]:
    """Yield what is trained of a data set: everything on digits, less where a run takes a minute of CPU time."""
    for seed in SEEDS[part].get(data, ()):
        for noise, rate in itertools.product(("symmetric", "class"), (0.05, 0.1)):
            crossed = part == "report" and rate == 0.1 and (data == "digits" or (data, seed) == ("fashion-mnist", 10))
            if data == "digits":
                for memorises, imbalance in itertools.product((False, True), (1.0, 10.0)):
                    plain = imbalance == 1.0 and not memorises
                    yield Case(data, 1438, 60, noise, rate, imbalance, memorises, crossed and plain, seed)
            elif data == "fashion-mnist" and (part == "report" or rate == 0.1):
                yield Case(data, 3000, 20, noise, rate, 1.0, False, crossed, seed)
            elif data == "cifar10" and rate == 0.1:
                yield Case(data, 3000, 20, noise, rate, 1.0, False, False, seed)


def plant(case: Case, pair: Pair[ImageSet]) -> tuple[Pair[ImageSet], Ints]:
    """Return a part of the set with some labels changed, and the true labels."""
    draws = np.random.default_rng([case.seed, 77])
    train = pair.train
    index = np.sort(draws.permutation(len(train.labels))[: case.size])
    if case.imbalance > 1.0:
        index = np.sort(index[long_tail(train.labels[index], case.imbalance, seed=case.seed).numpy()])
    true = train.labels.numpy()[index]
    given = true.copy()
    changed = draws.permutation(len(true))[: round(case.rate * len(true))]
    other = (true[changed] + draws.integers(1, pair.num_classes, len(changed))) % pair.num_classes
    given[changed] = other if case.noise == "symmetric" else np.array(ALIKE[case.data])[true[changed]]
    changed_set = replace(train, images=train.images[index], labels=torch.from_numpy(given))
    return replace(pair, train=changed_set), true


@dataclass(frozen=True)
class Run:
    """What a run answered: logits `[E, N, C]` of the clean pass, in the order of `order [N]`, places in its set."""

    logits: Floats
    order: Ints
    answers: Answers
    ema: Floats
    test_accuracy: float


def trained(case: Case, pair: Pair[ImageSet]) -> Run:
    """Train a network through the engine and keep every clean answer."""
    loop = OfflineLoop([case.settings], pair, device=CPU, keep_samples=True)
    logits = []
    while not loop.done:
        loop.run_epoch()
        logits.append(predicted(loop, loop.train, loop.pool[0]))
    assert loop.samples is not None
    return Run(
        np.stack(logits),
        loop.pool[0].numpy(),
        loop.samples.answers(0),
        loop.ages.ema[0].numpy().astype(float),
        float(loop.history.epoch("test_accuracy")[-1]),
    )


def predicted(loop: OfflineLoop, split: Source, place: torch.Tensor) -> Floats:
    """Return the logits of some samples of a split."""
    images = (split.plain(part[None]) for part in place.split(1000))  # type: ignore[union-attr]
    return torch.cat([loop.learner.predict(part)[0] for part in images]).numpy().astype(float)


def crossed(case: Case, pair: Pair[ImageSet]) -> Floats:
    """Return logits `[N, C]` of each sample by a network that was trained without it: cleanlab's recommended input."""
    size = len(pair.train.labels)
    fold = np.random.default_rng([case.seed, 78]).permutation(size) % FOLDS
    found = np.zeros((size, pair.num_classes))
    for held in range(FOLDS):
        kept = np.flatnonzero(fold != held)
        part = replace(pair.train, images=pair.train.images[kept], labels=pair.train.labels[kept])
        loop = OfflineLoop([case.settings], replace(pair, train=part, test=pair.train), device=CPU)
        while not loop.done:
            loop.run_epoch()
        others = np.flatnonzero(fold == held)
        found[others] = predicted(loop, loop.test, torch.from_numpy(others))
    return found


def measure(case: Case, pair: Pair[ImageSet]) -> dict[str, object]:
    """Train one case and return how well every score does."""
    start = time.process_time()
    noisy, true = plant(case, pair)
    run = trained(case, noisy)
    given = noisy.train.labels.numpy()[run.order]
    wrong = given != true[run.order]
    outside = crossed(case, noisy)[run.order] if case.crossed else None
    found = scores(run.logits, given, run.answers, run.ema, outside)
    return {
        **asdict(case),
        "samples": len(given),
        "wrong": int(wrong.sum()),
        "test_accuracy": run.test_accuracy,
        "train_accuracy": float((run.logits[-1].argmax(1) == given).mean()),
        "cpu_seconds": time.process_time() - start,
        "scores": {name: figures(value, wrong) for name, value in found.items()},
    }


def figures(score: Floats, wrong: npt.NDArray[np.bool_]) -> list[float]:
    """Return average precision and the precision among the top 1 %; ties are broken by lot, from a fixed seed."""
    from sklearn.metrics import average_precision_score

    lot = np.random.default_rng(0).permutation(len(score))
    order = lot[np.argsort(-score[lot], kind="stable")]
    rank = np.empty(len(score))
    rank[order] = np.arange(len(score))
    top = order[: max(1, round(0.01 * len(score)))]
    return [float(average_precision_score(wrong, -rank)), float(wrong[top].mean())]


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--sets", nargs="+", choices=list(ALIKE), default=list(ALIKE), help="data sets")
    words.add_argument("--part", nargs="+", choices=list(SEEDS), default=list(SEEDS), help="which seeds")
    words.add_argument("--data-dir", help="folder of the data sets")
    words.add_argument("--most", type=int, help="train at most this many cases, for a test")
    words.add_argument("--out", type=Path, default=RESULTS / "label_noise.json")
    given = words.parse_args()
    import cleanlab

    record = json.loads(given.out.read_text()) if given.out.exists() else {"cases": []}
    record["machine"] = {**machine(), "cleanlab": cleanlab.__version__}
    keys = Case.__annotations__
    known = {json.dumps({name: case[name] for name in keys}, sort_keys=True) for case in record["cases"]}
    wanted = [(part, data, case) for part in given.part for data in given.sets for case in cases(data, part)]
    missing = [each for each in wanted if each[2].name not in known]
    for part, data, case in missing[: given.most]:
        pair = open_data(data, given.data_dir)
        assert isinstance(pair.train, ImageSet)
        record["cases"].append({"part": part, **measure(case, pair)})  # type: ignore[arg-type]
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(json.dumps(record, indent=1) + "\n")
        print(f"{part} {case.name}", flush=True)
    from label_noise_page import tables

    print(tables(record))


if __name__ == "__main__":
    main()
