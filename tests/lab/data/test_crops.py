from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from aol.lab.data.crops import RandomResizedCrop, ResizeCenterCrop, crops_for, resize, sample_generator
from tests.support.tiny_sets import pixels


def _tensor(array: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(array.copy()).permute(2, 0, 1)


@pytest.mark.parametrize("size", [(20, 24), (37, 19), (64, 90), (224, 224), (7, 300)])
@pytest.mark.parametrize("source", ["smooth", "noise"])
def test_resizing_equals_pillows_to_one_grey_level(size: tuple[int, int], source: str) -> None:
    height, width = size
    array = (
        pixels(0, 113, 87)
        if source == "smooth"
        else np.random.default_rng(0).integers(0, 256, (113, 87, 3), dtype=np.uint8)
    )
    pillow = np.asarray(Image.fromarray(array).resize((width, height), Image.Resampling.BILINEAR))
    ours = resize(_tensor(array), height, width)
    assert ours.dtype == torch.uint8
    assert (ours.int() - _tensor(pillow).int()).abs().max() <= 1


@pytest.mark.parametrize(("height", "width"), [(300, 500), (500, 300), (256, 256), (40, 48), (97, 331)])
def test_evaluation_resizes_the_shorter_side_and_cuts_the_centre(height: int, width: int) -> None:
    array = pixels(1, height, width)
    short = min(height, width)
    h, w = int(256 * height / short), int(256 * width / short)
    resized = Image.fromarray(array).resize((w, h), Image.Resampling.BILINEAR)
    left, top = round((w - 224) / 2), round((h - 224) / 2)
    expected = np.asarray(resized.crop((left, top, left + 224, top + 224)))
    found = ResizeCenterCrop(224, 256)(_tensor(array), sample_generator(0, 0, 0))
    assert found.shape == (3, 224, 224)
    assert (found.int() - _tensor(expected).int()).abs().max() <= 1


def test_training_crops_cover_the_named_areas_and_aspects() -> None:
    crop = RandomResizedCrop(224)
    boxes = [crop.box(300, 400, sample_generator(0, 0, i)) for i in range(3000)]
    area = np.array([h * w / 120_000 for _, _, h, w in boxes])
    aspect = np.array([w / h for _, _, h, w in boxes])
    assert 0.079 < area.min() < 0.1
    assert 0.9 < area.max() <= 1
    assert aspect.min() > 0.74
    assert aspect.max() < 1.35
    assert all(t >= 0 and left >= 0 and t + h <= 300 and left + w <= 400 for t, left, h, w in boxes)


def test_a_very_long_image_falls_back_to_a_central_crop() -> None:
    top, left, height, width = RandomResizedCrop(8, scale=(1.0, 1.0)).box(10, 1000, sample_generator(0, 0, 0))
    assert (top, left, height, width) == (0, 493, 10, 13)
    assert RandomResizedCrop(8).box(1, 1, sample_generator(0, 0, 0)) == (0, 0, 1, 1)


def test_training_crops_equal_pillows_crop_resize_and_mirror() -> None:
    array = pixels(2, 120, 90)
    crop = RandomResizedCrop(32)
    mirrored = 0
    for i in range(20):
        generator = sample_generator(5, 1, i)
        top, left, h, w = crop.box(120, 90, generator)
        flip = generator.random() < 0.5
        mirrored += flip
        cut = Image.fromarray(array).crop((left, top, left + w, top + h))
        expected = _tensor(np.asarray(cut.resize((32, 32), Image.Resampling.BILINEAR)))
        expected = expected.flip(-1) if flip else expected
        found = crop(_tensor(array), sample_generator(5, 1, i))
        assert (found.int() - expected.int()).abs().max() <= 1
    assert 0 < mirrored < 20


def test_sizes_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="size must be at least 1"):
        crops_for(0)
    with pytest.raises(ValueError, match="size must be above 0 and at most resize"):
        ResizeCenterCrop(300, 256)
