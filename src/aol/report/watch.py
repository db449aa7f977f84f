"""Follow runs that go on: call `write` whenever their records change, until all of them are over.

Assumes that records may be half written, gone for a moment, or not there yet: then it waits and tries again.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from aol.records.tables import DamagedRecordsError
from aol.report.story import NoRecordsError, Story, load

# What `aol train` and `aol.Recorder` write; anything else in the folder may change without a word.
RECORDS = frozenset(
    ("runs.json", "settings.json", "about.json", "epochs.csv", "classes.csv", "samples.safetensors", "result.json")
)
_SHARE = 0.5  # of the time at most is spent on reading and writing


def watch(
    paths: Sequence[Path],
    write: Callable[[list[Story], bool], None],
    *,
    every: float,
    say: Callable[[str], None],
    sleep: Callable[[float], None] = time.sleep,
) -> list[Story]:
    """Call `write(stories, over)` for the runs in some folders, now and after each change; return the last stories.

    Looks every few seconds, and less often where reading takes long. What is in the way is said once.
    """
    before: frozenset[Mark] = frozenset()
    said = ""
    while True:
        begun = time.monotonic()
        now = marks(paths)
        trouble = ""
        if now != before:
            try:
                stories = load(*paths)
                if stories:
                    over = all_over(paths, stories)
                    write(stories, over)
                    if over:
                        return stories
                    before = now
                else:
                    trouble = "nothing is written yet; waiting."
            except (NoRecordsError, DamagedRecordsError, OSError) as reason:
                trouble = f"{reason} Waiting."
        elif not now:
            trouble = f"{', '.join(map(str, paths))}: no records yet; waiting."
        if trouble and trouble != said:
            say(trouble)
        said = trouble
        sleep(max(every, (time.monotonic() - begun) / _SHARE))


Mark = tuple[str, int, int]


def marks(paths: Sequence[Path]) -> frozenset[Mark]:
    """Return what changes when records do: every record's name, time and size."""
    return frozenset(mark for path in paths for mark in _marks(path))


def _marks(path: Path) -> Iterator[Mark]:
    for folder, folders, names in os.walk(path):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in RECORDS.intersection(names):
            file = os.path.join(folder, name)
            try:
                about = os.stat(file)
            except OSError:  # gone since
                continue
            yield file, about.st_mtime_ns, about.st_size


def all_over(paths: Sequence[Path], stories: Sequence[Story]) -> bool:
    """Whether all runs that were asked for in these folders are over; those that have not begun are not."""
    places = [path.resolve() for path in paths]
    lists = {path / "runs.json" for path in places} | {story.folder.parent.parent / "runs.json" for story in stories}
    inside = [each for each in lists if any(each.resolve().is_relative_to(place) for place in places)]
    asked = sum(_length(each) for each in inside)
    return all(story.finished for story in stories) and len(stories) >= asked


def _length(path: Path) -> int:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return 0
    except ValueError as error:
        raise DamagedRecordsError(f"{path}: not a whole JSON file.") from error
    return len(found) if isinstance(found, list) else 0
