"""The data of the page: one JSON object that stays small, whatever the number of classes and samples.

What does not fit is thinned evenly or left out, and a note on the page says so.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import numpy as np

from aol._values import unlike
from aol._version import __version__
from aol.records.compare import MethodRow
from aol.records.metrics import MEASURES, at_the_end, is_stream
from aol.records.record import Json, Run, numbers
from aol.report.advice import Advice, advise
from aol.report.codec import pack, spread
from aol.report.figures.survival import survival_by_part
from aol.report.methods import answer, method_rows
from aol.report.run_data import RunData, last_known, trend
from aol.report.samples import EPOCHS, Album, Samples, describe

RUNS = 24  # with details; the others are rows of a table
CLASSES = 100_000  # classes of all runs together, with details
CELLS = 1_000_000  # bytes of readings by class and epoch, all runs together
COLUMNS = 10_000  # epochs of a reading: more than a screen has, fewer than a browser fails on
FEWEST = 12  # epochs; a reading that would have fewer is left out
POINTS = 500  # of a curve
DIGITS = 5  # of a number
METHODS = 50  # rows of the table of classes by method
SAMPLES = 2400  # rows of samples, all runs together
PICTURES = 900  # asked for, all runs together
ROOM = 1_200_000  # bytes of pictures
CHIPS = 12  # classes that a piece of advice names
NAME = 200  # letters of a name

# Readings by class on the page, the most important first, and the power of their scale: below 1, small values spread.
READINGS = {
    "age": 0.5, "test_accuracy": 1.0, "weight": 0.5, "train_accuracy": 1.0, "smoothed_age": 0.5, "train_loss": 0.5,
    "train_margin": 1.0, "test_age": 0.5, "test_loss": 0.5, "test_margin": 1.0, "mean_age": 0.5,
}  # fmt: skip

_ALL_SAMPLES = (
    "Samples: the oldest and the most doubtful of all and of each class are listed. "
    "The table of all samples: aol report RUN --export FILE.csv."
)


def payload(runs: Sequence[RunData], *, refresh: float | None = None, now: datetime | None = None) -> dict[str, Json]:
    """Return what the page shows; an open page loads itself again after `refresh` seconds."""
    most = max([len(data.run.classes) for data in runs], default=1)
    detailed = min(len(runs), RUNS, max(2, CLASSES // max(1, most)))
    album, names, notes = Album(ROOM), list[list[str]](), list[str]()
    shown: list[Json] = []
    methods = method_rows([data.run for data in runs])
    for place, data in enumerate(runs):
        classes = unlike(map(_short, data.run.classes))
        if classes not in names:
            names.append(classes)
        run = _summary(data, measures=place < detailed) | {"set": names.index(classes)}
        if place < detailed:
            run |= _details(data, methods, detailed, album, notes)
        shown.append(run)
    if detailed < len(runs):
        notes.append(
            f"{len(runs)} runs are listed; classes and samples are shown for the first {detailed} of them. "
            "Give fewer runs to see the others."
        )
    when = (now or datetime.now()).astimezone()
    return {
        "version": __version__,
        "title": _title(runs, when),
        "written": when.strftime("%Y-%m-%d %H:%M:%S %Z"),
        "refresh": refresh,
        "classSets": [list(classes) for classes in names],
        "runs": shown,
        "methods": _methods(methods, notes),
        "pictures": list(album.urls),
        "notes": list(dict.fromkeys(notes)),
    }


def _title(runs: Sequence[RunData], when: datetime) -> str:
    """Return what the page is about: the data sets, else the folder of the runs, and the date."""
    sets = dict.fromkeys(str(name) for data in runs if (name := data.run.settings.get("data") or data.run.data))
    folders = dict.fromkeys(data.folder.name for data in runs)
    names = list(sets or folders)
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"{_short(', '.join(names[:3]))}{more}, {when.strftime('%Y-%m-%d')}"


def _methods(rows: Sequence[MethodRow], notes: list[str]) -> dict[str, Json]:
    """Return the methods side by side: what is to be said of them, other measures by name, and a row a method."""
    if len(rows) > METHODS:
        notes.append(f"Methods: the first {METHODS} of {len(rows)} are listed.")
    shown: list[Json] = []
    for row in rows[:METHODS]:
        gain = row.gain
        ends = gain.interval if gain is not None else None
        accuracy, spread_, *others = numbers([row.mean, row.spread, *row.measures.values()], DIGITS)
        shown.append(
            {
                "name": _short(row.name), "method": _short(row.method), "seeds": row.seeds, "accuracy": accuracy,
                "spread": spread_, "gain": None if gain is None else numbers([gain.mean], DIGITS)[0],
                "interval": None if ends is None else numbers(ends, DIGITS), "measures": others,
            }
        )  # fmt: skip
    baseline = next((row.baseline for row in rows if row.gain is not None), None)
    measures: list[Json] = [*rows[0].measures] if rows else []
    return {"answer": answer(rows), "baseline": baseline, "measures": measures, "rows": shown}


def _summary(data: RunData, *, measures: bool) -> dict[str, Json]:
    """Return a row of the table of runs, and its curves; those of the classes only where `measures`."""
    run = data.run
    left_out = _repeated(run) if measures else {f"test_{name}" for name in MEASURES}
    accuracy = run.curves.get("test_accuracy", np.full(1, np.nan))
    end = at_the_end(accuracy, stream=is_stream(run))
    last, tail = numbers([last_known(accuracy), end], DIGITS)
    kept = spread(len(run.epochs), POINTS)
    return {
        "name": _short(data.name),
        "method": _short(run.method),
        "folder": str(data.folder),
        "finished": run.finished,
        "failed": run.failed_at_epoch,
        "planned": run.planned,
        "passed": len(run.epochs),
        "settings": {_short(key): _plain(value) for key, value in run.settings.items()},
        "versions": {_short(key): value for key, value in run.versions.items()},
        "command": run.command,
        "epochs": run.epochs[kept].tolist(),
        "curves": {
            name: numbers(values[kept], DIGITS) for name, values in sorted(run.curves.items()) if name not in left_out
        },
        "lastAccuracy": last,
        "tailAccuracy": tail,
        "details": False,
    }


def _repeated(run: Run) -> set[str]:
    """Return curves that repeat another, as on a balanced test set."""
    pairs = {"test_balanced_accuracy": "test_accuracy", "test_worst_tenth": "test_worst_class"}
    return {
        name
        for name, other in pairs.items()
        if name in run.curves
        and np.allclose(run.curves[name], run.curves.get(other, np.nan), atol=1e-6, equal_nan=True)
    }


def _details(data: RunData, methods: Sequence[MethodRow], runs: int, album: Album, notes: list[str]) -> dict[str, Json]:
    run = data.run
    last = {name: data.last(name) for name in READINGS}
    found: dict[str, Json] = {
        "details": True,
        "counts": None if run.counts is None else list(run.counts),
        "advice": [_sentence(each) for each in advise(data, methods)],
        "last": {name: pack(values) for name, values in last.items() if values is not None},
        "trend": pack(trend(run.over_time["age"])) if "age" in run.over_time else None,
        "byClass": _over_time(run, CELLS // runs, notes),
        "confused": None,
        "matrix": None,
        "survival": [],
        "samples": None,
    }
    if data.samples is not None:
        size, most = len(run.classes), SAMPLES // (2 * runs)
        answer, share = data.samples.confusion(size)
        found["confused"] = {"answer": answer.tolist(), "share": numbers(share, 2)}
        classes, counts = data.samples.confusion_matrix(size)
        found["matrix"] = {"classes": list(classes), "counts": [[*row] for row in counts], "total": size}
        found["survival"] = _survival(run, data.samples)
        found["samples"] = about = describe(data.samples, size, most=most, album=album, pictures=PICTURES // runs)
        _note_samples(data, about, album, notes)
    return found


def _survival(run: Run, samples: Samples) -> list[Json]:
    """Return how long errors last, by part of the classes: the share still open after t epochs, and the median."""
    found: list[Json] = []
    for part_, episodes, curve in survival_by_part(run, samples):
        kept = spread(len(curve.t), POINTS // 5)
        found.append(
            {
                "name": part_.name, "t": curve.t[kept].tolist(), "share": numbers(curve.share[kept], 4),
                "episodes": episodes.count, "open": int(episodes.open.sum()),
                "median": numbers([curve.median], DIGITS)[0],
            }
        )  # fmt: skip
    return found


def _sentence(advice: Advice) -> dict[str, Json]:
    first: list[Json] = list(advice.classes[:CHIPS])
    more = len(advice.classes) - len(first)
    return {"kind": advice.kind, "text": advice.text, "classes": first, "see": advice.see, "more": more}


def _over_time(run: Run, room: int, notes: list[str]) -> dict[str, Json]:
    """Return the readings by class over time: ages get half of the bytes, the others share the rest."""
    names = [name for name in READINGS if name in run.over_time]
    found: dict[str, Json] = {}
    for name in names:
        values = run.over_time[name]
        rows = np.flatnonzero(np.isfinite(values).any(1))  # the epochs in which it was read
        share = room // 2 if name == "age" else room // 2 // max(1, len(names) - 1)
        points = min(COLUMNS, max(FEWEST, share // max(1, values.shape[1])))
        if name != "age" and share < FEWEST * values.shape[1] and len(rows) > points:
            notes.append(f"{_spoken(name)} is kept for the last epoch only.")
            continue
        kept = rows[spread(len(rows), points)]
        if len(kept) < len(rows):
            notes.append(f"{_spoken(name)} is kept for {len(kept):,} of {len(rows):,} epochs.")
        bits = 16 if 2 * len(kept) * values.shape[1] <= share else 8
        found[name] = pack(values[kept], bits=bits, power=READINGS[name]) | {"epochs": run.epochs[kept].tolist()}
    return found


def _note_samples(data: RunData, about: dict[str, Any], album: Album, notes: list[str]) -> None:
    name, epochs, total = _short(data.name), len(data.run.epochs), about["total"]
    if len(about["id"]) < total:
        old, doubted = len(about["oldest"]), len(about["doubtful"])
        notes += [_ALL_SAMPLES, f"{name}, of {total:,} samples: {old:,} are listed as oldest, {doubted:,} as doubtful."]
    if epochs > EPOCHS:
        notes.append(f"{name}: age histories of samples show the last {EPOCHS} of {epochs:,} epochs.")
    if album.full:
        notes.append("The page has pictures of the first samples only, to stay small.")


def _spoken(name: str) -> str:
    return name.replace("_", " ").capitalize()


def _short(text: str) -> str:
    return text if len(text) <= NAME else text[: NAME - 1] + "…"


def _plain(value: object) -> Json:
    """Return a setting as JSON; whatever JSON cannot express becomes text."""
    fits = value is None or isinstance(value, str | int) or (isinstance(value, float) and math.isfinite(value))
    return value if fits else str(value)  # type: ignore[return-value]
