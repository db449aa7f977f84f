"""The kernel that cuts and resizes images, against the matrix products, by Triton's interpreter."""

from __future__ import annotations

import pytest
import torch
from aol.lab.data.crops import crops_for

from aol.lab.data.images import IMAGENET
from aol.lab.data.resample import Ragged, centre_view, crop_view, largest_crops
from aol.lab.data.resample import resample as plain
from aol.lab.nets.fused import resample
from tests.lab.data.test_resample import images, sizes

NUMBERS = {"scale": torch.tensor(IMAGENET.scale), "shift": torch.tensor(IMAGENET.shift)}


@pytest.mark.parametrize("planar", [False, True])
@pytest.mark.parametrize("training", [True, False])
def test_views_are_those_of_the_matrix_products(planar: bool, training: bool) -> None:
    size, given = 8, [image[:24, :20] for image in images()]  # the interpreter is slow
    crop, centre = crops_for(size)
    ragged, sides = Ragged.of(given, planar=planar), sizes(given)
    index = torch.tensor([1, 5, 7, 5])
    boxes = torch.from_numpy(crop.boxes(*sides.T.numpy(), seed=5, epoch=1))
    view = (crop_view(boxes, size) if training else centre_view(sides, centre)).at(index)
    found = resample.batch(ragged, index, view, size=size, **NUMBERS)
    extent = largest_crops(sides, crop if training else centre)
    wanted = IMAGENET(plain(ragged, index, view, size=size, extent=extent))
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


def test_no_image_is_a_batch_too() -> None:
    none = torch.zeros(0, dtype=torch.int64)
    view = crop_view(torch.zeros((0, 5), dtype=torch.int64), 8)
    assert resample.batch(Ragged.of(images()), none, view, size=8, **NUMBERS).shape == (0, 3, 8, 8)
