from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from aol._files import FolderInUseError
from aol.lab import data
from aol.lab.data import DataError, StoredImages
from aol.lab.data.crops import resize
from aol.lab.data.decode import decode
from tests.support.running import PATIENCE
from tests.support.tiny_sets import encoded, image_folder, pixels, tiny_lmdb, tiny_parquet


def _content(root: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in sorted(root.iterdir()) if p.suffix in (".bin", ".npy", ".json")}


def _encoded(split: StoredImages) -> list[tuple[bytes, int]]:
    return [(split.records.encoded(i), int(split.labels[i])) for i in range(len(split))]


def _places(root: Path) -> Path:
    return image_folder(root, classes=("airfield", "alley", "zen_garden"), suffix=".jpg")


@pytest.mark.parametrize("make", [image_folder, _places, tiny_parquet, tiny_lmdb])
def test_a_packed_set_holds_the_same_bytes_labels_and_classes(tmp_path: Path, make: Callable[[Path], Path]) -> None:
    source = data.open_data(make(tmp_path / "source"), size=16)
    seen: list[tuple[int, int]] = []
    done = data.pack(
        tmp_path / "source",
        tmp_path / "packed",
        workers=2,
        shard_records=4,
        progress=lambda *p: seen.append(p),
    )
    packed = data.open_data(tmp_path / "packed", size=16)
    assert packed.classes == source.classes
    for a, b in ((source.train, packed.train), (source.test, packed.test)):
        assert isinstance(a, StoredImages)
        assert isinstance(b, StoredImages)
        assert _encoded(a) == _encoded(b)
        assert torch.equal(a[1][0], b[1][0])  # the same crop: (seed, epoch, index)
    assert done.records == len(source.train) + len(source.test) == seen[-1][0] == seen[-1][1]  # type: ignore[arg-type]
    report = data.check(tmp_path / "packed")
    assert report.ok
    assert report.kind == "packed"


def test_packing_with_threads_gives_the_same_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = image_folder(tmp_path / "source")
    data.pack(source, tmp_path / "processes", workers=2, shard_records=4)
    monkeypatch.setattr(sys, "platform", "darwin")  # where processes are not forked
    data.pack(source, tmp_path / "threads", workers=2, shard_records=4)
    assert _content(tmp_path / "threads") == _content(tmp_path / "processes")


def test_shrinking_sets_the_shorter_side_and_leaves_small_images_alone(tmp_path: Path) -> None:
    root = image_folder(tmp_path / "source", side=64)
    small = root / "train/n01440764/small.jpg"
    small.write_bytes(encoded(5, "JPEG", 20, 30))
    data.pack(root, tmp_path / "packed", size=32, workers=1)
    source = data.open_data(root).train.with_transform(None)  # type: ignore[union-attr]
    packed = data.open_data(tmp_path / "packed").train.with_transform(None)  # type: ignore[union-attr]
    for i in range(len(source)):
        before, after = source[i][0], packed[i][0]
        if source.records.source(i) == str(small):
            assert torch.equal(before, after)
            continue
        assert min(after.shape[1:]) == 32
        assert abs(after.shape[2] / after.shape[1] - before.shape[2] / before.shape[1]) < 0.05
    manifest = json.loads((tmp_path / "packed/manifest.json").read_text())
    assert (manifest["size"], manifest["quality"]) == (32, 90)


def test_packed_images_are_upright_whether_shrunk_or_not(tmp_path: Path) -> None:
    from PIL import Image

    root = image_folder(tmp_path / "source", per_class={"train": 1, "val": 1}, side=64)
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was turned: 60 wide, 80 high
    for name in ("n01440764", "n01443537", "n01484850"):
        Image.fromarray(pixels(7, 60, 80)).save(root / "train" / name / f"{name}_0.JPEG", exif=exif)
    before = data.open_data(root).train.with_transform(None)[0][0]  # type: ignore[union-attr]
    assert before.shape == (3, 80, 60)
    for size, shape in ((None, (3, 80, 60)), (30, (3, 40, 30))):
        data.pack(root, tmp_path / f"packed{size}", size=size, workers=1)
        after = data.open_data(tmp_path / f"packed{size}").train.with_transform(None)[0][0]  # type: ignore[union-attr]
        assert after.shape == shape
        shrunk = resize(before, *shape[1:])
        assert float((after.float() - shrunk.float()).abs().mean()) < 3


