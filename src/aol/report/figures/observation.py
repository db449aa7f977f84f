"""The motivating observation: how many samples a class has, how old it was, how well it is recognised."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from aol.plots import style
from aol.records.tables import Floats
from aol.report.story import Story, has_tail
from aol.report.summary import age_unit, at_the_end, correlation, is_stream, mean_age

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_NAMED = 12


def observed(story: Story) -> tuple[Floats, Floats] | None:
    """Return each class's age, averaged over all epochs, and its test accuracy at the end; None where unknown."""
    found = mean_age(story)
    if found is None or "test_accuracy" not in story.by_class:
        return None
    age = found[0]
    known = ~np.isnan(age)
    total, count = np.where(known, age, 0.0).sum(0), known.sum(0)
    mean = np.divide(total, count, out=np.full(age.shape[1], np.nan), where=count > 0)
    return mean, at_the_end(story.by_class["test_accuracy"], stream=is_stream(story))


@style.styled
def observation(story: Story) -> Figure | None:
    """Return frequency, age and accuracy of every class, one above the other; None where one of them is unknown."""
    found = observed(story)
    if found is None:
        return None
    age, accuracy = found
    order = story.head_first
    figure, axes = style.panels(3.0 if _slanted(story) else 2.7, 3, 1, share_x=True)
    counts = story.counts[story.counts > 0]
    wide = bool(counts.size) and counts.max() >= 20 * counts.min()
    aged = f"mean age\n({age_unit(story).replace(', ', f',{chr(10)}')})"
    rows = {
        "samples\n(log scale)" if wide else "samples": story.counts.astype(float),
        aged: age,
        "test\naccuracy (%)": 100 * accuracy,
    }
    for number, (panel, (name, values)) in enumerate(zip(axes, rows.items(), strict=True)):
        _draw(panel, values[order], style.COLOURS[number], bars=len(order) <= 50 and not (wide and number == 0))
        panel.set_ylabel(name)
        style.few(panel, y=3)
    if wide:
        style.logarithmic(axes[0], "y", decades=2.3)
    elif counts.size:
        axes[0].set_ylim(bottom=0)
    _from_one(axes[1])
    axes[2].set_ylim(0, 105)
    found_r = correlation(age, accuracy)
    if found_r is not None:
        axes[2].text(
            1.0, 1.02, f"r(age, accuracy) = {found_r.r:.2f}".replace("-", "−"), ha="right", va="bottom", fontsize=6.5,
            transform=axes[2].transAxes,
        )  # fmt: skip
    _name_classes(axes[-1], story)
    figure.align_ylabels(axes)
    return figure


def _from_one(panel: Axes) -> None:
    """Let ages stand on one, where they begin, and say so: bars that do not stand on zero need a number below."""
    top = max(panel.get_ylim()[1], 1.1)
    panel.set_ylim(1.0, top)
    ticks = [float(tick) for tick in panel.get_yticks() if 1.0 + 0.15 * (top - 1.0) < tick <= top]
    panel.set_yticks([1.0, *ticks], [f"{tick:g}" for tick in (1.0, *ticks)])


def _draw(panel: Axes, values: Floats, colour: str, *, bars: bool) -> None:
    """Draw a value a class: bars where they can stand on zero and are wide enough, else a line."""
    place = np.arange(len(values))
    if bars:
        panel.bar(place, np.nan_to_num(values), color=colour, width=0.75)
    else:
        panel.plot(place, values, color=colour, linewidth=0.8, marker="o" if len(values) <= 50 else "None")
    panel.margins(x=0.01)


def _slanted(story: Story) -> bool:
    """Whether the names of the classes are written out, and too long to stand side by side."""
    return len(story.classes) <= _NAMED and max(map(len, story.classes)) > 4


def _name_classes(panel: Axes, story: Story) -> None:
    order = story.head_first
    what = "class, head to tail" if has_tail(story.counts) else "class"
    if len(order) <= _NAMED:
        names = style.short_all([story.classes[c] for c in order], 12)
        slanted = _slanted(story)
        panel.set_xticks(range(len(order)), names, rotation=40 if slanted else 0, ha="right" if slanted else "center")
    else:
        places = np.unique(np.linspace(0, len(order) - 1, 5).round().astype(int))
        panel.set_xticks(places, [str(p + 1) for p in places])
        what = "class by size, head to tail" if has_tail(story.counts) else "class"
    panel.set_xlabel(what)
