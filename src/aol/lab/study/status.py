"""The status of a study: which of its runs are complete, in progress, missing or damaged. Only reads."""

from __future__ import annotations

import pandas as pd

from aol.lab.study.results import rows_of
from aol.lab.study.spec import Study, cell_name
from aol.lab.train.groups import begun_groups
from aol.lab.train.validate import is_complete, read_valid
from aol.records.record import DamagedRunError
from aol.records.store import Store

_STATES = COMPLETE, BEGUN, MISSING, DAMAGED = "complete", "in_progress", "missing", "damaged"


def status_frame(study: Study, store: Store) -> pd.DataFrame:
    """Return a row for each run, by id: `cell`, `method`, `seed`, `state`, `why` (damaged), `epoch`, `failed`.

    `epoch` is the last one on record, `failed` that in which a run diverged; both 0 without such. A run that several
    cells share is in the first of them.
    """
    begun = {run.run_id for group in begun_groups(store) for run in group.runs}
    rows = []
    for cell in study.cells_list():
        for settings in study.cell_runs(cell):
            row = {"id": settings.run_id, "cell": cell_name(cell), "method": settings.method, "seed": settings.seed}
            row |= {"state": BEGUN if settings.run_id in begun else MISSING, "why": "", "epoch": 0, "failed": 0}
            try:
                run = read_valid(store, settings)
            except DamagedRunError as error:
                row |= {"state": DAMAGED, "why": str(error)}
            else:
                if run is not None:
                    row |= {"state": COMPLETE} if is_complete(run, study.keep) else {}
                    row |= {"failed": run.failed_at_epoch or 0, "epoch": int(max(run.epochs, default=0))}
            rows.append(row)
    return pd.DataFrame(rows).drop_duplicates("id").set_index("id")


def status_dict(study: Study, store: Store, frame: pd.DataFrame) -> dict[str, object]:
    """Return the status for JSON: how many runs are in each state, which are damaged, and which diverged."""
    number = {state: int((frame["state"] == state).sum()) for state in _STATES}
    number[MISSING] += number.pop(DAMAGED)
    damaged = [{"run": name, "why": why} for name, why in _damaged(frame).items()]
    failed = frame["failed"][frame["failed"] > 0].to_dict()
    return {"study": study.name, "out": str(store.folder), "runs": len(frame), **number} | {
        "failed": failed,
        "damaged": damaged,
    }


def _damaged(frame: pd.DataFrame) -> pd.Series[str]:
    return frame["why"][frame["state"] == DAMAGED]


def status_lines(frame: pd.DataFrame) -> list[str]:
    """Return the status in sentences, and what to do next."""
    done, begun, left, damaged = (int((frame["state"] == state).sum()) for state in _STATES)
    lines = [f"{done}/{len(frame)} runs complete, {begun} in progress, {left + damaged} missing, {damaged} damaged."]
    lines += [f"Damaged: {name}: {why}." for name, why in _damaged(frame).items()]
    for row in rows_of(frame[frame["failed"] > 0]):
        what = f"its loss was not finite in epoch {row.failed}"
        lines.append(f"Diverged: {row.method}, seed {row.seed} ({row.Index}): {what}.")
    if done < len(frame):
        lines.append("Run `aol study run` with the same arguments to train missing or damaged runs.")
    return lines
