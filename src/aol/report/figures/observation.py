"""Age of every class against its size, accuracy, loss and margin: bars, and scatter plots with Pearson's r."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from aol.records.record import Floats, Run
from aol.report.figures import style
from aol.report.figures.summary import correlation, final, has_tail, head_first, mean_age, time_unit

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_NAMED = 12
_AGAINST = {
    "test accuracy (%)": "test_accuracy",
    "training loss": "train_loss",
    "training margin": "train_margin",
    "test loss": "test_loss",
    "test margin": "test_margin",
}


def observed(run: Run) -> tuple[Floats, Floats] | None:
    """Return each class's age, averaged over all epochs, and its test accuracy at the end; None where unknown."""
    age, accuracy = mean_age(run), final(run, "test_accuracy")
    return None if age is None or accuracy is None else (age, accuracy)


@style.styled
def observation(run: Run) -> Figure | None:
    """Return size, age and accuracy of every class, one above the other; None where age or accuracy is unknown."""
    found = observed(run)
    if found is None:
        return None
    age, accuracy = found
    order = head_first(run.counts, len(run.classes))
    rows = {f"mean age\n({time_unit(run)}s)": age, "test\naccuracy (%)": 100 * accuracy}
    wide = False
    if run.counts is not None:
        sizes = np.asarray(run.counts, dtype=np.float64)
        filled = sizes[sizes > 0]
        wide = bool(filled.size) and filled.max() >= 20 * filled.min()
        rows = {"samples\n(log scale)" if wide else "samples": sizes, **rows}
    figure, axes = style.panels(0.9 * len(rows) + (0.3 if _slanted(run) else 0.0), len(rows), 1, share_x=True)
    for panel, (name, values), colour in zip(axes, rows.items(), style.COLOURS[3 - len(rows) :], strict=False):
        _draw(panel, values[order], colour, bars=len(order) <= 50 and "log" not in name)
        panel.set_ylabel(name)
        style.limit_ticks(panel, y=3)
    if wide:
        style.set_log_scale(axes[0], "y", decades=2.3)
    elif len(rows) == 3:
        axes[0].set_ylim(bottom=0)
    _from_one(axes[-2])
    axes[-1].set_ylim(0, 105)
    related = correlation(age, accuracy)
    if related is not None:
        text = f"r(age, accuracy) = {related.r:.2f}".replace("-", "−")
        axes[-1].text(1.0, 1.02, text, ha="right", va="bottom", fontsize=6.5, transform=axes[-1].transAxes)
    _name_classes(axes[-1], run)
    figure.align_ylabels(axes)
    return figure


def _from_one(panel: Axes) -> None:
    """Start the axis of ages at one, their smallest value, with a tick there."""
    top = max(panel.get_ylim()[1], 1.1)
    panel.set_ylim(1.0, top)
    ticks = [float(tick) for tick in panel.get_yticks() if 1.0 + 0.15 * (top - 1.0) < tick <= top]
    panel.set_yticks([1.0, *ticks], [f"{tick:g}" for tick in (1.0, *ticks)])


def _draw(panel: Axes, values: Floats, colour: str, *, bars: bool) -> None:
    """Draw a value for each class, as bars or as a line."""
    place = np.arange(len(values))
    if bars:
        panel.bar(place, np.nan_to_num(values), color=colour, width=0.75)
    else:
        panel.plot(place, values, color=colour, linewidth=0.8, marker="o" if len(values) <= 50 else "None")
    panel.margins(x=0.01)


def _slanted(run: Run) -> bool:
    """Return whether the names of the classes are drawn, and too long to be horizontal."""
    return len(run.classes) <= _NAMED and max(map(len, run.classes)) > 4


def _name_classes(panel: Axes, run: Run) -> None:
    order = head_first(run.counts, len(run.classes))
    named = len(order) <= _NAMED
    if named:
        rotation, side = (40, "right") if _slanted(run) else (0, "center")
        names = style.shorten_all([run.classes[c] for c in order], 12)
        panel.set_xticks(range(len(order)), names, rotation=rotation, ha=side)
    else:
        places = style.five_places(len(order))
        panel.set_xticks(places, [str(p + 1) for p in places])
    panel.set_xlabel(style.class_label(named, has_tail(run.counts)))


# Scatter plots


def _against_age(run: Run) -> dict[str, Floats]:
    """Return what the ages of classes are compared with, by the name on the axis."""
    others: dict[str, Floats] = {}
    counts = np.asarray(run.counts or [0], dtype=np.float64)
    if np.ptp(counts) and counts.min() > 0:
        others["samples"] = counts
    for name, column in _AGAINST.items():
        value = final(run, column)
        if value is not None:
            others[name] = 100 * value if "%" in name else value
    return others


@style.styled
def correlations(run: Run) -> Figure | None:
    """Return scatter plots of age against accuracy, loss, margin and size; None where there are no ages or tests."""
    found = observed(run)
    if found is None or len(run.classes) < 3:
        return None
    others = _against_age(run)
    rows = -(-len(others) // 2)
    figure, axes = style.panels(0.3 + 1.2 * rows, rows, 2)
    for panel, (name, values) in zip(axes, others.items(), strict=False):
        _scatter(panel, found[0], values, name)
    for panel in axes[len(others) :]:
        panel.set_visible(False)
    figure.supxlabel(f"mean age ({time_unit(run)}s)", fontsize=7.5)  # once: two side by side have no room
    figure.align_ylabels(axes)
    return figure


def _scatter(panel: Axes, age: Floats, values: Floats, name: str) -> None:
    crowded = len(age) > 100
    size, alpha = (4, 0.4) if crowded else (9, 0.8)
    panel.scatter(age, values, s=size, color=style.COLOURS[0], alpha=alpha, linewidths=0)
    panel.set_ylabel(name)
    style.limit_ticks(panel, x=4)
    if name == "samples" and values.max() >= 20 * values.min():
        style.set_log_scale(panel, "y", decades=2.3)
        panel.set_ylabel("samples (log scale)")
        values = np.log10(values)  # r is of what is drawn
    else:
        style.limit_ticks(panel, y=4)
    found = correlation(age, values)
    text = "r is not defined" if found is None else f"r = {found.r:.2f}"
    if found is not None:
        text += f", n = {found.n}" if np.isnan(found.low) else f" [{found.low:.2f}, {found.high:.2f}]"
    panel.set_title(text.replace("-", "−"), fontsize=6.5, pad=3, loc="right")
