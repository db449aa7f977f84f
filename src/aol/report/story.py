"""What one run has to tell, whoever wrote it: `aol train`, `aol stream`, or a loop of one's own with `aol.Recorder`.

Assumes the files of docs/records.md, of runs that are over or still under way. Everything here is a NumPy array.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt

from aol.engine.settings import Value
from aol.plots.heatmap import has_tail as has_tail
from aol.records import bits
from aol.records.about import About, read_about, read_json
from aol.records.samples import FILE, IDS, SampleTable, read_samples
from aol.records.tables import DamagedRecordsError, Floats, read_classes, read_epochs
from aol.report.finding import NoRecordsError as NoRecordsError
from aol.report.finding import run_folders
from aol.report.pictures import pictures_of
from aol.report.suspicion import suspicion

Ints = npt.NDArray[np.int64]
Shorts = npt.NDArray[np.int32]
Reals = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Samples:
    """What is known of each training sample after the last epoch; every array is `[N]`.

    Args:
        index: the sample's place in the data set's training split.
        label: its class.
        prediction: the class answered when it was last seen; -1 where that is not known.
        confidence: the probability given to the label then; NaN where not known.
        top: the probability given to the prediction then; NaN where not known.
        mean_confidence: the probability given to the label, mean over the epochs that saw it; NaN where not known.
        mean_other: the largest probability given to another class, mean over the same epochs; NaN where not known.
        age: epochs since the last right answer, counted from one; 0 where never seen.
        ema: the smoothed age; NaN where never seen.
        answers: right or wrong, at every epoch.
        pictures: gives the picture of a row, or None.
        ids: the samples' own names, where they have some.
    """

    index: Ints
    label: Ints
    prediction: Shorts
    confidence: Reals
    top: Reals
    mean_confidence: Reals
    mean_other: Reals
    age: Shorts
    ema: Reals
    answers: bits.Answers
    pictures: Callable[[int], bytes | None] = field(default=lambda _: None)
    ids: Sequence[str | int] | None = None

    def __len__(self) -> int:
        return len(self.label)

    def history(self, rows: npt.ArrayLike) -> Shorts:
        """Return the ages of some samples after each epoch, `int32 [E, len(rows)]`; 0 before the first sight."""
        return self.answers.ages(np.asarray(rows, dtype=np.int64))

    def picture(self, row: int) -> bytes | None:
        """Return a small picture of a sample as the bytes of a PNG or JPEG; None where the data is not at hand."""
        return self.pictures(int(row))

    def id(self, row: int) -> str:
        """Return what a sample is called: its own name, else its place in the data."""
        name = str(self.index[row] if self.ids is None else self.ids[row])
        return name.encode("utf-8", "backslashreplace").decode()  # a file's name may be no UTF-8

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

    def class_age(self, num_classes: int) -> Floats:
        """Return the mean age of each class's seen samples after each epoch, unsmoothed: `float64 [E, C]`."""
        rows = []
        for _, _, age in self.answers.epochs():
            known = age > 0
            total = np.bincount(self.label[known], weights=age[known], minlength=num_classes)
            count = np.bincount(self.label[known], minlength=num_classes)
            rows.append(np.divide(total, count, out=np.full(num_classes, np.nan), where=count > 0))
        return np.stack(rows)

    @cached_property
    def suspicion(self) -> Reals:
        """How likely each label is wrong, for ranking: 0 to 1, larger is more suspicious; see `suspicion.py`."""
        return suspicion(self.label, self.wrong, self.seen, self.mean_confidence, self.mean_other)


@dataclass(frozen=True)
class Story:
    """What one run has to tell. E epochs are over, of C classes.

    Args:
        name: short, and unique among the stories shown together: method and seed.
        method: what was done about the imbalance; the same for all seeds.
        seed: of the run, where it has one.
        folder: where the records lie.
        settings: every setting by name.
        versions: of what the figures depend on.
        command: what to type to repeat the run, where that is known.
        classes: their names.
        counts: how many training samples each has, `int64 [C]`.
        epochs: the epochs that are over, counted from one, `int64 [E]`.
        planned: how many epochs there will be, where that is known.
        curves: readings by epoch, `float64 [E]`, NaN where not read: test_accuracy, train_loss, lr and so on.
        by_class: readings by epoch and class, `float64 [E, C]`: age, weight, test_accuracy and so on.
        samples: what is known of each sample, where that was kept.
        finished: whether the run is over.
        failed_at: the epoch in which the loss was not finite, if there was one.
    """

    name: str
    method: str
    seed: int | None
    folder: Path
    settings: dict[str, Value]
    versions: dict[str, str]
    command: str | None
    classes: list[str]
    counts: Ints
    epochs: Ints
    planned: int | None
    curves: dict[str, Floats]
    by_class: dict[str, Floats]
    samples: Samples | None
    finished: bool
    failed_at: int | None = None

    @property
    def head_first(self) -> Ints:
        """The classes from the most to the fewest training samples; in their own order where there is no tail."""
        order: Ints = np.argsort(-self.counts, kind="stable") if has_tail(self.counts) else np.arange(len(self.counts))
        return order


