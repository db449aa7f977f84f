"""Data sets with a hidden minority: a nuisance gives the class away in all but a few training images.

A nuisance is a colour for each class: the tint of the image, or a patch in its corner. In training images it is that of
the class, but for a share of conflicts; in the test set it is independent of the class. So a network that learns the
nuisance fails on the test set. Labels may be noisy in addition.

All draws are functions of the set and of a seed, 0 unless given: they are the same for all runs, because runs that are
trained together share their images. What differs between runs is which samples they train on, by `stratified`.
"""

from __future__ import annotations

import colorsys
from dataclasses import replace

import torch
from torch import Tensor

from aol import _seeds
from aol.lab.data.images import ImageSet, Normalisation, Pair, Shortcut, split_per_class
from aol.longtail import keep_per_class

_NUISANCE, _BALANCED, _SAMPLES, _NOISE = range(1_000_003, 1_000_007)  # their places in the path of a seed
_SATURATION = 0.75
_PATCH = 5  # a patch is a fifth of the image wide


def change(
    pair: Pair[ImageSet],
    *,
    nuisance: str = "none",
    conflicts: float = 0.02,
    noise: float = 0.0,
    validation: float = 0.0,
    seed: int = 0,
) -> Pair[ImageSet]:
    """Return a data set with a nuisance and noisy training labels; places of samples stay as they are.

    The settings of these names say what they do. `conflicts` and `noise` are shares of each class: the nuisance goes
    with the true class. Images become RGB unless `nuisance` is "none". Samples that are held out for `validation` have
    a nuisance as in the test set and right labels, in place of the set's own validation split.

    >>> from aol.lab.data import open_data
    >>> biased = change(open_data("digits"), nuisance="patch", conflicts=0.05)
    >>> biased.train.shape, int(biased.shortcut.train.sum()), int(biased.shortcut.test.sum())
    ((3, 8, 8), 70, 322)
    """
    labels, classes = pair.train.labels, pair.num_classes
    kept = torch.arange(len(labels))
    kept, held = split_per_class(labels, validation, seed=seed) if validation else (kept, kept[:0])
    own, there = labels.clone(), pair.test.labels
    if nuisance != "none":
        own[kept] = other_for_some(labels[kept], classes, conflicts, _seeds.generator(seed, _NUISANCE))
        own[held] = balanced_nuisance(labels[held], classes, seed=seed)
        there = balanced_nuisance(pair.test.labels, classes, seed=seed + 1)
    train, test = apply(pair.train, nuisance, own), apply(pair.test, nuisance, there)
    noisy = labels.clone()
    noisy[kept] = other_for_some(labels[kept], classes, noise, _seeds.generator(seed, _NOISE))
    scales = {name: getattr(pair, name) for name in ("normalisation", "standardised")}
    if train.shape[0] != pair.train.shape[0]:  # grey images became RGB
        scales = {name: Normalisation(grey.scale * 3, grey.shift * 3) for name, grey in scales.items()}
    return replace(
        pair,
        train=replace(train, labels=noisy),
        test=test,
        validation=train.subset(held) if validation else None,
        **scales,
        shortcut=Shortcut(kept, own != labels, there != pair.test.labels),
    )


def other_for_some(labels: Tensor, num_classes: int, share: float, generator: torch.Generator) -> Tensor:
    """Return labels of which a share of each class is replaced by that of another class, at random."""
    counts = (torch.bincount(labels, minlength=num_classes) * share).round().to(torch.int64)
    chosen = keep_per_class(labels, counts, generator)
    changed = labels.clone()
    changed[chosen] += torch.randint(1, num_classes, chosen.shape, generator=generator)
    return changed % num_classes


def balanced_nuisance(labels: Tensor, num_classes: int, *, seed: int) -> Tensor:
    """Return a nuisance for each sample, `int64 [N]`: in each class every value as often, but for one."""
    generator = _seeds.generator(seed, _BALANCED)
    shown = torch.empty_like(labels)
    for label in range(num_classes):
        members = (labels == label).nonzero().flatten()
        shuffled = members[torch.randperm(len(members), generator=generator)]
        first = torch.randint(num_classes, (), generator=generator)  # else small classes would have the first values
        shown[shuffled] = (torch.arange(len(members)) + first) % num_classes
    return shown


def colours(number: int, saturation: float = 1.0) -> Tensor:
    """Return as many colours with evenly spaced hues, RGB in [0, 1], `float32 [number, 3]`."""
    return torch.tensor([colorsys.hsv_to_rgb(place / number, saturation, 1.0) for place in range(number)])


def apply(images: ImageSet, kind: str, nuisance: Tensor) -> ImageSet:
    """Return a split whose images show their `nuisance [N]`, a number of a class: as a tint or as a patch."""
    if kind == "none":
        return images
    changed = images.images.expand(-1, 3, -1, -1).clone()  # one channel becomes three; three stay
    side = max(2, changed.shape[-1] // _PATCH)
    shades = (colours(images.num_classes, _SATURATION if kind == "tint" else 1.0) * 255).round().to(torch.int32)
    for number, shade in enumerate(shades[:, :, None, None]):
        shown = nuisance == number
        if kind == "tint":
            changed[shown] = (changed[shown].to(torch.int32) * shade // 255).to(torch.uint8)
        else:
            changed[shown, :, :side, :side] = shade.to(torch.uint8)
    return replace(images, images=changed)


def stratified(labels: Tensor, samples: int, *, seed: int) -> Tensor:
    """Return that many samples, of each class its share, as indices in ascending order, `int64`.

    Fractions are rounded by the largest remainders, so that the numbers by class depend on the labels only.

    >>> labels = torch.tensor([0] * 60 + [1] * 30 + [2] * 10)
    >>> torch.bincount(labels[stratified(labels, 25, seed=0)])
    tensor([15,  8,  2])
    """
    available = torch.bincount(labels)
    exact = available.to(torch.float64) * samples / labels.numel()
    counts = exact.floor().to(torch.int64)
    first = (counts - exact).argsort(stable=True)[: samples - int(counts.sum())]
    counts[first] += 1
    return keep_per_class(labels, counts, _seeds.generator(seed, _SAMPLES))
