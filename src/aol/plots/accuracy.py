"""Accuracy over time: a line a method, the mean over its runs, with a band of one standard deviation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from aol.plots import style
from aol.plots.style import Ints
from aol.plots.summary import Method, time_unit
from aol.runs.figures import at_the_end, is_stream

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST = 7  # methods that have a colour of their own


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


def curve(method: Method, reading: str) -> Curve | None:
    """Return a reading of a method in those epochs in which all its runs took it; None where there is none."""
    taken = []
    for run in method.runs:
        if reading in run.curves:
            known = ~np.isnan(run.curves[reading])
            taken.append(dict(zip(run.epochs[known].tolist(), run.curves[reading][known].tolist(), strict=True)))
    return mean_curve(method.name, taken)


def outstanding(methods: list[Method], reading: str = "test_accuracy") -> list[bool]:
    """Say which methods get a colour: all, or of too many those best in the end, and the first."""
    if len(methods) <= MOST:
        return [True] * len(methods)
    ends = []
    for method in methods:
        found = [at_the_end(run.curves[reading], stream=is_stream(run)) for run in method.runs if reading in run.curves]
        ends.append(float(np.mean(found)) if found else -np.inf)
    best = sorted(range(1, len(methods)), key=lambda place: -np.nan_to_num(ends[place], nan=-np.inf))[: MOST - 1]
    return [place == 0 or place in best for place in range(len(methods))]


@style.styled
def accuracy_curves(methods: list[Method], reading: str = "test_accuracy") -> Figure | None:
    """Return the test accuracy of all methods over time; None where none was read."""
    chosen = outstanding(methods, reading)
    found = [(curve(method, reading), own) for method, own in zip(methods, chosen, strict=True)]
    drawn = [(each, own) for each, own in found if each is not None]
    if not drawn:
        return None
    named = [each for each, own in drawn if own]
    labels = [f"{style.short(each.name, 44)}{seeds(each.runs)}" for each in named]
    rest = len(drawn) - len(named)
    words = [*labels, *([f"{rest} other{'s' * (rest > 1)}"] if rest else [])]
    figure, (axes,) = style.panels(1.75 + style.legend_height(words))
    for each, own in drawn:
        if not own:
            axes.plot(each.epochs, 100 * each.mean, color="#BBBBBB", linewidth=0.6, zorder=1)
    for number, (each, label) in enumerate(zip(named, labels, strict=True)):
        draw_curve(axes, each, number, label, faint=faintness(len(named)))
    if rest:
        axes.plot([], [], color="#BBBBBB", linewidth=0.6, label=words[-1])
    longest = max((method.runs[0] for method in methods), key=lambda run: len(run.epochs))
    style.over_time(axes, longest.epochs, time_unit(longest))
    axes.set_ylabel(f"{reading.replace('_', ' ')} (%)")
    axes.margins(x=0.01)
    style.few(axes, y=5)
    style.legend(figure, words)
    return figure


def seeds(runs: int) -> str:
    """Return how many runs there were, for a legend, where there were several."""
    return f" ({runs} seeds)" if runs > 1 else ""
