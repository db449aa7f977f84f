"""Boosted trees on the imbalanced tables of `examples/boosted_trees.py`: weights by age, balanced classes, and offsets.

All methods share the split and the settings of the trees.
"""

from __future__ import annotations

import sys
import time
import warnings
from itertools import product

from measuring import Record, belongs_to, report, seed_options, tables
from sklearn.metrics import recall_score

from aol.plugins.sklearn import OffsetClassifier

MEASURES = {"balanced_accuracy": "Balanced accuracy, %", "worst_class": "Recall of the worst class, %"}
WEIGHTS = ("none", "balanced", "AoL class", "AoL sample", "AoL class x balanced")
AFTERWARDS = {"counts, afterwards": "counts", "errors, afterwards": "error"}
METHODS = (*WEIGHTS, *AFTERWARDS)
TABLES = ("breast_cancer", "digits", "wine")
MODELS = ("hist", "lightgbm", "xgboost")


def one_seed(table: str, model: str, imbalance: float, rounds: int, seed: int) -> list[Record]:
    import boosted_trees

    train, test = boosted_trees.split(table, imbalance, seed)
    runs: list[Record] = []
    for method in METHODS:
        trees = boosted_trees.trees(model, seed)
        began = time.process_time()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The least populated class")  # fewer samples than folds
            if method in WEIGHTS:
                fitted = boosted_trees.weighted(trees, method, train, rounds)
            else:
                trees = OffsetClassifier(trees, offsets=AFTERWARDS[method], cv=3)
                fitted = trees.fit(train.features, train.labels)
        recall = recall_score(test.labels, fitted.predict(test.features), average=None)
        figures = {"balanced_accuracy": round(float(recall.mean()), 5), "worst_class": round(float(recall.min()), 5)}
        seconds = round(time.process_time() - began, 2)
        runs.append({"table": table, "model": model, "method": method, **figures, "seconds": seconds})
    return runs


def main(words: list[str] | None = None) -> int:
    parser = seed_options("Compare ages, balanced classes and offsets for boosted trees.", "tabular.json", 20)
    parser.add_argument("--imbalance", type=float, default=20.0, help="largest class of a training part over smallest")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of AgedClassifier")
    parser.add_argument("--tables", nargs="+", choices=TABLES, default=list(TABLES), help="which tables")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS), help="library of the trees")
    given = parser.parse_args(words)
    return report(
        one_seed,
        product(given.tables, given.models, [given.imbalance], [given.rounds]),
        given,
        keys=("table", "model", "method"),
        settings=("imbalance", "rounds"),
        packages=("scikit-learn", "lightgbm", "xgboost"),
        text=text,
    )


def text(record: Record) -> str:
    """Return the tables of a record: a row for each table and library, a column for each method."""
    shown = tables(record, rows=("table", "model"), column="method", measures=MEASURES, baseline="none")
    return f"{belongs_to(record)}\n\n{shown}"


if __name__ == "__main__":
    sys.exit(main())
