"""Figures of a study: ages of classes over epochs, and the gains of its methods with intervals, as forest plots."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

from aol.lab.settings import WrongSettingsError
from aol.lab.study.results import StudyResults, rows_of
from aol.lab.study.spec import cell_name
from aol.lab.study.tables import signal_name
from aol.records.metrics import is_stream, time_unit
from aol.records.record import Run, nan_mean
from aol.report.figures import style
from aol.report.figures.heatmap import LARGEST, AgeMap, draw_ages
from aol.stats import Gain

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MOST_BLOCKS = 6  # cells in a chart of gains; of more, their mean is drawn
_PAGE = 6.9  # inches: both columns of a two-column page
_TITLE = 0.2  # inches
_ROW, _HEAD, _AXIS = 0.145, 0.17, 0.62  # inches
_MOST_ROWS, _MOST_LONG_ROWS = 20, 12  # in one column


# Gains


def gain_figure(results: StudyResults) -> Figure:
    """Return the gains of a study with their intervals, or its correlations, beside those of the paper."""
    if results.correlations:
        own = [
            (cell_name(cell), [Estimate(signal_name(r.signal), r.r, (r.low, r.high), r.paper) for r in rows])
            for cell, rows in results.correlations
        ]
        return draw_forest(own, "correlation with class age", "paper")
    places = {method.name: place for place, method in enumerate(results.study.methods, -1)}
    blocks: dict[str, list[Estimate]] = {}
    cells = results.study.cells_list()
    for row in rows_of(results.gains[results.gains["gain"].notna()]):
        paper = row.paper_gain if row.paper_gain == row.paper_gain else None
        own_row = estimate_of(f"{row.method} {row.setting}".strip(), row.gain, places[row.method], paper)
        blocks.setdefault(cell_name(cells[row.cell]), []).append(own_row)
    if len(blocks) > _MOST_BLOCKS and results.means and not results.study.paper:
        rows = [estimate_of(name, gain, places[name]) for name, gain in results.means.items()]
        blocks = {f"mean of {len(blocks)} cells": rows}
    return draw_forest(list(blocks.items()), f"gain over {results.study.baseline} (points)", "paper's gain")


def estimate_of(name: str, gain: Gain, place: int = 0, paper: float | None = None) -> Estimate:
    """Return a row of the chart, in points."""
    interval = None if gain.interval is None else (100.0 * gain.interval[0], 100.0 * gain.interval[1])
    return Estimate(name, 100.0 * gain.mean, interval, None if paper is None else 100.0 * paper, place)


# A forest plot: an estimate with its interval in each row, in blocks, and a reference value as an open circle


class Estimate(NamedTuple):
    """One row: its label, an estimate, its interval and a reference value, and a place among `style.COLOURS`."""

    label: str
    value: float
    interval: tuple[float, float] | None
    reference: float | None = None
    colour: int = 0


Block: TypeAlias = tuple[str, Sequence[Estimate]]


@style.styled()
def draw_forest(blocks: Sequence[Block], axis: str, reference: str, *, long: bool = False) -> Figure:
    """Return a figure with the rows of each named block; `axis` and `reference` say what is shown.

    More than 20 rows in several blocks are drawn in two columns, of one scale; more than 12 with long labels.
    """
    estimates = [row for _, rows in blocks for row in rows]
    columns: list[Sequence[Block]] = [blocks]
    if len(estimates) > (_MOST_LONG_ROWS if long else _MOST_ROWS) and len(blocks) > 1:
        # In two columns, the longer one as short as it can be.
        sizes = [len(rows) + 1 for _, rows in blocks]
        cut = min(range(len(blocks) - 1, 0, -1), key=lambda cut: max(sum(sizes[:cut]), sum(sizes[cut:])))
        columns = [blocks[:cut], blocks[cut:]]
    heights = [sum(_ROW * len(rows) + _HEAD * bool(name) for name, rows in column) for column in columns]
    wide, letters = (5.2, 60) if len(columns) == 1 else (8.4, 44)
    wide, label_letters = (wide + len(columns), 52) if long else (wide, 28)
    figure, panels = style.panels(max(heights) + _AXIS, 1, len(columns), width=wide, share_x=True)
    longest = max(_fill(axes, column, letters, label_letters) for axes, column in zip(panels, columns, strict=True))
    for axes in panels:
        axes.set_ylim(longest - 0.4, -0.8)
        axes.set_xlabel(axis)
        style.limit_ticks(axes, 7)
    known = any(row.interval is not None for row in estimates)
    line, label = ("s-", "estimate, 95 % interval") if known else ("s", "estimate, one seed")
    handles = panels[0].plot([], [], line, color=style.GREY, label=label)
    if any(row.reference is not None for row in estimates):
        handles += panels[0].plot([], [], "o", color=style.GREY, markerfacecolor="none", label=reference)
    figure.legend(handles=handles, loc="outside lower center", ncols=2)
    return figure


def _fill(axes: Axes, blocks: Sequence[Block], letters: int, label_letters: int) -> float:
    """Draw the rows of blocks, with names and labels of so many letters; return where the next row would be."""
    axes.axvline(0.0, color=style.GREY, linewidth=0.6, zorder=1)
    place, ticks, labels = 0.0, [], []
    for name, rows in blocks:
        if name:
            text, across = _shorten(name, letters), ("axes fraction", "data")
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
            labels.append(_shorten(row.label, label_letters))
            place += 1.0
    axes.set_yticks(ticks, labels)
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", length=0)
    return place


# Ages


@style.styled()
def draw(results: StudyResults) -> Figure:
    """Return the ages of classes over epochs: a panel for each cell and method, means over seeds. Needs matplotlib."""
    study, maps = results.study, {}
    for place, cell in enumerate(study.cells_list()):
        for method in study.methods:
            runs = results.chosen_runs(place, method.name)
            aged = [run for run in runs if run.failed_at_epoch is None and "age" in run.over_time]
            if aged:
                name = cell_name(cell) or str(study.common.get("data", study.name))
                words = [name, *([method.name] if len(study.methods) > 1 else [])]
                mean = f"seed {aged[0].seed}" if len(aged) == 1 else f"mean over {len(aged)} seeds"
                maps[", ".join([*words, mean])] = _age_map(aged)
    if not maps:
        raise WrongSettingsError(f"No complete run of {study.name} has the ages of its classes over time.")
    rows, columns = -(-len(maps) // 2), min(len(maps), 2)
    width, height = style.COLUMN if len(maps) == 1 else _PAGE, max(own.height for own in maps.values())
    titles = [textwrap.wrap(title, 40, max_lines=3, placeholder="…") for title in maps]
    figure, panels = style.panels((height + _TITLE * max(map(len, titles))) * rows, rows, columns, width=width)
    for left_over in panels[len(maps) :]:
        figure.delaxes(left_over)
    for axes, title in zip(panels, titles, strict=False):
        axes.set_title("\n".join(title), loc="left", fontsize=7.0)
    oldest = max(len(own.epochs) for own in maps.values()) + 1  # the largest possible age
    draw_ages(figure, panels[: len(maps)], list(maps.values()), largest=min(LARGEST, oldest))
    return figure


def _age_map(runs: Sequence[Run]) -> AgeMap:
    """Return the mean ages of runs that differ by their seeds only, NaN left out, and the class sizes of the first."""
    first = runs[0]
    mean = nan_mean([run.over_time["age"].astype(np.float64) for run in runs])
    sizes = None if first.counts is None or is_stream(first) else np.asarray(first.counts)
    names = [str(label) for label in range(mean.shape[1])]
    return AgeMap(mean, first.epochs, sizes, names, time=time_unit(first), numbered=True)


def _shorten(text: str, most: int) -> str:
    """Return a name that fits beside an axis."""
    text = " ".join(text.split())
    return text if len(text) <= most else f"{text[: most - 1]}…"
