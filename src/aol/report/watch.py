"""Follow runs that are being trained: call `write` whenever their records change, until all have finished.

Records may be missing for a moment, or not be there yet: then it waits and tries again.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from aol.report.run_data import RunData, load
from aol.runs import record, samples, store

RECORDS = frozenset((record.FILE, samples.FILE, store.REQUEST))  # other files in the folder may change
_SHARE = 0.5  # of the time at most is spent on reading and writing


def watch(
    paths: Sequence[Path],
    write: Callable[[list[RunData], bool], None],
    *,
    every: float,
    say: Callable[[str], None],
    sleep: Callable[[float], None] = time.sleep,
) -> list[RunData]:
    """Call `write(runs, finished)` for the runs in some folders, now and after each change; return the last runs.

    Looks every few seconds, and less often where reading takes long. A problem is reported once.
    """
    before: frozenset[Mark] = frozenset()
    said = ""
    while True:
        begun = time.monotonic()
        now = marks(paths)
        problem = ""
        if now != before:
            try:
                runs = load(*paths)
                if runs:
                    finished = all_finished(paths, runs)
                    write(runs, finished)
                    if finished:
                        return runs
                    before = now
                else:
                    problem = "no epoch has finished yet; waiting."
            except (store.NoRunsError, record.DamagedRunError, OSError) as reason:
                problem = f"{reason} Waiting."
        elif not now:
            problem = f"{', '.join(map(str, paths))}: no runs yet; waiting."
        if problem and problem != said:
            say(problem)
        said = problem
        sleep(max(every, (time.monotonic() - begun) / _SHARE))


Mark = tuple[str, int, int]


def marks(paths: Sequence[Path]) -> frozenset[Mark]:
    """Return what changes when records do: the name, time and size of every record."""
    return frozenset(mark for path in paths for mark in _marks(path))


def _marks(path: Path) -> Iterator[Mark]:
    for folder, folders, names in os.walk(path):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in RECORDS.intersection(names):
            file = os.path.join(folder, name)
            try:
                about = os.stat(file)
            except OSError:  # removed since
                continue
            yield file, about.st_mtime_ns, about.st_size


def all_finished(paths: Sequence[Path], runs: Sequence[RunData]) -> bool:
    """Return whether all runs that were asked for in these folders have finished; a run without a record has not."""
    places = [path.resolve() for path in paths]
    done = {data.folder.resolve() for data in runs if data.run.finished}
    folders = {*places, *(data.folder.resolve().parent.parent for data in runs)}
    for folder in folders:
        if any(folder.is_relative_to(place) for place in places):
            ids = (store.read_request(folder) or {}).get("ids")
            if isinstance(ids, list) and not all(store.Store(folder).path(str(each)) in done for each in ids):
                return False
    return len(done) == len(runs)
