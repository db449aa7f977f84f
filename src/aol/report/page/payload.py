"""What the page knows of its runs: one JSON object that stays small, whatever the number of classes and samples.

Assumes stories. What does not fit is thinned evenly or left out, and a note says so in plain words.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime

import numpy as np

from aol._version import __version__
from aol.engine.results import Json
from aol.report.page.advice import Advice, advise
from aol.report.page.codec import pack, rounded, spread
from aol.report.page.reading import confusion, last_known, trend
from aol.report.page.samples import EPOCHS, Album, describe
from aol.report.story import Story
from aol.report.summary import at_the_end, is_stream

RUNS = 24  # with details; the others are rows of a table
CLASSES = 100_000  # classes of all runs together, with details
CELLS = 1_000_000  # bytes of readings by class and epoch, all runs together
FEWEST = 12  # epochs; a reading that would have fewer is left out
POINTS = 500  # of a curve
SAMPLES = 2400  # rows of samples, all runs together
PICTURES = 900  # asked for, all runs together
ROOM = 1_200_000  # bytes of pictures
CHIPS = 12  # classes that a piece of advice names
NAME = 200  # letters of a name

# Readings by class that the page shows, the most wanted first, and whether small values are kept apart.
READINGS = {
    "age": 0.5, "test_accuracy": 1.0, "weight": 0.5, "train_accuracy": 1.0, "train_loss": 0.5, "train_margin": 1.0,
    "test_age": 0.5, "test_loss": 0.5, "test_margin": 1.0,
}  # fmt: skip

_ALL_SAMPLES = (
    "Samples: the oldest and the most doubtful of all and of each class are listed. "
    "The table of all samples: aol report RUN --export FILE.csv."
)


def payload(stories: Sequence[Story], *, refresh: float | None = None, now: datetime | None = None) -> dict[str, Json]:
    """Return all that a page shows; `refresh` is after how many seconds an open page looks for a newer one."""
    most = max([len(story.classes) for story in stories], default=1)
    detailed = min(len(stories), RUNS, max(2, CLASSES // max(1, most)))
    album, names, notes = Album(ROOM), list[list[str]](), list[str]()
    runs: list[Json] = []
    for place, story in enumerate(stories):
        classes = _unlike(story.classes)
        if classes not in names:
            names.append(classes)
        run = _summary(story) | {"set": names.index(classes)}
        if place < detailed:
            run |= _details(story, detailed, album, notes)
        runs.append(run)
    if detailed < len(stories):
        notes.append(
            f"{len(stories)} runs are listed; classes and samples are shown for the first {detailed} of them. "
            "Name fewer runs to see the others."
        )
    when = (now or datetime.now()).astimezone()
    return {
        "version": __version__,
        "written": when.strftime("%Y-%m-%d %H:%M:%S %Z"),
        "refresh": refresh,
        "classSets": [list(classes) for classes in names],
        "runs": runs,
        "pictures": list(album.urls),
        "notes": list(dict.fromkeys(notes)),
    }


def _summary(story: Story) -> dict[str, Json]:
    accuracy = story.curves.get("test_accuracy", np.zeros(0))
    end = at_the_end(accuracy, stream=is_stream(story)) if len(accuracy) else np.nan
    kept = spread(len(story.epochs), POINTS)
    curves: dict[str, Json] = {name: rounded(values[kept]) for name, values in sorted(story.curves.items())}
    return {
        "name": _short(story.name),
        "method": _short(story.method),
        "folder": str(story.folder),
        "finished": story.finished,
        "failed": story.failed_at,
        "planned": story.planned,
        "passed": len(story.epochs),
        "settings": {_short(key): _plain(value) for key, value in story.settings.items()},
        "versions": {_short(key): str(value) for key, value in story.versions.items()},
        "command": story.command,
        "epochs": story.epochs[kept].tolist(),
        "curves": curves,
        "lastAccuracy": _number(last_known(accuracy[:, None])[0]) if len(accuracy) else None,
        "tailAccuracy": _number(float(end)) if np.isfinite(end) else None,
        "details": False,
    }


def _details(story: Story, runs: int, album: Album, notes: list[str]) -> dict[str, Json]:
    found: dict[str, Json] = {
        "details": True,
        "counts": story.counts.tolist(),
        "advice": [_sentence(each) for each in advise(story)],
        "last": {name: pack(last_known(story.by_class[name])) for name in READINGS if name in story.by_class},
        "trend": pack(trend(story.by_class["age"])) if "age" in story.by_class else None,
        "byClass": _over_time(story, CELLS // runs, notes),
        "confused": None,
        "samples": None,
    }
    if story.samples is not None:
        num_classes = len(story.classes)
        answer, share = confusion(story.samples, num_classes)
        found["confused"] = {"answer": answer.tolist(), "share": rounded(share, 2)}
        about = describe(story.samples, num_classes, most=SAMPLES // (2 * runs), album=album, pictures=PICTURES // runs)
        found["samples"] = about
        _note_samples(story, about, album, notes)
    return found


def _sentence(advice: Advice) -> dict[str, Json]:
    first: list[Json] = list(advice.classes[:CHIPS])
    more = len(advice.classes) - len(first)
    return {"kind": advice.kind, "text": advice.text, "classes": first, "see": advice.see, "more": more}


def _over_time(story: Story, room: int, notes: list[str]) -> dict[str, Json]:
    """Return the readings by class over time: ages get half of the room, the others share the rest."""
    names = [name for name in READINGS if name in story.by_class]
    found: dict[str, Json] = {}
    for name in names:
        values = story.by_class[name]
        rows = np.flatnonzero(np.isfinite(values).any(1))  # the epochs in which it was read
        share = room // 2 if name == "age" else room // 2 // max(1, len(names) - 1)
        points = max(FEWEST, share // max(1, values.shape[1]))
        if name != "age" and share < FEWEST * values.shape[1] and len(rows) > points:
            notes.append(f"{_spoken(name)} is kept for the last epoch only.")
            continue
        kept = rows[spread(len(rows), points)]
        if len(kept) < len(rows):
            notes.append(f"{_spoken(name)} is kept for {len(kept)} of {len(rows)} epochs.")
        bits = 16 if 2 * len(kept) * values.shape[1] <= share else 8
        found[name] = pack(values[kept], bits=bits, power=READINGS[name]) | {"epochs": story.epochs[kept].tolist()}
    return found


def _note_samples(story: Story, about: dict[str, Json], album: Album, notes: list[str]) -> None:
    shown, old, doubted, total = about["id"], about["oldest"], about["doubtful"], about["total"]
    name = _short(story.name)
    assert isinstance(shown, list)
    assert isinstance(old, list)
    assert isinstance(doubted, list)
    assert isinstance(total, int)
    if len(shown) < total:
        if _ALL_SAMPLES not in notes:
            notes.append(_ALL_SAMPLES)
        notes.append(f"{name}, of {total:,} samples: {len(old):,} are listed as oldest, {len(doubted):,} as doubtful.")
    if len(story.epochs) > EPOCHS:
        notes.append(f"{name}: age histories of samples show the last {EPOCHS} of {len(story.epochs):,} epochs.")
    if album.full:
        notes.append("Pictures of the samples that come first are on the page; there was no room for more.")


def _spoken(name: str) -> str:
    return name.replace("_", " ").capitalize()


def _short(text: str) -> str:
    return text if len(text) <= NAME else text[: NAME - 1] + "…"


def _unlike(names: Sequence[str]) -> list[str]:
    """Return names that can be told apart: the second of one name, and of one beginning, gets a number.

    >>> _unlike(["cat", "dog", "cat"])
    ['cat', 'dog', 'cat (2)']
    """
    found: dict[str, None] = {}
    for name in map(_short, names):
        number = 2
        chosen = name
        while chosen in found:
            chosen, number = f"{name} ({number})", number + 1
        found[chosen] = None
    return list(found)


def _plain(value: object) -> Json:
    """Return a setting as JSON knows it; whatever else a loop of one's own may have noted becomes text."""
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    return str(value)


def _number(value: float) -> Json:
    return rounded(np.array([value]))[0]
