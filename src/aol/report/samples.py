"""What is known of each training sample of a run: ages, answers over time, and how likely its label is wrong.

The page shows the oldest and the most doubtful samples, of all and of each class: of a million a few hundred rows.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import zip_longest
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd

from aol.records.previews import Description, read_descriptions
from aol.records.record import DamagedRunError, Floats, Ints, Json, Run, numbers
from aol.records.samples import FILE, Reals, SampleTable, Shorts, read_ids, read_samples
from aol.report.codec import steps
from aol.report.label_quality import Masks, competent_classes, suspicion
from aol.report.pictures import Pictures, find_pictures

_SUSPICIOUS = 0.5  # a label with more is likely wrong
_LEAST_EPOCHS = 3  # that must have seen a sample before its label is called wrong
EPOCHS = 400  # of an age history; the last ones
_LETTERS = 1000  # of a sample's own name: a path is of use only whole
_BARS = 60  # of the histogram of ages
_KINDS = {b"\x89PNG\r\n\x1a\n": "png", b"\xff\xd8\xff": "jpeg", b"RIFF": "webp", b"GIF8": "gif"}


@dataclass(frozen=True)
class Samples(SampleTable):
    """The training samples of a run, with what a report says of them.

    Args:
        find_pictures: returns their pictures; called when one is asked for.
        about: what some rows are, as text or as pairs of name and value.
        ids: the names of the samples, where they have some.
        test_accuracy: the share of right answers on test by class, `[C]`, where it was read.
    """

    find_pictures: Callable[[], Pictures] = Pictures
    about: Mapping[int, Description] = field(default_factory=dict)
    ids: Sequence[str | int] | None = None
    test_accuracy: Floats | None = None

    def history(self, rows: npt.ArrayLike) -> Shorts:
        """Return the ages of some samples after each epoch, `int32 [E, len(rows)]`; 0 before the first sight."""
        return self.answers.ages(np.asarray(rows, dtype=np.int64))

    @cached_property
    def pictures(self) -> Pictures:
        """Small pictures of the samples, as far as the data can be read."""
        return self.find_pictures()

    def id(self, row: int) -> str:
        """Return the name of a sample, else its position in the data."""
        name = str(self.index[row] if self.ids is None else self.ids[row])
        return name.encode("utf-8", "backslashreplace").decode()  # a file's name may be no UTF-8

    def first_epochs(self, epochs: int) -> Samples:
        """Return the samples as they were after the first few epochs; the last answers stay."""
        if epochs == len(self.answers):
            return self
        answers = self.answers.first(epochs)
        return replace(self, answers=answers, age=answers.last())

    @cached_property
    def _over_time(self) -> tuple[Shorts, Shorts, Shorts]:
        seen_times, wrong_times, begun = (np.zeros(len(self), np.int32) for _ in range(3))
        before = np.ones(len(self), np.int32)
        for seen, right, age in self.answers.epochs():
            seen_times += seen
            wrong_times += seen & ~right
            begun += (before <= 1) & (age > 1)
            before = age
        return seen_times, wrong_times, begun

    @property
    def seen(self) -> Shorts:
        """In how many epochs each sample was seen."""
        return self._over_time[0]

    @property
    def wrong(self) -> Shorts:
        """In how many epochs each sample was seen and answered wrongly."""
        return self._over_time[1]

    @property
    def episodes(self) -> Shorts:
        """How many error episodes each sample has had: unbroken stretches of age above one, the last maybe open."""
        return self._over_time[2]

    @property
    def wrong_now(self) -> Masks:
        """Which samples got another class than their label as the last answer."""
        found: Masks = (self.prediction >= 0) & (self.prediction != self.label)
        return found

    @cached_property
    def trusted(self) -> Masks:
        """Whose labels the model may doubt: seen in three epochs at least, and competent on label and answer."""
        if not len(self):
            return np.zeros(0, bool)
        able = competent_classes(self.label, self.prediction, self.wrong, self.seen, self.test_accuracy)
        return able[self.label] & (able[self.prediction] | (self.prediction < 0)) & (self.seen >= _LEAST_EPOCHS)

    @cached_property
    def suspicion(self) -> Reals:
        """How likely each label is wrong, from 0 to 1: see `label_quality.py`; halved where the model is not trusted.

        So a score above one half means the same on the page, in the exported table, and in the advice.
        """
        score = suspicion(self.label, self.wrong, self.seen, self.mean_confidence, self.mean_other)
        return np.where(self.trusted, score, score / 2).astype(np.float32)

    @property
    def likely_mislabelled(self) -> Masks:
        """Which labels are likely wrong: a suspicion above one half. The page and the exported table agree on it."""
        found: Masks = self.suspicion > _SUSPICIOUS
        return found

    def confusion(self, num_classes: int) -> tuple[Ints, Floats]:
        """Return the most frequent wrong answer of each class, and its share of the wrong answers; -1 if there is none.

        Both are `[C]`.
        """
        wrong, answer, share = self.wrong_now, np.full(num_classes, -1), np.zeros(num_classes)
        shares = pd.Series(self.prediction[wrong]).groupby(self.label[wrong]).value_counts(normalize=True)
        most = shares.groupby(level=0).idxmax()
        answer[most.index] = [place[1] for place in most]
        share[most.index] = shares.groupby(level=0).max()
        return answer, share

    def confusion_matrix(self, num_classes: int, most: int = 30) -> tuple[list[int], list[list[int]]]:
        """Return the classes with the most wrong answers, in their order, and how often each got which last answer.

        Of `most` classes at most: a class counts with the wrong answers to its samples and those that name it.
        """
        wrong, label, answer = self.wrong_now, self.label, self.prediction.astype(np.int64)
        part = np.bincount(label[wrong], minlength=num_classes) + np.bincount(answer[wrong], minlength=num_classes)
        chosen = np.sort(np.argsort(-part, kind="stable")[:most])
        shown = np.isin(label, chosen) & np.isin(answer, chosen)
        counts = pd.crosstab(label[shown], answer[shown]).reindex(index=chosen, columns=chosen, fill_value=0)
        return chosen.tolist(), counts.to_numpy().tolist()


def samples_of(folder: Path, run: Run, data_dir: Path | None = None) -> Samples | None:
    """Return the samples of a run; None where they were not kept. Pictures are looked for in `data_dir` first."""
    table = read_samples(folder / FILE, run.id)
    if table is None:
        return None
    classes = len(run.classes)
    for name, least in (("label", 0), ("prediction", -1)) if len(table) else ():
        values = getattr(table, name)
        if values.max() >= classes or values.min() < least:
            raise DamagedRunError(f"{folder / FILE}: its samples have other classes than the {classes} of the run.")
    return Samples(
        **vars(table),
        find_pictures=lambda: find_pictures(folder, run, table, data_dir),
        about=read_descriptions(folder),
        ids=read_ids(folder, len(table)),
        test_accuracy=run.by_class.get("test_accuracy"),
    )


# On the page


@dataclass
class Album:
    """The pictures of a page, each kept once, until `room` bytes are full."""

    room: int
    urls: list[str] = field(default_factory=list)
    _places: dict[bytes, int] = field(default_factory=dict)

    def add(self, picture: bytes | None) -> int:
        """Return the picture's place; −1 where it is none, or there is no room.

        >>> album = Album(room=100)
        >>> album.add(b"GIF89a"), album.add(b"<svg onload=...>"), album.add(b"GIF89a"), album.urls
        (0, -1, 0, ['data:image/gif;base64,R0lGODlh'])
        """
        if not picture or self.full:
            return -1
        if picture in self._places:
            return self._places[picture]
        kind = next((kind for start, kind in _KINDS.items() if picture.startswith(start)), None)
        if kind is None:
            return -1
        url = f"data:image/{kind};base64,{base64.b64encode(picture).decode()}"
        self.room -= len(url)
        self._places[picture] = len(self.urls)
        self.urls.append(url)
        return self._places[picture]

    @property
    def full(self) -> bool:
        """Whether no picture fits any more."""
        return self.room <= 0


def oldest_first(samples: Samples) -> Ints:
    """Return the rows that are wrong, the oldest first; of one age, the less probable the label, the sooner.

    Equal samples are taken from the classes in turn: else one class would fill the page while nothing is learnt yet.
    """
    rows = np.flatnonzero(samples.age > 1)
    confidence = np.nan_to_num(samples.confidence[rows], nan=1.0)
    return rows[np.lexsort((_turn(samples.label[rows]), confidence, -samples.age[rows]))]


def _turn(label: Ints) -> Ints:
    """Return the rank of each row within its class, `[N]`.

    >>> _turn(np.array([7, 7, 3, 7, 3])).tolist()
    [0, 1, 0, 2, 1]
    """
    return np.asarray(pd.Series(label).groupby(label).cumcount(), dtype=np.int64)


def doubtful_first(samples: Samples) -> Ints:
    """Return the rows that were ever wrong, the most suspicious first; those of classes that are not learnt last."""
    rows = np.flatnonzero(samples.wrong > 0)
    return rows[np.lexsort((-samples.age[rows], -samples.suspicion[rows], ~samples.trusted[rows]))]


def choose(order: Ints, label: Ints, most: int, num_classes: int) -> Ints:
    """Return the first of an order, half of them over all and half by class; still in that order.

    >>> choose(np.array([0, 1, 2, 3]), np.array([0, 0, 0, 1]), most=2, num_classes=2).tolist()
    [0, 3]
    """
    each = max(1, most // (2 * max(1, num_classes)))
    chosen = (_turn(label[order]) < each) | (np.arange(len(order)) < most - most // 2 - 1)
    return order[chosen][: 2 * most]


def describe(samples: Samples, num_classes: int, *, most: int, album: Album, pictures: int) -> dict[str, Json]:
    """Return what the page says of a run's samples: rows of columns, and which rows are oldest and most doubtful."""
    likely = samples.likely_mislabelled
    old = choose(oldest_first(samples), samples.label, most, num_classes)
    doubted = choose(doubtful_first(samples), samples.label, most // 2, num_classes)
    rows = np.unique(np.concatenate((old, doubted)))
    place = {int(row): number for number, row in enumerate(rows)}
    ages = samples.history(rows)
    return {
        "total": len(samples),
        "wrong": int(np.where(samples.prediction < 0, samples.age > 1, samples.wrong_now).sum()),
        "unseen": int((samples.age == 0).sum()),
        "likely": int(likely.sum()),
        "ages": _histogram(samples.age),
        "oldest": [place[int(row)] for row in old],
        "doubtful": [place[int(row)] for row in doubted],
        "isLikely": likely[rows].astype(int).tolist(),
        "id": [samples.id(int(row))[:_LETTERS] for row in rows],
        "label": samples.label[rows].tolist(),
        "prediction": samples.prediction[rows].tolist(),
        "age": samples.age[rows].tolist(),
        "confidence": numbers(samples.confidence[rows], 3),
        "top": numbers(samples.top[rows], 3),
        "average": numbers(samples.mean_confidence[rows], 3),
        "suspicion": numbers(samples.suspicion[rows], 4),
        "other": numbers(samples.mean_other[rows], 3),
        "wrongEpochs": samples.wrong[rows].tolist(),
        "seenEpochs": samples.seen[rows].tolist(),
        "historyEpochs": EPOCHS,
        "historyMost": int(ages[-EPOCHS:].max(initial=1)),
        "history": [steps(column) for column in ages[-EPOCHS:].T],
        "noPictures": samples.pictures.problem,
        "about": [samples.about.get(int(row)) for row in rows] if samples.about else None,
        "picture": _pictures(samples, rows, [*_mixed(doubted, old)][:pictures], album),
    }


def _mixed(first: Ints, second: Ints) -> dict[int, None]:
    """Return the rows of two orders by turns, each once."""
    return {int(row): None for pair in zip_longest(first, second) for row in pair if row is not None}


def _pictures(samples: Samples, rows: Ints, wanted: list[int], album: Album) -> list[Json]:
    found = {row: album.add(samples.pictures.of(row)) for row in wanted if not album.full}
    return [found.get(int(row), -1) for row in rows]


def _histogram(age: Shorts) -> list[Json]:
    """Return `[from, to, how many]` for each bar, of seen samples; bars hold one age where there are few."""
    seen = age[age > 0]
    if not len(seen):
        return []
    width = -(-int(seen.max()) // _BARS)
    counts = np.bincount((seen - 1) // width)
    return [[1 + bar * width, (bar + 1) * width, int(count)] for bar, count in enumerate(counts)]
