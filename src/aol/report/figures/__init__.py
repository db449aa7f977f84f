"""Matplotlib figures of runs, at the width of a column. Matplotlib is imported when something is drawn.

To add a figure, write its function and add a line to one of the three tables below. A function returns a figure, or
None where what it shows was not recorded. `style.py` is the look of all figures, `summary.py` the numbers behind them.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from aol._values import unlike
from aol.records.table import RunFrame
from aol.report.figures import style
from aol.report.figures.accuracy import accuracy_curves, head_middle_tail
from aol.report.figures.heatmap import heatmap
from aol.report.figures.summary import by_sizes, methods

OF_METHODS = {"accuracy": accuracy_curves}  # all methods together
BY_SIZES = {"head-middle-tail": head_middle_tail}  # methods whose classes have the same sizes
OF_RUN = {"heatmap": heatmap}  # the first run of each method


def draw(runs: RunFrame, folder: str | os.PathLike[str], formats: Sequence[str] = ("png",)) -> list[Path]:
    """Draw every figure that the runs allow into a folder, in each format, and return the files.

    `heatmap` is drawn for the first run of every method; `accuracy` and `head-middle-tail` show all methods together,
    the latter those whose classes have the same sizes. What was not recorded is not drawn.

    >>> from aol.records.table import frame_of
    >>> draw(frame_of([]), "figures")
    []
    """
    wrong = [kind for kind in formats if kind not in style.FORMATS]
    if wrong or not formats:
        raise ValueError(f"formats must be some of {', '.join(style.FORMATS)}, not {wrong[0] if wrong else 'none'!r}.")
    style.matplotlib()
    shown = methods(runs[runs["epochs_done"] > 0]) if len(runs) else []
    figures = [(name, function(shown)) for name, function in OF_METHODS.items()]
    figures += [(name, function(group)) for name, function in BY_SIZES.items() for group in by_sizes(shown)]
    figures += [
        (f"{name}-{style.file_name(method.name) or 'run'}", function(method.runs[0]))
        for method in shown
        for name, function in OF_RUN.items()
    ]
    names = unlike((name for name, _ in figures), "-{}")
    drawn = [(name, figure) for name, (_, figure) in zip(names, figures, strict=True) if figure is not None]
    return [path for name, figure in drawn for path in style.save(figure, Path(folder), name, formats)]
