"""`aol bench --large`, on a few small images: every row is there, and ratios follow from speeds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from PIL import Image

from aol.bench import large
from aol.cli import main
from aol.nets import resnet
from aol.nets.registry import NETWORKS, Entry

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return large.photos(tmp_path_factory.mktemp("large") / "photos", 24, workers=1)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = Entry(lambda classes, channels, _: resnet.resnet34(classes, channels, blocks=(1, 1), width=4), 32)
    monkeypatch.setitem(NETWORKS, "resnet34", entry)


def test_photos_have_the_sizes_and_bytes_of_imagenet(folder: Path) -> None:
    files = sorted(folder.glob("train/*/*.jpg"))
    assert len(files) == 24
    assert len(list(folder.glob("val/*/*.jpg"))) == 6
    assert 60_000 < sum(file.stat().st_size for file in files) / 24 < 160_000
    sides = []
    for file in files:
        with Image.open(file) as image:
            sides.append(image.size)
    assert 330 < sum(map(min, sides)) / 24 < 420
    assert 450 < sum(map(max, sides)) / 24 < 550
    assert len(set(sides)) > 12
    assert len({file.read_bytes() for file in files}) == 24


def test_floors_are_the_known_flops() -> None:
    found = large.floors("resnet34", CPU, size=224)
    assert found["FLOPs"] == pytest.approx(3 * 2 * 3.66e9, rel=0.03)  # 3.66 G multiplications forward, twice back
    assert found["bytes"] > 2 * 3 * 3.6e6 * 3  # each of the 3.6 M outputs of convolutions is written and read


@pytest.mark.usefixtures("small")
def test_the_command_times_every_way(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "large.json"
    words = ["bench", "--large", "--device", "cpu", "--images", "24", "--workers", "0", "--out", str(file)]
    assert main(words) == 0
    record = json.loads(file.read_text())
    rows = {row["what"]: row["value"] for row in record["rows"]}
    alone = rows["resnet34, random tensors on the device"]
    (plain,) = (value for what, value in rows.items() if "plain loop (" in what)
    for way in ("JPEG, decoded while training", "packed, decoded while training"):
        speed = rows[f"resnet34, {way}"]
        assert rows[f"resnet34, {way}, of random tensors"] == pytest.approx(100 * speed / alone)
        assert rows[f"resnet34, {way}, over the plain loop"] == pytest.approx(speed / plain)
        assert 0 < rows[f"resnet34, {way}, waiting for images"] < 100
    assert rows["a packed image, mean"] < rows["a JPEG, mean"] / 4
    assert "24 JPEGs" in record["data"]
    assert "24 JPEGs" in capsys.readouterr().out.splitlines()[0]
