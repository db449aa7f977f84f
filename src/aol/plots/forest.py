"""A forest plot: an estimate with its interval in each row, in blocks, and a reference value as an open circle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aol.plots import style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_ROW, _HEAD, _AXIS = 0.145, 0.17, 0.62  # inches


@dataclass(frozen=True)
class Estimate:
    """One row: its label, an estimate, the ends of its interval if it has one, and a reference value if there is one.

    `colour` is the place of its colour among `style.COLOURS`.
    """

    label: str
    value: float
    interval: tuple[float, float] | None
    reference: float | None = None
    colour: int = 0


@style.styled
def draw_forest(blocks: Sequence[tuple[str, Sequence[Estimate]]], axis: str, reference: str) -> Figure:
    """Return a figure with the rows of each named block; `axis` and `reference` say what is shown."""
    rows = sum(len(own) for _, own in blocks)
    heads = sum(bool(name) for name, _ in blocks)
    figure, (axes,) = style.panels(_ROW * rows + _HEAD * heads + _AXIS, width=5.2)
    axes.axvline(0.0, color=style.GREY, linewidth=0.6, zorder=1)
    place, ticks, labels = 0.0, [], []
    for name, own in blocks:
        if name:
            text = style.short(name, 60)
            axes.annotate(
                text, (0.0, place), xycoords=("axes fraction", "data"), fontsize=6.5, va="center", weight="bold"
            )
            place += _HEAD / _ROW
        for each in own:
            colour = style.COLOURS[each.colour % len(style.COLOURS)]
            if each.interval is not None:
                axes.plot(each.interval, [place, place], "-", color=colour, linewidth=1.1, zorder=2)
            axes.plot([each.value], [place], "s", color=colour, markersize=3.0, zorder=3)
            if each.reference is not None:
                axes.plot([each.reference], [place], "o", color=style.GREY, markerfacecolor="none", zorder=2)
            ticks.append(place)
            labels.append(style.short(each.label, 28))
            place += 1.0
    axes.set_yticks(ticks, labels)
    axes.set_ylim(place - 0.4, -0.8)
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel(axis)
    style.few(axes, x=7)
    known = any(each.interval is not None for _, own in blocks for each in own)
    line, label = ("s-", "estimate, 95 % interval") if known else ("s", "estimate, one seed")
    handles = axes.plot([], [], line, color=style.GREY, label=label)
    if any(each.reference is not None for _, own in blocks for each in own):
        handles += axes.plot([], [], "o", color=style.GREY, markerfacecolor="none", label=reference)
    figure.legend(handles=handles, loc="outside lower center", ncols=2)
    return figure
