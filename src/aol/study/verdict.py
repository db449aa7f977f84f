"""Holds, does not hold, or not enough runs: the rule, and its sentence.

A claim is that a method gains over the baseline, on average over cells. It *holds* when the gain is above zero and its
p-value, corrected, is below 5 %. It *does not hold* when the gain is below zero by the same measure, or is shown to be
smaller than matters: than half a point, or than half of what the paper has, whichever is more. All else, and anything
with fewer than three whole seeds, is *not enough runs*. Knows lines of a table, no records.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from aol.engine.intervals import MOST_SEEDS, Gain, holm, paired_gain
from aol.study.lines import Line

HOLDS, FAILS, OPEN = "holds", "does not hold", "not enough runs"
ALPHA = 0.05
LEAST_SEEDS = 3
LEAST_GAIN = 0.005


@dataclass(frozen=True)
class Claim:
    """The gain of a method, averaged over the cells with at least three whole seeds, on the seeds these share.

    `over` is the method that it is compared with; None for the baseline.
    """

    method: str
    over: str | None
    cells: int
    cells_planned: int
    seeds: tuple[int, ...]
    gain: Gain | None
    paper_gain: float | None

    @property
    def margin(self) -> float:
        """The smallest gain that matters: half a point, or half the paper's gain, whichever is more."""
        return max(LEAST_GAIN, 0.5 * self.paper_gain) if self.paper_gain is not None else LEAST_GAIN


@dataclass(frozen=True)
class Verdict:
    """A claim, judged. `p` is corrected for all claims that were judged with it."""

    claim: Claim
    word: str
    p: float | None
    sentence: str


def claim(lines: Sequence[Line], method: str, over: str | None = None) -> Claim:
    """Return the gain of a method over the baseline, or over another method, averaged over the cells of these lines."""
    mine = [line for line in lines if line.method == method]
    theirs = {_place(line): line for line in lines if line.method == over}
    cells = [[line] if over is None else [line, theirs[_place(line)]] for line in mine]
    whole = [cell for cell in cells if len(_shared(cell)) >= LEAST_SEEDS]
    taking_part = [line for cell in whole for line in cell]
    seeds, gain = _shared(taking_part), None
    if len(seeds) >= LEAST_SEEDS:
        by_seed = [statistics.fmean(_difference(cell, seed) for cell in whole) for seed in seeds]
        sides = zip(*whole, strict=True)  # the method's lines, and the other's
        gain = paired_gain(by_seed, chosen=sum(any(line.settings > 1 for line in side) for side in sides))
    paper = [cell[0].paper_gain for cell in whole or [cell for cell in cells if cell[0].seeds] or cells]
    known = [value for value in paper if value is not None]
    mean = statistics.fmean(known) if known and len(known) == len(paper) and over is None else None
    return Claim(method, over, len(whole), len(mine), seeds if gain else (), gain, mean)


def _place(line: Line) -> tuple[tuple[str, object], ...]:
    return tuple(line.cell.items())


def _shared(lines: Sequence[Line]) -> tuple[int, ...]:
    first = lines[0].seeds if lines else ()
    return tuple(seed for seed in first if all(seed in line.seeds for line in lines))


def _difference(cell: Sequence[Line], seed: int) -> float:
    """Return what a method has above the baseline, or above the other method of a pair, with one seed."""
    first, *other = cell
    if not other:
        return first.differences[first.seeds.index(seed)]
    return first.values[first.seeds.index(seed)] - other[0].values[other[0].seeds.index(seed)]


def judge(claims: Sequence[Claim]) -> list[Verdict]:
    """Return the verdicts of claims that are judged together, corrected by Holm's rule for how many they are."""
    told = [each.gain for each in claims if each.gain is not None]
    two_sided = iter(holm([gain.p for gain in told]))
    below = iter(holm([2 * each.gain.p_below(each.margin) for each in claims if each.gain is not None]))
    found = []
    for each in claims:
        if each.gain is None:
            found.append(Verdict(each, OPEN, None, f"{OPEN}: {_lacking(each)}"))
            continue
        p, p_small = next(two_sided), next(below)
        word = word_for(each.gain.mean, p, p_small)
        found.append(Verdict(each, word, p, f"{word}, with {_reason(each, each.gain, word, p)}"))
    return found


