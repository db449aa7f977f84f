"""The weight of every class over time, coloured from head to tail."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from aol.records.record import Matrix, Run
from aol.report.figures import style
from aol.report.figures.summary import Part, has_tail, head_first, parts, time_unit

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@style.styled
def weights(run: Run) -> Figure | None:
    """Return the weights by class over time; None where there are none, or all are one throughout."""
    weight = run.over_time.get("weight")
    if weight is None or np.nanmax(np.abs(weight - 1.0), initial=0.0) < 1e-6:
        return None
    classes = len(run.classes)
    bold = parts(run.counts or [1] * classes) if classes > 20 else []
    names = [part.name for part in bold]
    figure, (axes,) = style.panels(2.0 + (style.legend_height(names) if names else 0.0))
    order = head_first(run.counts, classes)
    colours = style.matplotlib().colormaps["viridis"]
    shade = np.linspace(0.0, 0.93, classes)  # the last yellow does not show on white
    thin, alpha = (1.0, 1.0) if classes <= 20 else (0.5, 0.5) if classes <= 100 else (0.3, 0.25)
    for place, c in enumerate(order):
        axes.plot(
            run.epochs, weight[:, c], color=colours(shade[place]), linewidth=thin, alpha=alpha,
            marker="o" if len(run.epochs) == 1 else "None",
        )  # fmt: skip
    _draw_parts(axes, run, weight, bold, dict(zip(order.tolist(), shade.tolist(), strict=True)))
    axes.axhline(1.0, color=style.GREY, linewidth=0.6, linestyle=":", zorder=0)
    known = weight[~np.isnan(weight)]
    axes.set_ylabel("class weight (mean one)")
    if known.min() > 0 and known.max() > 20 * known.min():  # a weight of zero has no place on a log scale
        style.set_log_scale(axes, "y")
        axes.set_ylabel("class weight\n(mean one, log scale)")
    axes.margins(x=0.01)
    style.set_time_axis(axes, run.epochs, time_unit(run))
    if names:
        style.legend(figure, names)
    part = style.matplotlib("colors").ListedColormap(colours(shade if classes <= 20 else np.linspace(0.0, 0.93, 256)))
    norm = style.matplotlib("colors").Normalize(0.5, classes + 0.5)
    bar = figure.colorbar(style.matplotlib("cm").ScalarMappable(norm, part), ax=axes, pad=0.02, aspect=25)
    bar.ax.invert_yaxis()
    if classes <= 20:
        bar.set_ticks(range(1, classes + 1), labels=style.shorten_all([run.classes[c] for c in order], 12))
    else:
        bar.set_ticks([1, classes], labels=["1", f"{classes}"])
    bar.set_label(style.class_label(classes <= 20, has_tail(run.counts)), labelpad=4 if classes <= 20 else -4)
    bar.ax.tick_params(length=0)
    bar.outline.set_visible(False)  # type: ignore[operator, unused-ignore]
    return figure


def _draw_parts(axes: Axes, run: Run, weight: Matrix, found: Sequence[Part], shade: dict[int, float]) -> None:
    """Draw the means of head, middle and tail in bold over so many lines."""
    effects = style.matplotlib("patheffects")
    around = [effects.Stroke(linewidth=2.6, foreground="white"), effects.Normal()]
    for part in found:
        colour = style.matplotlib().colormaps["viridis"](float(np.mean([shade[c] for c in part.classes.tolist()])))
        mean = np.ma.masked_invalid(weight[:, part.classes]).mean(1).filled(np.nan)
        axes.plot(run.epochs, mean, color=colour, linewidth=1.6, path_effects=around, label=part.name)
