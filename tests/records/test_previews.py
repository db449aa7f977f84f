"""Previews: any kind of image, small; texts and rows; and only of those samples that are worth it."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save

from aol.records.previews import (
    LARGEST,
    SIDE,
    Previews,
    described,
    png,
    read_previews,
    save_previews,
    thumbnail,
    worth_seeing,
)

RAMP = np.arange(0, 250, 10, dtype=np.uint8).reshape(5, 5)
KINDS = {
    "grey [H, W]": RAMP,
    "grey [1, H, W]": torch.from_numpy(RAMP)[None],
    "grey [H, W, 1]": RAMP[..., None],
    "floats from 0 to 1": torch.from_numpy(RAMP)[None] / 255,
    "whole numbers": RAMP.astype(np.int64),
}
COLOURS = np.stack((RAMP, RAMP[::-1], 255 - RAMP))


@pytest.mark.parametrize("kind", KINDS)
def test_grey_images_of_any_kind_become_the_same_bytes(kind: str) -> None:
    pixels = thumbnail(KINDS[kind])
    assert pixels[0].tolist() == RAMP.tolist()
    assert np.asarray(Image.open(io.BytesIO(png(pixels)))).tolist() == RAMP.tolist()


def test_colours_stay_what_they_are_first_last_or_from_pillow() -> None:
    alpha = np.full((5, 5, 1), 7, np.uint8)
    last = np.moveaxis(COLOURS, 0, 2)
    for image in (COLOURS, last, np.concatenate((last, alpha), 2), Image.fromarray(last)):
        assert thumbnail(image).tolist() == COLOURS.tolist()
    assert np.asarray(Image.open(io.BytesIO(png(thumbnail(last))))).tolist() == last.tolist()


def test_normalised_input_is_stretched_from_black_to_white() -> None:
    pixels = thumbnail((torch.from_numpy(RAMP)[None] - 120.0) / 50)
    assert (int(pixels.min()), int(pixels.max())) == (0, 255)
    assert thumbnail(torch.full((1, 2, 2), 3.0)).unique().numel() == 1


def test_large_images_shrink_in_proportion_and_keep_their_mean() -> None:
    image = torch.randint(0, 256, (3, 300, 150), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    pixels = thumbnail(image)
    assert pixels.shape == (3, SIDE, SIDE // 2)
    assert float(pixels.float().mean()) == pytest.approx(float(image.float().mean()), abs=1.0)


@pytest.mark.parametrize("wrong", [torch.zeros(2, 5, 5), torch.zeros(3), torch.zeros(3, 0, 4), "cat.png", None, 3.0])
def test_what_is_no_image_is_said_so(wrong: object) -> None:
    with pytest.raises((TypeError, ValueError), match="images must give an image"):
        thumbnail(wrong)


def test_previews_are_read_as_they_were_written(tmp_path: Path) -> None:
    row = described({f"column {number}": number for number in range(20)})
    assert row[-1] == ["…", "8 more"]
    save_previews(tmp_path, [4, 2], image=lambda i: np.full((3 + i, 5), i, np.uint8), text=lambda _: dict(row[:12]))
    previews = read_previews(tmp_path)
    assert {i: (pixels.shape, int(pixels.max())) for i, pixels in previews.images.items()} == {
        4: ((1, 7, 5), 4),
        2: ((1, 5, 5), 2),
    }
    assert previews.texts == {4: row[:12], 2: row[:12]}
    save_previews(tmp_path, [], image=lambda _: RAMP)
    assert read_previews(tmp_path) == Previews({}, {})


def test_damaged_or_missing_previews_are_none(tmp_path: Path) -> None:
    assert read_previews(tmp_path) == Previews({}, {})
    save_previews(tmp_path, [1], image=lambda _: RAMP, text=str)
    path = tmp_path / "previews.safetensors"
    path.write_bytes(path.read_bytes()[:-5])
    assert read_previews(tmp_path) == Previews({}, {})
    texts = torch.tensor(list(b"{}"), dtype=torch.uint8)
    path.write_bytes(save({"1": torch.zeros(3, 2, 2, dtype=torch.complex64), "texts": texts}))
    assert read_previews(tmp_path) == Previews({}, {})


def test_previews_beyond_five_megabytes_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "previews.safetensors"
    save_previews(tmp_path, range(600), image=lambda _: np.zeros((3, 80, 80), np.uint8))
    assert sorted(read_previews(tmp_path).images) == list(range(len(read_previews(tmp_path).images)))
    assert LARGEST - 100_000 < path.stat().st_size <= LARGEST
    save_previews(tmp_path, range(900), text=lambda _: "é" * 1900)
    assert 0 < len(read_previews(tmp_path).texts) < 600
    assert path.stat().st_size <= LARGEST


def test_the_oldest_of_all_and_of_every_class_and_the_most_suspicious_are_worth_seeing() -> None:
    generator = torch.Generator().manual_seed(2)
    label = torch.randint(0, 100, (20_000,), generator=generator)
    ema, suspicion = (torch.rand(20_000, generator=generator) for _ in range(2))
    ema[7] = torch.nan
    rows = worth_seeing(label, ema, suspicion)
    assert len(rows) == len(set(rows)) <= 500
    order = ema.nan_to_num(-1.0).argsort(descending=True, stable=True).tolist()
    assert rows[:100] == order[:100]
    assert set(suspicion.topk(100).indices.tolist()) <= set(rows)
    classes = label.tolist()
    for c in range(100):
        assert set([i for i in order if classes[i] == c][:3]) <= set(rows)
