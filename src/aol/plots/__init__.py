"""Matplotlib figures of runs, at the width of a column. Matplotlib is imported when something is drawn.

To add a figure: write its function, and add it to one of the tables below. `style.py` is the look of all figures,
`summary.py` the numbers behind them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from aol.plots import style
from aol.plots.accuracy import accuracy_curves, head_middle_tail, sweep
from aol.plots.heatmap import heatmap
from aol.plots.observation import correlations, observation
from aol.plots.summary import Method, by_sizes, methods
from aol.plots.survival import survival
from aol.plots.weights import weights
from aol.runs.record import Run
from aol.runs.samples import FILE, SampleTable, read_samples
from aol.runs.table import RunFrame

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Of one run: drawn for the first run of every method.
OF_A_RUN: dict[str, Callable[[Run], Figure | None]] = {
    "heatmap": heatmap,
    "observation": observation,
    "correlations": correlations,
    "weights": weights,
}
# Of one run and its samples, where those were kept.
OF_SAMPLES: dict[str, Callable[[Run, SampleTable], Figure | None]] = {"survival": survival}
# Of all methods together.
OF_ALL: dict[str, Callable[[list[Method]], Figure | None]] = {
    "accuracy": accuracy_curves,
    "head-middle-tail": head_middle_tail,
    "sweep": sweep,
}


def draw(runs: RunFrame, folder: str | os.PathLike[str], formats: Sequence[str] = ("png",)) -> list[Path]:
    """Draw every figure that the runs allow into a folder, in each format, and return the files.

    Figures of one run (heatmap, observation, correlations, weights, survival) are drawn for the first run of every
    method; the others (accuracy, head-middle-tail, sweep) show all methods together, head-middle-tail those whose
    classes have the same sizes. What was not recorded is not drawn.

    >>> from aol.runs.table import frame_of
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
    written: list[Path] = []
    for name, draw_all in OF_ALL.items():
        groups = by_sizes(found) if draw_all is head_middle_tail else [found] if found else []
        for number, group in enumerate(groups, 1):
            figure = draw_all(group)
            word = name if number == 1 else f"{name}-{number}"
            written += style.save(figure, place, word, formats) if figure is not None else []
    taken: set[str] = set()
    for method in found:
        word = style.file_name(method.name) or "run"
        while word in taken:
            word += "-again"
        taken.add(word)
        for name, figure in _figures_of(method):
            written += style.save(figure, place, f"{name}-{word}", formats) if figure is not None else []
    return written


def _figures_of(method: Method) -> list[tuple[str, Figure | None]]:
    run, folder = method.runs[0], method.frame["folder"].iloc[0]
    drawn = [(name, draw_run(run)) for name, draw_run in OF_A_RUN.items()]
    samples = None if folder is None else read_samples(Path(folder) / FILE, run.id)
    if samples is not None:
        drawn += [(name, draw_samples(run, samples)) for name, draw_samples in OF_SAMPLES.items()]
    return drawn
