"""Figures behind the figures: runs by method, classes by size, means at the end of training, correlations.

Knows stories and arrays, and nothing of how they are drawn.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from aol.records.tables import Floats
from aol.report.story import Ints, Story, has_tail, telling

_TAIL = 0.05  # of the epochs: what the accuracy of a run is the mean over


@dataclass(frozen=True)
class Method:
    """Runs that differ in nothing but their seeds."""

    name: str
    runs: list[Story]


def methods(stories: Sequence[Story]) -> list[Method]:
    """Return the runs by method, in the order they come; methods of one name are told apart by their settings."""
    found: dict[tuple[object, ...], list[Story]] = {}
    for story in stories:
        rest = tuple((name, repr(value)) for name, value in sorted(story.settings.items()) if name != "seed")
        found.setdefault((story.method, tuple(story.classes), rest), []).append(story)
    first = [runs[0] for runs in found.values()]
    named = []
    for runs in found.values():
        same = [story for story in first if story.method == runs[0].method]
        words = [f"{name}={runs[0].settings.get(name)}" for name in telling(same) if name != "seed"]
        named.append(Method(" ".join([runs[0].method, *words]), runs))
    return named


def by_sizes(found: Sequence[Method]) -> list[list[Method]]:
    """Return methods by the sizes of their classes: only on classes of equal sizes are head and tail the same."""
    groups: dict[tuple[int, ...], list[Method]] = {}
    for method in found:
        groups.setdefault(tuple(np.sort(method.runs[0].counts).tolist()), []).append(method)
    return list(groups.values())


def is_stream(story: Story) -> bool:
    """Whether an epoch of this run is a step of a stream."""
    return story.settings.get("scenario") == "stream"


def time_unit(story: Story) -> str:
    """Return in what the time of a run is counted: "epoch", on a stream "step"."""
    return "step" if is_stream(story) else "epoch"


def at_the_end(values: Floats, *, stream: bool) -> Floats:
    """Return the mean over the last 5 % of epochs, on a stream over its second half, of `[E, ...]`; NaNs left out.

    >>> float(at_the_end(np.arange(40.0), stream=False))
    38.5
    """
    count = len(values) - len(values) // 2 if stream else max(1, round(_TAIL * len(values)))
    part = values[-count:]
    known = ~np.isnan(part)
    total = np.where(known, part, 0.0).sum(0)
    found: Floats = np.divide(total, known.sum(0), out=np.full(part.shape[1:], np.nan), where=known.sum(0) > 0)
    return found


def mean_age(story: Story) -> tuple[Floats, bool] | None:
    """Return the age of each class over time, `[E, C]`, and whether it is smoothed: samples give it unsmoothed."""
    if story.samples is not None:
        return story.samples.class_age(len(story.classes)), False
    return (story.by_class["age"], True) if "age" in story.by_class else None


def age_unit(story: Story) -> str:
    """Return in what the class ages of `mean_age` are counted, for an axis: smoothed ones say so."""
    unit = f"{time_unit(story)}s"
    return unit if story.samples is not None else f"{unit}, smoothed"


@dataclass(frozen=True)
class Part:
    """Some classes by their size: "head", "middle" or "tail"."""

    name: str
    classes: Ints
    fewest: int
    most: int


def parts(counts: Ints) -> list[Part]:
    """Return head, middle and tail: a third of the classes each, by size. Fewer where classes or sizes are too few.

    Classes without a sample belong to the tail. Equal sizes are not torn apart, and a set that is about balanced, as
    that of a stream whose head moves, is all one part.

    >>> [(part.name, part.classes.tolist()) for part in parts(np.array([9, 5, 5, 1]))]
    [('head', [0]), ('middle', [1, 2]), ('tail', [3])]
    """
    if not has_tail(counts):
        return [Part("all", np.arange(len(counts)), int(counts.min()), int(counts.max()))]
    order = np.argsort(-counts, kind="stable")
    sizes = counts[order]
    first, last = (np.searchsorted(-sizes, -sizes, side=side) for side in ("left", "right"))
    third = (first + last) * 3 // (2 * len(counts))  # by the middle of those of one size
    names = ["head", "middle", "tail"]
    kinds = sorted(set(third.tolist()))
    if len(kinds) == 2:
        names = ["head", "tail"]
        third = (third == kinds[1]).astype(int)
    found = []
    for number, name in enumerate(names):
        chosen = order[third == number]
        found.append(Part(name, chosen, int(counts[chosen].min()), int(counts[chosen].max())))
    return found


@dataclass(frozen=True)
class Correlation:
    """Pearson's r of n pairs, with its interval of 95 % where n allows one."""

    r: float
    low: float
    high: float
    n: int


def correlation(x: Floats, y: Floats) -> Correlation | None:
    r"""Return Pearson's r with Fisher's interval; None where it says nothing: below 3 pairs, or no spread. NaNs go.

    .. math:: \tanh\left(\operatorname{artanh} r \pm \frac{z_{0.975}}{\sqrt{n - 3}}\right)

    >>> found = correlation(np.array([1.0, 2.0, 3.0, 4.0]), np.array([1.0, 3.0, 2.0, 4.0]))
    >>> [round(value, 3) for value in (found.r, found.low, found.high)]
    [0.8, -0.697, 0.996]
    """
    known = np.isfinite(x) & np.isfinite(y)
    x, y, n = x[known], y[known], int(known.sum())
    if n < 3 or np.ptp(x) == 0 or np.ptp(y) == 0:
        return None
    dx, dy = x - x.mean(), y - y.mean()
    r = float(np.clip((dx @ dy) / math.sqrt((dx @ dx) * (dy @ dy)), -1.0, 1.0))
    if n < 4 or abs(r) == 1.0:
        return Correlation(r, math.nan, math.nan, n)
    half = NormalDist().inv_cdf(0.975) / math.sqrt(n - 3)
    return Correlation(r, math.tanh(math.atanh(r) - half), math.tanh(math.atanh(r) + half), n)


def spread(values: Floats) -> tuple[float, float]:
    """Return mean and standard deviation over runs (the latter NaN for a single one); NaNs left out.

    >>> spread(np.array([1.0, 3.0, np.nan]))
    (2.0, 1.4142135623730951)
    """
    known = values[~np.isnan(values)]
    if not known.size:
        return math.nan, math.nan
    return float(known.mean()), float(known.std(ddof=1)) if known.size > 1 else math.nan
