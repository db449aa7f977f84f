"""Ages compared with River's own wrappers for imbalance, on imbalanced streams that drift: predict first, then learn.

Settings are defaults of the library or those of River's documentation; none was tuned on these streams.
"""

from __future__ import annotations

import itertools
import random
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeAlias

from measuring import Record, belongs_to, report, seed_options, tables

if TYPE_CHECKING:
    from river.base import Classifier

Sample: TypeAlias = tuple[dict[str, float], object]
MEASURES = {"balanced_accuracy": "Balanced accuracy, %", "g_mean": "G-mean, %", "kappa": "Cohen's kappa × 100"}
MODELS = ("linear", "tree", "bayes")
STREAMS = ("rbf", "agrawal", "segments")


def shifting_tail(
    source: Iterator[Sample], classes: list[object], imbalance: float, period: int, seed: int
) -> Iterator[Sample]:
    """Reduce a stream to a long tail, with a new order of classes every `period` samples."""
    rng = random.Random(f"tail {seed}")
    chance = [imbalance ** (-rank / (len(classes) - 1)) for rank in range(len(classes))]
    for number in itertools.count():
        if number % period == 0:
            order = dict(zip(classes, rng.sample(chance, len(chance)), strict=True))
        sample = next((each for each in source if rng.random() < order[each[1]]), None)
        if sample is None:
            return
        yield sample


def rbf(samples: int, seed: int) -> list[Sample]:
    """Five classes whose centres move all the time; imbalance 50, another order of classes every 2000 samples."""
    from river.datasets import synth

    source = synth.RandomRBFDrift(
        seed_model=seed,
        seed_sample=seed,
        n_classes=5,
        n_features=10,
        n_centroids=25,
        change_speed=0.002,
        n_drift_centroids=10,
    )
    return list(itertools.islice(shifting_tail(iter(source), list(range(5)), 50, 2000, seed), samples))


def agrawal(samples: int, seed: int) -> list[Sample]:
    """Two classes, one of them thinned out to a fiftieth; in the middle what they mean changes at once."""
    from river.datasets import synth

    rng, found = random.Random(f"agrawal {seed}"), []
    for half, concept in ((samples // 2, 0), (samples, 3)):
        source = iter(synth.Agrawal(classification_function=concept, perturbation=0.05, seed=seed))
        while len(found) < half:
            x, y = next(source)
            if y == 0 or rng.random() < 1 / 50:
                found.append(({name: float(value) for name, value in x.items()}, y))
    return found


def segments(samples: int, seed: int) -> list[Sample]:
    """River's image segments, real, in any order, each at most once: imbalance 20, another order every 250."""
    from river import datasets

    pool = list(datasets.ImageSegments())
    random.Random(f"segments {seed}").shuffle(pool)
    classes = sorted({y for _, y in pool})
    return list(itertools.islice(shifting_tail(iter(pool), classes, 20, 250, seed), samples))


def model(name: str) -> Classifier:
    from river import linear_model, multiclass, naive_bayes, tree

    return {
        "linear": lambda: multiclass.OneVsRestClassifier(linear_model.LogisticRegression()),
        "tree": lambda: tree.HoeffdingAdaptiveTreeClassifier(seed=0),
        "bayes": lambda: naive_bayes.GaussianNB(),
    }[name]()


def methods(classes: list[object], seed: int) -> dict[str, Callable[[Classifier], Classifier]]:
    """Return what may be put around a classifier. River's samplers must be told the classes, and how many of each."""
    from river import imblearn

    from aol.plugins.river import AgedClassifier

    even = dict.fromkeys(classes, 1 / len(classes))
    return {
        "bare": lambda inner: inner,
        "RandomUnderSampler": lambda inner: imblearn.RandomUnderSampler(inner, desired_dist=even, seed=seed),
        "RandomOverSampler": lambda inner: imblearn.RandomOverSampler(inner, desired_dist=even, seed=seed),
        "RandomSampler": lambda inner: imblearn.RandomSampler(inner, desired_dist=even, seed=seed),
        "HardSampling": lambda inner: imblearn.HardSamplingClassifier(inner, size=40, p=0.1, seed=seed),
        "AoL ρ 0.1": lambda inner: AgedClassifier(inner, seed=seed),
        "AoL ρ 0.5": lambda inner: AgedClassifier(inner, rho=0.5, seed=seed),
    }


def progress(inner: Classifier, samples: list[Sample]) -> dict[str, float]:
    """Predict and learn sample by sample, and return the scores over the whole stream."""
    from river import metrics, preprocessing

    whole = preprocessing.StandardScaler() | inner
    found = {
        "balanced_accuracy": metrics.BalancedAccuracy(),
        "g_mean": metrics.GeometricMean(),
        "kappa": metrics.CohenKappa(),
    }
    began = time.process_time()
    for x, y in samples:
        answer = whole.predict_one(x)
        if answer is not None:  # before anything was learned
            for metric in found.values():
                metric.update(y, answer)
        whole.learn_one(x, y)
    seconds = time.process_time() - began
    return {name: round(metric.get(), 5) for name, metric in found.items()} | {"seconds": round(seconds, 3)}


def one_seed(stream: str, samples: int, seed: int) -> list[Record]:
    shown = {"rbf": rbf, "agrawal": agrawal, "segments": segments}[stream](samples, seed)
    around = methods(sorted({y for _, y in shown}), seed)
    return [
        {"stream": stream, "model": name, "method": method, **progress(wrap(model(name)), shown)}
        for name in MODELS
        for method, wrap in around.items()
    ]


def main(words: list[str] | None = None) -> int:
    parser = seed_options("Compare ages with River's wrappers for imbalance.", "river_streams.json", 10)
    parser.add_argument("--samples", type=int, default=10_000, help="samples of a stream (real ones may have fewer)")
    given = parser.parse_args(words)
    return report(
        one_seed,
        itertools.product(STREAMS, [given.samples]),
        given,
        keys=("stream", "model", "method"),
        settings=("samples",),
        packages=("river",),
        text=text,
    )


def text(record: Record) -> str:
    """Return the tables of a record."""
    shown = tables(record, rows=("stream", "method"), column="model", measures=MEASURES, baseline="bare")
    return f"{belongs_to(record)}\n\n{shown}"


if __name__ == "__main__":
    sys.exit(main())
