"""What is known of each training sample of a run: ages, answers over time, and how likely its label is wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt

from aol.ages.answers import Answers
from aol.report.label_quality import Floats, Ints, Masks, Reals, Shorts, learnt_classes, suspicion
from aol.report.pictures import pictures_of
from aol.runs.record import DamagedRunError, Run
from aol.runs.samples import FILE, read_ids, read_samples

_SUSPICIOUS = 0.5  # a label with more is likely wrong
_LEAST_EPOCHS = 3  # that must have seen a sample before its label is called wrong


@dataclass(frozen=True)
class Samples:
    """The training samples of a run after its last epoch; every array is `[N]`.

    Args:
        index: the sample's position in the data set's training split.
        label: its class.
        prediction: the class answered when it was last seen; -1 where unknown.
        confidence: the probability given to the label then; NaN where unknown.
        top: the probability given to the prediction then; NaN where unknown.
        mean_confidence: the probability given to the label, mean over the epochs that saw it; NaN where unknown.
        mean_other: the largest probability given to another class, mean over the same epochs; NaN where unknown.
        age: epochs since the last right answer, counted from one; 0 where never seen.
        ema: the smoothed age; NaN where never seen.
        answers: right or wrong, at every epoch.
        pictures: returns the picture of a row, or None.
        ids: the names of the samples, where they have some.
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
    answers: Answers
    pictures: Callable[[int], bytes | None] = field(default=lambda _: None)
    ids: Sequence[str | int] | None = None

    def __len__(self) -> int:
        return len(self.label)

    def history(self, rows: npt.ArrayLike) -> Shorts:
        """Return the ages of some samples after each epoch, `int32 [E, len(rows)]`; 0 before the first sight."""
        return self.answers.ages(np.asarray(rows, dtype=np.int64))

    def picture(self, row: int) -> bytes | None:
        """Return a small picture of a sample as the bytes of a PNG or JPEG; None where the data cannot be read."""
        return self.pictures(int(row))

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
    def suspicion(self) -> Reals:
        """How likely each label is wrong, from 0 to 1, for ranking: see `label_quality.py`."""
        return suspicion(self.label, self.wrong, self.seen, self.mean_confidence, self.mean_other)

    @cached_property
    def in_learnt_class(self) -> Masks:
        """Which samples belong to a class that was right at least as often as wrong."""
        return learnt_classes(self.label, self.wrong, self.seen)[self.label]

    @cached_property
    def likely_mislabelled(self) -> Masks:
        """Which labels are likely wrong: over the epochs, another class had a much higher probability.

        That is a suspicion above one half, from three epochs at least, in a class that was learnt: the samples of a
        class that was not learnt are suspicious whatever their labels.
        """
        found: Masks = (self.suspicion > _SUSPICIOUS) & (self.seen >= _LEAST_EPOCHS) & self.in_learnt_class
        return found

    def confusion(self, num_classes: int) -> tuple[Ints, Floats]:
        """Return the most frequent wrong answer of each class, and its share of the wrong answers; -1 if there is none.

        Both are `[C]`.
        """
        wrong = self.wrong_now
        pairs, counts = np.unique(
            self.label[wrong] * num_classes + self.prediction[wrong].astype(np.int64), return_counts=True
        )
        answer, share = np.full(num_classes, -1), np.zeros(num_classes)
        labels = pairs // num_classes
        total = np.bincount(labels, weights=counts, minlength=num_classes)
        for place in np.argsort(counts, kind="stable"):  # the most frequent answer is written last
            label = labels[place]
            answer[label], share[label] = pairs[place] % num_classes, counts[place] / total[label]
        return answer, share


def samples_of(folder: Path, run: Run) -> Samples | None:
    """Return the samples of a run; None where they were not kept."""
    table = read_samples(folder / FILE)
    if table is None:
        return None
    classes = len(run.classes)
    for name, least in (("label", 0), ("prediction", -1)) if len(table) else ():
        values = table.columns[name].astype(np.int64)
        if int(values.max()) >= classes or int(values.min()) < least:
            raise DamagedRunError(f"{folder / FILE}: its samples have other classes than the {classes} of the run.")
    columns = {name: value for name, value in table.columns.items() if name not in ("times", "other")}
    return Samples(
        **columns,  # type: ignore[arg-type]
        answers=table.answers,
        pictures=pictures_of(folder, run, table),
        ids=read_ids(folder, len(table)),
    )
