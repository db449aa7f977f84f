"""Crops and flips of small images against one image at a time, and views of large ones against Pillow."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torch import Tensor

from aol.lab.data.augment import Draws, crop_flip, draw
from aol.lab.data.encoded_images import centre_boxes, crop_boxes, draw_crops
from aol.lab.data.images import Augmentation
from tests.support.views import SIZES, images, ragged, resample, sizes


def generators(*seeds: int) -> list[torch.Generator]:
    return [torch.Generator().manual_seed(seed) for seed in seeds]


def one_by_one(images: Tensor, index: Tensor, draws: Draws, pad: int) -> Tensor:
    """Pad, cut and mirror each image in a loop: what the vectorised code must equal."""
    _, channels, height, width = images.shape
    out = torch.zeros(*index.shape, channels, height, width, dtype=torch.uint8)
    for run in range(index.shape[0]):
        for b in range(index.shape[1]):
            padded = torch.zeros(channels, height + 2 * pad, width + 2 * pad, dtype=torch.uint8)
            padded[:, pad : pad + height, pad : pad + width] = images[index[run, b]]
            top, left = int(draws.row[run, b]), int(draws.column[run, b])
            cut = padded[:, top : top + height, left : left + width]
            out[run, b] = cut.flip(-1) if draws.flip[run, b] else cut
    return out


@settings(max_examples=40, deadline=None)
@given(
    runs=st.integers(1, 4),
    batch=st.integers(0, 6),
    size=st.tuples(st.sampled_from([1, 3]), st.integers(1, 9), st.integers(1, 9)),
    pad=st.integers(0, 4),
    flip=st.booleans(),
    seed=st.integers(0, 2**31),
)
def test_the_batch_equals_one_image_at_a_time(
    runs: int, batch: int, size: tuple[int, int, int], pad: int, flip: bool, seed: int
) -> None:
    g = torch.Generator().manual_seed(seed)
    images = torch.randint(256, (7, *size), generator=g, dtype=torch.uint8)
    index = torch.randint(7, (runs, batch), generator=g)
    draws = draw(batch, Augmentation(pad, flip), generator=generators(*range(seed, seed + runs)))
    assert torch.equal(crop_flip(images, index, draws, pad=pad), one_by_one(images, index, draws, pad))


def test_a_run_draws_the_same_alone_and_among_others() -> None:
    together = draw(50, Augmentation(4, True), generator=generators(1, 2, 3))
    alone = draw(50, Augmentation(4, True), generator=generators(2))
    for all_runs, one in zip(together, alone, strict=True):
        assert torch.equal(all_runs[1], one[0])


def test_draws_are_uniform_over_all_shifts() -> None:
    draws = draw(90_000, Augmentation(4, True), generator=generators(0))
    for shift in (draws.row[0], draws.column[0]):
        assert (torch.bincount(shift, minlength=9) - 10_000).abs().max() < 500
    assert abs(draws.flip.float().mean() - 0.5) < 0.01
    assert not draw(100, Augmentation(4, False), generator=generators(0)).flip.any()


def by_pillow(image: Tensor, box: Tensor, size: int) -> Tensor:
    top, left, height, width, mirrored = box.tolist()
    edges = (left, top, min(left + width, image.shape[1]), min(top + height, image.shape[0]))
    resized = Image.fromarray(image.numpy()).resize((size, size), Image.Resampling.BILINEAR, edges)
    view = torch.from_numpy(np.array(resized)).permute(2, 0, 1)
    return view.flip(-1) if mirrored else view


@pytest.mark.parametrize(("size", "training"), [(16, True), (32, False), (224, True)])
def test_views_are_pillows_to_one_grey_level(size: int, training: bool) -> None:
    given = images()
    sides = sizes(given)
    boxes = crop_boxes(sides, draw_crops(len(given), seed=5, epoch=2)) if training else centre_boxes(sides)
    index = torch.randperm(len(given), generator=torch.Generator().manual_seed(0))
    views = resample(ragged(given), index, boxes[index], size=size)
    for row, place in enumerate(index.tolist()):
        wanted = by_pillow(given[place], boxes[place], size)
        assert (views[row] - wanted).abs().max() <= 1.01, SIZES[place % len(SIZES)]


def test_boxes_of_many_images_are_those_of_each_alone() -> None:
    random = torch.Generator().manual_seed(1)
    sides = torch.randint(1, 500, (2000, 2), generator=random)
    draws = draw_crops(2000, seed=3, epoch=8)
    boxes = crop_boxes(sides, draws)
    for place in range(0, 2000, 50):
        assert torch.equal(crop_boxes(sides[[place]], draws[[place]])[0], boxes[place])
    top, left, height, width, mirrored = boxes.unbind(1)
    assert bool((top >= 0).all() and (left >= 0).all() and (height >= 1).all() and (width >= 1).all())
    assert bool((top + height <= sides[:, 0]).all() and (left + width <= sides[:, 1]).all())
    assert 900 < int(mirrored.sum()) < 1100
    area = height * width / sides.prod(1)
    large = (sides.amin(1) > 50) & (sides.amax(1) < 1.3 * sides.amin(1))
    assert 0.07 < float(area[large].min()) < 0.15
    assert 0.45 < float(area[large].mean()) < 0.56
    aspect = (width / height)[large]
    assert 0.7 < float(aspect.min()) < float(aspect.max()) < 1.4


def test_where_no_crop_fits_the_largest_central_one_of_allowed_aspect_is_taken() -> None:
    sides, draws = torch.tensor([[10, 100], [100, 10], [10, 12]]), torch.ones(3, 23)
    assert crop_boxes(sides, draws)[:2, :4].tolist() == [[0, 43, 10, 13], [43, 0, 13, 10]]


def test_draws_are_a_function_of_seed_epoch_and_sample() -> None:
    draws = draw_crops(7, seed=3, epoch=1)
    assert torch.equal(draws, draw_crops(7, seed=3, epoch=1))
    for other in (draw_crops(7, seed=4, epoch=1), draw_crops(7, seed=3, epoch=2)):
        assert (draws == other).float().mean() < 0.01
