"""Thumbnails: any kind of image, small, and only of those samples that are worth it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from aol.records.previews import (
    SIDE,
    Previews,
    described,
    read_descriptions,
    read_thumbnails,
    thumbnail,
    worth_seeing,
    write_descriptions,
    write_thumbnails,
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
    assert thumbnail(KINDS[kind])[0].tolist() == RAMP.tolist()


def test_colours_stay_what_they_are_first_last_or_from_pillow() -> None:
    alpha = np.full((5, 5, 1), 7, np.uint8)
    last = np.moveaxis(COLOURS, 0, 2)
    for image in (COLOURS, last, np.concatenate((last, alpha), 2), Image.fromarray(last)):
        assert thumbnail(image).tolist() == COLOURS.tolist()


def test_normalised_input_is_stretched_from_black_to_white() -> None:
    found = thumbnail((torch.from_numpy(RAMP)[None] - 120.0) / 50)
    assert (int(found.min()), int(found.max())) == (0, 255)
    assert thumbnail(torch.full((1, 2, 2), 3.0)).unique().numel() == 1


def test_large_images_shrink_in_proportion_and_keep_their_mean() -> None:
    image = torch.randint(0, 256, (3, 300, 150), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    found = thumbnail(image)
    assert found.shape == (3, SIDE, SIDE // 2)
    assert float(found.float().mean()) == pytest.approx(float(image.float().mean()), abs=1.0)


@pytest.mark.parametrize("wrong", [torch.zeros(2, 5, 5), torch.zeros(3), torch.zeros(3, 0, 4), "cat.png", None, 3.0])
def test_what_is_no_image_is_said_so(wrong: object) -> None:
    with pytest.raises((TypeError, ValueError), match="images must give an image"):
        thumbnail(wrong)


def test_pictures_are_asked_for_once_and_read_as_they_were_written(tmp_path: Path) -> None:
    asked: list[int] = []

    def show(row: int) -> np.ndarray:
        asked.append(row)
        return np.full((3 + row, 5), row, np.uint8)

    pictures = Previews(show, thumbnail, write_thumbnails)
    pictures.update(tmp_path, [1, 4])
    pictures.update(tmp_path, [4, 2])
    assert asked == [1, 4, 2]
    found = read_thumbnails(tmp_path)
    assert {row: (picture.shape, int(picture.max())) for row, picture in found.items()} == {
        4: ((1, 7, 5), 4),
        2: ((1, 5, 5), 2),
    }
    pictures.update(tmp_path, [])
    assert read_thumbnails(tmp_path) == {}
    (tmp_path / "pictures.safetensors").write_bytes(b"half")
    assert read_thumbnails(tmp_path) == {}


def test_the_oldest_of_all_and_of_every_class_and_the_most_suspicious_are_worth_seeing() -> None:
    generator = torch.Generator().manual_seed(2)
    label = torch.randint(0, 100, (20_000,), generator=generator)
    ema, suspicion = (torch.rand(20_000, generator=generator) for _ in range(2))
    ema[7] = torch.nan
    found = worth_seeing(label, ema, suspicion)
    assert len(found) == len(set(found)) <= 96 + 96 + 400
    order = ema.nan_to_num(-1.0).argsort(descending=True, stable=True).tolist()
    assert found[:96] == order[:96]
    assert set(suspicion.topk(96).indices.tolist()) <= set(found)
    classes = label.tolist()
    for c in range(100):
        assert set([i for i in order if classes[i] == c][:4]) <= set(found)


def test_long_rows_are_read_as_they_were_written(tmp_path: Path) -> None:
    row = described({f"column {number}": number for number in range(20)})
    assert row[-1] == ["…", "8 more"]
    write_descriptions(tmp_path, {3: row})
    assert read_descriptions(tmp_path) == {3: row}
