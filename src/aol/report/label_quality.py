"""How likely a label is wrong: a score for ranking, from the answers of all epochs.

`benchmarks/label_noise.py` measures it on data whose labels were made wrong on purpose, and says how it was chosen.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd

from aol.records.record import Floats, Ints
from aol.records.samples import Reals, Shorts

Masks = npt.NDArray[np.bool_]


def suspicion(label: Ints, wrong: Shorts, seen: Shorts, mean_confidence: Reals, mean_other: Reals) -> Reals:
    r"""Return how suspicious each label is, `float32 [N]` from 0 to 1.

    .. math:: m_i = \frac{1}{E_i} \sum_e \max_{k \ne y_i} p_{ik}^{(e)}
        - \sqrt{\frac{1}{E_i} \sum_e p_{iy_i}^{(e)}}, \qquad
        s_i = \frac14 + \frac34 \cdot \frac{m_i - b_{y_i}}{1 - b_{y_i}}, \qquad
        b_c = \tfrac12 \operatorname{median}_{j \in c} m_j

    The mean probability of the best other class, minus the square root of the mean probability of the label, over all
    epochs that saw the sample: in the end a network may have memorised wrong labels, but it learns them late. The root
    separates a label that was hardly ever considered from one that came second. Half of the class's median is
    subtracted, so that a class that is hard, or rare and learnt late, is not suspected as a whole. Scores above 0.5
    are worth a look; lower ones are compressed to stay above zero, in their order: \(\tfrac12 e^{2 s - 1}\). Where
    probabilities were not kept, the shares of wrong and right answers replace them, and \(b_c\) is the whole median, so
    that a class that is mostly missed is not suspected. A sample that was never seen gets 0.

    >>> usual, odd = np.float32([0.9, 0.9, 0.9, 0.1]), np.float32([0.1, 0.1, 0.1, 0.8])
    >>> four = np.full(4, 4, np.int32)
    >>> suspicion(np.zeros(4, np.int64), np.array([0, 0, 0, 4], np.int32), four, usual, odd).round(2)
    array([0.19, 0.19, 0.19, 0.73], dtype=float32)
    """
    known = seen > 0
    missed = np.divide(wrong, seen, out=np.zeros(len(seen)), where=known)
    unkept = np.isnan(mean_other) | np.isnan(mean_confidence)
    other: Floats = np.where(unkept, missed, mean_other)
    own: Floats = np.where(unkept, 1.0 - missed, mean_confidence)
    margin = other - np.sqrt(np.maximum(own, 0.0))
    usual: Floats = pd.Series(margin).where(known).groupby(label).transform("median").fillna(0.0).to_numpy()
    # Right and wrong alone are all or nothing: where most of a class is never right, no label of it is odd.
    base = np.where(unkept & (usual > 0), usual, usual / 2)
    score = 0.25 + 0.75 * (margin - base) / np.maximum(1 - base, 1e-9)
    squeezed = np.where(score > 0.5, score, 0.5 * np.exp(2.0 * np.minimum(score, 0.5) - 1.0))
    return np.where(known, squeezed, 0.0).astype(np.float32)


def competent_classes(
    label: Ints, prediction: Shorts, wrong: Shorts, seen: Shorts, test_accuracy: Floats | None = None
) -> Masks:
    """Return the classes on which the model can be trusted, `bool [C]`: it doubts no label of the others.

    A class was right in at least half of the epochs; at least half of the last answers to its samples were right, and
    at least half of the last answers that named it; and on test, where that was read, at least half.

    >>> label, prediction = np.array([0, 0, 1, 1]), np.array([0, 0, 1, 0], np.int32)
    >>> wrong, seen = np.array([1, 0, 1, 4], np.int32), np.full(4, 4, np.int32)
    >>> competent_classes(label, prediction, wrong, seen)
    array([ True, False])
    >>> competent_classes(label, prediction, wrong, seen, test_accuracy=np.array([0.4, 0.9]))
    array([False, False])
    """
    size = int(max(label.max(initial=-1), prediction.max(initial=-1))) + 1
    missed, shown = (np.bincount(label, weights=times, minlength=size) for times in (wrong, seen))
    able: Masks = missed < 0.5 * shown
    known = prediction >= 0
    if known.any():
        right = np.bincount(label[known & (prediction == label)], minlength=size)
        asked, named = (np.bincount(classes[known], minlength=size) for classes in (label, prediction))
        able &= right >= 0.5 * np.maximum(1, np.maximum(asked, named))
    return able if test_accuracy is None else able & ~(test_accuracy[:size] < 0.5)  # NaN: not read
