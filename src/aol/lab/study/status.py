"""The status of a study: which of its runs are complete, in progress, missing or damaged. Only reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from aol.lab.study.spec import Study, cell_name
from aol.lab.train.folder import begun_groups, is_complete, read_valid
from aol.records.record import DamagedRunError
from aol.records.store import Store

COMPLETE, BEGUN, MISSING, DAMAGED = "complete", "in_progress", "missing", "damaged"


def status_frame(study: Study, store: Store) -> pd.DataFrame:
    """Return a row for each run, by id: `cell`, `method`, `seed`, `state`, `why` (damaged), `failed`.

    `failed` is the epoch in which a run diverged, or 0. A run that several cells share is in the first of them.
    """
    begun = {run.run_id for group in begun_groups(store) for run in group.runs}
    rows = []
    for cell in study.cells_list():
        for settings in study.cell_runs(cell):
            row = {"id": settings.run_id, "cell": cell_name(cell), "method": settings.method, "seed": settings.seed}
            row |= {"state": BEGUN if settings.run_id in begun else MISSING, "why": "", "failed": 0}
            try:
                run = read_valid(store, settings)
            except DamagedRunError as error:
                row |= {"state": DAMAGED, "why": str(error)}
            else:
                if run is not None:
                    row |= {"state": COMPLETE} if is_complete(run, study.keep) else {}
                    row |= {"failed": run.failed_at_epoch or 0}
            rows.append(row)
    return pd.DataFrame(rows).drop_duplicates("id").set_index("id")


def status_dict(study: Study, store: Store, frame: pd.DataFrame) -> dict[str, Any]:
    """Return the status for JSON: how many runs are in each state, which are damaged, and which diverged."""
    number = {state: int((frame["state"] == state).sum()) for state in (COMPLETE, BEGUN, MISSING)}
    damaged = frame["why"][frame["state"] == DAMAGED]
    number[MISSING] += len(damaged)
    return {"study": study.name, "out": str(store.folder), "runs": len(frame), **number} | {
        "failed": frame["failed"][frame["failed"] > 0].to_dict(),
        "damaged": [{"run": name, "why": why} for name, why in damaged.items()],
    }


def status_lines(status: Mapping[str, Any], frame: pd.DataFrame) -> list[str]:
    """Return the status in sentences, and what to do next."""
    damaged = status["damaged"]
    line = f"{status[COMPLETE]}/{len(frame)} runs complete, {status[BEGUN]} in progress, {status[MISSING]} missing"
    lines = [f"{line}, {len(damaged)} damaged."]
    lines += [f"Damaged: {own['run']}: {own['why']}." for own in damaged]
    for name, epoch in status["failed"].items():
        run = f"{frame['method'][name]}, seed {frame['seed'][name]} ({name})"
        lines.append(f"Diverged: {run}: its loss was not finite in epoch {epoch}.")
    if status[COMPLETE] < len(frame):
        lines.append("Run `aol study run` with the same arguments to train missing or damaged runs.")
    return lines
