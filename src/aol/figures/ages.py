"""Maps of class age: a row a class, head on top, a column an epoch; power-law colours from 1 to 100, as in the paper.

Knows arrays: whoever draws says what the classes are called and how large they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from aol.figures import style
from aol.figures.style import Ints

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LARGEST = 100.0
_NAMED = 20  # so many classes have their names written out
_TICKS = {0.35: (1, 2, 5, 10, 20, 50, 100), 0.5: (1, 5, 10, 20, 50, 100)}


@dataclass(frozen=True)
class AgeMap:
    """The ages of classes over time.

    Args:
        age: `float64 [E, C]`, NaN where it is not known.
        epochs: which epochs these are, counted from one, `int64 [E]`.
        counts: training samples a class, `[C]`; all equal, or None, where there is no head and no tail.
        names: of the classes.
        stream: whether an epoch is a step of a stream.
        unit: what ages are counted in, for the scale of colours: "epochs".
    """

    age: npt.NDArray[np.float64]
    epochs: Ints
    counts: Ints | None
    names: Sequence[str]
    stream: bool
    unit: str

    @property
    def order(self) -> Ints:
        """The classes from the most to the fewest samples; equal ones in their own order."""
        sizes = np.zeros(len(self.names), np.int64) if self.counts is None else self.counts
        found: Ints = np.argsort(-sizes, kind="stable")
        return found

    @property
    def tailed(self) -> bool:
        """Whether some classes are larger than others."""
        return self.counts is not None and bool(np.ptp(self.counts))

    @property
    def height(self) -> float:
        """How many inches a panel needs."""
        classes = len(self.names)
        return float(np.clip(0.9 + 0.125 * classes, 1.4, 2.6 if classes <= 100 else 3.2))


def draw_ages(figure: Figure, panels: Sequence[Axes], maps: Sequence[AgeMap]) -> None:
    """Draw maps into panels, all in one scale of colours: the paper's for few classes if one of them has few."""
    few = any(len(each.names) <= _NAMED for each in maps)
    gamma = 0.35 if few else 0.5
    norm = style.matplotlib("colors").PowerNorm(gamma, vmin=1.0, vmax=LARGEST)
    shades = style.matplotlib().colormaps["magma"].with_extremes(bad="#BDBDBD")
    for axes, shown in zip(panels, maps, strict=True):
        classes = len(shown.names)
        image = axes.imshow(
            np.ma.masked_invalid(shown.age[:, shown.order].T),
            norm=norm,
            cmap=shades,
            aspect="auto",
            extent=(int(shown.epochs[0]) - 0.5, int(shown.epochs[-1]) + 0.5, classes - 0.5, -0.5),
            interpolation="nearest" if classes <= 200 else "antialiased",
            interpolation_stage="data",
        )
        image.set_rasterized(True)
        style.over_time(axes, shown.epochs, stream=shown.stream)
        _name_classes(axes, shown)
        for spine in axes.spines.values():
            spine.set_visible(True)
    above = any(bool(np.nanmax(each.age, initial=1.0) > LARGEST) for each in maps)
    bar = figure.colorbar(image, ax=list(panels), extend="max" if above else "neither", pad=0.02, aspect=25)
    bar.set_ticks(_TICKS[gamma])
    bar.set_ticklabels([f"{tick:g}" for tick in bar.get_ticks()])
    bar.minorticks_off()
    bar.set_label(f"class age ({maps[0].unit})")


def _name_classes(axes: Axes, shown: AgeMap) -> None:
    """Write the classes' names where they fit; else their places, with how many samples those have."""
    order = shown.order
    if len(order) <= _NAMED:
        axes.set_yticks(range(len(order)), style.short_all([shown.names[c] for c in order]))
        axes.set_ylabel("class, head to tail" if shown.tailed else "class")
        return
    places = np.unique(np.linspace(0, len(order) - 1, 5).round().astype(int))
    sizes = shown.counts if shown.tailed else None
    axes.set_yticks(places, [f"{p + 1}" if sizes is None else f"{p + 1}  (n={sizes[order[p]]:,})" for p in places])
    axes.set_ylabel("class" if sizes is None else "class by size, head to tail")
