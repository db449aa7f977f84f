"""What goes with age: scatter plots over classes with Pearson's r and its interval."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from aol.plots import style
from aol.records.tables import Floats
from aol.report.figures.observation import observed
from aol.report.story import Story
from aol.report.summary import age_unit, at_the_end, correlation, is_stream

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


def against_age(story: Story) -> tuple[Floats, dict[str, Floats]] | None:
    """Return each class's mean age, and what it is compared with, by the name on the axis."""
    found = observed(story)
    if found is None:
        return None
    others: dict[str, Floats] = {}
    if np.ptp(story.counts) and story.counts.min() > 0:
        others["samples"] = story.counts.astype(float)
    for name, column in _AGAINST.items():
        if column in story.by_class:
            value = at_the_end(story.by_class[column], stream=is_stream(story))
            others[name] = 100 * value if "%" in name else value
    return found[0], others


@style.styled
def correlations(story: Story) -> Figure | None:
    """Return scatter plots of age against accuracy, loss, margin and size; None where there are no ages or tests."""
    found = against_age(story)
    if found is None or len(story.classes) < 3:
        return None
    age, others = found
    rows = -(-len(others) // 2)
    figure, axes = style.panels(0.3 + 1.2 * rows, rows, 2)
    for panel, (name, values) in zip(axes, others.items(), strict=False):
        _scatter(panel, age, values, name)
    for panel in axes[len(others) :]:
        panel.set_visible(False)
    figure.supxlabel(f"mean age ({age_unit(story)})", fontsize=7.5)  # once: two side by side have no room
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