def word_for(gain: float, p: float, p_small: float) -> str:
    """Return the verdict from a gain, its corrected p-value, and that of its being as large as matters.

    >>> word_for(0.02, 0.049, 1.0), word_for(0.02, 0.05, 1.0), word_for(0.001, 0.4, 0.01)
    ('holds', 'not enough runs', 'does not hold')
    """
    if p < ALPHA:
        return HOLDS if gain > 0 else FAILS
    return FAILS if p_small < ALPHA else OPEN


def _lacking(claim: Claim) -> str:
    if claim.cells_planned == 0:
        return f"there is no line for {claim.method}."
    cells = "the cell" if claim.cells_planned == 1 else f"none of {claim.cells_planned} cells"
    verb = "has not" if claim.cells_planned == 1 else "has"
    if claim.cells:
        return f"its cells share fewer than {LEAST_SEEDS} whole seeds."
    return f"{cells} {verb} the {LEAST_SEEDS} whole seeds that a verdict needs."


def _reason(claim: Claim, gain: Gain, word: str, p: float) -> str:
    where = "" if claim.cells_planned == 1 else f", mean over {claim.cells} of {claim.cells_planned} cells"
    text = f"{points(gain.mean)} points{span(gain)} over {gain.seeds} seeds{where}, {_p_words(p)}"
    if word == HOLDS:
        return f"{text}{_beside_paper(claim, gain)}."
    if word == FAILS and gain.mean < 0 and p < ALPHA:
        return f"{text}: a loss{_beside_paper(claim, gain)}."
    if word == FAILS:
        least = "half of the paper's gain" if claim.margin > LEAST_GAIN else "what matters"
        return f"{text}: less than {points(claim.margin)}, {least}{_beside_paper(claim, gain)}."
    return f"{text}{_beside_paper(claim, gain)}{_needed(gain)}."


def _needed(gain: Gain) -> str:
    """Say how many seeds would tell a difference of this size, as far as the widening is known."""
    needed = gain.seeds_needed()
    if needed is None:
        return f"; even {MOST_SEEDS} seeds would hardly show so small a difference" if gain.spread else ""
    return "" if needed <= gain.seeds else f"; a difference of this size would show with about {needed} seeds"


def _beside_paper(claim: Claim, gain: Gain) -> str:
    if claim.paper_gain is None:
        return ""
    ends = gain.interval
    if ends is None:
        return f"; the paper has {points(claim.paper_gain)}"
    place = "inside" if ends[0] <= claim.paper_gain <= ends[1] else "above" if claim.paper_gain > ends[1] else "below"
    return f"; the paper has {points(claim.paper_gain)}, {place} that interval"


def _p_words(p: float) -> str:
    text = p_text(p)
    return f"p {text[0]} {text[1:]}" if text.startswith("<") else f"p = {text}"


def points(value: float) -> str:
    """Return a difference of accuracies in points, with its sign.

    >>> points(0.0123), points(-0.00001)
    ('+1.23', '0.00')
    """
    text = f"{100.0 * value:+.2f}"
    return text.replace("-", "−") if float(text) != 0.0 else "0.00"


def span(gain: Gain) -> str:
    """Return an interval in brackets, or nothing."""
    ends = gain.interval
    return "" if ends is None else f" ({points(ends[0])} to {points(ends[1])})"


def p_text(p: float) -> str:
    """Return a p-value with three digits that count.

    >>> p_text(0.0496), p_text(0.00004)
    ('0.0496', '<0.001')
    """
    return "<0.001" if p < 0.001 else f"{p:.3g}"
