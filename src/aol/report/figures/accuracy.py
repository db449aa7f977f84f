"""Accuracy of methods: over time, and at the end of head, middle and tail."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from aol.records.compare import at_end, parts
from aol.records.metrics import time_unit
from aol.records.table import RunFrame
from aol.report.figures import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST = 7  # methods: so many have a colour of their own
_LINE = 0.12  # inches: a line of the legend
_WIDEST = 9  # letters of two sizes that fit below a group of bars; more take two lines


def foremost(methods: dict[str, RunFrame]) -> dict[str, RunFrame]:
    """Return the methods that are drawn: all, or of more than seven the first and those that are best in the end."""
    first, *others = methods or [""]
    best = sorted(others, key=lambda name: -np.nan_to_num(at_end(methods[name])[0], nan=-np.inf))[: MOST - 1]
    return {name: method for name, method in methods.items() if name == first or name in best}


def curve(method: RunFrame) -> pd.DataFrame:
    """Return mean and standard deviation of test accuracy by epoch, in those epochs in which all runs read it."""
    curves = [(run.curves.get("test_accuracy"), run.epochs) for run in method.runs.values()]
    runs = [pd.Series(values, epochs) for values, epochs in curves if values is not None]
    by_epoch = pd.concat(runs, axis=1).dropna().sort_index() if runs else pd.DataFrame()
    return pd.DataFrame({"mean": by_epoch.mean(axis=1), "deviation": by_epoch.std(axis=1)})


@style.styled
def accuracy_curves(methods: dict[str, RunFrame]) -> Figure | None:
    """Return the test accuracy of methods over time, bands of one standard deviation; None where none was read."""
    curves = {name: 100 * curve(method) for name, method in foremost(methods).items()}
    curves = {name: values for name, values in curves.items() if len(values)}
    if not curves:
        return None
    labels = [_label(name, methods[name]) for name in curves]
    figure, (axes,) = style.panels(1.8 + _LINE * len(labels))
    alpha = min(0.18, 0.5 / len(curves))  # many strong bands, one over the other, would hide the lines
    for place, values in enumerate(curves.values()):
        colour, line = style.COLOURS[place % len(style.COLOURS)], style.LINES[place % len(style.LINES)]
        marker, (mean, deviation) = "o" if len(values) == 1 else "None", (values["mean"], values["deviation"])
        axes.plot(values.index, mean, line, color=colour, label=labels[place], zorder=3, marker=marker)
        if deviation.notna().any():
            axes.fill_between(
                values.index, mean - deviation, mean + deviation, color=colour, alpha=alpha, linewidth=0, zorder=2
            )
    longest = max((run for method in methods.values() for run in method.runs.values()), key=lambda run: len(run.epochs))
    style.set_time_axis(axes, longest.epochs, time_unit(longest))
    axes.margins(x=0.01)
    return _finished(figure, axes)


def _label(name: str, method: RunFrame) -> str:
    return style.shorten(name, 44) + (f" ({len(method)} seeds)" if len(method) > 1 else "")


def _finished(figure: Figure, axes: Axes) -> Figure:
    axes.set_ylabel("test accuracy (%)")
    style.limit_ticks(axes, y=5)
    figure.legend(loc="outside lower center", labelspacing=0.3)
    return figure


@style.styled
def head_middle_tail(methods: dict[str, RunFrame]) -> Figure | None:
    """Return bars of test accuracy by part of the classes, whose sizes must be equal; None where it was not read."""
    run = next(run for method in methods.values() for run in method.runs.values())
    counts = np.array(run.counts or [0] * len(run.classes))
    of_sizes = parts(counts)
    names = [f"{part}_accuracy" for part in of_sizes] if len(of_sizes) > 1 else []
    names.append("balanced_accuracy")
    drawn = foremost(methods).items()
    shown = {name: method for name, method in drawn if not np.isnan(at_end(method, names[-1])[0])}
    if not shown:
        return None
    labels = [_label(name, method) for name, method in shown.items()]
    figure, (axes,) = style.panels(1.75 + _LINE * len(labels))
    width = 0.8 / len(shown)
    for number, method in enumerate(shown.values()):
        place = np.arange(len(names)) + (number - (len(shown) - 1) / 2) * width
        means, deviations = 100 * np.array([at_end(method, name) for name in names]).T
        axes.bar(
            place, means, width * 0.92, color=style.COLOURS[number], label=labels[number],
            yerr=None if np.isnan(deviations).all() else np.nan_to_num(deviations),
            error_kw={"linewidth": 1.0, "capsize": 1.5, "ecolor": style.GREY},  # shows on black, and on white
        )  # fmt: skip
    ends = {part: dict.fromkeys((counts[own].min(), counts[own].max())) for part, own in of_sizes.items()}
    sizes = {part: [f"{size:,}" for size in own] for part, own in ends.items()}
    between = "\nto " if any(len("–".join(own)) > _WIDEST for own in sizes.values()) else "–"
    ticks = [f"{part} ({len(own)})\nn = {between.join(sizes[part])}" for part, own in of_sizes.items()]
    axes.set_xticks(range(len(names)), [*ticks[: len(names) - 1], "all classes"])
    axes.set_ylim(bottom=0)
    axes.tick_params(axis="x", length=0)
    return _finished(figure, axes)
