"""Two statements about the gain of a method over the baseline, averaged over the cells of a study.

*Is there a gain?* The interval against 0: "gain", "loss", or "no gain shown". *Is it as large as the paper's?* The
interval against half of the paper's gain: "as large as half the paper's", "smaller", or "open". Each is a two-sided
test at 5 %, corrected for all claims that are judged together. Each has one limit only, so more seeds do not turn a
wrong statement into another one. Where there is nothing to gain, a study names the largest loss that it accepts.
"""

from __future__ import annotations

import statistics
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from aol.stats import Gain, holm, paired_gain

if TYPE_CHECKING:
    import pandas as pd

GAIN, LOSS, NOT_SHOWN, FEW = "gain", "loss", "no gain shown", "under 3 seeds"
AS_LARGE, SMALLER, OPEN = "as large as half the paper's", "smaller", "open"
LESS, MORE = "loses less", "loses more"
ALPHA = 0.05
LEAST_SEEDS = 3


@dataclass(frozen=True)
class Claim:
    """The gain of a method, averaged over the cells with three or more complete seeds, on the seeds that these share.

    `over` is the method that it is compared with, None for the baseline; `paper_gain` is the paper's mean over the same
    `cells`. `word` and `size` (empty where there is nothing to compare with) are the statements, p-values corrected.
    """

    method: str
    over: str | None
    cells: tuple[int, ...]
    cells_planned: int
    seeds: tuple[int, ...]
    gain: Gain | None
    paper_gain: float | None = None
    largest_loss: float | None = None
    word: str = FEW
    size: str = ""
    p: float | None = None
    p_size: float | None = None

    @property
    def limit(self) -> float | None:
        """What the gain is compared with besides 0: minus the largest loss, or half of the paper's gain."""
        if self.largest_loss is not None:
            return -self.largest_loss
        return 0.5 * self.paper_gain if self.paper_gain is not None and self.paper_gain > 0.0 else None


def claim(
    method: str,
    over: str | None,
    pairs: pd.DataFrame,
    papers: pd.Series[float],
    grids: Sequence[Collection[int]],
    largest_loss: float | None = None,
) -> Claim:
    """Return the claim that follows from differences by seed (rows) and cell (columns), and the paper's gains by cell.

    `grids` has for each side of the comparison the cells in which its setting was chosen; `largest_loss` is in points.
    """
    complete = pairs.count()
    whole = complete.index[complete >= LEAST_SEEDS]
    shared, gain = pairs[whole].dropna(), None
    if len(whole) and len(shared) >= LEAST_SEEDS:
        by_seed = [statistics.fmean(row) for row in shared.to_numpy().tolist()]
        gain = paired_gain(by_seed, chosen=sum(bool(whole.isin(cells).any()) for cells in grids))
    begun = complete.index[complete > 0]
    known = papers[whole if len(whole) else begun if len(begun) else pairs.columns]
    mean = statistics.fmean(known) if len(known) and known.notna().all() and over is None else None
    loss = None if largest_loss is None else largest_loss / 100.0
    return Claim(method, over, tuple(whole), len(complete), tuple(shared.index) if gain else (), gain, mean, loss)


def judge(claims: Sequence[Claim]) -> list[Claim]:
    """Return claims with their statements: they are judged together, corrected for their number by Holm's method."""
    known = [(claim.gain, claim.limit) for claim in claims if claim.gain is not None]
    p_gain = iter(holm([gain.p for gain, _ in known]))
    p_size = iter(holm([gain.p_equal(limit) for gain, limit in known if limit is not None]))
    judged = []
    for own in claims:
        if own.gain is not None:
            p = next(p_gain)
            own = replace(own, p=p, word=statement(own.gain.mean, p, (GAIN, LOSS, NOT_SHOWN)))
            if own.limit is not None and own.gain is not None:
                p = next(p_size)
                words = (AS_LARGE, SMALLER, OPEN) if own.largest_loss is None else (LESS, MORE, OPEN)
                own = replace(own, p_size=p, size=statement(own.gain.mean - own.limit, p, words))
        judged.append(own)
    return judged


def statement(difference: float, p: float, words: tuple[str, str, str]) -> str:
    """Return the first word for a difference above 0, the second for one below, the third where p is 5 % or more."""
    above, below, neither = words
    return neither if p >= ALPHA else above if difference > 0 else below
