"""Figures of a study: class ages, accuracy or gains over epochs, gains after a shift, and the chart of its gains.

Each method is shown as in the table: of every complete seed the run in the setting that was chosen on validation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from aol.lab.settings import WrongSettingsError
from aol.lab.study.comparisons import StudyResults, chosen_runs
from aol.lab.study.shifts import Reading, by_place, moves, paired, settings
from aol.lab.study.spec import Cell, Study, cell_name, plural
from aol.lab.study.tables import signal_name
from aol.records.metrics import accuracy_by_epoch, is_stream
from aol.records.record import Run
from aol.report.figures import style
from aol.report.figures.accuracy import Curve, band_alpha, draw_curve, mean_curve
from aol.report.figures.forest import Estimate, draw_forest
from aol.report.figures.heatmap import LARGEST, AgeMap, draw_ages
from aol.report.figures.summary import time_unit
from aol.stats import Gain

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

AGES, ACCURACY, GAIN, SHIFTS = "ages", "accuracy", "gain", "shifts"
PICTURES = (AGES, ACCURACY, GAIN, SHIFTS)
_MOST_BLOCKS = 6  # cells in a chart of gains; of more, their mean is drawn
_MOST_PANELS = 12
_PAGE = 6.9  # inches: both columns of a two-column page
_TITLE = 0.2  # inches
_PLACES = 10  # numbers along an axis of places in a period
_WINDOW = 0.05  # of all epochs: what a gain is averaged over, as in the figure tail_mean


@dataclass(frozen=True)
class Picture:
    """A figure, what it is of, the title and the seeds of each of its panels, and what is not in it."""

    figure: Figure
    of: str
    panels: Sequence[tuple[str, tuple[int, ...]]]
    notes: list[str]


def draw(results: StudyResults, of: str | None = None) -> Picture:
    """Return one of the `PICTURES` of a study: a panel a cell. The matplotlib package is needed.

    By default these are ages where the study keeps them, else accuracy.
    """
    style.matplotlib()
    if not len(results.frame):
        raise WrongSettingsError(f"There are no complete runs of {results.study.name} to draw.")
    what = of or (AGES if "age" in results.study.keep else ACCURACY)
    return _ages(results) if what == AGES else _curves(results, what)


# Ages


def _ages(results: StudyResults) -> Picture:
    """Return the ages of classes over epochs: a panel for each cell and method, means over seeds."""
    study = results.study
    panels: list[tuple[str, tuple[int, ...]]] = []
    maps: list[AgeMap] = []
    diverged = without = 0
    for cell in study.cells_list():
        for method in study.methods:
            runs = chosen_runs(results, cell, method.name)
            well = {seed: each for seed, each in runs.items() if each.failed_at_epoch is None}
            aged = {seed: each for seed, each in well.items() if "age" in each.over_time}
            diverged += len(runs) - len(well)
            without += len(well) - len(aged)
            if aged:
                seeds = tuple(aged)
                words = [_cell_title(study, cell), *([method.name] if len(study.methods) > 1 else [])]
                mean = f"seed {seeds[0]}" if len(seeds) == 1 else f"mean over {len(seeds)} seeds"
                panels.append((", ".join([*words, mean]), seeds))
                maps.append(age_map(list(aged.values())))
    if not maps:
        raise _no_ages(results)
    notes = _missing(results)
    notes += [f"Not drawn: {plural(diverged, 'run')} that diverged."] if diverged else []
    notes += [f"Not drawn: {plural(without, 'run')} without ages over time."] if without else []
    return Picture(_draw_ages([title for title, _ in panels], maps), AGES, panels, notes)


def age_map(runs: Sequence[Run]) -> AgeMap:
    """Return the ages of runs that differ by their seeds only: means over the runs, NaN left out.

    The training samples of each class are means over seeds too; None where they change or are not known.
    """
    ages = np.array([each.over_time["age"] for each in runs], dtype=np.float64)
    mean = np.ma.masked_invalid(ages).mean(0).filled(np.nan)  # [E, C], NaN for a class that no run has seen
    counts = [each.counts for each in runs if each.counts is not None and not is_stream(each)]
    return AgeMap(
        age=mean,
        epochs=runs[0].epochs,
        counts=np.mean(counts, axis=0).round().astype(np.int64) if counts else None,
        names=[str(label) for label in range(mean.shape[1])],
        time=time_unit(runs[0]),
        numbered=True,
    )


@style.styled
def _draw_ages(titles: Sequence[str], maps: Sequence[AgeMap]) -> Figure:
    figure, panels = _page(titles, max(each.height for each in maps))
    oldest = max(len(each.epochs) for each in maps) + 1  # the largest possible age
    draw_ages(figure, panels, maps, largest=min(LARGEST, oldest))
    return figure


def _no_ages(results: StudyResults) -> WrongSettingsError:
    name, runs = results.study.name, results.runs.values()
    if all(each.failed_at_epoch is not None for each in runs):
        return WrongSettingsError(f"All runs of {name} diverged: there are no ages to draw.")
    if any("age" in each.over_time for each in runs):
        return _incomplete(results)
    return WrongSettingsError(f"No run of {name} has the ages of its classes over time.")


# Accuracy and gains


def _curves(results: StudyResults, of: str) -> Picture:
    """Return test accuracy over epochs; or the gain over the baseline, paired by seed, over epochs or after shifts."""
    study = results.study
    if of == SHIFTS and not all(moves(settings(run)) for run in results.runs.values()):
        raise WrongSettingsError(
            f"--of {SHIFTS} is for streams whose head moves every few steps, and {study.name} has other runs."
        )
    if of != ACCURACY and len(study.methods) == 1:
        raise WrongSettingsError(f"{study.name} has only {study.baseline}: there are no gains to draw.")
    panels: list[tuple[str, tuple[int, ...]]] = []
    cells: list[list[tuple[int, Curve]]] = []
    for cell in study.cells_list():
        own = _method_curves(results, cell, of)
        if own:
            seeds = tuple(dict.fromkeys(seed for *_, each in own for seed in each))
            panels.append((f"{_cell_title(study, cell)}, {_seeds_text([curve for _, curve, _ in own], seeds)}", seeds))
            cells.append([(place, curve) for place, curve, _ in own])
    if not cells:
        raise _incomplete(results)
    notes = _missing(results)
    shown = {name for each in results.comparisons for name in each.chosen}
    failed = sum(results.runs[name].failed_at_epoch is not None for name in shown)
    notes += [f"{plural(failed, 'run')} diverged: at chance from there on."] if failed else []
    return Picture(_draw_curves(results, [title for title, _ in panels], cells, of), of, panels, notes)


def _method_curves(results: StudyResults, cell: Cell, of: str) -> list[tuple[int, Curve, tuple[int, ...]]]:
    """Return the curve of each method in a cell, with its place in the study and its seeds."""
    study, found = results.study, []
    for place, method in enumerate(study.methods):
        if of != ACCURACY and method.name == study.baseline:
            continue
        runs = chosen_runs(results, cell, method.name)
        curve = mean_curve(method.name, [_reading(results, cell, seed, each, of) for seed, each in runs.items()])
        if curve is not None:
            found.append((place, curve, tuple(runs)))
    return found


def _reading(results: StudyResults, cell: Cell, seed: int, each: Run, of: str) -> Reading:
    if of == ACCURACY:
        return accuracy_by_epoch(each)
    gains, run = paired(results, cell, seed, each), settings(each)
    return by_place(run, gains) if of == SHIFTS else running_mean(gains, window(run.epochs))


def window(epochs: int) -> int:
    """Return how many epochs a gain is averaged over: an odd number, 5 % of all.

    >>> window(200), window(3)
    (11, 1)
    """
    return 2 * round(_WINDOW * epochs / 2) + 1


def running_mean(values: Mapping[int, float], width: int) -> Reading:
    """Return the mean over `width` epochs around each; fewer at the ends, and where there are no values.

    >>> running_mean({1: 0.0, 2: 3.0, 3: 6.0}, 3)
    {1: 1.5, 2: 3.0, 3: 4.5}
    """
    half = width // 2
    near = {epoch: [values[e] for e in range(epoch - half, epoch + half + 1) if e in values] for epoch in values}
    return {epoch: float(np.mean(each)) for epoch, each in near.items()}


@style.styled
def _draw_curves(
    results: StudyResults, titles: Sequence[str], cells: Sequence[Sequence[tuple[int, Curve]]], of: str
) -> Figure:
    base, gain = results.study.baseline, of != ACCURACY
    said = _explained(results, cells, of)
    said = ["; ".join(said)] if len(cells) > 1 else said
    names = {place: curve.name for curves in cells for place, curve in curves}
    columns = _columns(list(names.values()), wide=len(cells) > 1)
    below = 0.12 * (-(-len(names) // columns) + len(said)) + 0.1
    figure, panels = _page(titles, 1.75, below)
    for axes, curves in zip(panels, cells, strict=True):
        if gain:
            axes.axhline(0.0, color=style.GREY, linewidth=0.6, zorder=1)
        for place, curve in curves:
            label = names.pop(place, "_")  # in the legend once
            draw_curve(axes, curve, place, label, alpha=band_alpha(len(curves)))
        epochs = max((curve.x for _, curve in curves), key=len)
        style.set_time_axis(axes, epochs, "step after the head moved" if of == SHIFTS else _time_unit(results))
        if of == SHIFTS and len(epochs) > 1:  # the first step matters most, and has a number
            last = int(epochs[-1])
            axes.set_xticks(range(1, last + 1, -(-last // _PLACES)))
        axes.set_ylabel(f"gain over {style.shorten(base)} (points)" if gain else "test accuracy (%)")
        axes.margins(x=0.01)
        style.limit_ticks(axes, y=5)
    if gain:  # one scale in all panels
        ends = [axes.get_ylim() for axes in panels]
        for axes in panels:
            axes.set_ylim(min(low for low, _ in ends), max(high for _, high in ends))
    legend = figure.legend(
        loc="outside lower center", ncols=columns, columnspacing=1.2, labelspacing=0.3,
        title="\n".join(said), title_fontsize=6.5,
    )  # fmt: skip
    legend.get_title().set_multialignment("center")
    return figure


def _explained(results: StudyResults, cells: Sequence[Sequence[tuple[int, Curve]]], of: str) -> list[str]:
    """Return what lines and bands are, a line of text each."""
    found = []
    widths = sorted({window(settings(run).epochs) for run in results.runs.values()} - {1})
    if any(curve.runs > 1 for curves in cells for _, curve in curves):
        found.append("lines: mean over seeds; bands: ± one standard deviation")
    if of == SHIFTS:
        found.append("gains paired by seed, second half of the stream")
    elif of == GAIN and widths:
        epochs = f"{' or '.join(map(str, widths))} {_time_unit(results)}s"
        found.append(f"gains paired by seed, running mean over {epochs}")
    if any(each.settings > 1 for each in results.comparisons):
        found.append("settings chosen on validation")
    return found


def _columns(names: Sequence[str], *, wide: bool) -> int:
    """Return the number of columns in which names fit, so that no row is much shorter than the others."""
    longest = max(map(len, names))
    most = max(1, (130 if wide else 60) // (longest + 9))
    rows = -(-len(names) // most)
    return -(-len(names) // rows)


def _seeds_text(curves: Sequence[Curve], seeds: Sequence[int]) -> str:
    runs = sorted({curve.runs for curve in curves})
    if len(seeds) == 1:
        return f"seed {seeds[0]}"
    return f"{runs[0]} seeds" if len(runs) == 1 else f"{runs[0]} to {runs[-1]} seeds"


# The chart of gains


def gain_figure(results: StudyResults) -> Figure:
    """Return the gains of a study with their intervals, or its correlations, beside those of the paper."""
    if results.correlations:
        own = [
            (cell_name(cell), [Estimate(signal_name(e.signal), e.r, (e.low, e.high), e.paper) for e in found])
            for cell, found in results.correlations
        ]
        return draw_forest(own, "correlation with class age", "paper")
    places = {method.name: place for place, method in enumerate(results.study.methods, -1)}
    blocks: dict[str, list[Estimate]] = {}
    for each in results.comparisons:
        if each.gain is not None:
            row = estimate_of(each.name, each.gain, places[each.method], each.paper_gain)
            blocks.setdefault(cell_name(each.cell), []).append(row)
    if len(blocks) > _MOST_BLOCKS and results.pooled and not results.study.paper:
        rows = [estimate_of(name, gain, places[name]) for name, gain in results.pooled.items()]
        blocks = {f"mean of {len(blocks)} cells": rows}
    return draw_forest(list(blocks.items()), f"gain over {results.study.baseline} (points)", "paper's gain")


def estimate_of(name: str, gain: Gain, place: int = 0, paper: float | None = None) -> Estimate:
    """Return a row of the chart, in points."""
    interval = None if gain.interval is None else (100.0 * gain.interval[0], 100.0 * gain.interval[1])
    return Estimate(name, 100.0 * gain.mean, interval, None if paper is None else 100.0 * paper, place)


# Panels


def _page(titles: Sequence[str], height: float, below: float = 0.0) -> tuple[Figure, list[Axes]]:
    """Return a figure with a panel for each title: one at the width of a column, more at that of a page.

    `height` is that of a panel, in inches; `below` is left free under all of them.
    """
    count = len(titles)
    if count > _MOST_PANELS:
        raise WrongSettingsError(f"A figure has room for {_MOST_PANELS} panels, not {count}: select some with --only.")
    rows, columns = -(-count // 2), min(count, 2)
    width = style.COLUMN if count == 1 else _PAGE
    figure, panels = style.panels((height + _TITLE) * rows + below, rows, columns, width=width)
    for left_over in panels[count:]:
        figure.delaxes(left_over)
    for axes, title in zip(panels, titles, strict=False):
        axes.set_title(style.shorten(title, 52), loc="left", fontsize=7.0)
    return figure, panels[:count]


def _cell_title(study: Study, cell: Cell) -> str:
    return cell_name(cell) if cell else str(study.common.get("data", study.name))


def _time_unit(results: StudyResults) -> str:
    return time_unit(next(iter(results.runs.values())))


def _missing(results: StudyResults) -> list[str]:
    there, planned = len(results.frame), results.runs_planned
    found = [f"{there}/{planned} runs complete."] if there < planned else []
    return found + [f"Damaged, not used: {name}: {why}." for name, why in results.damaged]


def _incomplete(results: StudyResults) -> WrongSettingsError:
    problems = dict.fromkeys(f"{each.method}: {each.problem}." for each in results.comparisons if each.problem)
    return WrongSettingsError(
        " ".join([f"No seed of {results.study.name} is complete.", *_missing(results), *problems])
    )
