"""Where a study stands, in words and for programs."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from aol.study.plan import Standing, by_cell
from aol.study.records import Store
from aol.study.spec import Study, shown


def counts(study: Study, store: Store, found: Standing) -> dict[str, object]:
    """Return where a study stands, for JSON."""
    return {
        "study": study.name,
        "out": str(store.folder),
        "runs": len(found.runs),
        "done": len(found.done),
        "under_way": len(found.under_way),
        "left_behind": len(found.left_behind),
        "missing": len(found.missing),
        "failed": found.failed,
        "damaged": [{"file": str(path), "why": why} for path, why in found.damaged.values()],
        "stacks": [
            {
                "runs": len(held.stack.runs),
                "epoch": held.stack.stand(),
                "epochs": held.stack.runs[0].epochs,
                "host": held.host,
                "pid": held.pid,
                "alive": held.alive,
            }
            for held in found.stacks
        ],
    }


def report(study: Study, store: Store, found: Standing) -> None:
    """Print where a study stands: a line a cell, then what is under way, what is wrong, and what to do next."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 120
    table = Table(*study.cells, "done", "of")
    for cell, done, runs in by_cell(study, found.done):
        table.add_row(*(shown(value) for value in cell.values()), str(done), str(runs))
    console.print(f"{study.name}: {study.title}", soft_wrap=True, markup=False)
    console.print(table)
    lines = [
        f"{len(found.done)} of {len(found.runs)} runs done, {len(found.under_way)} under way, "
        f"{len(found.left_behind)} left behind, {len(found.missing)} missing, {len(found.damaged)} damaged; "
        f"records in {store.folder / 'records'}."
    ]
    for held in found.stacks:
        state = {True: "under way", False: "left behind", None: "under way, if it is still there,"}[held.alive]
        epoch = f"epoch {held.stack.stand()} of {held.stack.runs[0].epochs}"
        lines.append(f"{len(held.stack.runs)} runs {state} after {epoch}: process {held.pid} on {held.host}.")
    lines += [f"Damaged: {path}: {why}." for path, why in found.damaged.values()]
    for name, at in found.failed.items():
        run = found.runs[name]
        lines.append(f"Diverged: {run.method}, seed {run.seed} ({name}): its loss was not finite in epoch {at}.")
    if len(found.done) < len(found.runs):
        lines.append("What is missing, damaged or left behind is done by the next `aol study run` with the same words.")
    for line in lines:
        console.print(line, soft_wrap=True, markup=False)
