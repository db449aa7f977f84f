"""Curves over time: a line a method, the mean over its runs, with a band of one standard deviation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from aol.plots import style
from aol.plots.style import Ints

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class Curve:
    """One method over time: mean over its runs, and their standard deviation (NaN for a single one)."""

    name: str
    runs: int
    epochs: Ints
    mean: npt.NDArray[np.float64]
    deviation: npt.NDArray[np.float64]


def mean_curve(name: str, taken: Sequence[Mapping[int, float]]) -> Curve | None:
    """Return the mean of runs, each a reading by epoch, in those epochs in which all took it; None without any.

    >>> found = mean_curve("aol", [{1: 0.25, 2: 0.5}, {2: 0.75, 3: 0.5}])
    >>> found.epochs.tolist(), found.mean.tolist(), round(float(found.deviation[0]), 4)
    ([2], [0.625], 0.1768)
    """
    common = sorted(set.intersection(*(set(each) for each in taken))) if taken else []
    if not common:
        return None
    values = np.array([[each[epoch] for epoch in common] for each in taken])
    deviation = values.std(0, ddof=1) if len(taken) > 1 else np.full(len(common), np.nan)
    return Curve(name, len(taken), np.array(common), values.mean(0), deviation)


def draw_curve(axes: Axes, shown: Curve, place: int, label: str, *, faint: float) -> None:
    """Draw a curve in percent, in the colour and line of its place among the methods; its band `faint`, 0 to 1."""
    colour, line = style.COLOURS[place % len(style.COLOURS)], style.LINES[place % len(style.LINES)]
    marker = "o" if len(shown.epochs) == 1 else "None"
    axes.plot(shown.epochs, 100 * shown.mean, line, color=colour, label=label, zorder=3, marker=marker)
    if shown.runs > 1:
        low, high = shown.mean - shown.deviation, shown.mean + shown.deviation
        axes.fill_between(shown.epochs, 100 * low, 100 * high, color=colour, alpha=faint, linewidth=0, zorder=2)


def faintness(curves: int) -> float:
    """Return how strong a band may be: many, one over the other, would hide the lines."""
    return min(0.18, 0.5 / curves)
