"""`aol bench --large`, on a few small images: every row is there, and ratios follow from speeds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from aol.cli import main
from aol.lab.bench import large, measure
from aol.lab.data import open_data
from aol.lab.engine.image_requests import decoded_by_worker
from aol.lab.nets import resnet
from aol.lab.nets.registry import NETWORKS, Entry
from tests.lab.engine.test_cpu_share import pretend

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


def test_a_single_photo_has_a_class(tmp_path: Path) -> None:
    pair = open_data(large.photos(tmp_path / "photos", 1, workers=1))
    assert (len(pair.train), len(pair.test), pair.num_classes) == (1, 1, 1)


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
        parts = [
            rows[f"resnet34, {way}, the thread that makes batches {part}"] for part in ("waits for files", "decodes")
        ]
        assert 0 < sum(parts) < 100
        assert rows[f"{way.partition(',')[0]}, decoded without training"] > 0
    assert rows["a packed image, mean"] < rows["a JPEG, mean"] / 4
    assert "24 JPEGs" in record["data"]
    assert "24 JPEGs" in capsys.readouterr().out.splitlines()[0]


@pytest.mark.usefixtures("small")
def test_the_command_compares_shares_that_the_cpu_decodes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded: list[int] = []
    pretend(lambda content: decoded.append(len(content)), monkeypatch.setattr)
    file, place = tmp_path / "shares.json", str(tmp_path / "set")
    words = ["bench", "--large", "--device", "cpu", "--images", "24", "--workers", "0", "--folder", place]
    assert main([*words, "--cpu-share", "0,0.25,1", "--out", str(file)]) == 0
    found = {row["what"]: row for row in json.loads(file.read_text())["rows"]}
    table = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| resnet34 | ")]
    for share, line in zip(("0 %", "25 %", "100 %"), table, strict=True):
        what = f"resnet34, JPEG, {share} by workers, decoded while training"
        figures = [found[what + which] for which in ("", ", of random tensors", ", over the plain loop")]
        assert line.startswith(f"| resnet34 | {share} | {figures[0]['value']:,.4g} images/s |")
        assert [f"{each['value']:,.4g} {each['unit']}" for each in figures] == line.split(" | ")[2:5]
        assert found[f"JPEG, {share} by workers, decoded without training"]["value"] > 0
    assert not any("packed, decoded" in what or "cost of ages" in what for what in found)
    every, epochs = sum(len(path.read_bytes()) > 0 for path in Path(place).glob("photos/train/*/*")), 2 + 2
    own = sum(decoded_by_worker(sample, epoch, 0.25) for epoch in (0, 1) * 2 for sample in range(every))
    assert len(decoded) == 2 * epochs * every - own


def test_shares_are_compared_only_where_there_is_a_decoder(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--large", "--device", "cpu", "--cpu-share", "0,0.5"]) == 2
    assert "--cpu-share needs a GPU and torchvision with nvJPEG" in capsys.readouterr().err
    assert main(["bench", "--large", "--cpu-share", "0,1.5"]) == 2
    assert "--cpu-share must be at most 1" in capsys.readouterr().err


def test_a_set_that_was_made_before_is_used_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["bench", "--large", "--make", "--folder", str(tmp_path), "--workers", "1", "--images"]
    assert main([*words, "8", "--json"]) == 0
    first = json.loads(capsys.readouterr().out)["rows"]
    assert [row["unit"] for row in first] == ["s", "kB", "s", "kB"]
    files = sorted(tmp_path.glob("photos/train/*/*.jpg"))
    assert len(files) == 8
    before = [file.stat().st_mtime_ns for file in files]
    assert main([*words, "8", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"] == first
    assert [file.stat().st_mtime_ns for file in files] == before
    assert main([*words, "9"]) == 2
    assert "another folder" in capsys.readouterr().err
    (tmp_path / "set.json").unlink()  # it was killed before the end
    files[0].write_bytes(b"half")
    assert main([*words, "8"]) == 0
    assert len(open_data(tmp_path / "packed", size=32).train) == 8
    assert files[0].stat().st_size > 4


def test_making_needs_a_folder(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--large", "--make"]) == 2
    assert "--folder" in capsys.readouterr().err


def test_the_record_has_what_was_measured_before_an_interruption(tmp_path: Path) -> None:
    figures = measure.Figures(CPU, "photos", tmp_path / "large.json")
    for number in (1, 2):
        figures.add("one", 1.0, "s")
        assert len(json.loads((tmp_path / "large.json").read_text())["rows"]) == number


def test_the_plain_loop_leaves_out_what_was_ready_before(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 1 + 4 batches, the last four are timed."""
    shown: list[int] = []
    made: list[int] = []

    class Counted(large._Plain):
        def __getitem__(self, index: int) -> tuple[Tensor, int]:
            shown.append(index)
            return super().__getitem__(index)

    monkeypatch.setattr(large, "_Plain", Counted)
    clock = iter([100.0, 108.0])
    monkeypatch.setattr(large.time, "perf_counter", lambda: next(clock))
    monkeypatch.setattr(large, "_wait", lambda _: made.append(len(shown)))
    monkeypatch.setattr(large.nets, "make", lambda *_, **__: nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 100)))
    assert large.plain_loop(folder, "resnet34", 6, CPU, size=32, workers=0, batches=4) == 3.0  # 24 images in 8 s
    assert made == [6, 30]  # reading and decoding is timed, too
