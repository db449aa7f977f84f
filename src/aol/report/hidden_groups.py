"""Groups of old samples in classes that are otherwise learnt: hidden minorities, or labels with a common mistake."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from aol.records.record import Ints
from aol.records.samples import Shorts

AFTER = 5  # wrong answers in a row that make a sample old
_LEAST = 5  # samples of a group
_LEARNT = 0.8  # share of a class that must be right


@dataclass(frozen=True)
class HiddenGroup:
    """Old samples of one class that are taken for one other: how many, and the share of the class that is right."""

    label: int
    answer: int
    count: int
    learnt: float


def hidden_groups(label: Ints, prediction: Shorts, age: Shorts, *, after: int = AFTER) -> list[HiddenGroup]:
    """Return groups of at least 5 samples, wrong more than `after` epochs, of classes right on 80 % or more.

    A group is all old samples of one class with the same wrong answer. The largest comes first.

    Args:
        label: the class of each sample, `[N]`.
        prediction: the last answer to it, `[N]`; -1 where unknown.
        age: its age, `[N]`; 0 where never seen.
        after: a sample is old if its age is above.

    >>> label = np.zeros(50, np.int64)
    >>> prediction = np.array([1] * 6 + [2] * 2 + [0] * 42, np.int32)
    >>> age = np.where(prediction == 0, 1, 9).astype(np.int32)
    >>> [(each.answer, each.count, each.learnt) for each in hidden_groups(label, prediction, age)]
    [(1, 6, 0.84)]
    """
    seen = (age > 0) & (prediction >= 0)
    right = np.bincount(label[seen], weights=prediction[seen] == label[seen])
    learnt = right / np.maximum(1, np.bincount(label[seen]))
    old = np.flatnonzero(seen & (prediction != label) & (age > after))
    old = old[learnt[label[old]] >= _LEARNT]
    pairs = pd.DataFrame({"label": label[old], "answer": prediction[old]})
    groups = pairs.groupby(["label", "answer"], as_index=False).size()
    groups = groups[groups["size"] >= _LEAST].sort_values("size", ascending=False, kind="stable")
    return [HiddenGroup(c, answer, count, float(learnt[c])) for c, answer, count in groups.to_numpy().tolist()]
