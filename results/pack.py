"""Move records of new runs into `runs.jsonl` of their folder, without readings that no page uses: `make results`."""

import re
import shutil
import sys
from dataclasses import replace
from pathlib import Path

from aol._files import write_atomically
from aol.lab.study import builtin_names, load
from aol.records.record import FILE, PACKED, content_of, packed_runs
from aol.records.store import Store

CURVES = ("test_", "validation_", "prequential_", "threshold")  # accuracies, and steps in which no class grew older


def shorten(store: Store, aged: set[str]) -> None:
    """Drop the readings by epoch that no page uses from finished runs that are not packed."""
    for path in (store.folder / "runs").glob(f"*/{FILE}"):
        run = store.read(path.parent.name)
        if run is not None and run.finished:
            curves = {name: values for name, values in run.curves.items() if name.startswith(CURVES)}
            over_time = run.over_time if run.id in aged else {}
            store.write(replace(run, curves=curves, over_time=over_time, command=None))


def pack(store: Store) -> int:
    """Move the records of finished runs into one file of their store; return how many records that file has.

    Folders of runs with more than a record (samples, networks) stay as they are.
    """
    with store.lock():
        folders = [path.parent for path in (store.folder / "runs").glob(f"*/{FILE}")]
        alone = [
            path for path in folders if [*path.iterdir()] == [path / FILE] and re.fullmatch("[0-9a-f]+", path.name)
        ]
        moved = {path.name for path in alone if (run := store.get(path.name)) is not None and run.finished}
        names = sorted({*packed_runs(store.folder / PACKED), *moved})
        write_atomically(store.folder / PACKED, b"".join(content_of(store.path(name)) for name in names))
        for name in moved:
            shutil.rmtree(store.path(name))
    return len(names)


if __name__ == "__main__":
    studies = [load(name) for name in [*builtin_names(), *map(str, Path("results/studies").glob("*.toml"))]]
    aged = {run.run_id for study in studies if "age" in study.keep for run in study.all_runs()}
    for folder in sys.argv[1:]:
        shorten(Store(folder), aged)
        print(f"{folder}: {pack(Store(folder))} records")
