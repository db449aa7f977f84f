"""The kernel that cuts and resizes images, against the matrix products, by Triton's interpreter."""

from __future__ import annotations

import pytest
import torch

from aol.lab.data.encoded_images import centre_boxes, crop_boxes, draw_crops
from aol.lab.data.images import IMAGENET
from aol.lab.nets.fused import resample
from tests.support.views import batch, images, ragged, sizes

NUMBERS = {"scale": torch.tensor(IMAGENET.scale), "shift": torch.tensor(IMAGENET.shift)}


@pytest.mark.parametrize("training", [True, False])
def test_views_are_those_of_the_matrix_products(training: bool) -> None:
    size, given = 8, [image[:24, :20] for image in images()]  # the interpreter is slow
    kept, sides = ragged(given), sizes(given)
    index = torch.tensor([1, 5, 7, 5])
    boxes = crop_boxes(sides, draw_crops(len(given), seed=5, epoch=1)) if training else centre_boxes(sides)
    wanted = batch(kept, index, boxes[index], size=size, **NUMBERS)
    found = resample.batch(kept, index, boxes[index], size=size, **NUMBERS)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


def test_no_image_is_a_batch_too() -> None:
    none = torch.zeros(0, dtype=torch.int64)
    assert resample.batch(ragged(images()), none, torch.zeros((0, 5)), size=8, **NUMBERS).shape == (0, 3, 8, 8)
