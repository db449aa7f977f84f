"""How long does an error live? Kaplan–Meier survival of error episodes, by head, middle and tail."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from aol.plots import style
from aol.report.story import Story
from aol.report.summary import Part, parts
from aol.report.survival import Episodes, Survival, episodes, kaplan_meier

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def survival_by_part(story: Story) -> list[tuple[Part, Episodes, Survival]]:
    """Return the survival of error episodes of each part of the classes that had any."""
    if story.samples is None:
        return []
    found = parts(story.counts)
    group = np.full(len(story.classes), -1)
    for number, part in enumerate(found):
        group[part.classes] = number
    told = episodes(story.samples.answers, group[story.samples.label])
    told += [Episodes(np.zeros(1, np.int64), np.zeros(1, np.int64))] * (len(found) - len(told))
    return [(part, each, kaplan_meier(each)) for part, each in zip(found, told, strict=True) if each.count]


@style.styled
def lifetimes(story: Story) -> Figure | None:
    """Return the survival curves of a run; None where samples were not kept, or none was ever wrong."""
    found = survival_by_part(story)
    if not found:
        return None
    labels = [f"{part.name}: {each.count:,} episodes, {int(each.open.sum()):,} still open" for part, each, _ in found]
    figure, (axes,) = style.panels(1.75 + style.legend_height(labels))
    longest = max(int(survival.t[-1]) for _, _, survival in found)
    first = 0.8 if longest > 20 else 0.0  # most errors are short, some live for ever: then a log scale
    for number, ((_, each, survival), label) in enumerate(zip(found, labels, strict=True)):
        colour, line = style.COLOURS[number], style.LINES[number]
        t = np.maximum(survival.t, first)
        axes.step(t, survival.share, where="post", color=colour, linestyle=line, label=label)
        axes.fill_between(t, survival.low, survival.high, step="post", color=colour, alpha=0.18, linewidth=0)
        censored = np.flatnonzero(each.open[: len(t)])
        axes.plot(t[censored], survival.share[censored], "|", color=colour, markersize=4, markeredgewidth=0.7)
    axes.set_xlabel("epochs since the error began" + (" (log scale)" if first else ""))
    axes.set_ylabel("share of errors still alive")
    axes.set_ylim(0, 1.02)
    axes.set_xlim(left=first)
    if first:
        style.logarithmic(axes, "x")
    else:
        style.few(axes, x=6, whole=True)
    style.legend(figure, labels)
    return figure
