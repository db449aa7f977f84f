"""Rounds written out by hand: plain Python numbers, scikit-learn's estimators, and nothing of `aol`."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from sklearn.base import clone
from sklearn.model_selection import StratifiedKFold

from tests.support.oracle import fold, mean


@dataclass
class Story:
    """What happened in the rounds: weights each one was fitted with, answers that were right, and ages after it."""

    weights: list[list[float]] = field(default_factory=list)
    right: list[list[bool]] = field(default_factory=list)
    history: list[list[int]] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)

    def ema(self, rho: float) -> list[float]:
        return [fold(ages, rho) for ages in self.history]


def weights_by_hand(story: Story, y: list, given: list[float], rho: float, level: str) -> list[float]:
    """Weigh by age so that the total is that of `given`, counting a sample as often as `given` says."""
    if rho == 0 or not story.right:
        return list(given)
    ema = story.ema(rho)
    worth = {}
    for label in set(y):
        mine = [i for i in range(len(y)) if y[i] == label]
        mass = math.fsum(given[i] for i in mine)
        worth[label] = math.fsum(given[i] * ema[i] for i in mine) / mass
    factor = [worth[y[i]] if level == "class" else ema[i] for i in range(len(y))]
    product = [g * f for g, f in zip(given, factor, strict=True)]
    return [p * math.fsum(given) / math.fsum(product) for p in product]


def balanced_accuracy(right: list[bool], y: list, given: list[float]) -> float:
    rates = []
    for label in sorted(set(y)):
        mine = [i for i in range(len(y)) if y[i] == label]
        rates.append(math.fsum(given[i] for i in mine if right[i]) / math.fsum(given[i] for i in mine))
    return mean(rates)


def parts_of(X: np.ndarray, y: np.ndarray, cv: object) -> list[tuple[np.ndarray, np.ndarray]]:
    if cv == "train":
        return [(np.arange(len(y)), np.arange(len(y)))]
    folds = StratifiedKFold(cv) if isinstance(cv, int) else cv
    return list(folds.split(X, y))


def rounds_by_hand(estimator, X, y, *, rounds, rho, level, cv, given=None, more=None):
    """Return the story, and the estimator on everything of each round; `more` are further arguments of `fit`."""
    more = more or {}
    y, given = np.asarray(y), [1.0] * len(y) if given is None else list(given)
    story, whole = Story(history=[[] for _ in y]), []
    for _ in range(rounds):
        weight = np.array(weights_by_hand(story, list(y), given, rho, level))
        right = [False] * len(y)
        for train, test in parts_of(X, y, cv):
            model = clone(estimator).fit(X[train], y[train], sample_weight=weight[train], **more)
            for i in test:
                right[i] = bool(model.predict(X[i : i + 1])[0] == y[i])
        whole.append(clone(estimator).fit(X, y, sample_weight=weight, **more))
        for i, answer in enumerate(right):
            before = story.history[i][-1] if story.history[i] else 1
            story.history[i].append(1 if answer else before + 1)
        story.weights.append(weight.tolist())
        story.right.append(right)
        story.scores.append(balanced_accuracy(right, list(y), given))
    return story, whole
