"""Digits one by one with River: a long tail that shifts, predicted before learned, with several wrappers of one model.

Settings are defaults of the library or those of River's documentation; none was tuned on these data.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator

import numpy as np
from comparison import FOOTNOTE, each_seed, options, table
from river import imblearn, linear_model, metrics, multiclass, preprocessing
from river.base import Classifier
from sklearn.datasets import load_digits

import aol
from aol.plugins.river import AgedClassifier

METHODS = ("bare", "RandomOverSampler", "AoL rho 0.1", "AoL rho 0.5")
EVEN = dict.fromkeys(range(10), 0.1)


def stream(samples: int, imbalance: float, period: int, seed: int) -> Iterator[tuple[dict[int, float], int]]:
    """Yield digits of a long tail, with a new order of classes every `period` samples."""
    data = load_digits()
    rng = np.random.default_rng(seed)
    tail = aol.ShiftingTail(data.target, imbalance, period=1, steps=-(-samples // period), seed=seed)
    order = (i for step in tail for i in rng.choice(step.numpy(), period))
    for i in itertools.islice(order, samples):
        yield dict(enumerate(data.data[i])), int(data.target[i])


def around(method: str, model: Classifier, seed: int) -> Classifier:
    if method == "RandomOverSampler":
        return imblearn.RandomOverSampler(model, desired_dist=EVEN, seed=seed)
    if method.startswith("AoL"):
        return AgedClassifier(model, rho=float(method.split()[-1]), seed=seed)
    return model


def follow(method: str, seed: int, samples: int, imbalance: float, period: int) -> dict[str, float]:
    """Predict and learn sample by sample, and return the scores over the whole stream, in percent."""
    linear = multiclass.OneVsRestClassifier(linear_model.LogisticRegression())
    model = preprocessing.StandardScaler() | around(method, linear, seed)
    balanced, kappa = metrics.BalancedAccuracy(), metrics.CohenKappa()
    for x, y in stream(samples, imbalance, period, seed):
        answer = model.predict_one(x)
        if answer is not None:
            balanced.update(y, answer)
            kappa.update(y, answer)
        model.learn_one(x, y)
    return {"balanced accuracy": 100 * balanced.get(), "kappa": 100 * kappa.get()}


def main(words: list[str] | None = None) -> int:
    parser = options(
        "Follow a stream of digits with a shifting long tail in River, and compare what can be put around a model.",
        samples=(3000, 1, "samples of each stream"),
        seeds=(5, 2, "streams"),
        imbalance=(50.0, 1, "the most frequent class over the rarest"),
        period=(500, 1, "samples between two orders of the classes"),
    )
    given = parser.parse_args(words)
    settings = (given.samples, given.imbalance, given.period)
    results = each_seed(METHODS, given.seeds, lambda method, seed: follow(method, seed, *settings))
    print(f"\nDigits in River, a long tail of imbalance {given.imbalance:g} that shifts every {given.period} ", end="")
    print(f"samples, {given.samples} samples, {given.seeds} seeds, in %\n")
    print(table(results, "bare"))
    print(f"\n{FOOTNOTE}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
