"""What to do next: sentences that say what was read of a run, with a number, and what to try."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from aol.records.compare import Methods
from aol.records.metrics import time_unit
from aol.records.record import Ints
from aol.records.samples import Shorts
from aol.report.label_quality import Masks
from aol.report.run_data import RunData, last_known

OLD = 2.0  # a class is old from this mean age on: right in half of the epochs at random, its samples would have it
OLD_ON_STREAM = 5.0  # there a class grows older whenever it is below the median, as half of them are
_SKILL = 0.25  # of the way from always giving the most frequent answer to being always right
_LOST = 1 / 3  # share of the classes
_LEARNT = 0.995  # a training set with this share of right answers is learnt
_BY_HEART, _UNLEARNT = 0.95, 0.6  # right on training, wrong on test
# Hidden groups: so many wrong answers in a row of so many samples, in a class of which this share is right.
_AFTER, _LEAST, _MOSTLY = 5, 5, 0.8


@dataclass(frozen=True)
class Advice:
    """One sentence: its `kind`, the `text`, the classes it is about, and the part of the page that shows it."""

    kind: str
    text: str
    classes: Sequence[int] = ()
    see: str = "classes"


def advise(data: RunData, methods: Methods | None = None) -> list[Advice]:
    """Return what a run's readings suggest, the most important first, with what helped among all `methods`."""
    run, unit = data.run, time_unit(data.run)
    unlearnt, old = [*_unlearnt(data)], [*_old_classes(data, methods or Methods())]
    advice = [*unlearnt]
    if run.failed_at_epoch is not None:
        text = f"The loss was not finite in {unit} {run.failed_at_epoch}: lower --lr, or train in fp32."
        advice.insert(0, Advice("failed", text, see="curves"))
    elif not run.finished:
        done = f"{int(run.epochs[-1])}{f' of {run.planned}' if run.planned else ''} {unit}s"
        advice.append(Advice("running", f"{done} are done; the points below may change.", see="curves"))
    if unlearnt:  # ages and labels say little of a model that has learnt little
        return advice + [one for one in old if one.kind == "rare"]
    advice += [*_samples(data), *old, *_memorised(data), *_learnt(data)]
    if not advice and data.age is not None:
        return [Advice("fine", f"Nothing stands out: no class has a mean age of {_old(data):g} or more.")]
    text = "No ages were recorded, so old classes are unknown: --signal train records ages at no cost."
    return advice or [Advice("ageless", text, see="curves")]


def _unlearnt(data: RunData) -> Iterator[Advice]:
    """Say that the model has not learnt: hardly better than a constant answer, or never right on a third of classes."""
    run, size = data.run, len(data.run.classes)
    counts = np.asarray(run.counts if run.counts and sum(run.counts) else [1] * size)
    right, often = _right(data), counts.max() / counts.sum()
    poor = size > 1 and right < often + _SKILL * (1 - often)
    read = (data.last("train_accuracy"), data.last("test_accuracy"))
    train, test = (np.full(size, np.nan) if values is None else values for values in read)
    lost = ((test <= 0.5 / size) | (np.isnan(test) & (train <= 0.5 / size))) & (counts > 0)
    lost &= ~(train >= 0.5)  # right in training and wrong on test is memorised, which is another matter
    if not poor and (size < 2 or lost.sum() < _LOST * (counts > 0).sum()):
        return
    why = [f"{right:.0%} of the training answers are right, a constant answer gets {often:.0%}"] if poor else []
    if lost.any():
        where = "test" if np.isfinite(test).any() else "training"
        why.append(f"{int(lost.sum()):,} of {size:,} classes are at about 0% on {where}")
    text = (
        f"The model has not learnt yet: {', and '.join(why)}, after {int(run.epochs[-1]):,} {time_unit(run)}s. Train "
        "longer, or with another learning rate or network, before you judge labels, ages or weights."
    )
    yield Advice("unlearnt", text, np.flatnonzero(lost).tolist(), "curves")


def _right(data: RunData) -> float:
    return float(last_known(data.run.curves.get("train_accuracy", np.zeros(0))))


def _learnt(data: RunData) -> Iterator[Advice]:
    """Say that the training set is learnt, so that ages tell nothing more."""
    if _right(data) >= _LEARNT and data.age is not None and np.nanmean(data.age) < 1.1:
        text = (
            f"The training set is learnt ({_right(data):.1%} right), so ages are close to one, and weights from ages "
            f"close to equal. For the remaining test errors try {_offsets(data)}, more data or stronger regularisation."
        )
        yield Advice("learnt", text, see="curves")


def hidden_groups(label: Ints, prediction: Shorts, age: Shorts) -> list[tuple[int, int, int, float]]:
    """Return groups of at least 5 samples, of age above 5, of classes right on 80 % or more; the largest first.

    A group is all old samples of one class with the same wrong answer: a hidden minority, or labels with a common
    mistake. Returns the class, the answer (-1 where unknown), how many, and the share of the class that is right.

    >>> label = np.zeros(50, np.int64)
    >>> prediction = np.array([1] * 6 + [2] * 2 + [0] * 42, np.int32)
    >>> hidden_groups(label, prediction, np.where(prediction == 0, 1, 9).astype(np.int32))
    [(0, 1, 6, 0.84)]
    """
    seen = (age > 0) & (prediction >= 0)
    learnt = pd.Series((prediction == label)[seen]).groupby(label[seen]).mean()
    old = seen & (prediction != label) & (age > _AFTER)
    groups = Counter(zip(label[old].tolist(), prediction[old].tolist(), strict=True))
    wanted = [(pair, size) for pair, size in groups.items() if size >= _LEAST and learnt[pair[0]] >= _MOSTLY]
    wanted.sort(key=lambda group: (-group[1], group[0]))
    return [(*pair, size, float(learnt[pair[0]])) for pair, size in wanted]


