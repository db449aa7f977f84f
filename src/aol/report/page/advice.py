"""What to do about it: plain sentences that follow from a run's own figures.

Assumes a `Story`. Every sentence says what was seen, how much of it, and what to try; none is said without a figure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from aol.report.page.reading import Floats, Ints, Masks, confusion, last_known, likely_mislabelled
from aol.report.story import Story
from aol.report.summary import time_unit

OLD = 1.5  # a class is old whose age is this many times the median class's
_LEARNT = 0.995  # a training set with this share of right answers teaches ages nothing more
_BY_HEART, _UNLEARNT = 0.95, 0.6  # right on training, wrong on test
_MOVED = 0.1  # a change of mean age over the last fifth that is worth a sentence
_LIKELY = 0.02  # a share of likely label errors in a class that is worth a look
_UNEVEN = 50.0  # largest weight over smallest


@dataclass(frozen=True)
class Advice:
    """One sentence: its `kind`, the `text`, the classes it is about, and the part of the page that shows it."""

    kind: str
    text: str
    classes: Sequence[int] = ()
    see: str = "classes"


def advise(story: Story) -> list[Advice]:
    """Return what a run's figures suggest, the gravest first; never nothing."""
    found = [*_course(story), *_labels(story), *_old_classes(story), *_generalisation(story), *_weights(story)]
    if not found and not np.isfinite(story.by_class.get("age", np.nan)).any():
        text = "No ages were recorded, so nothing is known of old classes: --signal train records them at no cost."
        return [Advice("ageless", text, see="curves")]
    return found or [Advice("fine", "Nothing stands out: no class is much older than the others.")]


def _course(story: Story) -> Iterator[Advice]:
    if story.failed_at is not None:
        text = f"The loss was not finite in {time_unit(story)} {story.failed_at}: lower --lr, or train in fp32."
        yield Advice("failed", text, see="curves")
    elif not story.finished:
        of = f" of {story.planned}" if story.planned else ""
        over = f"{int(story.epochs[-1])}{of} {time_unit(story)}s are over"
        yield Advice("running", f"{over}; what follows may change.", see="curves")
    ages = story.by_class.get("age")
    if ages is None or not len(ages):
        return
    mean = np.array([np.nanmean(row) if np.isfinite(row).any() else np.nan for row in ages])
    right = _last(story, "train_accuracy")
    if right is not None and right >= _LEARNT and last_known(mean[:, None])[0] < 1.1:
        text = (
            f"The training set is right ({right:.1%}), so ages are close to one and weights from ages close to equal. "
            "What is still wrong on test is generalisation: weights from counts (--weighting cb or frequency), more "
            "data or stronger regularisation are worth a try before ages."
        )
        yield Advice("learnt", text, see="curves")
    else:
        yield from _movement(mean, "classes" if story.samples is None else "samples", time_unit(story))


