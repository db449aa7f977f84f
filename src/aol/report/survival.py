"""How long errors last: error episodes of samples, and the Kaplan–Meier estimate of their survival."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from aol.records.history import Answers
from aol.records.record import Floats, Ints


class Episodes(NamedTuple):
    """How many error episodes ended, and how many were still open, after d epochs: `int64 [D + 1]`, place d is d."""

    ended: Ints
    open: Ints


def episodes(answers: Answers, group: Ints) -> list[Episodes]:
    """Return the error episodes of samples by group: unbroken stretches of age above one, as long as the age less one.

    `group [N]` numbers the groups from 0; a negative number leaves a sample out. Episodes that were under way before
    the record began are left out: how long they had lived is not all on record.

    >>> from aol.records.history import pack
    >>> right = np.array([[0, 1], [0, 1], [1, 0]], bool)
    >>> [(ended.tolist(), still.tolist()) for ended, still in episodes(Answers(pack(right), None, 2), np.array([0, 0]))]
    [([0, 0, 1, 0], [0, 1, 0, 0])]
    """
    ended, still_open = np.zeros((2, int(group.max(initial=-1)) + 1, len(answers) + 1), np.int64)
    before = np.ones(answers.size, np.int32) if answers.start is None else answers.start
    counts = (group >= 0) & (before <= 1)
    for _, _, age in answers.epochs():
        over = (before > 1) & (age == 1)
        np.add.at(ended, (group[over & counts], before[over & counts] - 1), 1)
        counts |= over & (group >= 0)  # episodes that began before the record have ended
        before = age
    lasting = (before > 1) & counts
    np.add.at(still_open, (group[lasting], before[lasting] - 1), 1)
    return [Episodes(*pair) for pair in zip(ended, still_open, strict=True)]


def kaplan_meier(errors: Episodes) -> Floats:
    r"""Return the share of episodes that live longer than t epochs, at t = 0, 1, 2, …, by the product-limit estimate.

    .. math:: \hat S(t) = \prod_{d \le t} \left(1 - \frac{e_d}{n_d}\right)

    where e_d episodes ended after d epochs, of n_d that had lived so long; those still open are censored on the right.

    >>> kaplan_meier(Episodes(np.array([0, 2, 1]), np.array([0, 1, 0])))
    array([1. , 0.5, 0. ])
    """
    leaving = errors.ended + errors.open
    last = int(np.flatnonzero(leaving).max(initial=0))
    at_risk = leaving[::-1].cumsum()[::-1][: last + 1]
    return np.cumprod(1.0 - errors.ended[: last + 1] / np.maximum(at_risk, 1))
