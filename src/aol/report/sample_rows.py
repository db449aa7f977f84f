"""The samples that the page shows: the oldest and the most doubtful, of all and of each class.

Of a million samples a few hundred rows are shown; their counts are over all.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass, field

import numpy as np

from aol.report.codec import rounded, steps
from aol.report.label_quality import Ints, Shorts
from aol.report.samples import Samples
from aol.runs.record import Json

EPOCHS = 400  # of an age history; the last ones
_LETTERS = 1000  # of a sample's own name: a path is of use only whole
_BARS = 60  # of the histogram of ages
_KINDS = {b"\x89PNG\r\n\x1a\n": "png", b"\xff\xd8\xff": "jpeg", b"RIFF": "webp", b"GIF8": "gif"}


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
    """Return all rows from the oldest to the youngest; of one age, those that were wrong more of late first.

    Equal samples are taken from the classes in turn: else one class would fill the page while nothing is learnt yet.
    """
    return np.lexsort((_turn(samples.label), -np.nan_to_num(samples.ema), -samples.age))


def _turn(label: Ints) -> Ints:
    """Return the rank of each row within its class, `[N]`.

    >>> _turn(np.array([7, 7, 3, 7, 3])).tolist()
    [0, 1, 0, 2, 1]
    """
    grouped = np.argsort(label, kind="stable")
    ordered = label[grouped]
    turn = np.empty(len(label), np.int64)
    turn[grouped] = np.arange(len(label)) - np.searchsorted(ordered, ordered)
    return turn


def doubtful_first(samples: Samples) -> Ints:
    """Return the rows that were ever wrong: likely label errors, the rest of learnt classes, then of the others.

    Among each, the more suspicious come first.
    """
    rows = np.flatnonzero(samples.wrong > 0)
    likely, learnt = samples.likely_mislabelled[rows], samples.in_learnt_class[rows]
    return rows[np.lexsort((-samples.age[rows], -samples.suspicion[rows], ~learnt, ~likely))]


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
        "confidence": rounded(samples.confidence[rows], 3),
        "top": rounded(samples.top[rows], 3),
        "average": rounded(samples.mean_confidence[rows], 3),
        "ema": rounded(samples.ema[rows], 4),
        "suspicion": rounded(samples.suspicion[rows], 4),
        "other": rounded(samples.mean_other[rows], 3),
        "wrongEpochs": samples.wrong[rows].tolist(),
        "seenEpochs": samples.seen[rows].tolist(),
        "historyEpochs": EPOCHS,
        "history": [steps(column) for column in ages[-EPOCHS:].T],
        "picture": _pictures(samples, rows, [*_mixed(doubted, old)][:pictures], album),
    }


def _mixed(first: Ints, second: Ints) -> dict[int, None]:
    """Return the rows of two orders by turns, each once."""
    size = max(len(first), len(second))
    return {int(rows[number]): None for number in range(size) for rows in (first, second) if number < len(rows)}


def _pictures(samples: Samples, rows: Ints, wanted: list[int], album: Album) -> list[Json]:
    found: dict[int, Json] = {}
    for row in wanted:
        if album.full:
            break
        found[row] = album.add(samples.picture(row))
    return [found.get(int(row), -1) for row in rows]


def _histogram(age: Shorts) -> list[Json]:
    """Return `[from, to, how many]` for each bar, of seen samples; bars hold one age where there are few."""
    seen = age[age > 0]
    if not len(seen):
        return []
    width = -(-int(seen.max()) // _BARS)
    counts = np.bincount((seen - 1) // width)
    return [[1 + bar * width, (bar + 1) * width, int(count)] for bar, count in enumerate(counts)]