def _movement(mean: Floats, things: str, unit: str) -> Iterator[Advice]:
    """Say whether the mean class age `[E]` still moves at the end."""
    fifth = max(1, len(mean) // 5)
    if len(mean) <= 2 * fifth or not np.isfinite(mean[[-1, -1 - fifth]]).all():
        return
    change = float(mean[-1] / mean[-1 - fifth] - 1.0)
    if abs(change) < _MOVED:
        return
    way = "falling" if change < 0 else "growing"
    then = f"more {unit}s may pay" if change < 0 else f"the same {things} stay wrong, and time alone does not mend them"
    last = f"{fifth} {unit}s" if fifth > 1 else unit
    text = f"The mean class age is still {way}, {change:+.0%} over the last {last}: {then}."
    yield Advice("course", text, see="curves")


def _labels(story: Story) -> Iterator[Advice]:
    if story.samples is None:
        return
    likely = likely_mislabelled(story.samples)
    if likely.any():
        count = int(likely.sum())
        these = f"{count:,} samples ({likely.mean():.2%}) were" if count > 1 else "One sample was"
        text = (
            f"{these} wrong most of the time while the model was sure of another class. Look there first: mend or drop "
            "wrong labels, then train again. Weights by sample would push hardest on wrong labels."
        )
        yield Advice("labels", text, see="errors")


def _old_classes(story: Story) -> Iterator[Advice]:
    if "age" not in story.by_class:
        return
    age = last_known(story.by_class["age"])
    there = np.isfinite(age) & (story.counts > 0)
    if there.sum() < 2:
        return
    middle = float(np.median(age[there]))
    old = there & (age >= max(OLD * middle, 1.2))
    rare = old & (story.counts < 0.5 * story.counts[there].mean())
    likely = _likely_share(story)
    yield from _rare(story, age, rare, middle)
    doubted = old & ~rare & (likely >= _LIKELY)
    if doubted.any():
        text = (
            f"{_classes(doubted)} old though not rare, and up to {likely[doubted].max():.0%} of their samples look "
            "mislabelled. Look at the labels before giving these classes weight."
        )
        yield Advice("doubted", text, _oldest_first(doubted, age), "errors")
    hard = old & ~rare & ~doubted
    if hard.any():
        text = (
            f"{_classes(hard)} old though not rare: hard rather than underfed. {_taken_for(story, hard)}"
            "A stronger network, augmentation or clearer class borders may do more than weights."
        )
        yield Advice("hard", text, _oldest_first(hard, age), "samples")


def _rare(story: Story, age: Floats, rare: Masks, middle: float) -> Iterator[Advice]:
    if not rare.any():
        return
    part = story.counts[rare].sum() / max(1, story.counts.sum())
    text = (
        f"{_classes(rare)} old and rare: {part:.1%} of the samples, mean age {age[rare].mean():.1f} against a median "
        f"of {middle:.1f}. "
    )
    weight = story.by_class.get("weight")
    used = float(np.nanmean(last_known(weight)[rare])) if weight is not None else 1.0
    if used > 1.2:
        text += f"They have {used:.1f} times the mean weight already: more samples of them would help more than weight."
    else:
        text += "Give them weight (--weighting cb, frequency or cb+aol), or collect more of them."
    yield Advice("rare", text, _oldest_first(rare, age))


def _generalisation(story: Story) -> Iterator[Advice]:
    if not {"train_accuracy", "test_accuracy"} <= story.by_class.keys():
        return
    train, test = (last_known(story.by_class[name]) for name in ("train_accuracy", "test_accuracy"))
    with np.errstate(invalid="ignore"):
        forgotten = (train >= _BY_HEART) & (test < _UNLEARNT)
    if forgotten.any():
        text = (
            f"{_classes(forgotten)} learnt by heart: at least {_BY_HEART:.0%} right on training, under {_UNLEARNT:.0%} "
            "on test. Ages of training samples cannot see that; more samples, augmentation or weights from counts can "
            "help."
        )
        yield Advice("by heart", text, [int(place) for place in np.argsort(test) if forgotten[place]])


def _weights(story: Story) -> Iterator[Advice]:
    weight = story.by_class.get("weight")
    if weight is None:
        return
    used = last_known(weight)
    used = used[np.isfinite(used) & (used > 0)]
    if used.size and used.max() / used.min() >= _UNEVEN:
        text = (
            f"The largest class weight is {used.max() / used.min():,.0f} times the smallest. A few samples then steer "
            "the training: --temper 0.5 takes the root of the weights."
        )
        yield Advice("uneven", text)


def _last(story: Story, name: str) -> float | None:
    values = story.curves.get(name)
    if values is None or not np.isfinite(values).any():
        return None
    return float(values[np.isfinite(values)][-1])


def _likely_share(story: Story) -> Floats:
    if story.samples is None:
        return np.zeros(len(story.classes))
    likely = likely_mislabelled(story.samples)
    counts = np.bincount(story.samples.label, minlength=len(story.classes))
    found: Floats = np.bincount(story.samples.label[likely], minlength=len(story.classes)) / np.maximum(counts, 1)
    return found


def _taken_for(story: Story, classes: Masks) -> str:
    """Say what a class is mistaken for, where one answer stands out; about the class with the clearest mistake."""
    if story.samples is None:
        return ""
    answer, share = confusion(story.samples, len(story.classes))
    share = np.where(classes & (answer >= 0), share, 0.0)
    worst = int(share.argmax())
    if share[worst] < 0.3:
        return ""
    name, other = story.classes[worst], story.classes[answer[worst]]
    return f"{share[worst]:.0%} of the wrong answers for “{name}” are “{other}”. "


def _classes(mask: Masks) -> str:
    count = int(mask.sum())
    return f"{count:,} classes are" if count != 1 else "One class is"


def _oldest_first(mask: Masks, age: Floats) -> list[int]:
    order: Ints = np.argsort(-np.nan_to_num(age), kind="stable")
    return [int(place) for place in order if mask[place]]
