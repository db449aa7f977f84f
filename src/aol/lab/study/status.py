"""The status of a study: which of its runs are complete, in progress, missing or damaged. Only reads."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from aol.lab.settings import Settings
from aol.lab.study.spec import Cell, Study, plural
from aol.lab.train.groups import begun_groups
from aol.lab.train.validate import is_complete, read_valid
from aol.records.record import FILE, DamagedRunError
from aol.records.store import Store


@dataclass
class StudyStatus:
    """The status of a study, by run id; `damaged` also names the file and says why it is not used.

    `groups` are the runs that are trained as one network and not complete: how many, the epoch of the last checkpoint,
    and how many epochs there will be.
    """

    study: Study
    store: Store
    runs: dict[str, Settings]
    complete: set[str] = field(default_factory=set)
    failed: dict[str, int] = field(default_factory=dict)  # complete runs that diverged, and the epoch
    damaged: dict[str, tuple[Path, str]] = field(default_factory=dict)
    in_progress: set[str] = field(default_factory=set)  # begun, and not complete
    groups: list[dict[str, int]] = field(default_factory=list)

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
            "groups": self.groups,
        }

    def lines(self) -> list[str]:
        """Return the status in sentences, and what to do next."""
        found = [
            f"{len(self.complete)}/{len(self.runs)} runs complete, {len(self.in_progress)} in progress, "
            f"{len(self.missing)} missing, {len(self.damaged)} damaged; in {self.store.folder / 'runs'}."
        ]
        for each in self.groups:
            runs = plural(each["runs"], "run")
            found.append(f"In progress: {runs}, epoch {each['epoch']}/{each['epochs']} at the last checkpoint.")
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
        names = [run.run_id for run in group.runs]
        left = (status.runs.keys() - status.complete) & set(names)
        if left:
            records = [each for name in names if (each := store.get(name)) is not None]
            last = max((int(each.epochs[-1]) for each in records if len(each.epochs)), default=0)
            status.in_progress |= left
            status.groups.append({"runs": len(names), "epoch": last, "epochs": group.runs[0].epochs})
    return status


def by_cell(study: Study, names: Iterable[str]) -> list[tuple[Cell, int, int]]:
    """Return each cell with how many of its runs are among these, and how many it has."""
    some, found = set(names), []
    for cell in study.cells_list():
        runs = {run.run_id for run in study.cell_runs(cell)}
        found.append((cell, len(runs & some), len(runs)))
    return found
