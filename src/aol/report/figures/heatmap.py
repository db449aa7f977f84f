"""The age of every class over time: head on top, power-law colours from 1 to 100, as in the paper."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aol.plots import style
from aol.plots.heatmap import AgeMap, draw_ages
from aol.report.story import Story
from aol.report.summary import age_unit, mean_age, time_unit

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@style.styled
def heatmap(story: Story) -> Figure | None:
    """Return the class-age heatmap of a run; None where it has no ages."""
    found = mean_age(story)
    if found is None:
        return None
    shown = AgeMap(found[0], story.epochs, story.counts, story.classes, time_unit(story), age_unit(story))
    figure, panels = style.panels(shown.height)
    draw_ages(figure, panels, [shown])
    return figure
