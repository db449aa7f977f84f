"""What the pictures of a study have in common: panels, their titles, which runs are shown, and what is not.

Knows tables and figures. Each method is shown as in the table: of every whole seed the run in the setting that was
chosen on validation. Everything follows from study and records alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aol.engine.settings import Settings, WrongSettingsError
from aol.plots import style
from aol.study.lines import chosen_runs
from aol.study.records import Record
from aol.study.sheets import cell_name
from aol.study.spec import Cell, Method, Study
from aol.study.table import Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST = 12  # panels that a page has room for
PAGE = 6.9  # inches: both columns of a two-column page
_TITLE = 0.2  # inches


@dataclass(frozen=True)
class Picture:
    """A figure, the title and the seeds of each of its panels, and what is not in it, in a sentence each."""

    figure: Figure
    panels: Sequence[tuple[str, tuple[int, ...]]]
    notes: list[str]


def shown_records(table: Table, cell: Cell, method: Method) -> list[Record]:
    """Return the runs that stand for a method in a cell, one a whole seed."""
    return [table.records[run] for run in chosen_runs(table.study, table.records, cell, method)]


def page_of(titles: Sequence[str], height: float, below: float = 0.0) -> tuple[Figure, list[Axes]]:
    """Return a figure with a panel for each title: one at the width of a column, more at that of a page.

    `height` is that of a panel, in inches; `below` is left free under all of them.
    """
    count = len(titles)
    if count > MOST:
        raise WrongSettingsError(f"A figure has room for {MOST} panels, not for {count}: --only draws some of them.")
    rows, columns = -(-count // 2), min(count, 2)
    width = style.COLUMN if count == 1 else PAGE
    figure, panels = style.panels((height + _TITLE) * rows + below, rows, columns, width=width)
    for left_over in panels[count:]:
        figure.delaxes(left_over)
    for axes, title in zip(panels, titles, strict=False):
        axes.set_title(style.short(title, 52), loc="left", fontsize=7.0)
    return figure, panels[:count]


def title_of(study: Study, cell: Cell) -> str:
    """Return what a cell is called; a study with a single one is called by its data."""
    return cell_name(cell) if cell else str(study.common.get("data", study.name))


def time_unit(run: Settings) -> str:
    """Return in what the time of a run is counted: "epoch", on a stream "step"."""
    return "step" if run.scenario == "stream" else "epoch"


def missing(table: Table) -> list[str]:
    """Return how many runs there are where some are not, and which records are not used."""
    there, planned = len(table.records), table.runs_planned
    found = [f"{there} of {planned} runs {'is' if there == 1 else 'are'} there."] if there < planned else []
    return found + [f"Damaged, not used: {name}: {why}." for name, why in table.damaged]


def not_whole(table: Table) -> WrongSettingsError:
    """Return the error that there is nothing to draw yet, or nothing that may be drawn, with the reasons."""
    problems = dict.fromkeys(f"{line.method}: {line.problem}." for line in table.lines if line.problem)
    return WrongSettingsError(" ".join([f"No seed of {table.study.name} is whole.", *missing(table), *problems]))
