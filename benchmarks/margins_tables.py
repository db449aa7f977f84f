"""Margins for boosted trees on the tables of `examples/boosted_trees.py`, in training and afterwards.

All methods share the split and the settings of the trees. Settings were fixed on seeds from 100 on, which are not used
here.
"""

from __future__ import annotations

import sys
import time
import warnings
from itertools import product

import numpy as np
from measuring import Record, belongs_to, report, seed_options, tables
from sklearn.base import BaseEstimator
from sklearn.metrics import recall_score

import aol
from aol.plugins.sklearn import AgedClassifier, OffsetClassifier

MEASURES = {"balanced_accuracy": "Balanced accuracy, %", "worst_class": "Recall of the worst class, %"}
METHODS = (
    "none",
    "balanced",
    "logit adjustment",
    "margins by age",
    "margins by error",
    "counts, afterwards",
    "errors, afterwards",
)
TABLES = ("breast_cancer", "digits", "wine")
MODELS = ("lightgbm", "xgboost")
GAIN = 0.2


def fitted(method: str, trees: BaseEstimator, x: np.ndarray, y: np.ndarray, rounds: int, gain: float) -> BaseEstimator:
    """Return a fitted classifier: weights or offsets in training, or offsets afterwards."""
    if method == "balanced":
        weight = aol.frequency_weight(np.bincount(y), 1.0).numpy().astype(np.float64)[y]
        return trees.fit(x, y, sample_weight=weight * len(y) / weight.sum())
    if method == "logit adjustment":
        return AgedClassifier(trees, rounds=1, rho=0.0, cv="train", offset="counts").fit(x, y)
    if method.startswith("margins"):
        kind = {"rounds": rounds, "rho": 0.0, "cv": 3, "gain": gain}
        return AgedClassifier(trees, margins=method.split()[-1], **kind).fit(x, y)
    if method.endswith("afterwards"):
        return OffsetClassifier(trees, offsets={"c": "counts", "e": "error"}[method[0]], cv=3).fit(x, y)
    return trees.fit(x, y)


def one_seed(table: str, model: str, imbalance: float, rounds: int, gain: float, seed: int) -> list[Record]:
    import boosted_trees

    train, test = boosted_trees.split(table, imbalance, seed)
    runs: list[Record] = []
    for method in METHODS:
        began = time.process_time()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The least populated class")  # fewer samples than folds
            found = fitted(method, boosted_trees.trees(model, seed), train.features, train.labels, rounds, gain)
        recall = recall_score(test.labels, found.predict(test.features), average=None)
        figures = {"balanced_accuracy": round(float(recall.mean()), 5), "worst_class": round(float(recall.min()), 5)}
        seconds = round(time.process_time() - began, 2)
        runs.append({"table": table, "model": model, "method": method, **figures, "seconds": seconds})
    return runs


def main(words: list[str] | None = None) -> int:
    parser = seed_options("Compare margins with class counts for boosted trees.", "margins_tables.json", 20)
    parser.add_argument("--imbalance", type=float, default=20.0, help="largest class of a training part over smallest")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of margins")
    parser.add_argument("--gain", type=float, default=GAIN, help="speed of the margins")
    parser.add_argument("--tables", nargs="+", choices=TABLES, default=list(TABLES), help="which tables")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS), help="library of the trees")
    given = parser.parse_args(words)
    return report(
        one_seed,
        product(given.tables, given.models, [given.imbalance], [given.rounds], [given.gain]),
        given,
        keys=("table", "model", "method"),
        settings=("imbalance", "rounds", "gain"),
        packages=("scikit-learn", "lightgbm", "xgboost"),
        text=text,
    )


def text(record: Record) -> str:
    """Return the tables of a record."""
    shown = tables(record, rows=("table", "method"), column="model", measures=MEASURES, baseline="none")
    return f"{belongs_to(record)}\n\n{shown}"


if __name__ == "__main__":
    sys.exit(main())
