"""Accuracy over epochs by method, and what each gains over the baseline: when a gain comes, and when it goes.

On a stream whose head moves also by how long ago that was.

A panel a cell, a line a method: the mean over seeds, with a band of one standard deviation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from aol.engine.settings import WrongSettingsError
from aol.plots import style
from aol.plots.accuracy import Curve, draw_curve, faintness, mean_curve
from aol.study.figures import ACCURACY, GAIN, SHIFTS, Reading, by_epoch
from aol.study.notes import many_runs
from aol.study.pictures import Picture, missing, not_whole, page_of, shown_records, time_unit, title_of
from aol.study.records import Record
from aol.study.shifts import by_place, moves, paired
from aol.study.spec import Cell
from aol.study.table import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_PLACES = 10  # numbers along an axis of places in a period
_WINDOW = 0.05  # of all epochs: what a gain is averaged over, as in the figure tail_mean


def curve_picture(table: Table, of: str = ACCURACY) -> Picture:
    """Return test accuracy over epochs; or, paired by seed, what the methods have above the baseline.

    `of` is "accuracy", "gain" (over epochs) or "shifts" (gain by the step after the head of a stream moved).
    """
    study, gain = table.study, of != ACCURACY
    if of == SHIFTS and not all(moves(run) for run in table.records):
        raise WrongSettingsError(
            f"--of {SHIFTS} is for streams whose head moves every few steps, and {study.name} has other runs."
        )
    if gain and len(study.methods) == 1:
        raise WrongSettingsError(f"{study.name} has {study.baseline} alone: there is nothing that gains over it.")
    titles: list[str] = []
    seeds: list[tuple[int, ...]] = []
    cells: list[list[tuple[int, Curve]]] = []
    for cell in study.cells_list():
        own = _curves(table, cell, of)
        if own:
            seeds.append(tuple(dict.fromkeys(seed for *_, each in own for seed in each)))
            titles.append(f"{title_of(study, cell)}, {_how_many([curve for _, curve, _ in own], seeds[-1])}")
            cells.append([(place, curve) for place, curve, _ in own])
    if not cells:
        raise not_whole(table)
    notes = missing(table)
    failed = table.runs_failed
    notes += [f"{many_runs(failed)} diverged: at chance from there on."] if failed else []
    return Picture(_drawn(table, titles, cells, of), list(zip(titles, seeds, strict=True)), notes)


def _curves(table: Table, cell: Cell, of: str) -> list[tuple[int, Curve, tuple[int, ...]]]:
    """Return the curve of each method in a cell, with its place in the study and its seeds."""
    study, found = table.study, []
    for place, method in enumerate(study.methods):
        if of != ACCURACY and method.name == study.baseline:
            continue
        records = shown_records(table, cell, method)
        taken = [_reading(table, cell, each, of) for each in records]
        curve = mean_curve(method.name, taken)
        if curve is not None:
            found.append((place, curve, tuple(each.settings.seed for each in records)))
    return found


def window(epochs: int) -> int:
    """Return how many epochs a gain is averaged over: an odd number, 5 % of all.

    >>> window(200), window(3)
    (11, 1)
    """
    return 2 * round(_WINDOW * epochs / 2) + 1


def running_mean(values: Mapping[int, float], width: int) -> Reading:
    """Return the mean over `width` epochs around each; fewer at the ends, and where there are no readings.

    >>> running_mean({1: 0.0, 2: 3.0, 3: 6.0}, 3)
    {1: 1.5, 2: 3.0, 3: 4.5}
    """
    half = width // 2
    near = {epoch: [values[e] for e in range(epoch - half, epoch + half + 1) if e in values] for epoch in values}
    return {epoch: float(np.mean(each)) for epoch, each in near.items()}


def _reading(table: Table, cell: Cell, record: Record, of: str) -> Reading:
    if of == ACCURACY:
        return by_epoch(record)
    gains, run = paired(table, cell, record), record.settings
    return by_place(run, gains) if of == SHIFTS else running_mean(gains, window(run.epochs))


@style.styled
def _drawn(table: Table, titles: Sequence[str], cells: Sequence[Sequence[tuple[int, Curve]]], of: str) -> Figure:
    study, run, gain = table.study, next(iter(table.records)), of != ACCURACY
    unit = time_unit(run)
    said = _said(table, cells, of)
    said = ["; ".join(said)] if len(cells) > 1 else said
    names = {place: curve.name for curves in cells for place, curve in curves}
    columns = _columns(list(names.values()), wide=len(cells) > 1)
    below = 0.12 * (-(-len(names) // columns) + len(said)) + 0.1
    figure, panels = page_of(titles, 1.75, below)
    for axes, curves in zip(panels, cells, strict=True):
        if gain:
            axes.axhline(0.0, color=style.GREY, linewidth=0.6, zorder=1)
        for place, curve in curves:
            label = names.pop(place, "_")  # in the legend once
            draw_curve(axes, curve, place, label, faint=faintness(len(curves)))
        along = "step after the head moved" if of == SHIFTS else unit
        epochs = max((curve.epochs for _, curve in curves), key=len)
        style.over_time(axes, epochs, along)
        if of == SHIFTS and len(epochs) > 1:  # the first step is what it is about, and has a number
            last = int(epochs[-1])
            axes.set_xticks(range(1, last + 1, -(-last // _PLACES)))
        axes.set_ylabel(f"gain over {style.short(study.baseline)} (points)" if gain else "test accuracy (%)")
        axes.margins(x=0.01)
        style.few(axes, y=5)
    if gain:  # gains of one size look the same everywhere
        ends = [axes.get_ylim() for axes in panels]
        for axes in panels:
            axes.set_ylim(min(low for low, _ in ends), max(high for _, high in ends))
    legend = figure.legend(
        loc="outside lower center", ncols=columns, columnspacing=1.2, labelspacing=0.3,
        title="\n".join(said), title_fontsize=6.5,
    )  # fmt: skip
    legend.get_title().set_multialignment("center")
    return figure


def _said(table: Table, cells: Sequence[Sequence[tuple[int, Curve]]], of: str) -> list[str]:
    """Return what lines and bands are, a line of text each."""
    found, run = [], next(iter(table.records))
    if any(curve.runs > 1 for curves in cells for _, curve in curves):
        found.append("lines: mean over seeds; bands: ± one standard deviation")
    if of == SHIFTS:
        found.append("gains paired by seed, second half of the stream")
    elif of == GAIN and window(run.epochs) > 1:
        found.append(f"gains paired by seed, mean over {window(run.epochs)} {time_unit(run)}s around each")
    if any(line.settings > 1 for line in table.lines):
        found.append("settings chosen on validation")
    return found


def _columns(names: Sequence[str], *, wide: bool) -> int:
    """Return in how many columns names fit, so that no row is much shorter than the others."""
    longest = max(map(len, names))
    most = max(1, (130 if wide else 60) // (longest + 9))
    rows = -(-len(names) // most)
    return -(-len(names) // rows)


def _how_many(curves: Sequence[Curve], seeds: Sequence[int]) -> str:
    runs = sorted({curve.runs for curve in curves})
    if len(seeds) == 1:
        return f"seed {seeds[0]}"
    return f"{runs[0]} seeds" if len(runs) == 1 else f"{runs[0]} to {runs[-1]} seeds"
