"""Matplotlib figures of runs, at the width of a column. Matplotlib is imported when something is drawn.

`style.py` is the look of all figures, `aol.records.compare` has the numbers behind them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from aol._files import write_atomically
from aol._values import unlike
from aol.records.compare import by_method
from aol.records.table import RunFrame
from aol.report.figures import style
from aol.report.figures.accuracy import accuracy_curves, head_middle_tail
from aol.report.figures.heatmap import heatmap


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
    shown = by_method(runs[runs["epochs_done"] > 0]) if len(runs) else {}
    first = {name: next(iter(method.runs.values())) for name, method in shown.items()}
    sizes = {name: tuple(sorted(run.counts or ())) for name, run in first.items()}
    figures = [("accuracy", accuracy_curves(shown))]
    for size in dict.fromkeys(sizes.values()):
        alike = {name: method for name, method in shown.items() if sizes[name] == size}
        figures.append(("head-middle-tail", head_middle_tail(alike)))
    figures += [(f"heatmap-{file_name(name) or 'run'}", heatmap(run)) for name, run in first.items()]
    written = []
    for name, (_, figure) in zip(unlike((name for name, _ in figures), "-{}"), figures, strict=True):
        for kind in formats:
            if figure is None:
                continue
            written.append(Path(folder) / f"{name}.{kind}")
            write_atomically(written[-1], style.rendered(figure, kind))
    return written


def file_name(text: str) -> str:
    """Return a text as a file's name, whatever it is: letters and digits, with dashes between.

    >>> file_name("cb+aol β=0.9999 ρ=0.3 ../x")
    'cb-aol-beta-0.9999-rho-0.3-x'
    """
    for letter, name in (("ρ", "rho-"), ("β", "beta-"), ("γ", "gamma-"), ("τ", "tau-")):
        text = text.replace(letter, name)
    return re.sub(r"(?:[^A-Za-z0-9.]|\.(?![0-9]))+", "-", text).strip("-.")[:120]
