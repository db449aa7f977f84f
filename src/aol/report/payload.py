"""The data of the page, a small JSON object: what does not fit is thinned evenly or left out, and a note says so."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from datetime import datetime
from itertools import zip_longest
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from aol._version import __version__
from aol.records.compare import Methods, methods_of, worst_classes
from aol.records.metrics import MEASURES, at_the_end, is_stream
from aol.records.previews import png
from aol.records.record import Ints, Json, Run, numbers
from aol.records.samples import Shorts
from aol.records.table import frame_of, unlike
from aol.report.advice import advise
from aol.report.run_data import AnswersOnTest, RunData, Samples, confusion_matrix, last_known, trend

RUNS = 24  # with details; the others are rows of a table
LISTED = 500  # rows of the table of runs; the methods are those of all runs
CLASSES = 100_000  # classes of all runs together, with details
CELLS = 1_000_000  # bytes of readings by class and epoch, all runs together
COLUMNS = 10_000  # epochs of a reading: more than a screen has, fewer than a browser fails on
FEWEST = 12  # epochs; a reading that would have fewer is left out
POINTS = 500  # of a curve
DIGITS = 5  # of a number
METHODS = 50  # rows of the table of classes by method
SAMPLES = 2400  # rows of samples, all runs together
TESTED = 800  # test samples that are wrong, all runs together
EPOCHS = 400  # of an age history; the last ones
PICTURES = 900  # asked for, all runs together
ROOM = 1_200_000  # bytes of pictures
CHIPS = 12  # classes that a piece of advice names
NAME = 200  # letters of a name
LETTERS = 1000  # of a sample's own name: a path is of use only whole
BARS = 60  # of the histogram of ages

# Readings by class on the page, the most important first, and the power of their scale: below 1, small values spread.
READINGS = {
    "age": 0.5, "test_accuracy": 1.0, "weight": 0.5, "train_accuracy": 1.0, "smoothed_age": 0.5, "train_loss": 0.5,
    "train_margin": 1.0, "test_age": 0.5, "test_loss": 0.5, "test_margin": 1.0, "mean_age": 0.5,
}  # fmt: skip

_USED_BY = (  # a setting of `aol train`, some of its values, and the settings that have a meaning with these only
    ("scenario", "arrival stream", "fraction"), ("scenario", "stream", "stream period memory threshold"),
    ("nuisance", "tint patch", "conflicts"), ("loss", "focal", "gamma"),
    ("weighting", "cb aol cb+aol frequency error sample-error sample-loss", "temper"),
    ("weighting", "cb aol cb+aol frequency error sample-error sample-loss old jtt", "mechanism divide_by start"),
    ("weighting", "aol cb+aol error aol-seen", "rho"), ("weighting", "aol cb+aol", "level fuse"),
    ("weighting", "cb cb+aol", "beta"), ("weighting", "frequency", "power"), ("weighting", "old jtt", "after factor"),
    ("margin", "counts counts-seen probability probability-seen", "tau"), ("margin", "counts-seen", "margin_memory"),
    ("margin", "probability error age", "gain"), ("margin", "probability probability-seen error age", "margin_steps"),
)  # fmt: skip


def payload(runs: Sequence[RunData], *, now: datetime | None = None) -> dict[str, Json]:
    """Return what the page shows."""
    most = max([len(data.run.classes) for data in runs], default=1)
    detailed = min(len(runs), RUNS, max(2, CLASSES // max(1, most)))
    methods = methods_of(frame_of((data.folder, data.run) for data in runs))
    pictures, names, notes = dict[str, int](), list[list[str]](), list[str]()
    shown: list[Json] = []
    for place, data in enumerate(runs[:LISTED]):
        classes = unlike(map(_short, data.run.classes))
        if classes not in names:
            names.append(classes)
        details = _details(data, methods, detailed, pictures, notes) if place < detailed else {}
        shown.append(
            {"details": place < detailed, "set": names.index(classes)} | _summary(data, methods, details) | details
        )
    if detailed < len(runs):
        notes.append(
            f"{len(shown)} of {len(runs)} runs are listed; classes and samples are shown for the first {detailed} of "
            "them. Give fewer runs to see the others."
        )
    if len(methods.rows) > METHODS:
        notes.append(f"Methods: the first {METHODS} of {len(methods.rows)} are listed.")
    when = (now or datetime.now()).astimezone()
    sets = dict.fromkeys(str(name) for data in runs if (name := data.run.settings.get("data") or data.run.data))
    folders = dict.fromkeys((data.folder if len(runs) == 1 else data.folder.parent).name for data in runs)
    about = list(sets or folders)
    more = f" and {len(about) - 3} more" if len(about) > 3 else ""
    return {
        "version": __version__,
        "title": f"{_short(', '.join(about[:3]))}{more}, {when.strftime('%Y-%m-%d')}",
        "written": when.strftime("%Y-%m-%d %H:%M:%S %Z"),
        "classSets": [list(classes) for classes in names],
        "total": {"runs": len(runs), "methods": len(methods.rows)},
        "runs": shown,
        "methods": _methods(methods),
        "pictures": list(pictures),
        "notes": list(dict.fromkeys(notes)),
    }


def _methods(methods: Methods) -> dict[str, Json]:
    """Return the methods side by side: what is to be said of them, other measures by name, and a row a method."""
    rows: list[Json] = []
    for row in methods.rows[:METHODS]:
        gain, worst = row.gain, worst_classes(row.runs, 2)
        right = numbers(worst["accuracy"], 3)
        rows.append(
            {
                "name": _short(row.name), "method": _short(row.method), "seeds": row.seeds,
                "figure": numbers([row.mean], DIGITS)[0], "spread": numbers([row.spread], DIGITS)[0],
                "gain": numbers([gain.mean], DIGITS)[0] if gain else None,
                "interval": numbers(gain.interval, DIGITS) if gain and gain.interval else None,
                "measures": numbers([*row.measures.values()], DIGITS), "verdict": methods.verdicts.get(row.name, ""),
                "worst": [[_short(name), value] for name, value in zip(worst["name"], right, strict=True)],
            }
        )  # fmt: skip
    return {
        "answer": methods.answer() + methods.worst(), "about": methods.about("in colour"), "measure": methods.measure,
        "measures": [*methods.rows[0].measures] if methods.rows else [], "rows": rows,
    }  # fmt: skip


def _summary(data: RunData, methods: Methods, details: dict[str, Json]) -> dict[str, Json]:
    """Return a row of the table of runs, and its curves; those of the classes only beside `details`."""
    run = data.run
    left_out = set() if details else {f"test_{name}" for name in MEASURES}
    measure = f"test_{methods.measure.replace(' ', '_')}"
    accuracy = run.curves.get(measure, np.full(1, np.nan))  # no other one: the column has the name of this one
    last, tail = numbers([last_known(accuracy), at_the_end(accuracy, stream=is_stream(run))], DIGITS)
    kept = spread(len(run.epochs), POINTS)
    curves = {name: numbers(run.curves[name][kept], DIGITS) for name in sorted(run.curves.keys() - left_out)}
    unused = {"smoothing"} if run.settings.get("retrain") == 0 else set()
    for setting, values, names in _USED_BY if "scenario" in run.settings else ():  # not of a loop of one's own
        if run.settings.get(setting) not in (None, *values.split()):
            unused.update(names.split())
    known = {key: value for key, value in run.settings.items() if value is not None and key not in unused}
    return {
        "name": _short(data.name), "method": _short(run.method), "folder": str(data.folder),
        "finished": run.finished, "failed": run.failed_at_epoch, "planned": run.planned, "passed": len(run.epochs),
        "settings": {_short(key): value for key, value in known.items()},
        "versions": {_short(key): value for key, value in run.versions.items()},
        "command": run.command, "epochs": run.epochs[kept].tolist(), "curves": curves,
        "lastAccuracy": last, "tailAccuracy": tail,
    }  # fmt: skip


def _details(data: RunData, methods: Methods, runs: int, pictures: dict[str, int], notes: list[str]) -> dict[str, Json]:
    run, samples = data.run, data.samples
    last = {name: values for name in READINGS if (values := data.last(name)) is not None}
    details: dict[str, Json] = {
        "counts": None if run.counts is None else [*run.counts],
        "advice": [
            vars(advice) | {"classes": list(advice.classes[:CHIPS]), "more": max(0, len(advice.classes) - CHIPS)}
            for advice in advise(data, methods)
        ],
        "last": {name: pack(values) for name, values in last.items()},
        "trend": pack(trend(run.over_time["age"])) if "age" in run.over_time else None,
        "byClass": _over_time(run, CELLS // runs, notes),
    }
    size, answered = len(run.classes), data.tested or samples
    if answered is not None:
        classes, counts = confusion_matrix(answered.label, answered.prediction, size)
        matrix: Json = {"classes": list(classes), "counts": [[*row] for row in counts], "total": size}
    details |= {"matrix": matrix if answered else None, "tested": _tested(data.tested, runs, pictures)}
    if samples is None:
        return details | {"confused": None, "samples": None}
    answers, share = samples.confusion(size)
    return details | {
        "confused": {"answer": answers.tolist(), "share": numbers(share, 2)},
        "samples": _samples(data, samples, runs, pictures, notes),
    }


def _over_time(run: Run, room: int, notes: list[str]) -> dict[str, Json]:
    """Return the readings by class over time: ages get half of the bytes, the others share the rest."""
    names = [name for name in READINGS if name in run.over_time]
    packed: dict[str, Json] = {}
    for name in names:
        values, spoken = run.over_time[name], name.replace("_", " ").capitalize()
        rows = np.flatnonzero(np.isfinite(values).any(1))  # the epochs in which it was read
        share = room // 2 if name == "age" else room // 2 // max(1, len(names) - 1)
        points = min(COLUMNS, max(FEWEST, share // max(1, values.shape[1])))
        if name != "age" and share < FEWEST * values.shape[1] and len(rows) > points:
            notes.append(f"{spoken} is kept for the last epoch only.")
            continue
        kept = rows[spread(len(rows), points)]
        if len(kept) < len(rows):
            notes.append(f"{spoken} is kept for {len(kept):,} of {len(rows):,} epochs.")
        bits = 16 if 2 * len(kept) * values.shape[1] <= share else 8
        packed[name] = pack(values[kept], bits=bits, power=READINGS[name]) | {"epochs": run.epochs[kept].tolist()}
    return packed


def add_picture(pictures: dict[str, int], picture: bytes | None, room: int = ROOM) -> int:
    """Return the place of a PNG among the pictures of the page, kept once; −1 where there is none, or no room.

    >>> pictures = {}
    >>> [add_picture(pictures, content) for content in (b"one", None, b"two", b"one")], list(pictures)[0]
    ([0, -1, 1, 0], 'data:image/png;base64,b25l')
    """
    url = f"data:image/png;base64,{base64.b64encode(picture or b'').decode()}"
    fits = url in pictures or sum(map(len, pictures)) + len(url) <= room
    return pictures.setdefault(url, len(pictures)) if picture and fits else -1


def _samples(data: RunData, samples: Samples, runs: int, pictures: dict[str, int], notes: list[str]) -> dict[str, Json]:
    """Return what the page says of a run's samples: rows of columns, and which rows are oldest and most doubtful."""
    most, size = SAMPLES // (2 * runs), len(data.run.classes)
    old = choose(oldest_first(samples), samples.label, most, size)
    doubted = choose(doubtful_first(samples), samples.label, most // 2, size)
    rows = np.unique(np.concatenate((old, doubted)))
    ages = samples.answers.ages(rows)[-EPOCHS:]
    wanted = dict.fromkeys(row for pair in zip_longest(doubted.tolist(), old.tolist()) for row in pair)  # by turns
    wanted.pop(None, None)
    shown = {row: samples.picture(row) for row in [*wanted][: PICTURES // runs]}
    places = {row: add_picture(pictures, picture) for row, picture in shown.items()}
    name, epochs, total = _short(data.name), len(data.run.epochs), len(samples)
    if len(rows) < total:
        notes += [
            "Samples: the oldest and the most doubtful of all and of each class are listed. "
            "The table of all samples: aol report RUN --export FILE.csv.",
            f"{name}, of {total:,} samples: {len(old):,} are listed as oldest, {len(doubted):,} as doubtful.",
        ]
    if epochs > EPOCHS:
        notes.append(f"{name}: age histories of samples show the last {EPOCHS} of {epochs:,} epochs.")
    if any(picture and places[row] < 0 for row, picture in shown.items()):
        notes.append("The page has pictures of the first samples only, to stay small.")
    whole = {
        "isLikely": samples.likely_mislabelled.astype(int), "index": samples.index, "label": samples.label,
        "prediction": samples.prediction, "suggested": samples.suggestion, "age": samples.age,
        "wrongEpochs": samples.wrong, "seenEpochs": samples.seen,
    }  # fmt: skip
    rounded = {
        "confidence": samples.confidence, "top": samples.top, "average": samples.mean_confidence,
        "other": samples.mean_other, "suspicion": samples.suspicion,
    }  # fmt: skip
    about, answered = dict[int, Any](samples.about), samples.prediction >= 0
    listed: dict[str, Json] = {name: values[rows].tolist() for name, values in whole.items()}
    return {
        **listed,
        **{name: numbers(values[rows], 4) for name, values in rounded.items()},
        "id": [samples.id(row)[:LETTERS] for row in rows.tolist()], "history": [steps(column) for column in ages.T],
        "about": [about.get(row) for row in rows.tolist()] if about else None,
        "picture": [places.get(row, -1) for row in rows.tolist()],
        "oldest": np.searchsorted(rows, old).tolist(), "doubtful": np.searchsorted(rows, doubted).tolist(),
        "total": total, "wrong": int(np.where(answered, samples.prediction != samples.label, samples.age > 1).sum()),
        "unseen": int((samples.age == 0).sum()), "likely": int(samples.likely_mislabelled.sum()),
        "ages": _histogram(samples.age), "historyEpochs": EPOCHS, "historyMost": int(ages.max(initial=1)),
    }  # fmt: skip


def oldest_first(samples: Samples) -> Ints:
    """Return the rows that are wrong, the oldest first; of one age, the less probable the label, the sooner."""
    # Equal samples by turns of the classes: else one class would fill the page while nothing is learnt yet.
    rows = np.flatnonzero(samples.age > 1)
    confidence = np.nan_to_num(samples.confidence[rows], nan=1.0)
    return rows[np.lexsort((_rank(samples.label[rows]), confidence, -samples.age[rows]))]


def doubtful_first(samples: Samples) -> Ints:
    """Return the rows that were ever wrong, the most suspicious first; those of classes that are not learnt last."""
    rows = np.flatnonzero(samples.wrong > 0)
    return rows[np.lexsort((-samples.age[rows], -samples.suspicion[rows], ~samples.trusted[rows]))]


def choose(order: Ints, label: Ints, most: int, num_classes: int) -> Ints:
    """Return the first of an order, half of them over all and half by class; still in that order.

    >>> choose(np.array([0, 1, 2, 3]), np.array([0, 0, 0, 1]), most=2, num_classes=2).tolist()
    [0, 3]
    """
    by_class = max(1, most // (2 * max(1, num_classes)))
    chosen = (_rank(label[order]) < by_class) | (np.arange(len(order)) < most - most // 2 - 1)
    return order[chosen][: 2 * most]


def _rank(label: Ints) -> Ints:
    """Return the ranks of rows within their class, `[N]`."""
    return np.asarray(pd.Series(label).groupby(label).cumcount(), dtype=np.int64)


def _tested(tested: AnswersOnTest | None, runs: int, pictures: dict[str, int]) -> Json:
    """Return the test samples that are wrong, the surest first."""
    if tested is None:
        return None
    rows, (images, texts) = tested.surest[: max(1, TESTED // runs)], tested.previews
    return {
        "id": rows.tolist(), "label": tested.label[rows].tolist(), "prediction": tested.prediction[rows].tolist(),
        "confidence": numbers(tested.confidence[rows], 3), "top": numbers(tested.top[rows], 3),
        "picture": [add_picture(pictures, png(images[row]) if row in images else None) for row in rows.tolist()],
        "about": [texts.get(row) for row in rows.tolist()], "wrong": len(tested.surest),
        "total": int((tested.label >= 0).sum()),
    }  # fmt: skip


def _histogram(age: Shorts) -> list[Json]:
    """Return `[from, to, how many]` for every bar, of seen samples; bars hold one age where there are few."""
    seen = age[age > 0]
    width = -(-int(seen.max(initial=1)) // BARS)
    counts = np.bincount((seen - 1) // width)
    return [[1 + bar * width, (bar + 1) * width, int(count)] for bar, count in enumerate(counts)]


def _short(text: str) -> str:
    return text if len(text) <= NAME else text[: NAME - 1] + "…"


# Arrays as short text, rounded to what a screen can show: `assets/data.js` decodes it, and the two must agree

# What a sample's age did in an epoch: right, one more (a sample that was never seen has the age 2), the same.
_RIGHT, _OLDER, _SAME = 1, 2, 3


def pack(values: npt.NDArray[np.floating], *, bits: int = 16, power: float = 1.0) -> dict[str, Json]:
    """Return an array as codes of 8 or 16 bits between its least and largest value, in base64.

    code = round(top · ((value − low) / (high − low)) ** power), top = 2^bits − 2; the code above it says that there is
    no value. A power below one keeps small values apart, as colours do.

    >>> pack(np.array([0.0, 0.25, 1.0, np.nan]), bits=8)
    {'low': 0.0, 'high': 1.0, 'power': 1.0, 'bits': 8, 'data': 'AED+/w=='}
    """
    known = np.isfinite(values)
    low, high = (float(values[known].min()), float(values[known].max())) if known.any() else (0.0, 0.0)
    top = 2**bits - 2
    part = (np.where(known, values, low).astype(np.float64) - low) / ((high - low) or 1.0)
    codes = np.where(known, np.rint(top * part**power), top + 1)
    data = base64.b64encode(codes.astype("<u2" if bits == 16 else "u1").tobytes()).decode()
    return {"low": low, "high": high, "power": power, "bits": bits, "data": data}


def steps(ages: npt.NDArray[np.integer]) -> Json:
    """Return the ages of one sample over time `[E]` as `[first, codes]`: two bits an epoch after the first, base64.

    >>> steps(np.array([1, 2, 3, 1, 1, 2]))
    [1, 'WgI=']
    """
    before, after = ages[:-1], ages[1:]
    codes = np.select([after == 1, after == before], [_RIGHT, _SAME], default=_OLDER)
    spare = np.concatenate((codes, np.zeros(-len(codes) % 4, np.int64))).reshape(-1, 4)
    packed = (spare << np.array([0, 2, 4, 6])).sum(1).astype(np.uint8)
    return [int(ages[0]) if len(ages) else 0, base64.b64encode(packed.tobytes()).decode()]


def spread(size: int, points: int) -> npt.NDArray[np.int64]:
    """Return at most `points` places, two or more, evenly over `size` of them, with the first and the last.

    >>> spread(10, 4).tolist(), spread(3, 8).tolist()
    ([0, 3, 6, 9], [0, 1, 2])
    """
    return np.rint(np.linspace(0, max(0, size - 1), min(size, points))).astype(np.int64)
