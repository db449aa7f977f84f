"""A forest plot: an estimate with its interval in each row, in blocks, and a reference value as an open circle."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from aol.report.figures import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_ROW, _HEAD, _AXIS = 0.145, 0.17, 0.62  # inches
_MOST_ROWS = 20  # in one column


class Estimate(NamedTuple):
    """One row: its label, an estimate, the ends of its interval if it has one, and a reference value if there is one.

    `colour` is the place of its colour among `style.COLOURS`.
    """

    label: str
    value: float
    interval: tuple[float, float] | None
    reference: float | None = None
    colour: int = 0


Block: TypeAlias = tuple[str, Sequence[Estimate]]


@style.styled
def draw_forest(blocks: Sequence[Block], axis: str, reference: str) -> Figure:
    """Return a figure with the rows of each named block; `axis` and `reference` say what is shown.

    More than 20 rows in several blocks are drawn in two columns, of one scale.
    """
    estimates = [row for _, rows in blocks for row in rows]
    columns: list[Sequence[Block]] = [blocks]
    if len(estimates) > _MOST_ROWS and len(blocks) > 1:  # in two columns, the longer one as short as it can be
        sizes = [len(rows) + 1 for _, rows in blocks]
        cut = min(range(len(blocks) - 1, 0, -1), key=lambda cut: max(sum(sizes[:cut]), sum(sizes[cut:])))
        columns = [blocks[:cut], blocks[cut:]]
    heights = [sum(_ROW * len(rows) + _HEAD * bool(name) for name, rows in column) for column in columns]
    wide, letters = (5.2, 60) if len(columns) == 1 else (8.4, 44)
    figure, panels = style.panels(max(heights) + _AXIS, 1, len(columns), width=wide, share_x=True)
    longest = max(_fill(axes, column, letters) for axes, column in zip(panels, columns, strict=True))
    for axes in panels:
        axes.set_ylim(longest - 0.4, -0.8)
        axes.set_xlabel(axis)
        style.limit_ticks(axes, x=7)
    known = any(row.interval is not None for row in estimates)
    line, label = ("s-", "estimate, 95 % interval") if known else ("s", "estimate, one seed")
    handles = panels[0].plot([], [], line, color=style.GREY, label=label)
    if any(row.reference is not None for row in estimates):
        handles += panels[0].plot([], [], "o", color=style.GREY, markerfacecolor="none", label=reference)
    figure.legend(handles=handles, loc="outside lower center", ncols=2)
    return figure


def _fill(axes: Axes, blocks: Sequence[Block], letters: int) -> float:
    """Draw the rows of blocks, with names of so many letters, and return where the next row would be."""
    axes.axvline(0.0, color=style.GREY, linewidth=0.6, zorder=1)
    place, ticks, labels = 0.0, [], []
    for name, rows in blocks:
        if name:
            text, across = style.shorten(name, letters), ("axes fraction", "data")
            axes.annotate(text, (0.0, place), xycoords=across, fontsize=6.5, va="center", weight="bold")
            place += _HEAD / _ROW
        for row in rows:
            colour = style.COLOURS[row.colour % len(style.COLOURS)]
            if row.interval is not None:
                axes.plot(row.interval, [place, place], "-", color=colour, linewidth=1.1, zorder=2)
            axes.plot([row.value], [place], "s", color=colour, markersize=3.0, zorder=3)
            if row.reference is not None:
                axes.plot([row.reference], [place], "o", color=style.GREY, markerfacecolor="none", zorder=2)
            ticks.append(place)
            labels.append(style.shorten(row.label, 28))
            place += 1.0
    axes.set_yticks(ticks, labels)
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", length=0)
    return place
