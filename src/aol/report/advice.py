"""What to do next: sentences that follow from a run's readings.

Each sentence says what was found, with a number, and what to try.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from aol.plots.summary import time_unit
from aol.report.hidden_groups import hidden_groups
from aol.report.label_quality import Floats, Ints, Masks
from aol.report.run_data import RunData, last_known

OLD = 1.5  # a class is old if its age is this many times the median
_LEARNT = 0.995  # a training set with this share of right answers is learnt
_BY_HEART, _UNLEARNT = 0.95, 0.6  # right on training, wrong on test
_MOVED = 0.1  # a change of mean age over the last fifth that is mentioned
_LIKELY = 0.02  # a share of likely label errors in a class that is mentioned
_UNEVEN = 50.0  # largest weight over smallest
_NAMED = 3  # hidden groups that are named


@dataclass(frozen=True)
class Advice:
    """One sentence: its `kind`, the `text`, the classes it is about, and the part of the page that shows it."""

    kind: str
    text: str
    classes: Sequence[int] = ()
    see: str = "classes"


def advise(data: RunData) -> list[Advice]:
    """Return what a run's readings suggest, the most important first; never nothing."""
    found = [
        *_course(data),
        *_labels(data),
        *_hidden(data),
        *_old_classes(data),
        *_generalisation(data),
        *_weights(data),
    ]
    if not found and data.age is None:
        text = "No ages were recorded, so old classes are unknown: --signal train records ages at no cost."
        return [Advice("ageless", text, see="curves")]
    return found or [Advice("fine", "Nothing stands out: no class is much older than the others.")]


def _course(data: RunData) -> Iterator[Advice]:
    run, unit = data.run, time_unit(data.run)
    if run.failed_at_epoch is not None:
        text = f"The loss was not finite in {unit} {run.failed_at_epoch}: lower --lr, or train in fp32."
        yield Advice("failed", text, see="curves")
    elif not run.finished:
        of = f" of {run.planned}" if run.planned else ""
        text = f"{int(run.epochs[-1])}{of} {unit}s are done; the points below may change."
        yield Advice("running", text, see="curves")
    ages = run.over_time.get("age")
    if ages is None or not len(ages):
        return
    mean = np.array([np.nanmean(row) if np.isfinite(row).any() else np.nan for row in ages])
    right = last_known(run.curves.get("train_accuracy", np.zeros(0))[:, None])[0]
    if right >= _LEARNT and last_known(mean[:, None])[0] < 1.1:
        text = (
            f"The training set is learnt ({right:.1%} right), so ages are close to one and weights from ages are close "
            "to equal. The remaining test errors are a matter of generalisation: try weights from counts (--weighting "
            "cb or frequency), more data or stronger regularisation before weights from ages."
        )
        yield Advice("learnt", text, see="curves")
    else:
        yield from _movement(mean, unit)


