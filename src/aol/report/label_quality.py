"""How likely a label is wrong, from the answers of all epochs; `benchmarks/label_errors.py` says how it was chosen."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd

from aol.records.record import Floats, Ints
from aol.records.samples import Reals, Shorts

Masks = npt.NDArray[np.bool_]


def suspicion(label: Ints, wrong: Shorts, seen: Shorts, mean_margin: Reals, accuracy: float) -> Reals:
    r"""Return how suspicious labels are, `float32 [N]` from 0 to 1; above one half, it is likely wrong.

    .. math:: m_i = \frac{\sum_e w_e \frac{q_{ie} - p_{ie}}{q_{ie} + p_{ie}}}{\sum_e w_e}, \qquad
        w_e = a_e^{10} (1 - a_e)^2, \qquad
        s_i = \frac{m_i - b_{y_i}}{1 - b_{y_i}} > 1 - \frac{\sum_e w_e a_e}{\sum_e w_e}, \qquad
        b_c = \max(\mu_c, \tfrac14 \mu_c), \quad \mu_c = \operatorname{median}_{j \in c} m_j

    p is the probability of the label and q that of the best other class in epoch e, \(a_e\) the share of right answers.
    The margin m, `mean_margin`, gives most weight to the epochs in which the network has learnt the classes, but has
    not yet memorised wrong labels. Subtracting b, the base of the class, keeps hard classes, and rare ones that are
    learnt late, from being suspected as a whole. A label is likely wrong where s is above `1 - accuracy`, the share of
    wrong answers in these epochs: a weak network must be surer. The score orders samples as s does, and is one half at
    that bound. Where probabilities were not kept, m is the share of wrong answers minus that of right ones. A sample
    that was never seen gets 0.

    >>> four = np.full(4, 4, np.int32)
    >>> margin = np.array([-0.8, -0.8, -0.8, 0.6], np.float32)
    >>> suspicion(np.zeros(4, np.int64), np.array([0, 0, 0, 4], np.int32), four, margin, accuracy=0.75).round(2)
    array([0.24, 0.24, 0.24, 0.78], dtype=float32)
    """
    known = seen > 0
    missed = np.divide(wrong, seen, out=np.zeros(len(seen)), where=known)
    margin: Floats = np.where(np.isnan(mean_margin), 2 * missed - 1, mean_margin)
    usual: Floats = pd.Series(margin).where(known).groupby(label).transform("median").fillna(0.0).to_numpy()
    base = np.maximum(usual, usual / 4)
    over = (margin - base) / np.maximum(1 - base, 1e-9) - (1 - accuracy)
    score = np.where(over > 0, 0.5 + 0.5 * over / max(accuracy, 1e-9), 0.5 * np.exp(np.minimum(over, 0.0)))
    return np.where(known, score, 0.0).astype(np.float32)


def competent_classes(
    label: Ints, prediction: Shorts, wrong: Shorts, seen: Shorts, test_accuracy: Floats | None = None
) -> Masks:
    """Return the classes on which the model can be trusted, `bool [C]`; labels of other classes are not doubted.

    At least a quarter must be right of each of these: the answers of all epochs to samples of the class, the last
    answers to them, the last answers that name the class, and the answers on test, where those were read.

    >>> label, prediction = np.array([0, 0, 1, 1]), np.array([0, 0, 0, 0], np.int32)
    >>> wrong, seen = np.array([1, 0, 1, 4], np.int32), np.full(4, 4, np.int32)
    >>> competent_classes(label, prediction, wrong, seen)
    array([ True, False])
    >>> competent_classes(label, prediction, wrong, seen, test_accuracy=np.array([0.2, 0.9]))
    array([False, False])
    """
    size = int(max(label.max(initial=-1), prediction.max(initial=-1))) + 1
    missed, shown = (np.bincount(label, weights=times, minlength=size) for times in (wrong, seen))
    able: Masks = missed < 0.75 * shown
    known = prediction >= 0
    if known.any():
        right = np.bincount(label[known & (prediction == label)], minlength=size)
        asked, named = (np.bincount(classes[known], minlength=size) for classes in (label, prediction))
        able &= right >= 0.25 * np.maximum(1, np.maximum(asked, named))
    return able if test_accuracy is None else able & ~(test_accuracy[:size] < 0.25)  # NaN: not read
