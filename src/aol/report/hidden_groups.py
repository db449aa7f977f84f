"""Groups of old samples in classes that are otherwise learnt: hidden minorities, or labels with a common mistake."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd

from aol.records.record import Ints
from aol.records.samples import Shorts

AFTER = 5  # wrong answers in a row that make a sample old
_LEAST = 5  # samples of a group
_LEARNT = 0.8  # share of a class that must be right


class HiddenGroup(NamedTuple):
    """Old samples of one class that are taken for one other: how many, and the share of the class that is right."""

    label: int
    answer: int
    size: int
    learnt: float


def hidden_groups(label: Ints, prediction: Shorts, age: Shorts, *, after: int = AFTER) -> list[HiddenGroup]:
    """Return groups of at least 5 samples, of age above `after`, of classes right on 80 % or more; the largest first.

    A group is all old samples of one class with the same wrong answer. All arrays are `[N]`: the class, the last
    answer (-1 where unknown) and the age (0 where never seen) of each sample.

    >>> label = np.zeros(50, np.int64)
    >>> prediction = np.array([1] * 6 + [2] * 2 + [0] * 42, np.int32)
    >>> hidden_groups(label, prediction, np.where(prediction == 0, 1, 9).astype(np.int32))
    [HiddenGroup(label=0, answer=1, size=6, learnt=0.84)]
    """
    seen = (age > 0) & (prediction >= 0)
    right = np.bincount(label[seen], weights=prediction[seen] == label[seen])
    learnt = right / np.maximum(1, np.bincount(label[seen]))
    old = np.flatnonzero(seen & (prediction != label) & (age > after))
    old = old[learnt[label[old]] >= _LEARNT]
    groups = pd.DataFrame({"label": label[old], "answer": prediction[old]}).groupby(["label", "answer"]).size()
    largest = groups[groups >= _LEAST].sort_values(ascending=False, kind="stable").reset_index()
    return [HiddenGroup(c, other, count, float(learnt[c])) for c, other, count in largest.to_numpy().tolist()]
