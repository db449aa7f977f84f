"""The runs that a report is about: records, and what is known of their samples: answers over time, doubtful labels."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd

from aol.records.history import epoch_weight
from aol.records.metrics import TABLES
from aol.records.previews import TEST as TEST_PREVIEWS
from aol.records.previews import Description, Previews, png, read_previews
from aol.records.record import DamagedRunError, Floats, Ints, Matrix, Run, read_run
from aol.records.samples import (
    FILE,
    TEST,
    Reals,
    SampleTable,
    Shorts,
    read_ids,
    read_samples,
    read_tested,
    surest_mistakes,
)
from aol.records.store import find_runs
from aol.records.table import told_apart, unlike
from aol.report.label_quality import Masks, competent_classes, suspicion

_LEAST_EPOCHS = 3  # that must have seen a sample before its label is called wrong


@dataclass(frozen=True)
class Samples(SampleTable):
    """The training samples of a run, with what a report says of them."""

    picture: Callable[[int], bytes | None] = lambda _: None  # of a row, as PNG; None where the run's folder has none
    about: Mapping[int, Description] = field(default_factory=dict)  # of some rows: text, or pairs of name and value
    ids: Sequence[str | int] | None = None  # the names of the samples, where they have some
    test_accuracy: Floats | None = None  # the share of right answers on test by class, `[C]`

    def id(self, row: int) -> str:
        """Return the name of a sample, else its position in the data."""
        name = str(self.index[row] if self.ids is None else self.ids[row])
        return name.encode("utf-8", "backslashreplace").decode()  # a file's name may be no UTF-8

    @cached_property
    def _times(self) -> tuple[Shorts, Shorts, Shorts, float]:
        seen_times, wrong_times, begun = np.zeros((3, len(self)), np.int32)
        weights, right_weights = 0.0, 0.0
        before = np.ones(len(self), np.int32)
        for seen, right, age in self.answers.epochs():
            seen_times += seen
            wrong_times += seen & ~right
            begun += (before <= 1) & (age > 1)
            before = age
            accuracy = float(right.sum() / max(1, seen.sum()))
            weight = epoch_weight(accuracy) if seen.any() else 0.0
            weights, right_weights = weights + weight, right_weights + weight * accuracy
        return seen_times, wrong_times, begun, right_weights / max(weights, 1e-9)

    # In how many epochs a sample was seen, and was seen and wrong; and how many error episodes it has had: unbroken
    # stretches of age above one, the last maybe open. And the share of right answers, mean over epochs by their weight.
    seen = cached_property(lambda self: self._times[0])
    wrong = cached_property(lambda self: self._times[1])
    episodes = cached_property(lambda self: self._times[2])
    _accuracy = cached_property(lambda self: self._times[3])

    @cached_property
    def trusted(self) -> Masks:
        """Whose labels the model may doubt: seen in three epochs at least, and competent on label and answer."""
        able = competent_classes(self.label, self.prediction, self.wrong, self.seen, self.test_accuracy)
        named = able[self.prediction] | (self.prediction < 0)
        return np.asarray(able[self.label] & named & (self.seen >= _LEAST_EPOCHS))

    @cached_property
    def suspicion(self) -> Reals:
        """How likely labels are wrong, from 0 to 1: see `label_quality.py`; halved where the model is not trusted."""
        score = suspicion(self.label, self.wrong, self.seen, self.mean_margin, self._accuracy)
        return np.where(self.trusted, score, score / 2).astype(np.float32)

    @property
    def likely_mislabelled(self) -> Masks:
        """Which labels are likely wrong."""
        return np.asarray(self.suspicion > 0.5)

    @property
    def suggestion(self) -> Shorts:
        """The class that most wrong answers named, by vote; the label, where no answer was wrong."""
        return np.where(self.suggested < 0, self.label, self.suggested).astype(np.int32)

    def confusion(self, num_classes: int) -> tuple[Ints, Floats]:
        """Return the most frequent wrong answers by class, `[C]` (-1: none), and their shares of all wrong ones."""
        wrong = _pairs(self.label, self.prediction).query("label != answer")
        wrong = wrong.sort_values("count", ascending=False, kind="stable")
        most = wrong.drop_duplicates("label").set_index("label").reindex(range(num_classes))
        share = most["count"] / wrong.groupby("label")["count"].sum()
        return most["answer"].fillna(-1).to_numpy(np.int64), share.fillna(0.0).to_numpy()


@dataclass(frozen=True)
class AnswersOnTest:
    """The last answers to test samples, `[N]`; -1, or NaN, where unknown."""

    label: Ints
    prediction: Shorts
    confidence: Reals  # the probability of the label
    top: Reals  # that of the prediction
    previews: Previews
    surest: Ints  # the rows that are wrong, the surest first, by turns of the classes


def _pairs(label: Ints, prediction: Shorts) -> pd.DataFrame:
    """Return the labels and answers that occur together, and how often."""
    known = prediction >= 0
    size = 1 + int(max(label.max(initial=0), prediction.max(initial=0)))
    codes, count = np.unique(label[known] * size + prediction[known], return_counts=True)
    return pd.DataFrame({"label": codes // size, "answer": codes % size, "count": count})


def confusion_matrix(
    label: Ints, prediction: Shorts, num_classes: int, most: int = 30
) -> tuple[list[int], list[list[int]]]:
    """Return the classes with the most wrong answers, to them or naming them, and how often they got which answer."""
    pairs = _pairs(label, prediction)
    wrong = pairs.query("label != answer")
    part = sum(np.bincount(wrong[own], wrong["count"], num_classes) for own in ("label", "answer"))
    chosen = np.sort(np.argsort(-part, kind="stable")[:most])
    shown = pairs[pairs[["label", "answer"]].isin(chosen).all(axis=1)]
    counts = shown.pivot(index="label", columns="answer", values="count").reindex(chosen, columns=chosen)
    return chosen.tolist(), counts.fillna(0).to_numpy(np.int64).tolist()


def answers_on_test(folder: Path, run: Run) -> AnswersOnTest | None:
    """Return the last answers to test samples; None where they were not kept."""
    answers = read_tested(folder / TEST, run.id)
    if answers is None:
        return None
    named = np.nan_to_num(answers[:, :2].T, nan=-1.0)
    label, prediction = named.clip(-1, len(run.classes)).astype(np.int64)
    if named.max(initial=0) >= len(run.classes) or named.min(initial=0) < -1:
        raise DamagedRunError(f"{folder / TEST}: it has other classes than the {len(run.classes)} of the run.")
    columns = (label, np.where(label < 0, -1, prediction).astype(np.int32), answers[:, 2], answers[:, 3])
    return AnswersOnTest(*columns, read_previews(folder, TEST_PREVIEWS), surest_mistakes(answers))


def samples_of(folder: Path, run: Run) -> Samples | None:
    """Return the samples of a run; None where they were not kept."""
    table = read_samples(folder / FILE, run.id)
    if table is None:
        return None
    classes = len(run.classes)
    for values, least in ((table.label, 0), (table.prediction, -1), (table.suggested, -1)):
        if values.max(initial=0) >= classes or values.min(initial=0) < least:
            raise DamagedRunError(f"{folder / FILE}: its samples have other classes than the {classes} of the run.")
    images, texts = read_previews(folder)
    return Samples(
        **vars(table),
        picture=lambda row: png(images[row]) if row in images else None,
        about=texts,
        ids=read_ids(folder, len(table)),
        test_accuracy=run.by_class.get("test_accuracy"),
    )


@dataclass(frozen=True)
class RunData:
    """One run of a report."""

    name: str  # method and seed, unique among the runs of the report
    folder: Path
    run: Run  # its record, with at least one epoch
    samples: Samples | None = None  # None where they were not kept
    tested: AnswersOnTest | None = None

    def last(self, reading: str) -> Floats | None:
        """Return the last known values of a reading by class, `[C]`; None where it was never taken."""
        over_time = self.run.over_time.get(reading)
        return self.run.by_class.get(reading) if over_time is None else last_known(over_time)

    @property
    def age(self) -> Floats | None:
        """The last known ages of the classes, `[C]`; the smoothed age where there is no other, as in aol 0.1.0."""
        known = (age for age in map(self.last, ("age", "smoothed_age")) if age is not None and np.isfinite(age).any())
        return next(known, None)


def load(
    *paths: str | os.PathLike[str], damaged: Callable[[str], None] | None = None, whole: float = math.inf
) -> list[RunData]:
    """Return all runs in some folders that have finished an epoch, in the order in which they were asked for.

    Where others can be read, damaged runs are left out and `damaged` gets the reasons; without it they are an error.
    Of runs after the first `whole`, only the readings that tables need are read, and no samples.
    """
    runs, problems, read = list[RunData](), list[DamagedRunError](), 0
    for folder in find_runs(*paths):
        try:
            more = len(runs) < whole
            data, read = _run_data(folder, read_run(folder, None if more else TABLES), more), read + 1
        except DamagedRunError as error:
            problems.append(error)
            continue
        if len(data.run.epochs):
            runs.append(data)
    for problem in problems:
        if damaged is None or not read:
            raise problem
        damaged(str(problem))
    names = unlike(told_apart([data.name for data in runs], [data.run for data in runs]))
    return [replace(data, name=name) for data, name in zip(runs, names, strict=True)]


def _run_data(folder: Path, run: Run, with_samples: bool) -> RunData:
    samples, tested = (samples_of(folder, run), answers_on_test(folder, run)) if with_samples else (None, None)
    # The two files of a run that is being trained, or was resumed, may be some epochs apart.
    if samples is not None and len(run.epochs) != len(samples.answers):
        epochs = min(len(run.epochs), len(samples.answers))
        answers = samples.answers.first(epochs)
        run, samples = run.first(epochs), replace(samples, answers=answers, age=answers.last())
    return RunData(run.method if run.seed is None else f"{run.method}, seed {run.seed}", folder, run, samples, tested)


def last_known(values: Floats | Matrix) -> Floats:
    """Return the last values of columns that are a number, `[E, ...] → [...]`; NaN where there is none.

    >>> last_known(np.array([[1.0, 2.0, np.nan], [3.0, np.nan, np.nan]])).tolist()
    [3.0, 2.0, nan]
    """
    known = np.isfinite(values)
    place = np.where(known, np.arange(len(values)).reshape(-1, *[1] * (values.ndim - 1)), 0).max(0, initial=0)
    last = np.take_along_axis(values, place[None], 0)[0] if len(values) else np.nan
    return np.where(known.any(0), last, np.nan)


def trend(values: Matrix) -> Floats:
    """Return by how much columns changed over their last quarter, `[E, C] → [C]`.

    >>> trend(np.array([[4.0], [4.0], [3.0], [3.0], [1.0]])).tolist()
    [-2.0]
    """
    return last_known(values) - last_known(values[: max(1, len(values) - max(1, len(values) // 4))])
