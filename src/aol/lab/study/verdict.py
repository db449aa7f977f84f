"""The verdict rule: holds, does not hold, or not enough runs.

A claim is that a method gains over the baseline, on average over cells. It *holds* when the gain is above zero with a
corrected p-value below 5 %. It *does not hold* when the gain is below zero with such a p-value, or is shown to be
smaller than what matters: half a point, or half of the paper's gain, whichever is larger. Everything else, and anything
with fewer than three complete seeds, is *not enough runs*.

Where there is nothing to gain, a study names the largest loss that it accepts. The claim is then that the loss is
smaller: it holds, or does not, when the gain is above, or below, minus that loss, one-sided at 2.5 %, corrected.
"""

from __future__ import annotations

import statistics
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from aol.stats import Gain, holm, paired_gain

if TYPE_CHECKING:
    import pandas as pd

HOLDS, FAILS, OPEN = "holds", "does not hold", "not enough runs"
ALPHA = 0.05
LEAST_SEEDS = 3
LEAST_GAIN = 0.005


@dataclass(frozen=True)
class Claim:
    """The gain of a method, averaged over the cells with three or more complete seeds, on the seeds that these share.

    `over` is the method that it is compared with; None for the baseline. `word` is the verdict, `p` the p-value that it
    follows from, corrected for all claims that were judged together.
    """

    method: str
    over: str | None
    cells: int
    cells_planned: int
    seeds: tuple[int, ...]
    gain: Gain | None
    paper_gain: float | None
    largest_loss: float | None = None  # the claim is a smaller loss, not a gain
    word: str = OPEN
    p: float | None = None

    @property
    def margin(self) -> float:
        """The smallest gain that matters: half a point, or half of the paper's gain, whichever is larger."""
        return max(LEAST_GAIN, 0.5 * self.paper_gain) if self.paper_gain is not None else LEAST_GAIN


def claim(
    method: str,
    over: str | None,
    pairs: pd.DataFrame,
    papers: pd.Series[float],
    grids: Sequence[Collection[int]],
    largest_loss: float | None = None,
) -> Claim:
    """Return the claim that follows from differences by seed: `pairs` has a row a seed and a column a cell.

    `papers` has the paper's gain by cell, `grids` for each side of the comparison the cells in which its setting was
    chosen; `largest_loss` is in points, as a study names it.
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
    return Claim(method, over, len(whole), len(complete), tuple(shared.index) if gain else (), gain, mean, loss)


def judge(claims: Sequence[Claim]) -> list[Claim]:
    """Return claims with their verdicts: they are judged together, corrected for their number by Holm's method."""
    known = [(claim.gain, claim) for claim in claims if claim.gain is not None]
    first = iter(holm([gain.p_equal(-(own.largest_loss or 0.0)) for gain, own in known]))
    below = iter(holm([2 * gain.p_below(own.margin) for gain, own in known]))
    judged = []
    for own in claims:
        if own.gain is not None:
            p, small, loss = next(first), next(below), own.largest_loss
            word = word_for(own.gain.mean, p, small) if loss is None else word_for(own.gain.mean + loss, p, 1.0)
            own = replace(own, word=word, p=p)
        judged.append(own)
    return judged


def word_for(gain: float, p: float, p_small: float) -> str:
    """Return the verdict from a gain, its corrected p-value, and the corrected p-value of "it is as large as matters".

    >>> word_for(0.02, 0.049, 1.0), word_for(0.02, 0.05, 1.0), word_for(0.001, 0.4, 0.01)
    ('holds', 'not enough runs', 'does not hold')
    """
    if p < ALPHA:
        return HOLDS if gain > 0 else FAILS
    return FAILS if p_small < ALPHA else OPEN