def _samples(data: RunData) -> Iterator[Advice]:
    """Point to likely label errors, and to hidden groups."""
    samples, names = data.samples, data.run.classes
    if samples is None:
        return
    likely = samples.likely_mislabelled
    if count := int(likely.sum()):
        these, them = (f"{count:,} labels ({likely.mean():.2%})", "them") if count > 1 else ("One label", "it")
        text = (
            f"{these} may be wrong: the model doubted {them} clearly more than the others of the same class. Look at "
            f"{them}, correct what is wrong, and train again. Weights by sample would emphasise wrong labels."
        )
        yield Advice("labels", text, see="errors")
    groups = hidden_groups(samples.label, samples.prediction, samples.age)
    if not groups:
        return
    first = "; ".join(
        f"{size:,} old samples of “{names[label]}” are taken for “{names[other]}”, though {learnt:.0%} of the class is "
        "learnt"
        for label, other, size, learnt in groups[:3]
    )
    more = f", and {len(groups) - 3:,} more such groups" if len(groups) > 3 else ""
    weights = _name(
        data,
        "--weighting aol --level sample --fuse peak --temper 1.5",
        'ages = aol.SampleAges(labels, level="sample", fuse="peak"), then aol.temper(ages.weight(index), 1.5)',
    )
    text = (
        f"{first}{more}. These may be hidden groups that look different, or wrong labels: correct wrong labels first. "
        f"If you know the groups, balance them; if not, weights by the largest age so far may help: {weights}."
    )
    yield Advice("hidden", text, list(dict.fromkeys(label for label, *_ in groups)), "samples")


def _old(data: RunData) -> float:
    """Return the mean age from which on a class is old."""
    return OLD_ON_STREAM if "threshold" in data.run.curves or time_unit(data.run) == "step" else OLD


def _old_classes(data: RunData, methods: Methods) -> Iterator[Advice]:
    age, known = data.age, data.run.counts
    if age is None:
        return
    counts = np.asarray(known or [1] * len(age))
    old = np.isfinite(age) & (counts > 0) & (age >= _old(data))
    rare = old & (counts < 0.5 * counts.sum() / max(1, (counts > 0).sum())) & (known is not None)
    part = counts[rare].sum() / max(1, counts.sum())
    stronger = "A stronger network, augmentation or clearer classes may help more than weights."
    told = [
        ("rare", rare, " and rare", f"; {part:.1%} of the samples. {_remedy(data, methods)}", "classes"),
        ("hard", old & ~rare, " though not rare", f". {stronger}", "samples"),
    ]
    if known is None:
        unknown = ". Class sizes are not on record, so it is unknown whether these are rare."
        told = [("old", old, "", unknown, "classes")]
    for kind, classes, how, then, see in told:
        if classes.any():
            mean = f"mean age {age[classes].mean():.1f}, where 1 is always right and {_old(data):g} is old"
            oldest_first = [place for place in np.argsort(-age, kind="stable").tolist() if classes[place]]
            yield Advice(kind, f"{_classes(classes)} old{how}: {mean}{then}", oldest_first, see)


def _classes(mask: Masks) -> str:
    return f"{int(mask.sum()):,} classes are" if mask.sum() != 1 else "One class is"


def _remedy(data: RunData, methods: Methods) -> str:
    """Say what may help rare classes: what helped here, where that is known."""
    own = [row for row in methods.better if row.method == data.run.method]
    if own:
        return f"Its method helps, {methods.gain_text(own[0])}: more samples would help further."
    if methods.better:
        return f"Here {methods.gain_text(methods.better[0])}: use it, or collect more samples.{methods.chosen}"
    if methods.tried:
        most = methods.gain_text(methods.tried[0])
        return f"No gain here is significant; the best: {most}. More samples would help.{methods.chosen}"
    return f"Try {_offsets(data)}, or collect more samples."


def _offsets(data: RunData) -> str:
    """Name the offsets of logits to try: on a stream, margins that follow the answers come too late."""
    used, on_stream = data.last("offset"), time_unit(data.run) == "step"
    late = on_stream and data.run.settings.get("margin", "counts") != "counts"
    if used is not None and np.nan_to_num(used).any() and not late:
        return "a larger tau (on images; elsewhere it cost accuracy)"
    if on_stream:
        loss = "aol.LogitAdjustedLoss(num_classes, memory=…)"
        return f"logit adjustment by the counts of each step ({_name(data, '--margin counts', loss)})"
    if len(set(data.run.counts or ())) == 1:  # offsets from equal counts are all zero
        return f"margins ({_name(data, '--margin probability', 'aol.MarginLoss')})"
    return f"logit adjustment ({_name(data, '--margin counts', 'aol.LogitAdjustedLoss, if you do not use it yet')})"


def _name(data: RunData, flag: str, function: str) -> str:
    """Return what to use: a flag of the command line or, in a loop of one's own, a function of the library."""
    return flag if "weighting" in data.run.settings else function


def _memorised(data: RunData) -> Iterator[Advice]:
    train, test = data.last("train_accuracy"), data.last("test_accuracy")
    if train is None or test is None:
        return
    memorised = (train >= _BY_HEART) & (test < _UNLEARNT)
    if memorised.any():
        text = (
            f"{_classes(memorised)} memorised: at least {_BY_HEART:.0%} right on training, below {_UNLEARNT:.0%} on "
            f"test. Ages of training samples do not show this: try more samples, augmentation or {_offsets(data)}."
        )
        yield Advice("memorised", text, [place for place in np.argsort(test).tolist() if memorised[place]])
