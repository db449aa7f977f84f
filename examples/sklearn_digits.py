"""Long-tailed digits with scikit-learn: a linear classifier with offsets, balanced classes, ages, and nothing.

Ages come from predictions of folds that were not fitted on the sample. Settings are defaults; none was tuned on these
data.
"""

from __future__ import annotations

import sys

import numpy as np
from comparison import FOOTNOTE, digits, each_seed, options, table
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import recall_score

import aol
from aol.plugins.sklearn import AgedClassifier, OffsetClassifier

METHODS = ("none", "offsets", "balanced", "AoL class", "AoL sample", "AoL class x balanced")


def train(method: str, seed: int, rounds: int, imbalance: float) -> dict[str, float]:
    """Fit on a long tail and return the scores on the balanced test set, in percent."""
    pool = digits(seed)
    tail = aol.long_tail(pool.labels, imbalance, seed=seed)
    balance = "balanced" if "balanced" in method else None
    if method == "offsets":
        model = OffsetClassifier(LogisticRegression(max_iter=1000))
    elif method.startswith("AoL"):
        level = "sample" if "sample" in method else "class"
        model = AgedClassifier(LogisticRegression(max_iter=1000), rounds=rounds, level=level, class_weight=balance)
    else:
        model = LogisticRegression(max_iter=1000, class_weight=balance)
    model.fit(pool.images[tail].numpy(), pool.labels[tail].numpy())
    recall = recall_score(pool.test_labels, model.predict(pool.test_images.numpy()), average=None)
    return {"accuracy": 100 * float(np.mean(recall)), "worst class": 100 * float(recall.min())}


def main(words: list[str] | None = None) -> int:
    parser = options(
        "Fit a linear classifier on long-tailed digits with several weightings, and compare them.",
        rounds=(5, 1, "rounds of AgedClassifier"),
        seeds=(10, 2, "splits"),
        imbalance=(20.0, 1, "the largest class over the smallest"),
    )
    given = parser.parse_args(words)
    settings = (given.rounds, given.imbalance)
    results = each_seed(METHODS, given.seeds, lambda method, seed: train(method, seed, *settings))
    print(f"\nDigits, imbalance {given.imbalance:g}, logistic regression, {given.rounds} rounds, ", end="")
    print(f"{given.seeds} seeds, in % of the balanced test set\n")
    print(table(results, "none"))
    print(f"\n{FOOTNOTE}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
