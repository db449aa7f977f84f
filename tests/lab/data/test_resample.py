"""Batches of views of images of different sizes, against Pillow, one image at a time."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from aol.lab.data.encoded_images import centre_boxes, crop_boxes, draw_crops
from aol.lab.data.resample import Ragged, resample, view_of
from tests.support.tiny_sets import pixels

SIZES = [(40, 48), (48, 40), (97, 331), (300, 60), (33, 33), (7, 9), (64, 64), (1, 1), (120, 500)]
CPU = torch.device("cpu")


def images() -> list[Tensor]:
    """Noise, on which a wrong pixel shows, and smooth pictures: uint8 [H, W, 3]."""
    random = np.random.default_rng(0)
    noise = [torch.from_numpy(random.integers(0, 256, (*size, 3), dtype=np.uint8)) for size in SIZES]
    return noise + [torch.from_numpy(pixels(seed, *size).copy()) for seed, size in enumerate(SIZES)]


def sizes(given: list[Tensor]) -> Tensor:
    return torch.tensor([image.shape[:2] for image in given])


def ragged(given: list[Tensor]) -> Ragged:
    joined = Ragged.empty(sizes(given), CPU)
    for start, image in zip(joined.start.tolist(), given, strict=True):
        joined.pixels[start : start + image.numel()] = image.permute(2, 0, 1).reshape(-1)
    return joined


def by_pillow(image: Tensor, box: Tensor, size: int) -> Tensor:
    top, left, height, width, mirrored = box.tolist()
    edges = (left, top, min(left + width, image.shape[1]), min(top + height, image.shape[0]))
    resized = Image.fromarray(image.numpy()).resize((size, size), Image.Resampling.BILINEAR, edges)
    found = torch.from_numpy(np.array(resized)).permute(2, 0, 1)
    return found.flip(-1) if mirrored else found


@pytest.mark.parametrize("size", [16, 32, 224])
@pytest.mark.parametrize("training", [True, False], ids=["crop", "centre"])
def test_views_are_pillows_to_one_grey_level(size: int, training: bool) -> None:
    given = images()
    sides = sizes(given)
    boxes = crop_boxes(sides, draw_crops(len(given), seed=5, epoch=2)) if training else centre_boxes(sides)
    index = torch.randperm(len(given), generator=torch.Generator().manual_seed(0))
    found = resample(ragged(given), index, view_of(sides[index], boxes[index], size), size=size)
    for row, place in enumerate(index.tolist()):
        wanted = by_pillow(given[place], boxes[place], size)
        assert (found[row] - wanted).abs().max() <= 1.01, SIZES[place % len(SIZES)]


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