def test_a_second_call_does_only_what_is_missing_or_changed(tmp_path: Path) -> None:
    root, dest = image_folder(tmp_path / "source"), tmp_path / "packed"
    first = data.pack(root, dest, workers=2, shard_records=4)
    assert (first.written, first.kept) == (5, 0)
    before = _content(dest)
    again = data.pack(root, dest, workers=2, shard_records=4)
    assert (again.written, again.kept) == (0, 5)
    assert _content(dest) == before
    (dest / "train-00001.npy").unlink()
    assert data.pack(root, dest, workers=2, shard_records=4).written == 1
    assert _content(dest) == before
    (root / "train/n01443537/n01443537_2.JPEG").write_bytes(encoded(77))
    assert data.pack(root, dest, workers=2, shard_records=4).written == 1
    assert data.check(dest).ok
    assert data.pack(root, dest, workers=2, shard_records=4, size=16).written == 5
    larger = data.pack(root, dest, workers=2, shard_records=100)
    assert larger.written == 2
    assert sorted(p.name for p in dest.glob("*.bin")) == ["test-00000.bin", "train-00000.bin"]


_PACK = """
import sys
from aol.lab.data import pack
pack(sys.argv[1], sys.argv[2], workers=2, shard_records=3, size=24)
"""


def test_a_packing_killed_at_random_moments_is_taken_up_again(tmp_path: Path) -> None:
    root = image_folder(tmp_path / "source", per_class={"train": 60, "val": 20}, side=200)
    data.pack(root, tmp_path / "whole", workers=1, shard_records=3, size=24)
    dest = tmp_path / "packed"
    moments = random.Random(0)
    killed, shards = 0, []
    for _ in range(4):
        process = subprocess.Popen([sys.executable, "-c", _PACK, str(root), str(dest)])
        deadline = time.monotonic() + PATIENCE
        # Importing takes seconds: wait until work is seen, then a random moment.
        already = len(list(dest.glob("*.json")))
        while len(list(dest.glob("*.json"))) == already and process.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.002)
        time.sleep(moments.uniform(0, 0.08))
        process.send_signal(signal.SIGKILL)
        killed += process.wait() == -signal.SIGKILL
        if (dest / "manifest.json").exists():
            break
        shards.append(len(list(dest.glob("*.json"))))
        with pytest.raises(DataError, match="a packing that has not finished"):
            data.open_data(dest)
    assert killed >= 1
    assert shards == sorted(shards)  # nothing finished is ever lost
    data.pack(root, dest, workers=2, shard_records=3, size=24)
    assert _content(dest) == _content(tmp_path / "whole")
    assert not list(dest.glob("*.tmp"))
    assert data.check(dest).ok


