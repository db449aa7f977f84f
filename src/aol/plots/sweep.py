"""Accuracy at the end over ρ: a line for each combination of other settings, and unweighted training as a level."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from aol.plots import style
from aol.plots.accuracy import seeds
from aol.plots.summary import Method, spread
from aol.runs.figures import at_the_end, is_stream
from aol.runs.record import Floats, Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Line:
    """Accuracy over ρ with all else equal: mean and standard deviation over seeds."""

    name: str
    rho: Floats
    mean: Floats
    deviation: Floats
    seeds: int


def _end(run: Run) -> float:
    return float(at_the_end(run.curves["test_accuracy"], stream=is_stream(run)))


def _figures(method: Method) -> tuple[float, float]:
    runs = [run for run in method.runs if "test_accuracy" in run.curves and run.failed_at_epoch is None]
    return spread(np.array([_end(run) for run in runs]))


def lines(methods: list[Method]) -> list[Line]:
    """Return a line for each set of settings of which several values of ρ were run."""
    found: dict[str, dict[float, Method]] = {}
    for method in methods:
        rho = method.runs[0].settings.get("rho")
        words = method.name.split(" ")
        rest = " ".join(word for word in words if not word.startswith(("ρ=", "rho=")))
        if isinstance(rho, float | int) and rest != method.name:  # methods that do not use ρ do not name it
            found.setdefault(rest, {})[float(rho)] = method
    curves = []
    for name, by_rho in found.items():
        if len(by_rho) > 1:
            pairs = np.array([_figures(by_rho[value]) for value in sorted(by_rho)])
            seeds = max(len(method.runs) for method in by_rho.values())
            curves.append(Line(name, np.array(sorted(by_rho)), pairs[:, 0], pairs[:, 1], seeds))
    return [line for line in curves if not np.isnan(line.mean).all()]


@style.styled
def sweep(methods: list[Method]) -> Figure | None:
    """Return accuracy over ρ; None where there are not several values of it."""
    found = lines(methods)
    if not found:
        return None
    plain = [method for method in methods if method.runs[0].settings.get("weighting") == "none"][:1]
    labels = [f"{style.short(line.name, 44)}{seeds(line.seeds)}" for line in found]
    labels += [f"{style.short(method.name, 44)}{seeds(len(method.runs))}" for method in plain]
    figure, (axes,) = style.panels(1.75 + style.legend_height(labels))
    for number, (line, label) in enumerate(zip(found, labels, strict=False)):
        error = None if np.isnan(line.deviation).all() else 100 * np.nan_to_num(line.deviation)
        axes.errorbar(
            line.rho, 100 * line.mean, error, label=label, capsize=2, elinewidth=0.8,
            color=style.COLOURS[number % len(style.COLOURS)], linestyle=style.LINES[number % len(style.LINES)],
            marker=style.MARKERS[number % len(style.MARKERS)],
        )  # fmt: skip
    for method in plain:
        mean, deviation = _figures(method)
        if not np.isnan(mean):
            axes.axhline(100 * mean, color=style.GREY, linewidth=0.9, label=labels[-1], zorder=0)
        if not np.isnan(deviation):
            axes.axhspan(100 * (mean - deviation), 100 * (mean + deviation), color=style.GREY, alpha=0.15, linewidth=0)
    axes.set_xlabel("ρ")
    axes.set_ylabel("test accuracy (%)")
    axes.set_xlim(-0.03, 1.03)
    style.few(axes, y=5)
    style.legend(figure, labels)
    return figure
