"""Matplotlib figures of runs, at the width of a column. Matplotlib is imported when something is drawn.

To add a figure: write its function, and add its line to one of the two functions below. `style.py` is the look of all
figures, `summary.py` the numbers behind them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from aol._values import unlike
from aol.records.record import Run
from aol.records.samples import FILE, SampleTable, read_samples
from aol.records.table import RunFrame
from aol.report.figures import style
from aol.report.figures.accuracy import accuracy_curves, head_middle_tail, sweep
from aol.report.figures.heatmap import heatmap
from aol.report.figures.observation import correlations, observation
from aol.report.figures.summary import Method, by_sizes, methods
from aol.report.figures.survival import survival
from aol.report.figures.weights import weights

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def figures_of_run(run: Run, samples: SampleTable | None) -> dict[str, Figure | None]:
    """Return the figures of one run by name, and of its samples where those were kept; None: not recorded."""
    found = {
        "heatmap": heatmap(run),
        "observation": observation(run),
        "correlations": correlations(run),
        "weights": weights(run),
    }
    return found if samples is None else found | {"survival": survival(run, samples)}


def figures_of_methods(found: list[Method]) -> dict[str, Figure | None]:
    """Return the figures of all methods together by name; None: not recorded."""
    groups = by_sizes(found)
    names = unlike(["head-middle-tail"] * len(groups), "-{}")
    bars = {name: head_middle_tail(group) for name, group in zip(names, groups, strict=True)}
    return {"accuracy": accuracy_curves(found), **bars, "sweep": sweep(found)}


def draw(runs: RunFrame, folder: str | os.PathLike[str], formats: Sequence[str] = ("png",)) -> list[Path]:
    """Draw every figure that the runs allow into a folder, in each format, and return the files.

    Figures of one run (heatmap, observation, correlations, weights, survival) are drawn for the first run of every
    method; the others (accuracy, head-middle-tail, sweep) show all methods together, head-middle-tail those whose
    classes have the same sizes. What was not recorded is not drawn.

    >>> from aol.records.table import frame_of
    >>> draw(frame_of([]), "figures")
    []
    """
    wrong = [kind for kind in formats if kind not in style.FORMATS]
    if wrong or not formats:
        raise ValueError(f"formats must be some of {', '.join(style.FORMATS)}, not {wrong[0] if wrong else 'none'!r}.")
    style.matplotlib()
    place = Path(folder)
    if place.exists() and not place.is_dir():
        raise ValueError(f"{place} is a file, not a folder for figures.")
    found = methods(runs[runs["epochs_done"] > 0]) if len(runs) else []
    written = _save(figures_of_methods(found), place, formats)
    words = unlike((style.file_name(method.name) or "run" for method in found), "-{}")
    for method, word in zip(found, words, strict=True):
        run, own = method.runs[0], method.frame["folder"].iloc[0]
        samples = None if own is None else read_samples(Path(own) / FILE, run.id)
        figures = figures_of_run(run, samples)
        written += _save({f"{name}-{word}": figure for name, figure in figures.items()}, place, formats)
    return written


def _save(figures: Mapping[str, Figure | None], folder: Path, formats: Sequence[str]) -> list[Path]:
    drawn = {name: figure for name, figure in figures.items() if figure is not None}
    return [path for name, figure in drawn.items() for path in style.save(figure, folder, name, formats)]
