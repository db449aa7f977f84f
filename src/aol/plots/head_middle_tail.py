"""Accuracy of head, middle and tail, method beside method."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from aol.plots import style
from aol.plots.accuracy import outstanding, seeds
from aol.plots.summary import Method, Part, final, parts, spread
from aol.runs.record import Floats

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_WIDEST = 9  # letters of two sizes that fit below a group of bars; more take two lines


def by_part(method: Method, found: list[Part]) -> list[tuple[float, float]]:
    """Return mean and deviation over a method's runs of the mean test accuracy of each part, and of all classes."""
    values: list[Floats] = []
    for run in method.runs:
        accuracy = final(run, "test_accuracy")
        if accuracy is not None and run.failed_at_epoch is None:
            chosen = [accuracy[part.classes] for part in found] + [accuracy]
            values.append(np.array([spread(each)[0] for each in chosen]))
    table = np.array(values).reshape(-1, len(found) + 1)
    return [spread(table[:, column]) for column in range(len(found) + 1)]


@style.styled
def head_middle_tail(methods: list[Method]) -> Figure | None:
    """Return bars of test accuracy by part of the classes, whose sizes must be equal; None where it was not read."""
    shown = [method for method, own in zip(methods, outstanding(methods), strict=True) if own]
    found = _parts(methods[0])
    heights = {method.name: (method, by_part(method, _parts(method))) for method in shown}
    heights = {name: (method, each) for name, (method, each) in heights.items() if not np.isnan(each[-1][0])}
    if not heights:
        return None
    labels = [f"{style.short(name, 44)}{seeds(len(method.runs))}" for name, (method, _) in heights.items()]
    figure, (axes,) = style.panels(1.7 + style.legend_height(labels))
    names = [*found, None] if len(found) > 1 else [None]
    width = 0.8 / len(heights)
    for number, (label, (_, each)) in enumerate(zip(labels, heights.values(), strict=True)):
        place = np.arange(len(names)) + (number - (len(heights) - 1) / 2) * width
        means, deviations = (100 * np.array(column) for column in zip(*each[-len(names) :], strict=True))
        drawn = axes.bar(
            place, means, width * 0.92, color=style.COLOURS[number], label=label,
            yerr=None if np.isnan(deviations).all() else np.nan_to_num(deviations),
            error_kw={"linewidth": 0.8, "capsize": 1.5, "ecolor": "#333333"},
        )  # fmt: skip
        style.haloed(drawn.errorbar)
    wide = any(len(_sizes(part)) > _WIDEST for part in found)
    axes.set_xticks(range(len(names)), [_label(part, between="\nto " if wide else "–") for part in names])
    axes.set_ylabel("test accuracy (%)")
    axes.set_ylim(bottom=0)
    axes.tick_params(axis="x", length=0)
    style.few(axes, y=5)
    style.legend(figure, labels)
    return figure


def _parts(method: Method) -> list[Part]:
    run = method.runs[0]
    return parts(run.counts or [0] * len(run.classes))


def _label(part: Part | None, between: str) -> str:
    return "all classes" if part is None else f"{part.name} ({len(part.classes)})\nn = {_sizes(part, between)}"


def _sizes(part: Part, between: str = "–") -> str:
    return f"{part.fewest:,}" if part.fewest == part.most else f"{part.fewest:,}{between}{part.most:,}"
