"""The kernel that reads images, against the plain operations, by Triton's interpreter."""

from __future__ import annotations

import pytest
import torch

from aol.lab.data import augment
from aol.lab.data.images import Augmentation, Normalisation
from aol.lab.nets.fused import images

SIZES = [(3, 8, 8), (1, 5, 7), (3, 33, 32)]  # the last takes more than one block of a program


def pixels(size: tuple[int, int, int]) -> torch.Tensor:
    return torch.randint(256, (6, *size), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)


def numbers(channels: int) -> Normalisation:
    return Normalisation(tuple(0.01 * (c + 1) for c in range(channels)), tuple(-0.5 * c - 1 for c in range(channels)))


def tensors(normalisation: Normalisation) -> dict[str, torch.Tensor]:
    return {"scale": torch.tensor(normalisation.scale), "shift": torch.tensor(normalisation.shift)}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("pad", [0, 4])
def test_drawn_images_are_those_of_the_plain_operations(size: tuple[int, int, int], pad: int) -> None:
    index = torch.tensor([[5, 0, 3], [1, 1, 2]])
    generators = [torch.Generator().manual_seed(seed) for seed in (1, 2)]
    draws = augment.draw(3, Augmentation(pad=pad, flip=True), generator=generators)
    wanted = numbers(size[0])(augment.crop_flip(pixels(size), index, draws, pad=pad))
    found = images.batch(pixels(size), index, draws, pad=pad, **tensors(numbers(size[0])))
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("index", [torch.tensor([4, 0]), torch.tensor([[5], [2]]), torch.empty(0, dtype=torch.int64)])
def test_images_as_they_are(size: tuple[int, int, int], index: torch.Tensor) -> None:
    wanted = numbers(size[0])(pixels(size)[index])
    found = images.batch(pixels(size), index, None, pad=0, **tensors(numbers(size[0])))
    torch.testing.assert_close(found, wanted)
