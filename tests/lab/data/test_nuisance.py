"""Sets with a nuisance, with noisy labels, and parts of sets: shares, independence, and what stays as it is."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from aol.lab.data.images import Augmentation, ImageSet, Pair, centred
from aol.lab.data.nuisance import apply, balanced_nuisance, change, colours, other_for_some, stratified

NAMES = ("a", "b", "c", "d")


def split(size: int, channels: int = 1, side: int = 10, seed: int = 0) -> ImageSet:
    generator = torch.Generator().manual_seed(seed)
    pixels = torch.randint(1, 256, (size, channels, side, side), generator=generator).to(torch.uint8)
    return ImageSet(pixels, torch.randint(4, (size,), generator=generator), NAMES, "made")


def pair(channels: int = 1) -> Pair[ImageSet]:
    parts = split(2000, channels), split(400, channels, seed=1)
    return Pair("made", *parts, NAMES, centred(channels), centred(channels), Augmentation(1, flip=True))


def seen_colour(pixels: Tensor, kind: str) -> Tensor:
    """Return which of four colours an image shows: of its patch, or the tint of white."""
    if kind == "patch":
        shown, known = pixels[:, :, 0, 0].float() / 255, colours(4)
    else:
        bright = pixels.float().amax((2, 3))
        shown, known = bright / bright.amax(1, keepdim=True), colours(4, 0.75)
    return (shown[:, None] - known[None]).abs().sum(-1).argmin(1)


@pytest.mark.parametrize("kind", ["tint", "patch"])
def test_the_nuisance_gives_the_class_away_but_for_the_conflicts_and_not_at_all_in_the_test_set(kind: str) -> None:
    plain = pair()
    found = change(plain, nuisance=kind, conflicts=0.05)
    assert found.shortcut is not None
    own, there = seen_colour(found.train.images, kind), seen_colour(found.test.images, kind)
    assert torch.equal(own != plain.train.labels, found.shortcut.train)
    assert torch.equal(there != plain.test.labels, found.shortcut.test)
    for label in range(4):
        members = plain.train.labels == label
        assert int(found.shortcut.train[members].sum()) == round(0.05 * int(members.sum()))
        counts = torch.bincount(there[plain.test.labels == label], minlength=4)
        assert int(counts.max() - counts.min()) <= 1
        assert len(own[members & found.shortcut.train].unique()) == 3  # every other class
    assert torch.equal(found.train.labels, plain.train.labels)
    assert found.train.shape == (3, 10, 10)
    assert len(found.normalisation.scale) == len(found.standardised.shift) == 3


def test_a_tint_keeps_the_shape_and_a_patch_the_rest_of_the_image() -> None:
    plain = split(20)
    nuisance = torch.arange(20) % 4
    tinted, patched = (apply(plain, kind, nuisance).images for kind in ("tint", "patch"))
    table = (colours(4, 0.75) * 255).round()
    for i in range(20):
        wanted = (plain.images[i].float() * table[nuisance[i]][:, None, None] / 255).floor()
        assert torch.equal(tinted[i].float(), wanted)
        rest = patched[i].clone()
        rest[:, :2, :2] = plain.images[i][:, :2, :2]
        assert torch.equal(rest, plain.images[i].expand(3, -1, -1))
        fill = (colours(4)[nuisance[i]] * 255).round()
        assert torch.equal(patched[i, :, :2, :2].float(), fill[:, None, None].expand(-1, 2, 2))
    colour = split(4, channels=3)
    assert apply(colour, "tint", torch.zeros(4, dtype=torch.int64)).shape == (3, 10, 10)
    assert apply(plain, "none", nuisance) is plain


def test_noise_replaces_a_share_of_the_training_labels_and_leaves_images_and_test_alone() -> None:
    plain = pair()
    found = change(plain, noise=0.1)
    wrong = found.train.labels != plain.train.labels
    for label in range(4):
        members = plain.train.labels == label
        assert int(wrong[members].sum()) == round(0.1 * int(members.sum()))
    assert torch.equal(found.train.images, plain.train.images)
    assert torch.equal(found.test.labels, plain.test.labels)
    assert found.train.shape == (1, 10, 10)
    noisy = change(plain, nuisance="patch", noise=0.1)
    assert torch.equal(noisy.train.images, change(plain, nuisance="patch").train.images)  # it goes with the true class


def test_the_held_out_part_is_like_the_test_set_and_is_not_trained_on() -> None:
    plain = pair()
    found = change(plain, nuisance="patch", conflicts=0.02, noise=0.2, validation=0.1)
    assert found.shortcut is not None
    assert found.validation is not None
    held = torch.ones(2000, dtype=torch.bool)
    held[found.shortcut.kept] = False
    assert torch.equal(found.validation.labels, plain.train.labels[held])  # no noise
    assert torch.equal(found.validation.images, found.train.images[held])
    shown = seen_colour(found.validation.images, "patch")
    for label in range(4):
        counts = torch.bincount(shown[found.validation.labels == label], minlength=4)
        assert int(counts.max() - counts.min()) <= 1
    assert float(found.shortcut.train[found.shortcut.kept].float().mean()) == pytest.approx(0.02, abs=0.002)


def test_all_draws_are_functions_of_the_seed() -> None:
    labels = split(500).labels
    for draw in (
        lambda seed: other_for_some(labels, 4, 0.1, torch.Generator().manual_seed(seed)),
        lambda seed: balanced_nuisance(labels, 4, seed=seed),
        lambda seed: stratified(labels, 100, seed=seed),
    ):
        assert torch.equal(draw(3), draw(3))
        assert not torch.equal(draw(3), draw(4))


@given(st.lists(st.integers(0, 4), min_size=1, max_size=60), st.data())
def test_a_part_of_a_set_has_its_share_of_every_class(labels: list[int], data: st.DataObject) -> None:
    size = data.draw(st.integers(1, len(labels)))
    found = stratified(torch.tensor(labels), size, seed=data.draw(st.integers(0, 9)))
    assert len(found) == len(set(found.tolist())) == size
    assert found.tolist() == sorted(found.tolist())
    for label in set(labels):
        share = labels.count(label) * size / len(labels)
        assert abs(sum(labels[i] == label for i in found.tolist()) - share) < 1
