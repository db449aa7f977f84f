"""Figures for a paper: each a function from stories to a matplotlib figure at column width, drawn by `draw`.

Assumes matplotlib when something is drawn, and stories of any size: 2 to 1000 classes, one run or many.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from aol.plots import style
from aol.report.figures.bars import head_middle_tail
from aol.report.figures.correlations import correlations
from aol.report.figures.curves import accuracy_curves
from aol.report.figures.heatmap import heatmap
from aol.report.figures.lifetimes import lifetimes
from aol.report.figures.observation import observation
from aol.report.figures.sweep import sweep
from aol.report.figures.trajectories import trajectories
from aol.report.story import Story
from aol.report.summary import Method, by_sizes, methods

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Of one run each: the first of every method.
OF_A_RUN: dict[str, Callable[[Story], Figure | None]] = {
    "heatmap": heatmap,
    "observation": observation,
    "correlations": correlations,
    "weights": trajectories,
    "survival": lifetimes,
}
# Of all runs together.
OF_ALL: dict[str, Callable[[list[Method]], Figure | None]] = {
    "accuracy": accuracy_curves,
    "head-middle-tail": head_middle_tail,
    "sweep": sweep,
}


def draw(stories: Sequence[Story], folder: str | os.PathLike[str], formats: Sequence[str] = ("png",)) -> list[Path]:
    """Draw every figure that the stories allow into a folder, in each format, and return the files.

    Figures of one run (heatmap, observation, correlations, weights, survival) are drawn for the first run of every
    method; the others (accuracy, head-middle-tail, sweep) show all methods together, head-middle-tail those on classes
    of the same sizes. What is not recorded is not drawn.
    """
    wrong = [kind for kind in formats if kind not in style.FORMATS]
    if wrong or not formats:
        raise ValueError(f"formats must be some of {', '.join(style.FORMATS)}, not {wrong[0] if wrong else 'none'!r}.")
    style.matplotlib()
    place = Path(folder)
    if place.exists() and not place.is_dir():
        raise ValueError(f"{place} is a file, not a folder for figures.")
    found = methods(stories)
    written: list[Path] = []
    for name, shown in OF_ALL.items():
        groups = by_sizes(found) if shown is head_middle_tail else [found] if found else []
        for number, group in enumerate(groups, 1):
            figure = shown(group)
            word = name if number == 1 else f"{name}-{number}"
            written += style.save(figure, place, word, formats) if figure is not None else []
    taken: set[str] = set()
    for method in found:
        word = style.file_name(method.name) or "run"
        while word in taken:
            word += "-again"
        taken.add(word)
        for name, drawn in OF_A_RUN.items():
            figure = drawn(method.runs[0])
            written += style.save(figure, place, f"{name}-{word}", formats) if figure is not None else []
    return written
