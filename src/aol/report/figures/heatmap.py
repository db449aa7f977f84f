"""The age of every class over time: head on top, power-law colours from 1 to 100, as in the paper."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from aol.report.figures import style
from aol.report.story import Story, has_tail
from aol.report.summary import age_unit, mean_age

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LARGEST = 100.0
_NAMED = 20  # so many classes have their names written out


@style.styled
def heatmap(story: Story) -> Figure | None:
    """Return the class-age heatmap of a run; None where it has no ages."""
    found = mean_age(story)
    if found is None:
        return None
    age = found[0]
    classes = len(story.classes)
    height = float(np.clip(0.9 + 0.125 * classes, 1.85, 2.6 if classes <= 100 else 3.2))
    figure, (axes,) = style.panels(height)
    few = classes <= _NAMED
    norm = style.matplotlib("colors").PowerNorm(0.35 if few else 0.5, vmin=1.0, vmax=LARGEST)
    shades = style.matplotlib().colormaps["magma"].with_extremes(bad="#BDBDBD")
    first, last = int(story.epochs[0]), int(story.epochs[-1])
    image = axes.imshow(
        np.ma.masked_invalid(age[:, story.head_first].T),
        norm=norm,
        cmap=shades,
        aspect="auto",
        extent=(first - 0.5, last + 0.5, classes - 0.5, -0.5),
        interpolation="nearest" if classes <= 200 else "antialiased",
        interpolation_stage="data",
    )
    image.set_rasterized(True)
    style.over_time(axes, story)
    _name_classes(axes, story)
    above = bool(np.nanmax(age, initial=1.0) > LARGEST)
    bar = figure.colorbar(image, ax=axes, extend="max" if above else "neither", pad=0.02, aspect=25)
    bar.set_ticks([1, 2, 5, 10, 20, 50, 100] if few else [1, 5, 10, 20, 50, 100])
    bar.set_ticklabels([f"{tick:g}" for tick in bar.get_ticks()])
    bar.minorticks_off()
    bar.set_label(f"class age ({age_unit(story)})")
    for spine in axes.spines.values():
        spine.set_visible(True)
    return figure


def _name_classes(axes: Axes, story: Story) -> None:
    """Write the classes' names where they fit; else their places, with how many samples those have."""
    order = story.head_first
    if len(order) <= _NAMED:
        axes.set_yticks(range(len(order)), style.short_all([story.classes[c] for c in order]))
        axes.set_ylabel("class, head to tail" if has_tail(story.counts) else "class")
        return
    places = np.unique(np.linspace(0, len(order) - 1, 5).round().astype(int))
    balanced = not has_tail(story.counts)
    axes.set_yticks(places, [f"{p + 1}" if balanced else f"{p + 1}  (n={story.counts[order[p]]:,})" for p in places])
    axes.set_ylabel("class" if balanced else "class by size, head to tail")
