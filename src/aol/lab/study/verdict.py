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
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from aol.stats import MOST_SEEDS, Gain, holm, paired_gain

if TYPE_CHECKING:
    from aol.lab.study.comparisons import Comparison

HOLDS, FAILS, OPEN = "holds", "does not hold", "not enough runs"
ALPHA = 0.05
LEAST_SEEDS = 3
LEAST_GAIN = 0.005
LEAST_P = 0.001  # that is written in digits
_LOSS = {HOLDS: "is below", FAILS: "is above", OPEN: "may be below or above"}  # the largest that a study accepts


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

    @property
    def sentence(self) -> str:
        """The verdict and the numbers it follows from."""
        gain = self.gain
        if gain is None or self.p is None:
            return f"{self.word}. {_lacking(self)}"
        words = [f"{points(gain.mean)} points{span(gain)}, {gain.seeds} seeds"]
        words[0] += "" if self.cells_planned == 1 else f", mean of {self.cells} of {self.cells_planned} cells"
        p = f"p {'' if self.p < LEAST_P else '= '}{p_text(self.p).replace('<', '< ')}"
        if (loss := self.largest_loss) is not None:
            return f"{self.word}. {words[0]}; the loss {_LOSS[self.word]} {points(loss).lstrip('+')} points, {p}."
        words[0] += f", {p}"
        if self.word == FAILS and self.p >= ALPHA:
            least = "half of the paper's gain" if self.margin > LEAST_GAIN else "the smallest gain that matters"
            words.append(f"less than {points(self.margin)}, {least}")
        if (paper := self.paper_gain) is not None:
            low, high = gain.interval or (None, None)
            words.append(f"paper {points(paper)}")
            if low is not None and high is not None:
                words[-1] += f", {'above' if paper > high else 'below' if paper < low else 'inside'} the interval"
        if self.word == OPEN:
            needed = gain.seeds_needed()
            if needed is None and gain.spread:
                words.append(f"{MOST_SEEDS} seeds would not be enough to detect a difference of this size")
            elif needed is not None and needed > gain.seeds:
                words.append(f"about {needed} seeds would detect a difference of this size")
        return f"{self.word}. {'; '.join(words)}."


def claim(
    comparisons: Sequence[Comparison], method: str, over: str | None = None, *, largest_loss: float | None = None
) -> Claim:
    """Return the gain of a method over the baseline, or over another method, averaged over the cells of these.

    `largest_loss` is in points, as a study names it.
    """
    mine = [each for each in comparisons if each.method == method]
    theirs = [each for each in comparisons if each.method == over]
    cells = [[each, *(other for other in theirs if other.cell == each.cell)] for each in mine]
    whole = [cell for cell in cells if len(_shared(cell)) >= LEAST_SEEDS]
    taking_part = [each for cell in whole for each in cell]
    seeds, gain = _shared(taking_part), None
    if len(seeds) >= LEAST_SEEDS:
        by_seed = [statistics.fmean(_difference(seed, *cell) for cell in whole) for seed in seeds]
        sides = zip(*whole, strict=True)  # the method, and the other
        gain = paired_gain(by_seed, chosen=sum(any(each.settings > 1 for each in side) for side in sides))
    paper = [cell[0].paper_gain for cell in whole or [cell for cell in cells if cell[0].seeds] or cells]
    known = [value for value in paper if value is not None]
    mean = statistics.fmean(known) if known and len(known) == len(paper) and over is None else None
    accepted = None if largest_loss is None else largest_loss / 100.0
    return Claim(method, over, len(whole), len(mine), seeds if gain else (), gain, mean, accepted)


def _shared(comparisons: Sequence[Comparison]) -> tuple[int, ...]:
    first = comparisons[0].seeds if comparisons else ()
    return tuple(seed for seed in first if all(seed in each.seeds for each in comparisons))


def _difference(seed: int, mine: Comparison, other: Comparison | None = None) -> float:
    """Return the difference to the baseline, or to another method, with one seed."""
    place = mine.seeds.index(seed)
    return mine.values[place] - other.values[other.seeds.index(seed)] if other else mine.differences[place]


def judge(claims: Sequence[Claim]) -> list[Claim]:
    """Return claims with their verdicts: they are judged together, corrected for their number by Holm's method."""
    known = [(each.gain, each) for each in claims if each.gain is not None]
    first = iter(holm([gain.p_equal(-(of.largest_loss or 0.0)) for gain, of in known]))
    below = iter(holm([2 * gain.p_below(of.margin) for gain, of in known]))
    found = []
    for each in claims:
        if each.gain is None:
            found.append(each)
            continue
        p, small = next(first), next(below)
        loss = each.largest_loss
        word = word_for(each.gain.mean, p, small) if loss is None else word_for(each.gain.mean + loss, p, 1.0)
        found.append(replace(each, word=word, p=p))
    return found


def word_for(gain: float, p: float, p_small: float) -> str:
    """Return the verdict from a gain, its corrected p-value, and the corrected p-value of "it is as large as matters".

    >>> word_for(0.02, 0.049, 1.0), word_for(0.02, 0.05, 1.0), word_for(0.001, 0.4, 0.01)
    ('holds', 'not enough runs', 'does not hold')
    """
    if p < ALPHA:
        return HOLDS if gain > 0 else FAILS
    return FAILS if p_small < ALPHA else OPEN


def _lacking(claim: Claim) -> str:
    if claim.cells_planned == 0:
        return f"There are no results for {claim.method}."
    if claim.cells:
        return f"The cells share fewer than {LEAST_SEEDS} complete seeds."
    cells = "The cell does not have" if claim.cells_planned == 1 else f"None of {claim.cells_planned} cells has"
    return f"{cells} the {LEAST_SEEDS} complete seeds that a verdict needs."


def points(value: float) -> str:
    """Return a difference of accuracies in points, with its sign.

    >>> points(0.0123), points(-0.00001)
    ('+1.23', '0.00')
    """
    text = f"{100.0 * value:+.2f}"
    return text.replace("-", "−") if float(text) != 0.0 else "0.00"


def span(gain: Gain) -> str:
    """Return the interval of a gain in parentheses, or nothing."""
    ends = gain.interval
    return "" if ends is None else f" ({points(ends[0])} to {points(ends[1])})"


def p_text(p: float) -> str:
    """Return a p-value with three significant digits.

    >>> p_text(0.0496), p_text(0.00004)
    ('0.0496', '<0.001')
    """
    return f"<{LEAST_P:g}" if p < LEAST_P else f"{p:.3g}"
