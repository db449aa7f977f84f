"""Accuracy of methods: over time, and at the end of head, middle and tail."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from aol.report.figures import style
from aol.report.figures.summary import Method, Part, at_end, parts, time_unit

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST = 7  # methods: so many have a colour of their own
_WIDEST = 9  # letters of two sizes that fit below a group of bars; more take two lines


def foremost(methods: list[Method]) -> list[Method]:
    """Return the methods that are drawn: all, or of more than seven the first and those that are best in the end."""
    best = sorted(methods[1:], key=lambda method: -np.nan_to_num(at_end(method)[0], nan=-np.inf))[: MOST - 1]
    return [method for method in methods if method is methods[0] or any(method is one for one in best)]


def curve(method: Method) -> pd.DataFrame:
    """Return mean and standard deviation of test accuracy by epoch, in those epochs in which all runs read it."""
    runs = [pd.Series(run.curves["test_accuracy"], run.epochs) for run in method.runs if "test_accuracy" in run.curves]
    by_epoch = pd.concat(runs, axis=1).dropna().sort_index() if runs else pd.DataFrame()
    return pd.DataFrame({"mean": by_epoch.mean(axis=1), "deviation": by_epoch.std(axis=1)})


@style.styled
def accuracy_curves(methods: list[Method]) -> Figure | None:
    """Return the test accuracy of methods over time, bands of one standard deviation; None where none was read."""
    curves = [(method, 100 * curve(method)) for method in foremost(methods)]
    curves = [(method, values) for method, values in curves if len(values)]
    if not curves:
        return None
    labels = [_label(method) for method, _ in curves]
    figure, (axes,) = style.panels(1.75 + style.legend_height(labels))
    alpha = min(0.18, 0.5 / len(curves))  # many strong bands, one over the other, would hide the lines
    for place, (_, values) in enumerate(curves):
        colour, line = style.COLOURS[place % len(style.COLOURS)], style.LINES[place % len(style.LINES)]
        marker, (mean, deviation) = "o" if len(values) == 1 else "None", (values["mean"], values["deviation"])
        axes.plot(values.index, mean, line, color=colour, label=labels[place], zorder=3, marker=marker)
        if deviation.notna().any():
            axes.fill_between(
                values.index, mean - deviation, mean + deviation, color=colour, alpha=alpha, linewidth=0, zorder=2
            )
    longest = max((method.runs[0] for method in methods), key=lambda run: len(run.epochs))
    style.set_time_axis(axes, longest.epochs, time_unit(longest))
    axes.margins(x=0.01)
    return _finished(figure, axes, labels)


def _label(method: Method) -> str:
    runs = len(method.runs)
    return style.shorten(method.name, 44) + (f" ({runs} seeds)" if runs > 1 else "")


def _finished(figure: Figure, axes: Axes, labels: Sequence[str]) -> Figure:
    axes.set_ylabel("test accuracy (%)")
    style.limit_ticks(axes, y=5)
    style.legend(figure, labels)
    return figure


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
    labels = [_label(method) for method in shown]
    figure, (axes,) = style.panels(1.7 + style.legend_height(labels))
    width = 0.8 / len(shown)
    around = style.matplotlib("patheffects").withStroke(linewidth=1.8, foreground="white")
    for number, method in enumerate(shown):
        place = np.arange(len(names)) + (number - (len(shown) - 1) / 2) * width
        means, deviations = 100 * np.array([at_end(method, name) for name in names]).T
        drawn = axes.bar(
            place, means, width * 0.92, color=style.COLOURS[number], label=labels[number],
            yerr=None if np.isnan(deviations).all() else np.nan_to_num(deviations),
            error_kw={"linewidth": 0.8, "capsize": 1.5, "ecolor": "#333333"},
        )  # fmt: skip
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