def load(*paths: str | os.PathLike[str]) -> list[Story]:
    """Return the stories of all runs in some folders: of `--out`, of one run, or of a `Recorder`; or folders of those.

    Runs of which nothing is written yet are left out, so the list may be empty. Names are made unique.
    """
    folders = [folder for path in paths for folder in run_folders(Path(path))]
    found = [_read(folder) for folder in dict.fromkeys(folder.resolve() for folder in folders)]
    return _named([story for story in found if story is not None])


def _read(folder: Path) -> Story | None:
    """Read the records of one run; while it goes on, files may be an epoch apart, and the shorter one counts."""
    settings: dict[str, Value] = dict(read_json(folder / "settings.json") or {})  # type: ignore[arg-type]
    curves = read_epochs(folder / "epochs.csv")
    classes, by_class = read_classes(folder / "classes.csv")
    table = read_samples(folder / FILE)
    length = min(
        len(curves["epoch"]), len(by_class["epoch"]), len(curves["epoch"]) if table is None else len(table.answers)
    )
    if length == 0:
        return None
    curves = {name: values[:length] for name, values in curves.items()}
    by_class = {name: values[:length] for name, values in by_class.items()}
    about = read_about(folder) or _guess(folder, settings, classes, by_class)
    if not np.array_equal(by_class["epoch"][:, 0], curves["epoch"]):
        raise DamagedRecordsError(f"{folder}: epochs.csv and classes.csv are of different epochs.")
    _belongs(folder, len(classes), about, table)
    result = read_json(folder / "result.json")
    failed = (result or {}).get("failed_at_epoch")
    return Story(
        name=about.method if about.seed is None else f"{about.method}, seed {about.seed}",
        method=about.method,
        seed=about.seed,
        folder=folder,
        settings=settings,
        versions=about.versions,
        command=about.command,
        classes=classes,
        counts=np.asarray(about.counts, dtype=np.int64),
        epochs=curves.pop("epoch").astype(np.int64),
        planned=about.epochs,
        curves={name: values for name, values in curves.items() if not np.isnan(values).all()},
        by_class={name: values for name, values in by_class.items() if name != "epoch" and not np.isnan(values).all()},
        samples=None if table is None else _samples(table, length, folder, about),
        finished=result is not None,
        failed_at=failed if isinstance(failed, int) else None,
    )


def _belongs(folder: Path, classes: int, about: About, table: SampleTable | None) -> None:
    """Refuse files of another run, which were copied here by mistake."""
    if len(about.counts) != classes:
        raise DamagedRecordsError(f"{folder}: about.json has {len(about.counts)} classes, and classes.csv {classes}.")
    for name in ("label", "prediction") if table is not None and len(table) else ():
        values = table.columns[name]  # type: ignore[union-attr]
        if int(values.max()) >= classes or int(values.min()) < (0 if name == "label" else -1):
            raise DamagedRecordsError(f"{folder / FILE}: samples of other classes than the {classes} of this run.")


def _guess(folder: Path, settings: dict[str, Value], classes: list[str], by_class: dict[str, Floats]) -> About:
    """Say what can be known of a run of which nobody said what it is."""
    counts = np.nan_to_num(by_class.get("train_count", np.zeros((1, len(classes))))[0])
    seed = settings.get("seed")
    return About(
        method=folder.name,
        seed=seed if isinstance(seed, int) else None,
        classes=classes,
        counts=counts.astype(int).tolist(),
    )


def _samples(table: SampleTable, epochs: int, folder: Path, about: About) -> Samples:
    columns = {name: value for name, value in table.columns.items() if name not in ("times", "other")}
    answers = table.answers.first(epochs)
    if len(answers) < len(table.answers):
        columns["age"] = answers.last()
    return Samples(
        **columns,  # type: ignore[arg-type]
        answers=answers,
        pictures=pictures_of(folder, about, table),
        ids=_ids(folder, len(table)),
    )


def _ids(folder: Path, size: int) -> list[str | int] | None:
    try:
        found = json.loads((folder / IDS).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise DamagedRecordsError(f"{folder / IDS}: not a whole JSON file.") from error
    if not isinstance(found, list) or len(found) != size:
        raise DamagedRecordsError(f"{folder / IDS}: not the names of {size} samples.")
    return found


def _named(stories: list[Story]) -> list[Story]:
    """Give every story a name of its own: by the settings in which those of one name differ, else by number."""
    found: list[Story] = []
    for story in stories:
        same = [other for other in stories if other.name == story.name]
        words = [f"{key}={story.settings.get(key)}" for key in telling(same)]
        found.append(replace(story, name=" ".join([story.name, *words])))
    often, number = Counter(story.name for story in found), Counter[str]()
    for place, story in enumerate(found):
        if often[story.name] > 1:
            number[story.name] += 1
            found[place] = replace(story, name=f"{story.name} ({number[story.name]})")
    return found


def telling(stories: list[Story]) -> list[str]:
    """Return the names of the settings that tell stories apart, as few as will do."""
    keys = dict.fromkeys(key for story in stories for key in story.settings)

    def apart(names: list[str]) -> int:
        return len({tuple(repr(story.settings.get(name)) for name in names) for story in stories})

    telling = [key for key in keys if apart([key]) > 1]
    for key in reversed(telling):
        rest = [other for other in telling if other != key]
        if apart(rest) == apart(telling):
            telling = rest
    return telling
