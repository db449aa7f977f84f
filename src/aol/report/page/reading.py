"""Figures that the page and its advice both need, read from a story: pure functions of arrays."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from aol.report.story import Samples

Floats = npt.NDArray[np.floating]
Ints = npt.NDArray[np.integer]
Masks = npt.NDArray[np.bool_]

SUSPICIOUS = 0.5


def last_known(values: Floats) -> Floats:
    """Return the last value of each column that is a number, `[E, C] → [C]`; NaN where there is none.

    >>> last_known(np.array([[1.0, 2.0, np.nan], [3.0, np.nan, np.nan]])).tolist()
    [3.0, 2.0, nan]
    """
    known = np.isfinite(values)
    place = len(values) - 1 - known[::-1].argmax(0)
    return np.where(known.any(0), values[place, np.arange(values.shape[1])], np.nan)


def trend(values: Floats) -> Floats:
    """Return by how much each column changed over its last quarter, `[E, C] → [C]`.

    >>> trend(np.array([[4.0], [4.0], [3.0], [3.0], [1.0]])).tolist()
    [-2.0]
    """
    if not len(values):
        return np.full(values.shape[1], np.nan)
    earlier = max(1, len(values) - max(1, len(values) // 4))
    return last_known(values) - last_known(values[:earlier])


def wrong_now(samples: Samples) -> Masks:
    """Return which samples got another class than their label as the last answer, `bool [N]`."""
    found: Masks = (samples.prediction >= 0) & (samples.prediction != samples.label)
    return found


def of_learnt_class(samples: Samples) -> Masks:
    """Return which samples are of a class that was right at least as often as wrong, `bool [N]`."""
    size = int(samples.label.max()) + 1 if len(samples) else 0
    wrong = np.bincount(samples.label, weights=samples.wrong, minlength=size)
    seen = np.bincount(samples.label, weights=samples.seen, minlength=size)
    learnt: Masks = wrong <= 0.5 * seen
    return learnt[samples.label]


def likely_mislabelled(samples: Samples) -> Masks:
    """Return which samples have a likely label error, `bool [N]`: another class was surer, over the epochs, by far.

    That is a suspicion above one half. It must come from three epochs at least, and from a learnt class: where a class
    has not been learnt, its samples are suspicious whatever their labels.
    """
    found: Masks = (samples.suspicion > SUSPICIOUS) & (samples.seen >= 3) & of_learnt_class(samples)
    return found


def confusion(samples: Samples, num_classes: int) -> tuple[Ints, Floats]:
    """Return what each class is mostly mistaken for and that answer's share of its wrong ones, both `[C]`; else −1."""
    wrong = wrong_now(samples)
    pairs, counts = np.unique(
        samples.label[wrong] * num_classes + samples.prediction[wrong].astype(np.int64), return_counts=True
    )
    answer, share = np.full(num_classes, -1), np.zeros(num_classes)
    labels = pairs // num_classes
    total = np.bincount(labels, weights=counts, minlength=num_classes)
    for place in np.argsort(counts, kind="stable"):  # the most frequent answer is written last
        label = labels[place]
        answer[label], share[label] = pairs[place] % num_classes, counts[place] / total[label]
    return answer, share
