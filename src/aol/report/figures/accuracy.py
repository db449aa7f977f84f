"""Accuracy of methods: over time, and at the end of head, middle and tail."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from aol.records.record import Floats, Ints
from aol.report.figures import style
from aol.report.figures.summary import Method, Part, at_end, parts, time_unit

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_READING = "test_accuracy"
MOST = 7  # methods: so many have a colour of their own
_WIDEST = 9  # letters of two sizes that fit below a group of bars; more take two lines


@dataclass(frozen=True)
class Curve:
    """One method over time: mean over its runs, and their standard deviation (NaN for a single one)."""

    name: str
    runs: int
    x: Ints
    mean: Floats
    deviation: Floats


def mean_curve(name: str, readings: Sequence[Mapping[int, float]]) -> Curve | None:
    """Return the mean of runs, each a reading by epoch, in those epochs in which all took it; None without any.

    >>> curve = mean_curve("aol", [{1: 0.25, 2: 0.5}, {2: 0.75, 3: 0.5}])
    >>> curve.x.tolist(), curve.mean.tolist(), round(float(curve.deviation[0]), 4)
    ([2], [0.625], 0.1768)
    """
    table = pd.DataFrame(list(readings)).dropna(axis=1).sort_index(axis=1)
    if table.empty:
        return None
    values = table.to_numpy()
    deviation = values.std(0, ddof=1) if len(readings) > 1 else np.full(len(values[0]), np.nan)
    return Curve(name, len(readings), table.columns.to_numpy(), values.mean(0), deviation)


def draw_curve(axes: Axes, shown: Curve, place: int, label: str, *, alpha: float) -> None:
    """Draw a curve in percent, in the colour and line of its place among the methods; its band with `alpha`."""
    colour, line = style.COLOURS[place % len(style.COLOURS)], style.LINES[place % len(style.LINES)]
    marker = "o" if len(shown.x) == 1 else "None"
    axes.plot(shown.x, 100 * shown.mean, line, color=colour, label=label, zorder=3, marker=marker)
    if shown.runs > 1:
        low, high = shown.mean - shown.deviation, shown.mean + shown.deviation
        axes.fill_between(shown.x, 100 * low, 100 * high, color=colour, alpha=alpha, linewidth=0, zorder=2)


def band_alpha(curves: int) -> float:
    """Return how strong a band may be: many, one over the other, would hide the lines."""
    return min(0.18, 0.5 / curves)


def curve(method: Method) -> Curve | None:
    """Return the test accuracy of a method in those epochs in which all its runs read it; None where there is none."""
    runs = [run for run in method.runs if _READING in run.curves]
    return mean_curve(method.name, [dict(zip(run.epochs.tolist(), run.curves[_READING], strict=True)) for run in runs])


def _label(name: str, runs: int) -> str:
    return style.shorten(name, 44) + (f" ({runs} seeds)" if runs > 1 else "")


def foremost(methods: list[Method]) -> list[Method]:
    """Return the methods that are drawn: all, or of more than seven the first and those that are best in the end."""
    best = sorted(methods[1:], key=lambda method: -np.nan_to_num(at_end(method)[0], nan=-np.inf))[: MOST - 1]
    return [method for method in methods if method is methods[0] or any(method is one for one in best)]


@style.styled
def accuracy_curves(methods: list[Method]) -> Figure | None:
    """Return the test accuracy of methods over time, bands of one standard deviation; None where none was read."""
    lines = [line for line in map(curve, foremost(methods)) if line is not None]
    if not lines:
        return None
    labels = [_label(line.name, line.runs) for line in lines]
    figure, (axes,) = style.panels(1.75 + style.legend_height(labels))
    for number, line in enumerate(lines):
        draw_curve(axes, line, number, labels[number], alpha=band_alpha(len(lines)))
    longest = max((method.runs[0] for method in methods), key=lambda run: len(run.epochs))
    style.set_time_axis(axes, longest.epochs, time_unit(longest))
    axes.margins(x=0.01)
    return _finished(figure, axes, labels)


def _finished(figure: Figure, axes: Axes, labels: Sequence[str]) -> Figure:
    axes.set_ylabel("test accuracy (%)")
    style.limit_ticks(axes, y=5)
    style.legend(figure, labels)
    return figure


# Head, middle and tail


@style.styled
def head_middle_tail(methods: list[Method]) -> Figure | None:
    """Return bars of test accuracy by part of the classes, whose sizes must be equal; None where it was not read."""
    run = methods[0].runs[0]
    of_sizes = parts(run.counts or [0] * len(run.classes))
    names = [f"{part.name}_accuracy" for part in of_sizes] if len(of_sizes) > 1 else []
    names.append("balanced_accuracy")
    shown = [method for method in foremost(methods) if not np.isnan(at_end(method, names[-1])[0])]
    if not shown:
        return None
    labels = [_label(method.name, len(method.runs)) for method in shown]
    figure, (axes,) = style.panels(1.7 + style.legend_height(labels))
    width = 0.8 / len(shown)
    for number, method in enumerate(shown):
        place = np.arange(len(names)) + (number - (len(shown) - 1) / 2) * width
        means, deviations = 100 * np.array([at_end(method, name) for name in names]).T
        drawn = axes.bar(
            place, means, width * 0.92, color=style.COLOURS[number], label=labels[number],
            yerr=None if np.isnan(deviations).all() else np.nan_to_num(deviations),
            error_kw={"linewidth": 0.8, "capsize": 1.5, "ecolor": "#333333"},
        )  # fmt: skip
        around = style.matplotlib("patheffects").withStroke(linewidth=1.8, foreground="white")
        for whisker in (*drawn.errorbar[1], *drawn.errorbar[2]) if drawn.errorbar else ():
            whisker.set_path_effects([around])  # they show on a dark bar then too
    between = "\nto " if any(len(_sizes(part, "–")) > _WIDEST for part in of_sizes) else "–"
    ticks = [f"{part.name} ({len(part.classes)})\nn = {_sizes(part, between)}" for part in of_sizes]
    axes.set_xticks(range(len(names)), [*ticks[: len(names) - 1], "all classes"])
    axes.set_ylim(bottom=0)
    axes.tick_params(axis="x", length=0)
    return _finished(figure, axes, labels)


def _sizes(part: Part, between: str) -> str:
    return between.join(f"{size:,}" for size in dict.fromkeys((part.fewest, part.most)))
