"""How likely a label is wrong: a score for ranking, from what was answered over all epochs.

Knows the arrays of `samples.safetensors`.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from aol.records.samples import SampleTable


def score(table: SampleTable) -> npt.NDArray[np.float32]:
    """Return the suspicion of each sample, `float32 [N]` in [0, 1]: one minus its mean confidence over the epochs."""
    mean = np.asarray(table.columns["mean_confidence"], dtype=np.float32)
    found: npt.NDArray[np.float32] = np.nan_to_num(1.0 - mean, nan=0.0)
    return found