def _movement(mean: Floats, unit: str) -> Iterator[Advice]:
    """Say whether the mean class age `[E]` still changes at the end."""
    fifth = max(1, len(mean) // 5)
    if len(mean) <= 2 * fifth or not np.isfinite(mean[[-1, -1 - fifth]]).all():
        return
    change = float(mean[-1] / mean[-1 - fifth] - 1.0)
    if abs(change) < _MOVED:
        return
    way = "falling" if change < 0 else "growing"
    then = f"more {unit}s may help" if change < 0 else "the same errors persist, and more training alone does not help"
    last = f"{fifth} {unit}s" if fifth > 1 else unit
    text = f"The mean class age is still {way}, {change:+.0%} over the last {last}: {then}."
    yield Advice("course", text, see="curves")


def _labels(data: RunData) -> Iterator[Advice]:
    if data.samples is None:
        return
    likely = data.samples.likely_mislabelled
    if likely.any():
        count = int(likely.sum())
        these = f"{count:,} samples ({likely.mean():.2%}) were" if count > 1 else "One sample was"
        text = (
            f"{these} wrong most of the time while the model was sure of another class. Check these labels first: "
            "correct or remove the wrong ones, then train again. Weights by sample would emphasise wrong labels most."
        )
        yield Advice("labels", text, see="errors")


def _hidden(data: RunData) -> Iterator[Advice]:
    if data.samples is None:
        return
    groups = hidden_groups(data.samples.label, data.samples.prediction, data.samples.age)
    if not groups:
        return
    names = data.run.classes
    first = "; ".join(
        f"{len(each.rows):,} old samples of “{names[each.label]}” are taken for “{names[each.answer]}”, though "
        f"{each.learnt:.0%} of the class is learnt"
        for each in groups[:_NAMED]
    )
    rest = len(groups) - _NAMED
    more = f", and {rest:,} more such group{'s' if rest > 1 else ''}" if rest > 0 else ""
    text = (
        f"{first}{more}. These may be hidden groups that look different, or wrong labels: look at them. If the labels "
        "are right, weights that do not forget may help: --weighting old."
    )
    yield Advice("hidden", text, list(dict.fromkeys(each.label for each in groups)), "samples")


def _old_classes(data: RunData) -> Iterator[Advice]:
    age, known = data.age, data.run.counts
    if age is None:
        return
    counts = np.asarray(known or [1] * len(age))
    there = np.isfinite(age) & (counts > 0)
    if there.sum() < 2:
        return
    middle = float(np.median(age[there]))
    old = there & (age >= max(OLD * middle, 1.2))
    if known is None:
        if old.any():
            text = (
                f"{_classes(old)} old: mean age {age[old].mean():.1f} against a median of {middle:.1f}. The sizes of "
                "the classes are not on record, so it is unknown whether these are rare."
            )
            yield Advice("old", text, _oldest_first(old, age))
        return
    rare = old & (counts < 0.5 * counts[there].mean())
    likely = _likely_share(data)
    yield from _rare(data, counts, age, rare, middle)
    doubted = old & ~rare & (likely >= _LIKELY)
    if doubted.any():
        text = (
            f"{_classes(doubted)} old though not rare, and up to {likely[doubted].max():.0%} of their samples look "
            "mislabelled. Check the labels before giving these classes more weight."
        )
        yield Advice("doubted", text, _oldest_first(doubted, age), "errors")
    hard = old & ~rare & ~doubted
    if hard.any():
        text = (
            f"{_classes(hard)} old though not rare: hard rather than short of samples. {_taken_for(data, hard)}"
            "A stronger network, augmentation or clearer class definitions may help more than weights."
        )
        yield Advice("hard", text, _oldest_first(hard, age), "samples")


def _rare(data: RunData, counts: Ints, age: Floats, rare: Masks, middle: float) -> Iterator[Advice]:
    if not rare.any():
        return
    part = counts[rare].sum() / max(1, counts.sum())
    text = (
        f"{_classes(rare)} old and rare: {part:.1%} of the samples, mean age {age[rare].mean():.1f} against a median "
        f"of {middle:.1f}. "
    )
    weight = data.last("weight")
    used = float(np.nanmean(weight[rare])) if weight is not None else 1.0
    if used > 1.2:
        text += f"They already have {used:.1f} times the mean weight: more samples would help more than weight."
    else:
        text += "Increase their weight (--weighting cb, frequency or cb+aol), or collect more samples."
    yield Advice("rare", text, _oldest_first(rare, age))


def _generalisation(data: RunData) -> Iterator[Advice]:
    train, test = data.last("train_accuracy"), data.last("test_accuracy")
    if train is None or test is None:
        return
    with np.errstate(invalid="ignore"):
        memorised = (train >= _BY_HEART) & (test < _UNLEARNT)
    if memorised.any():
        text = (
            f"{_classes(memorised)} memorised: at least {_BY_HEART:.0%} right on training, below {_UNLEARNT:.0%} on "
            "test. Ages of training samples do not show this: try more samples, augmentation or weights from counts."
        )
        yield Advice("memorised", text, [int(place) for place in np.argsort(test) if memorised[place]])


def _weights(data: RunData) -> Iterator[Advice]:
    used = data.last("weight")
    if used is None:
        return
    used = used[np.isfinite(used) & (used > 0)]
    if used.size and used.max() / used.min() >= _UNEVEN:
        text = (
            f"The largest class weight is {used.max() / used.min():,.0f} times the smallest. A few samples then "
            "dominate the training: --temper 0.5 takes the square root of the weights."
        )
        yield Advice("uneven", text)


def _likely_share(data: RunData) -> Floats:
    if data.samples is None:
        return np.zeros(len(data.run.classes))
    shares = pd.Series(data.samples.likely_mislabelled).groupby(data.samples.label).mean()
    found: Floats = shares.reindex(range(len(data.run.classes)), fill_value=0.0).to_numpy()
    return found


def _taken_for(data: RunData, classes: Masks) -> str:
    """Say which class is mistaken for which, for the clearest case, if there is one."""
    if data.samples is None:
        return ""
    answer, share = data.samples.confusion(len(data.run.classes))
    share = np.where(classes & (answer >= 0), share, 0.0)
    worst = int(share.argmax())
    if share[worst] < 0.3:
        return ""
    name, other = data.run.classes[worst], data.run.classes[answer[worst]]
    return f"{share[worst]:.0%} of the wrong answers for “{name}” are “{other}”. "


def _classes(mask: Masks) -> str:
    count = int(mask.sum())
    return f"{count:,} classes are" if count != 1 else "One class is"


def _oldest_first(mask: Masks, age: Floats) -> list[int]:
    order: Ints = np.argsort(-np.nan_to_num(age), kind="stable")
    return [int(place) for place in order if mask[place]]
