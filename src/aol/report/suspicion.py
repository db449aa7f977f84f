"""How likely a label is wrong: a score for ranking, from what was answered over all epochs.

Knows arrays and nothing else. `benchmarks/label_noise.py` measures it where labels were made wrong on purpose.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Shorts = npt.NDArray[np.int32]
Reals = npt.NDArray[np.float32]


def suspicion(wrong: Shorts, seen: Shorts, mean_other: Reals) -> Reals:
    r"""Return how suspicious each label is, `float32 [N]` from 0 to 1: often wrong, and sure of another class.

    .. math:: s_i = \frac{\text{epochs wrong}_i}{\text{epochs seen}_i} \cdot
        \frac{1}{E_i} \sum_e \max_{k \ne y_i} p_{ik}^{(e)}

    Both factors look at all epochs: a network learns wrong labels by heart in the end, but late. Where probabilities
    were not kept the first factor stands alone; a sample never seen has none.

    >>> suspicion(np.array([3, 1, 0], np.int32), np.array([4, 4, 4], np.int32), np.float32([0.5, 0.5, 0.1]))
    array([0.375, 0.125, 0.   ], dtype=float32)
    """
    share = np.divide(wrong, seen, out=np.zeros(len(seen), np.float32), where=seen > 0, casting="unsafe")
    found: Reals = share * np.nan_to_num(mean_other, nan=1.0).astype(np.float32)
    return found
