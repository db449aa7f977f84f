"""Class-age heatmaps: a row a class, head on top; power-law colours from 1 to 100, as in the paper."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from aol import metrics
from aol._files import write_atomically
from aol.records.compare import by_method
from aol.records.metrics import time_unit
from aol.records.record import Floats, Ints, Run
from aol.records.table import RunFrame, unlike
from aol.report.figures import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LARGEST = 100.0
_NAMED = 20  # so many classes have their names written out
_LETTERS = 18  # of a name


@dataclass(frozen=True)
class AgeMap:
    """The ages of classes over time."""

    age: Floats  # `[E, C]`, NaN where it is not known
    epochs: Ints  # which epochs these are, counted from one
    counts: Ints | None  # training samples a class; all equal, or None, where there is no head and no tail
    names: Sequence[str]  # of the classes; where they have none, their numbers
    time: str  # what an epoch is: "epoch", on a stream "step"
    numbered: bool = False  # whether the names are numbers; then some are written with their sizes

    @property
    def sizes(self) -> Ints | None:
        """The training samples by class, where there is a head and a tail."""
        return self.counts if self.counts is not None and metrics.has_tail(self.counts) else None

    @property
    def order(self) -> Ints:
        """The classes from head to tail, equal ones in their own order; without a tail all are in their own order."""
        return np.arange(len(self.names)) if self.sizes is None else np.argsort(-self.sizes, kind="stable")

    @property
    def height(self) -> float:
        """How many inches a panel needs."""
        classes = len(self.names)
        return float(np.clip(0.9 + 0.125 * classes, 1.85, 2.6 if classes <= 100 else 3.2))


def draw(runs: RunFrame, folder: str | os.PathLike[str], formats: Sequence[str] = ("png",)) -> list[Path]:
    """Draw the heatmap of the first run of every method into a folder, in all formats, and return the files.

    Methods without recorded ages are left out.

    >>> from aol.records.table import frame_of
    >>> draw(frame_of([]), "figures")
    []
    """
    wrong = [kind for kind in formats if kind not in style.FORMATS]
    if wrong or not formats:
        raise ValueError(f"formats must be some of {', '.join(style.FORMATS)}, not {wrong[0] if wrong else 'none'!r}.")
    methods = by_method(runs)
    names = unlike((f"heatmap-{file_name(name) or 'run'}" for name in methods), "-{}")
    written = []
    for name, method in zip(names, methods.values(), strict=True):
        if figure := heatmap(next(iter(method.runs.values()))):
            for kind in formats:
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


@style.styled()
def heatmap(run: Run) -> Figure | None:
    """Return the class-age heatmap of a run; None where ages by epoch were not recorded."""
    age = run.over_time.get("age")
    if age is None or np.isnan(age).all():
        return None
    counts = None if run.counts is None else np.asarray(run.counts)
    shown = AgeMap(age.astype(np.float64), run.epochs, counts, run.classes, time_unit(run))
    figure, panels = style.panels(shown.height)
    draw_ages(figure, panels, [shown])
    return figure


def draw_ages(figure: Figure, panels: Sequence[Axes], maps: Sequence[AgeMap], *, largest: float = LARGEST) -> None:
    """Draw maps into panels, all in one scale of colours, from 1 to `largest`: older classes look like that."""
    few = any(len(shown.names) <= _NAMED for shown in maps)  # the exponents are the paper's
    norm = style.matplotlib("colors").PowerNorm(0.35 if few else 0.5, vmin=1.0, vmax=largest)
    shades = style.matplotlib().colormaps["magma"].with_extremes(bad="#BDBDBD")
    for axes, shown in zip(panels, maps, strict=True):
        classes = len(shown.names)
        image = axes.imshow(
            np.ma.masked_invalid(shown.age[:, shown.order].T), norm=norm, cmap=shades, aspect="auto",
            extent=(int(shown.epochs[0]) - 0.5, int(shown.epochs[-1]) + 0.5, classes - 0.5, -0.5),
            interpolation="nearest" if classes <= 200 else "antialiased", interpolation_stage="data",
        )  # fmt: skip
        image.set_rasterized(True)
        axes.set_xlabel(shown.time)
        if len(shown.epochs) > 1:
            style.limit_ticks(axes, 6, whole=True)
        else:
            axes.set_xticks([int(shown.epochs[0])])
        _name_classes(axes, shown)
        for spine in axes.spines.values():
            spine.set_visible(True)
    above = any(bool(np.nanmax(shown.age, initial=1.0) > largest) for shown in maps)
    bar = figure.colorbar(image, ax=list(panels), extend="max" if above else "neither", pad=0.02, aspect=25)
    ages = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0) if few or largest <= 50.0 else (1.0, 5.0, 10.0, 20.0, 50.0)
    ticks = [*(age for age in ages if 1.25 * age < largest), largest]
    bar.set_ticks(ticks, labels=[f"{tick:g}" for tick in ticks])
    bar.minorticks_off()
    bar.set_label(f"class age ({' or '.join(dict.fromkeys(f'{shown.time}s' for shown in maps))})")


def _name_classes(axes: Axes, shown: AgeMap) -> None:
    """Write the classes' names where they fit; else their places, with how many samples those have."""
    order, sizes = shown.order, shown.sizes
    few = len(order) <= _NAMED
    named = few or shown.numbered
    places = np.arange(len(order)) if few else np.linspace(0, len(order) - 1, 5).round().astype(np.int64)
    names = [shown.names[order[place]] if named else f"{place + 1}" for place in places]
    if sizes is not None and (shown.numbered or not named):
        names = [f"{name} (n={sizes[c]:,})" for name, c in zip(names, order[places], strict=True)]
    names = [" ".join(name.split()) for name in names]  # of long ones the middle is cut: they may begin alike
    axes.set_yticks(places, [name if len(name) <= _LETTERS else f"{name[:9]}…{name[-8:]}" for name in names])
    axes.set_ylabel("class" if sizes is None else f"class{'' if named else ' by size'}, head to tail")
