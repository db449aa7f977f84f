"""Gradient-boosted trees on imbalanced tables of scikit-learn: ages, balanced classes and no weights.

Trees memorise their training set, so `AgedClassifier` uses predictions of folds, by trees that were not fitted on the
sample. The test set is not changed. Settings are common values; none was tuned on these data.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from comparison import FOOTNOTE, each_seed, options, table
from sklearn.base import ClassifierMixin
from sklearn.datasets import load_breast_cancer, load_digits, load_wine
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.metrics import balanced_accuracy_score, recall_score
from sklearn.model_selection import train_test_split

import aol
from aol.plugins.sklearn import AgedClassifier

DATA = {"breast_cancer": load_breast_cancer, "digits": load_digits, "wine": load_wine}
MODELS = ("hist", "lightgbm", "xgboost")
METHODS = ("none", "balanced", "frequency^-1.5", "AoL class", "AoL sample", "AoL class x balanced")
TREES = 50
LEAF = 5  # samples a leaf must hold: the usual 20 is more than some classes have


@dataclass(frozen=True)
class Part:
    """Samples and their classes."""

    features: npt.NDArray[np.float64]
    labels: npt.NDArray[np.int64]


def split(data: str, imbalance: float, seed: int) -> tuple[Part, Part]:
    """Return a long-tailed training set and an unchanged test set."""
    features, labels = DATA[data](return_X_y=True)
    kept, test, y, y_test = train_test_split(features, labels, test_size=0.4, stratify=labels, random_state=seed)
    tail = aol.long_tail(y, imbalance, seed=seed).numpy()
    return Part(kept[tail], y[tail]), Part(test, y_test)


def trees(model: str, seed: int) -> ClassifierMixin:
    """Return boosted trees of one of three libraries, with the same settings."""
    if model == "lightgbm":
        from lightgbm import LGBMClassifier

        return LGBMClassifier(n_estimators=TREES, min_child_samples=LEAF, n_jobs=1, random_state=seed, verbose=-1)
    if model == "xgboost":
        from xgboost import XGBClassifier

        return XGBClassifier(n_estimators=TREES, n_jobs=1, random_state=seed)
    return HistGradientBoostingClassifier(
        max_iter=TREES, min_samples_leaf=LEAF, early_stopping=False, random_state=seed
    )


def weighted(estimator: ClassifierMixin, method: str, train: Part, rounds: int) -> ClassifierMixin:
    """Return the estimator, fitted with weights of a method."""
    if method.startswith("AoL"):
        level = "sample" if "sample" in method else "class"
        balance = "balanced" if "balanced" in method else None
        aged = AgedClassifier(estimator, rounds=rounds, level=level, cv=3, class_weight=balance)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The least populated class")  # fewer samples than folds, and said so
            return aged.fit(train.features, train.labels)
    power = {"none": 0.0, "balanced": 1.0, "frequency^-1.5": 1.5}[method]
    weight = aol.frequency_weight(np.bincount(train.labels), power).numpy().astype(np.float64)[train.labels]
    weight *= len(weight) / weight.sum()  # as class_weight="balanced" does
    return estimator.fit(train.features, train.labels, sample_weight=weight)


def run(data: str, model: str, method: str, imbalance: float, rounds: int, seed: int) -> dict[str, float]:
    """Fit once and return the test scores, in percent."""
    train, test = split(data, imbalance, seed)
    answers = weighted(trees(model, seed), method, train, rounds).predict(test.features)
    recall = recall_score(test.labels, answers, average=None)
    return {
        "balanced accuracy": 100 * balanced_accuracy_score(test.labels, answers),
        "worst class": 100 * float(recall.min()),
    }


def main(words: list[str] | None = None) -> int:
    parser = options(
        "Fit boosted trees on imbalanced tables with several weightings, and compare them.",
        imbalance=(20.0, 1, "the largest class of the training part over the smallest"),
        rounds=(5, 1, "rounds of AgedClassifier"),
        seeds=(5, 2, "splits of each table"),
    )
    parser.add_argument("--data", choices=DATA, default="digits", help="the table")
    parser.add_argument("--model", choices=MODELS, default="hist", help="library of the trees")
    given: argparse.Namespace = parser.parse_args(words)
    settings = (given.imbalance, given.rounds)
    results = each_seed(METHODS, given.seeds, lambda how, seed: run(given.data, given.model, how, *settings, seed))
    print(f"\n{given.data}, imbalance {given.imbalance:g}, {given.model}, {TREES} trees a class, ", end="")
    print(f"{given.rounds} rounds, {given.seeds} seeds, in % of the test part\n")
    print(table(results, "none"))
    print(f"\n{FOOTNOTE}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
