"""Heatmaps of class ages with matplotlib, at the width of a column; matplotlib is imported when something is drawn.

`style.py` is the look of all figures, those of studies too.
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
from aol.report.figures.heatmap import heatmap


def draw(runs: RunFrame, folder: str | os.PathLike[str], formats: Sequence[str] = ("png",)) -> list[Path]:
    """Draw the heatmap of the first run of every method into a folder, in each format, and return the files.

    Methods without recorded ages are left out.

    >>> from aol.records.table import frame_of
    >>> draw(frame_of([]), "figures")
    []
    """
    wrong = [kind for kind in formats if kind not in style.FORMATS]
    if wrong or not formats:
        raise ValueError(f"formats must be some of {', '.join(style.FORMATS)}, not {wrong[0] if wrong else 'none'!r}.")
    style.matplotlib()
    methods = by_method(runs[runs["epochs_done"] > 0]) if len(runs) else {}
    figures = [heatmap(next(iter(method.runs.values()))) for method in methods.values()]
    names = unlike((f"heatmap-{file_name(name) or 'run'}" for name in methods), "-{}")
    written = []
    for name, figure in zip(names, figures, strict=True):
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