def test_damaged_images_are_named_and_the_rest_is_packed(tmp_path: Path) -> None:
    root, dest = image_folder(tmp_path / "source"), tmp_path / "packed"
    bad = root / "train/n01440764/n01440764_1.JPEG"
    whole = bad.read_bytes()
    bad.write_bytes(whole[: len(whole) // 2])
    (root / "val/n01484850/n01484850_1.JPEG").write_bytes(b"")
    with pytest.raises(DataError, match=r"n01440764_1.JPEG: a damaged image .* \(and 1 more\); repair or remove"):
        data.pack(root, dest, workers=2, shard_records=3)
    assert not (dest / "manifest.json").exists()
    bad.write_bytes(whole)
    (root / "val/n01484850/n01484850_1.JPEG").write_bytes(whole)
    assert data.pack(root, dest, workers=2, shard_records=3).kept == 4
    assert decode(data.open_data(dest).train.records.encoded(1)).shape[0] == 3  # type: ignore[union-attr]


def test_a_flipped_bit_is_found_by_check_and_by_reading(tmp_path: Path) -> None:
    root, dest = image_folder(tmp_path / "source"), tmp_path / "packed"
    data.pack(root, dest, workers=1, shard_records=6)
    path = dest / "train-00001.bin"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)
    report = data.check(dest)
    assert len(report.problems) == 1
    assert "train-00001.bin (record " in report.problems[0]
    opened = data.open_data(dest)
    with pytest.raises(DataError, match=r"train-00001.bin \(record \d\): damaged, its checksum is wrong"):
        _encoded(opened.train)  # type: ignore[arg-type]


def test_damaged_shards_and_manifests_are_named_on_opening(tmp_path: Path) -> None:
    root, dest = image_folder(tmp_path / "source"), tmp_path / "packed"
    data.pack(root, dest, workers=1)

    def spoiled(name: str, content: bytes | None) -> str:
        path = dest / name
        before = path.read_bytes()
        path.unlink() if content is None else path.write_bytes(content)
        with pytest.raises((DataError, FileNotFoundError)) as caught:
            data.open_data(dest)
        path.write_bytes(before)
        return str(caught.value)

    assert "train-00000.bin: 3 bytes instead of" in spoiled("train-00000.bin", b"abc")
    assert "train-00000.bin: no such file" in spoiled("train-00000.bin", None)
    assert "test-00000.npy: damaged" in spoiled("test-00000.npy", b"abc")
    assert "manifest.json: not the manifest of a packed data set" in spoiled("manifest.json", b"{}")
    manifest = json.loads((dest / "manifest.json").read_text())
    later = json.dumps({**manifest, "version": 9}).encode()
    assert "format aol-packed version 9 is not known here" in spoiled("manifest.json", later)
    fewer = json.dumps({**manifest, "classes": ["a"]}).encode()
    assert "is outside 0..0" in spoiled("manifest.json", fewer)


def test_two_packings_into_one_folder_are_refused(tmp_path: Path) -> None:
    root, dest = image_folder(tmp_path / "source"), tmp_path / "packed"

    def again(done: int, total: int) -> None:
        with pytest.raises(FolderInUseError, match="packed is in use by another aol process"):
            data.pack(root, dest, workers=1)

    data.pack(root, dest, workers=1, shard_records=6, progress=again)


def test_destinations_and_numbers_that_make_no_sense_are_refused(tmp_path: Path) -> None:
    root = image_folder(tmp_path / "source")
    (tmp_path / "full").mkdir()
    (tmp_path / "full/thesis.tex").write_text("x")
    (tmp_path / "runs").mkdir()
    for name in (".lock", "request.json"):  # what `aol train --out runs` leaves
        (tmp_path / "runs" / name).write_text("{}")
    for dest, said in (
        (tmp_path / "full", "holds something else"),
        (tmp_path / "runs", "holds something else"),
        (tmp_path / "full/thesis.tex", "a file and not a folder"),
        (root / "packed", "dest must lie outside the source"),
        (root, "dest must lie outside the source"),
    ):
        with pytest.raises(ValueError, match=said):
            data.pack(root, dest)
    for option in ({"size": 0}, {"quality": 101}, {"shard_records": 0}):
        with pytest.raises(ValueError, match=next(iter(option))):
            data.pack(root, tmp_path / "packed", **option)
    assert (tmp_path / "full/thesis.tex").read_text() == "x"
    assert (tmp_path / "runs/request.json").exists()
    assert sorted(os.listdir(root)) == ["train", "val"]


def test_files_of_others_in_the_folder_stay(tmp_path: Path) -> None:
    root, dest = image_folder(tmp_path / "source"), tmp_path / "packed"
    data.pack(root, dest, workers=1, shard_records=4)
    own = [dest / name for name in ("notes.json", "scores.npy", "draft.tmp")]
    for path in own:
        path.write_text("{}")
    data.pack(root, dest, workers=1)
    assert all(path.exists() for path in own)
    assert sorted(path.name for path in dest.glob("*.bin")) == ["test-00000.bin", "train-00000.bin"]


def test_a_progress_that_raises_stops_the_work(tmp_path: Path) -> None:
    root = image_folder(tmp_path / "source")

    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        data.pack(root, tmp_path / "packed", workers=2, shard_records=2, progress=stop)
    assert data.pack(root, tmp_path / "packed", workers=2, shard_records=2).records == 18
