"""Arrays as short text: rounded to what a screen can show, and the ages of a sample as one code a step.

`assets/data.js` decodes all of this; the two must agree.
"""

from __future__ import annotations

import base64

import numpy as np
import numpy.typing as npt

from aol.records.record import Json

# What a sample's age did in an epoch: right, one more (a sample that was never seen has the age 2), the same.
_RIGHT, _OLDER, _SAME = 1, 2, 3


def pack(values: npt.NDArray[np.floating], *, bits: int = 16, power: float = 1.0) -> dict[str, Json]:
    """Return an array as codes of 8 or 16 bits between its least and largest value, in base64.

    code = round(top · ((value − low) / (high − low)) ** power), top = 2^bits − 2; the code above it says that there is
    no value. A power below one keeps small values apart, as colours do.

    >>> pack(np.array([0.0, 0.25, 1.0, np.nan]), bits=8)
    {'low': 0.0, 'high': 1.0, 'power': 1.0, 'bits': 8, 'data': 'AED+/w=='}
    """
    known = np.isfinite(values)
    low, high = (float(values[known].min()), float(values[known].max())) if known.any() else (0.0, 0.0)
    top = 2**bits - 2
    part = (np.where(known, values, low).astype(np.float64) - low) / ((high - low) or 1.0)
    codes = np.where(known, np.rint(top * part**power), top + 1)
    data = base64.b64encode(codes.astype("<u2" if bits == 16 else "u1").tobytes()).decode()
    return {"low": low, "high": high, "power": power, "bits": bits, "data": data}


def steps(ages: npt.NDArray[np.integer]) -> Json:
    """Return the ages of one sample over time `[E]` as `[first, codes]`: two bits an epoch after the first, base64.

    >>> steps(np.array([1, 2, 3, 1, 1, 2]))
    [1, 'WgI=']
    """
    before, after = ages[:-1], ages[1:]
    codes = np.select([after == 1, after == before], [_RIGHT, _SAME], default=_OLDER)
    spare = np.concatenate((codes, np.zeros(-len(codes) % 4, np.int64))).reshape(-1, 4)
    packed = (spare << np.array([0, 2, 4, 6])).sum(1).astype(np.uint8)
    return [int(ages[0]) if len(ages) else 0, base64.b64encode(packed.tobytes()).decode()]


def spread(size: int, points: int) -> npt.NDArray[np.int64]:
    """Return at most `points` places, two or more, evenly over `size` of them, with the first and the last.

    >>> spread(10, 4).tolist(), spread(3, 8).tolist()
    ([0, 3, 6, 9], [0, 1, 2])
    """
    return np.rint(np.linspace(0, max(0, size - 1), min(size, points))).astype(np.int64)
