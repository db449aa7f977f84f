"""Age against accuracy, loss, margin and class size: scatter plots over classes, with Pearson's r."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from aol.plots import style
from aol.plots.observation import observed
from aol.plots.summary import correlation, final, time_unit
from aol.runs.record import Floats, Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_AGAINST = {
    "test accuracy (%)": "test_accuracy",
    "training loss": "train_loss",
    "training margin": "train_margin",
    "test loss": "test_loss",
    "test margin": "test_margin",
}


def against_age(run: Run) -> tuple[Floats, dict[str, Floats]] | None:
    """Return each class's mean age, and what it is compared with, by the name on the axis."""
    found = observed(run)
    if found is None:
        return None
    others: dict[str, Floats] = {}
    counts = np.asarray(run.counts or [0], dtype=np.float64)
    if np.ptp(counts) and counts.min() > 0:
        others["samples"] = counts
    for name, column in _AGAINST.items():
        value = final(run, column)
        if value is not None:
            others[name] = 100 * value if "%" in name else value
    return found[0], others


@style.styled
def correlations(run: Run) -> Figure | None:
    """Return scatter plots of age against accuracy, loss, margin and size; None where there are no ages or tests."""
    found = against_age(run)
    if found is None or len(run.classes) < 3:
        return None
    age, others = found
    rows = -(-len(others) // 2)
    figure, axes = style.panels(0.3 + 1.2 * rows, rows, 2)
    for panel, (name, values) in zip(axes, others.items(), strict=False):
        _scatter(panel, age, values, name)
    for panel in axes[len(others) :]:
        panel.set_visible(False)
    figure.supxlabel(f"mean age ({time_unit(run)}s)", fontsize=7.5)  # once: two side by side have no room
    figure.align_ylabels(axes)
    return figure


def _scatter(panel: Axes, age: Floats, values: Floats, name: str) -> None:
    crowded = len(age) > 100
    panel.scatter(
        age, values, s=4 if crowded else 9, color=style.COLOURS[0], alpha=0.4 if crowded else 0.8, linewidths=0
    )
    panel.set_ylabel(name)
    style.few(panel, x=4)
    if name == "samples" and values.max() >= 20 * values.min():
        style.logarithmic(panel, "y", decades=2.3)
        panel.set_ylabel("samples (log scale)")
        values = np.log10(values)  # r is of what is drawn
    else:
        style.few(panel, y=4)
    found = correlation(age, values)
    if found is None:
        text = "r is not defined"
    elif np.isnan(found.low):
        text = f"r = {found.r:.2f}, n = {found.n}"
    else:
        text = f"r = {found.r:.2f} [{found.low:.2f}, {found.high:.2f}]"
    panel.set_title(text.replace("-", "−"), fontsize=6.5, pad=3, loc="right")
