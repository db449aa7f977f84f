"""Batches of cuts against images that are cut, resized and mirrored one at a time."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from aol.lab.data.crops import RandomResizedCrop, ResizeCenterCrop, crops_for, sample_generator, sample_uniforms
from PIL import Image
from torch import Tensor

from aol.lab.data.resample import Ragged, centre_view, crop_view, largest_crops, resample
from tests.support.tiny_sets import pixels

SIZES = [(40, 48), (48, 40), (97, 331), (300, 60), (33, 33), (7, 9), (64, 64), (1, 1), (120, 500)]


def images() -> list[Tensor]:
    """Noise, on which a wrong pixel shows, and smooth pictures."""
    random = np.random.default_rng(0)
    noise = [torch.from_numpy(random.integers(0, 256, (*size, 3), dtype=np.uint8)) for size in SIZES]
    return noise + [torch.from_numpy(pixels(seed, *size).copy()) for seed, size in enumerate(SIZES)]


def sizes(given: list[Tensor]) -> Tensor:
    return torch.tensor([image.shape[:2] for image in given])


def test_uniforms_of_many_samples_are_those_of_their_generators() -> None:
    for seed, epoch, first in ((0, 0, 0), (2**63 - 1, 199, 10**9)):
        index = np.arange(first, first + 20)
        found = sample_uniforms(seed, epoch, index, 3)
        wanted = [sample_generator(seed, epoch, int(i)).random(12) for i in index]
        assert np.array_equal(found, np.stack(wanted))


@pytest.mark.parametrize("crop", [RandomResizedCrop(224), RandomResizedCrop(32, scale=(0.9, 1.0), flip=False)])
def test_boxes_of_many_samples_are_those_drawn_one_at_a_time(crop: RandomResizedCrop) -> None:
    random = np.random.default_rng(1)
    height, width = random.integers(1, 500, (2, 2000))
    found = crop.boxes(height, width, seed=3, epoch=8)
    central = 0
    for i in range(len(height)):
        generator = sample_generator(3, 8, i)
        box = crop.box(int(height[i]), int(width[i]), generator)
        central += box == crop._central(int(height[i]), int(width[i]))
        assert (*box, crop.flip and generator.random() < 0.5) == tuple(found[i])
    assert central > 20  # images that no drawn box fits


@pytest.mark.parametrize("planar", [False, True])
@pytest.mark.parametrize("size", [16, 32, 224])
def test_a_batch_of_crops_is_within_a_grey_level_of_single_ones(size: int, planar: bool) -> None:
    given, crop = images(), RandomResizedCrop(size)
    ragged, sides = Ragged.of(given, planar=planar), sizes(given)
    for epoch in range(3):
        boxes = torch.from_numpy(crop.boxes(*sides.T.numpy(), seed=5, epoch=epoch))
        index = torch.randperm(len(given), generator=torch.Generator().manual_seed(epoch))
        views = crop_view(boxes, size).at(index)
        found = resample(ragged, index, views, size=size, extent=largest_crops(sides, crop))
        for row, place in enumerate(index.tolist()):
            wanted = crop(given[place].permute(2, 0, 1), sample_generator(5, epoch, place))
            assert (found[row] - wanted).abs().max() <= 1.01, SIZES[place % len(SIZES)]


@pytest.mark.parametrize("size", [16, 32, 224])
def test_a_batch_of_central_crops_is_within_a_grey_level_of_single_ones(size: int) -> None:
    given, (_, crop) = images(), crops_for(size)
    sides = sizes(given)
    index = torch.arange(len(given))
    extent = largest_crops(sides, crop)
    found = resample(Ragged.of(given), index, centre_view(sides, crop), size=size, extent=extent)
    for place, image in enumerate(given):
        wanted = crop(image.permute(2, 0, 1), sample_generator(0, 0, 0))
        assert (found[place] - wanted).abs().max() <= 1.01, SIZES[place % len(SIZES)]


def test_a_cut_and_resize_equals_pillows() -> None:
    image = torch.from_numpy(pixels(3, 200, 300).copy())
    box = torch.tensor([[20, 30, 150, 170, 1]])
    found = resample(Ragged.of([image]), torch.tensor([0]), crop_view(box, 64), size=64, extent=(152, 176))
    cut = Image.fromarray(image.numpy()).crop((30, 20, 200, 170)).resize((64, 64), Image.Resampling.BILINEAR)
    wanted = torch.from_numpy(np.asarray(cut).copy()).permute(2, 0, 1).flip(-1)
    assert (found[0] - wanted).abs().max() <= 1


def test_a_panorama_costs_no_more_columns_than_its_crops_may_have() -> None:
    sides = torch.tensor([[256, 5000], [300, 256]])
    assert largest_crops(sides, RandomResizedCrop(224)) == (304, 344)
    rows, columns = largest_crops(sides, ResizeCenterCrop(224, 256))
    assert max(rows, columns) <= 304
