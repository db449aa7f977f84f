"""Accuracy over time: a line a method, the mean over its seeds, with a band of one standard deviation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from aol.records.tables import Floats
from aol.report.figures import style
from aol.report.story import Ints
from aol.report.summary import Method, at_the_end, is_stream

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST = 7  # methods that have a colour of their own


@dataclass(frozen=True)
class Curve:
    """One method over time: mean over its runs, and their standard deviation (NaN for a single one)."""

    name: str
    runs: int
    epochs: Ints
    mean: Floats
    deviation: Floats


def curve(method: Method, reading: str) -> Curve | None:
    """Return a reading of a method in those epochs in which all its runs took it; None where there is none."""
    taken = []
    for run in method.runs:
        if reading in run.curves:
            known = ~np.isnan(run.curves[reading])
            taken.append(dict(zip(run.epochs[known].tolist(), run.curves[reading][known].tolist(), strict=True)))
    common = sorted(set.intersection(*(set(each) for each in taken))) if taken else []
    if not common:
        return None
    values = np.array([[each[epoch] for epoch in common] for each in taken])
    deviation = values.std(0, ddof=1) if len(taken) > 1 else np.full(len(common), np.nan)
    return Curve(method.name, len(taken), np.array(common), values.mean(0), deviation)


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
    faint = min(0.18, 0.5 / len(named))  # many bands, one over the other, would hide the lines
    for number, (each, label) in enumerate(zip(named, labels, strict=True)):
        colour, line = style.COLOURS[number], style.LINES[number % len(style.LINES)]
        marker = "o" if len(each.epochs) == 1 else "None"
        axes.plot(each.epochs, 100 * each.mean, line, color=colour, label=label, zorder=3, marker=marker)
        if each.runs > 1:
            low, high = each.mean - each.deviation, each.mean + each.deviation
            axes.fill_between(each.epochs, 100 * low, 100 * high, color=colour, alpha=faint, linewidth=0, zorder=2)
    if rest:
        axes.plot([], [], color="#BBBBBB", linewidth=0.6, label=words[-1])
    style.over_time(axes, max((method.runs[0] for method in methods), key=lambda run: len(run.epochs)))
    axes.set_ylabel(f"{reading.replace('_', ' ')} (%)")
    axes.margins(x=0.01)
    style.few(axes, y=5)
    style.legend(figure, words)
    return figure


def seeds(runs: int) -> str:
    """Return how many runs there were, for a legend, where there were several."""
    return f" ({runs} seeds)" if runs > 1 else ""
