"""The status of a study: which of its runs are complete, in progress, missing or damaged. Only reads."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from aol.engine.settings import Settings, word
from aol.runs.groups import begun_groups
from aol.runs.record import FILE, DamagedRunError
from aol.runs.store import Store
from aol.runs.validate import is_complete, read_valid
from aol.study.spec import Cell, Study

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True)
class GroupStatus:
    """Runs that are trained as one network and not complete; `epoch` is that of the last checkpoint."""

    runs: tuple[str, ...]
    epoch: int
    epochs: int


@dataclass
class StudyStatus:
    """The status of a study, by run id; `damaged` also names the file and says why it is not used."""

    study: Study
    store: Store
    runs: dict[str, Settings]
    complete: set[str] = field(default_factory=set)
    failed: dict[str, int] = field(default_factory=dict)  # complete runs that diverged, and the epoch
    damaged: dict[str, tuple[Path, str]] = field(default_factory=dict)
    groups: list[GroupStatus] = field(default_factory=list)

    @property
    def in_progress(self) -> set[str]:
        """Runs that were begun and are not complete."""
        return {name for group in self.groups for name in group.runs if name in self.runs} - self.complete

    @property
    def missing(self) -> list[str]:
        """Runs that are neither complete nor begun, in the order of the study."""
        begun = self.complete | self.in_progress
        return [name for name in self.runs if name not in begun]

    def as_dict(self) -> dict[str, object]:
        """Return the status for JSON."""
        return {
            "study": self.study.name,
            "out": str(self.store.folder),
            "runs": len(self.runs),
            "complete": len(self.complete),
            "in_progress": len(self.in_progress),
            "missing": len(self.missing),
            "failed": self.failed,
            "damaged": [{"file": str(path), "why": why} for path, why in self.damaged.values()],
            "groups": [{"runs": len(each.runs), "epoch": each.epoch, "epochs": each.epochs} for each in self.groups],
        }

    def table(self) -> Table:
        """Return the complete runs of each cell, as a table for a terminal."""
        from rich.table import Table

        table = Table(*self.study.cells, "complete", "runs")
        for cell, done, runs in by_cell(self.study, self.complete):
            table.add_row(*(word(value) for value in cell.values()), str(done), str(runs))
        return table

    def lines(self) -> list[str]:
        """Return the status in sentences, and what to do next."""
        found = [
            f"{len(self.complete)}/{len(self.runs)} runs complete, {len(self.in_progress)} in progress, "
            f"{len(self.missing)} missing, {len(self.damaged)} damaged; in {self.store.folder / 'runs'}."
        ]
        for each in self.groups:
            many = "1 run" if len(each.runs) == 1 else f"{len(each.runs)} runs"
            found.append(f"In progress: {many}, epoch {each.epoch}/{each.epochs} at the last checkpoint.")
        found += [f"Damaged: {path}: {why}." for path, why in self.damaged.values()]
        for name, epoch in self.failed.items():
            run = self.runs[name]
            found.append(f"Diverged: {run.method}, seed {run.seed} ({name}): its loss was not finite in epoch {epoch}.")
        if len(self.complete) < len(self.runs):
            found.append("Run `aol study run` with the same arguments to train missing or damaged runs.")
        return found


def study_status(study: Study, store: Store) -> StudyStatus:
    """Return the status of a study in a store."""
    status = StudyStatus(study, store, {run.run_id: run for run in study.all_runs()})
    for name, settings in status.runs.items():
        try:
            run = read_valid(store, settings)
        except DamagedRunError as error:
            status.damaged[name] = (store.path(name) / FILE, str(error))
            continue
        if is_complete(run, study.keep):
            status.complete.add(name)
            if run and run.failed_at_epoch:
                status.failed[name] = run.failed_at_epoch
    for group in begun_groups(store):
        names = tuple(run.run_id for run in group.runs)
        if not (status.runs.keys() - status.complete).isdisjoint(names):
            records = [each for name in names if (each := store.get(name)) is not None]
            last = max((int(each.epochs[-1]) for each in records if len(each.epochs)), default=0)
            status.groups.append(GroupStatus(names, last, group.runs[0].epochs))
    return status


def by_cell(study: Study, names: Iterable[str]) -> list[tuple[Cell, int, int]]:
    """Return each cell with how many of its runs are among these, and how many it has."""
    some, found = set(names), []
    for cell in study.cells_list():
        runs = {run.run_id for run in study.cell_runs(cell)}
        found.append((cell, len(runs & some), len(runs)))
    return found
