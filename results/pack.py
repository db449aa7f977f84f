"""Move records of new runs into `runs.jsonl` of their folder, without readings that no page uses: `make results`."""

import sys
from dataclasses import replace
from pathlib import Path

from aol.lab.study import builtin_names, load
from aol.records.store import Store, pack

CURVES = ("test_", "validation_", "prequential_", "threshold")  # accuracies, and steps in which no class grew older
studies = [load(name) for name in [*builtin_names(), *map(str, Path("results/studies").glob("*.toml"))]]
aged = {run.run_id for study in studies if "age" in study.keep for run in study.all_runs()}
for folder in sys.argv[1:]:
    store = Store(folder)
    for path in Path(folder, "runs").glob("*/run.json"):
        run = store.read(path.parent.name)
        if run is not None and run.finished:
            curves = {name: values for name, values in run.curves.items() if name.startswith(CURVES)}
            over_time = run.over_time if run.id in aged else {}
            store.write(replace(run, curves=curves, over_time=over_time, command=None))
    print(f"{folder}: {pack(folder)} records")
