from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from aol.lab.data import Augmentation, centred
from aol.lab.data.augment import Draws, crop_flip, draw, training_batch


def _one_by_one(images: Tensor, index: Tensor, draws: Draws, pad: int) -> Tensor:
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


@settings(max_examples=60, deadline=None)
@given(
    runs=st.integers(1, 4),
    batch=st.integers(0, 6),
    channels=st.sampled_from([1, 3]),
    height=st.integers(1, 9),
    width=st.integers(1, 9),
    pad=st.integers(0, 4),
    flip=st.booleans(),
    seed=st.integers(0, 2**31),
)
def test_the_batch_equals_one_image_at_a_time(
    runs: int, batch: int, channels: int, height: int, width: int, pad: int, flip: bool, seed: int
) -> None:
    g = torch.Generator().manual_seed(seed)
    images = torch.randint(256, (7, channels, height, width), generator=g, dtype=torch.uint8)
    index = torch.randint(7, (runs, batch), generator=g)
    generators = [torch.Generator().manual_seed(seed + r) for r in range(runs)]
    draws = draw(batch, Augmentation(pad, flip), generator=generators)
    expected = _one_by_one(images, index, draws, pad)
    assert torch.equal(crop_flip(images, index, draws, pad=pad), expected)
    normalised = training_batch(images, index, draws, pad=pad, normalisation=centred(channels))
    assert torch.equal(normalised, expected.float() / 128 - 1)


def test_a_run_draws_the_same_alone_and_among_others() -> None:
    augmentation = Augmentation(4, True)
    together = draw(50, augmentation, generator=[torch.Generator().manual_seed(s) for s in (1, 2, 3)])
    alone = draw(50, augmentation, generator=torch.Generator().manual_seed(2))
    for all_runs, one in zip(together, alone, strict=True):
        assert torch.equal(all_runs[1], one)


def test_draws_are_uniform_over_all_shifts() -> None:
    draws = draw(90_000, Augmentation(4, True), generator=torch.Generator().manual_seed(0))
    for shift in (draws.row, draws.column):
        assert (torch.bincount(shift, minlength=9) - 10_000).abs().max() < 500
    assert abs(draws.flip.float().mean() - 0.5) < 0.01
    assert not draw(100, Augmentation(4, False), generator=torch.Generator()).flip.any()


def test_the_middle_draw_without_flip_is_the_image_itself() -> None:
    images = torch.arange(2 * 3 * 5 * 5, dtype=torch.uint8).view(2, 3, 5, 5)
    still = Draws(torch.full((1, 2), 4), torch.full((1, 2), 4), torch.zeros(1, 2, dtype=torch.bool))
    index = torch.tensor([[1, 0]])
    assert torch.equal(crop_flip(images, index, still, pad=4), images[index])
    batch = training_batch(images, index, still, pad=4, normalisation=centred(3))
    assert torch.equal(batch, centred(3)(images[index]))


def test_an_epoch_of_draws_gives_its_batches() -> None:
    draws = draw(10, Augmentation(2, True), generator=[torch.Generator().manual_seed(0)])
    parts = [draws.batch(slice(at, at + 4)) for at in (0, 4, 8)]
    assert torch.equal(torch.cat([p.row for p in parts], 1), draws.row)
    assert torch.equal(draws.batch(torch.tensor([3, 1])).flip, draws.flip[:, [3, 1]])


def test_shapes_that_do_not_match_are_refused() -> None:
    images = torch.zeros(2, 1, 4, 4, dtype=torch.uint8)
    draws = draw(3, Augmentation(1, True), generator=torch.Generator())
    with pytest.raises(ValueError, match="index and draws must have one shape"):
        training_batch(images, torch.tensor([0, 1]), draws, pad=1, normalisation=centred(1))
