"""The age of every class over epochs: a panel for each cell and method, means over seeds, one scale of colours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from aol.engine.settings import WrongSettingsError
from aol.plots import style
from aol.plots.heatmap import LARGEST, AgeMap, draw_ages
from aol.plots.style import Ints
from aol.study.notes import many_runs
from aol.study.pictures import Picture, missing, not_whole, page_of, shown_records, time_unit, title_of
from aol.study.records import Record
from aol.study.table import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def age_picture(table: Table) -> Picture:
    """Return the ages of classes over epochs: a panel for each cell and method, means over seeds."""
    study = table.study
    titles: list[str] = []
    seeds: list[tuple[int, ...]] = []
    maps: list[AgeMap] = []
    diverged = without = 0
    for cell in study.cells_list():
        for method in study.methods:
            records = shown_records(table, cell, method)
            well = [each for each in records if each.failed_at_epoch is None]
            aged = [each for each in well if "age" in each.over_time]
            diverged += len(records) - len(well)
            without += len(well) - len(aged)
            if aged:
                words = [title_of(study, cell), *([method.name] if len(study.methods) > 1 else [])]
                seeds.append(tuple(each.settings.seed for each in aged))
                titles.append(", ".join([*words, _over(seeds[-1])]))
                maps.append(age_map(aged))
    if not maps:
        raise _refusal(table)
    notes = missing(table)
    notes += [f"Not drawn: {many_runs(diverged)} that diverged."] if diverged else []
    notes += [f"Not drawn: {many_runs(without)} whose ages over time were not kept."] if without else []
    return Picture(_drawn(titles, maps), list(zip(titles, seeds, strict=True)), notes)


def age_map(records: Sequence[Record]) -> AgeMap:
    """Return the ages of runs that differ by their seeds alone: by epoch and class the mean over those that know it."""
    ages = np.array([each.over_time["age"] for each in records], dtype=np.float64)  # [S, E, C]; None becomes NaN
    known = ~np.isnan(ages)
    total, times = np.where(known, ages, 0.0).sum(0), known.sum(0)
    mean = np.divide(total, times, out=np.full(total.shape, np.nan), where=times > 0)
    epochs, classes = mean.shape
    time = time_unit(records[0].settings)
    return AgeMap(
        age=mean,
        epochs=np.arange(1, epochs + 1),
        counts=_sizes(records),
        names=[f"{label}" for label in range(classes)],  # records know no others
        time=time,
        unit=f"{time}s",
        numbered=True,
    )


def _sizes(records: Sequence[Record]) -> Ints | None:
    """Return how many training samples each class has; None where that is not on record, or is no one number.

    On a stream it changes from step to step. Where a run resamples and has no clean pass, its draws were counted.
    """
    run = records[0].settings
    found = [each.by_class["train_count"] for each in records if "train_count" in each.by_class]
    if not found or run.scenario == "stream" or (run.mechanism == "resample" and run.signal != "eval"):
        return None
    sizes: Ints = np.nan_to_num(np.array(found, dtype=np.float64)).mean(0).round().astype(np.int64)
    return sizes


@style.styled
def _drawn(titles: Sequence[str], maps: Sequence[AgeMap]) -> Figure:
    figure, panels = page_of(titles, max(each.height for each in maps))
    oldest = max(len(each.epochs) for each in maps) + 1  # that a class can be
    draw_ages(figure, panels, maps, largest=min(LARGEST, oldest))
    return figure


def _over(seeds: Sequence[int]) -> str:
    return f"seed {seeds[0]}" if len(seeds) == 1 else f"mean over {len(seeds)} seeds"


def _refusal(table: Table) -> WrongSettingsError:
    """Return why there is nothing to draw."""
    study, records = table.study, table.records.values()
    if all(each.failed_at_epoch is not None for each in records):
        return WrongSettingsError(f"All runs of {study.name} diverged: there are no ages to draw.")
    if any("age" in each.over_time for each in records):
        return not_whole(table)
    how = 'a study keeps them with keep = ["age"], offline and on streams'
    how = "aol study run makes such runs anew, with their ages" if "age" in study.keep else how
    return WrongSettingsError(f"No record of {study.name} has the ages of its classes over time: {how}.")
