"""Images of any size: what of them is shown, and what is said of one that cannot be."""

from __future__ import annotations

import io
import os
import pickle
import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps

from aol.lab.data import DataError, StoredImages, encoded_images, open_data
from aol.lab.data.encoded_images import draw_crops
from tests.support.tiny_sets import encoded, pixels


def one(root: Path, content: bytes, name: str = "0.jpg") -> StoredImages:
    """A set whose first image has this content."""
    for folder in ("train/cat", "train/dog", "val/cat", "val/dog"):
        (root / folder).mkdir(parents=True)
        (root / folder / "1.png").write_bytes(encoded(7, "PNG"))
    (root / "train" / "cat" / name).write_bytes(content)
    train = open_data(root).train
    assert isinstance(train, StoredImages)
    return train


def saved(image: Image.Image, kind: str, **given: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **given)
    return buffer.getvalue()


@pytest.mark.parametrize("mode", ["L", "P", "CMYK", "RGBA", "1", "I;16"])
def test_images_of_every_mode_become_rgb(tmp_path: Path, mode: str) -> None:
    base = Image.new("I;16", (6, 5)) if mode == "I;16" else Image.new("RGB", (6, 5), (9, 9, 9)).convert(mode)
    train = one(tmp_path, saved(base, "TIFF" if mode in ("CMYK", "I;16") else "PNG"), "0.tif")
    assert train.size_of(0) == (5, 6)
    assert train.whole(0).shape == (3, 5, 6)
    assert torch.equal(train.view(0, None, 4)[0, 0], train.whole(0)[:, 0, 0])


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "TIFF", "WEBP"])
@pytest.mark.parametrize("orientation", range(10))
def test_the_rotation_that_a_camera_notes_is_applied(tmp_path: Path, kind: str, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    content = saved(Image.fromarray(pixels(3)), kind, exif=exif)
    upright = ImageOps.exif_transpose(Image.open(io.BytesIO(content))).convert("RGB")
    train = one(tmp_path, content, "0.jpg")
    assert train.size_of(0) == ((48, 40) if 5 <= orientation <= 8 else (40, 48))
    assert torch.equal(train.whole(0).permute(1, 2, 0), torch.from_numpy(np.array(upright)))
    square = upright.resize((32, 32), Image.Resampling.BILINEAR, centre(upright))
    assert torch.equal(train.view(0, None, 32), torch.from_numpy(np.array(square)))


def centre(image: Image.Image) -> tuple[float, float, float, float]:
    side = min(image.size) * 224 / 256
    left, top = (image.width - side) / 2, (image.height - side) / 2
    return left, top, left + side, top + side


@pytest.mark.filterwarnings("ignore:Corrupt EXIF")
def test_damaged_exif_beside_whole_pixels_does_no_harm(tmp_path: Path) -> None:
    content = saved(Image.fromarray(pixels(3)), "JPEG", exif=b"Exif\0\0II*\0\x08\0\0\0\xff\xff")
    whole = np.array(Image.open(io.BytesIO(encoded(3))))
    assert torch.equal(one(tmp_path, content).whole(0).permute(1, 2, 0), torch.from_numpy(whole))


def test_the_centre_is_seven_eighths_of_the_shorter_side(tmp_path: Path) -> None:
    image = Image.fromarray(pixels(3, 300, 420))
    train = one(tmp_path, saved(image, "PNG"))
    wanted = np.asarray(image.resize((224, 224), Image.Resampling.BILINEAR, (78.75, 18.75, 341.25, 281.25)))
    assert torch.equal(train.view(0, None, 224), torch.from_numpy(wanted.copy()))


@pytest.mark.parametrize("side", [90, 300, 449, 900])
def test_a_jpeg_that_is_decoded_smaller_is_the_same_to_some_grey_levels(tmp_path: Path, side: int) -> None:
    image = Image.fromarray(pixels(3, side, side + 40))
    jpeg = one(tmp_path / "a", saved(image, "JPEG", quality=95))
    png = one(tmp_path / "b", saved(image, "PNG"))
    for draws in (None, *draw_crops(8, seed=2, epoch=1)):
        apart = (jpeg.view(0, draws, 32).int() - png.view(0, draws, 32).int()).abs()
        assert int(apart.max()) <= 12
        assert float(apart.float().mean()) < 2.5


def test_a_crop_is_mirrored_where_the_last_draw_says_so_and_a_pickled_copy_reads_the_same(tmp_path: Path) -> None:
    train = one(tmp_path, encoded(3))
    draws = torch.full((23,), 0.5)
    plain = train.view(0, draws, 32)
    draws[-1] = 0.4
    assert torch.equal(pickle.loads(pickle.dumps(train)).view(0, draws, 32), plain.flip(1))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"hello", "not an image"), (b"", "not an image"), (encoded(1)[:300], r"a damaged image \(.*[tT]runcated"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 80 80\n%%EndComments\n{} loop\n", "not an image"),
    ],
    ids=["text", "empty", "cut", "program"],
)  # fmt: skip
def test_what_cannot_be_decoded_is_named(tmp_path: Path, content: bytes, said: str) -> None:
    train = one(tmp_path, content)
    for read in (lambda: train.whole(0), lambda: train.view(0, None, 8)):
        with pytest.raises(DataError, match=rf"^{tmp_path}/train/cat/0\.jpg: {said}"):
            read()
    assert train.whole(1).shape == (3, 40, 48)


@pytest.mark.parametrize("made", [os.mkfifo, socket.socket(socket.AF_UNIX).bind, partial(os.symlink, "/dev/null")])
def test_a_pipe_a_socket_or_a_device_is_refused_and_not_waited_for(
    made: Callable[[str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    train = one(tmp_path, encoded(3))
    monkeypatch.chdir(tmp_path / "train" / "cat")  # the path of a socket is short
    os.remove("0.jpg")
    made("0.jpg")
    if made is os.mkfifo:  # with both ends open, no reader waits for ever
        request.addfinalizer(partial(os.close, os.open("0.jpg", os.O_RDWR | os.O_NONBLOCK)))
    for read in (lambda: train.size_of(0), lambda: train.view(0, None, 8), lambda: train.whole(0)):
        with pytest.raises(DataError, match=r"/0\.jpg: a pipe, a socket or a device, and not an image$"):
            read()


def test_images_of_too_many_pixels_are_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train = one(tmp_path, encoded(3))
    monkeypatch.setattr(encoded_images, "LARGEST", 40 * 48)
    assert train.view(0, None, 8).shape == (8, 8, 3)
    monkeypatch.setattr(encoded_images, "LARGEST", 40 * 48 - 1)
    for read in (lambda: train.size_of(0), lambda: train.view(0, None, 8), lambda: train.whole(0)):
        with pytest.raises(DataError, match=r"^.*/0\.jpg: more than 1,919 pixels$"):
            read()
    monkeypatch.setattr(encoded_images, "LARGEST", 2**26)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 900)  # beyond twice of which Pillow itself refuses
    with pytest.raises(DataError, match=r"more than 67,108,864 pixels"):
        train.size_of(0)
