"""One suite for every kind of storage: what holds for one must hold for all."""

from __future__ import annotations

import io
import os
import pickle
import resource
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from aol.lab import data
from aol.lab.data import DataError, StoredImages, parquet
from aol.lab.data.decode import decode, open_image
from aol.lab.data.encoded_images import problems
from tests.support.tiny_sets import encoded, image_folder, parquet_set, pixels, tiny_lmdb, tiny_parquet

ROWS = [(encoded(0), 0), (encoded(1), 1)]


def _packed(root: Path) -> Path:
    image_folder(root.with_name("source"))
    data.pack(root.with_name("source"), root, workers=1, shard_records=5)
    return root


def _single(root: Path) -> Path:
    return image_folder(root, per_class={"all": 6}) / "all"


KINDS: dict[str, Callable[[Path], Path]] = {
    "folder": image_folder,
    "single root": _single,
    "parquet": tiny_parquet,
    "lmdb": tiny_lmdb,
    "packed": _packed,
}


@pytest.fixture(params=list(KINDS))
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> data.Pair[StoredImages]:
    opened = data.open_data(KINDS[request.param](tmp_path / "set"), size=16)
    assert isinstance(opened.train, StoredImages)
    return opened  # type: ignore[return-value]


def _all(split: StoredImages, workers: int, epochs: int = 1) -> list[list[torch.Tensor]]:
    loader = DataLoader(split, batch_size=3, num_workers=workers, persistent_workers=workers > 0)
    seen = []
    for epoch in range(epochs):
        split.set_epoch(epoch)
        batches = list(loader)
        seen.append([torch.cat([b[i] for b in batches]) for i in range(3)])
    return seen


def test_an_item_is_pixels_label_and_index(pair: data.Pair[StoredImages]) -> None:
    for split in (pair.train, pair.test):
        image, label, index = split[len(split) - 1]
        assert image.dtype == torch.uint8
        assert image.shape == split.shape == (3, 16, 16)
        assert label == int(split.labels[-1])
        assert index == len(split) - 1
        assert split.counts.sum() == len(split)
    assert len(pair.classes) == 3


def test_the_number_of_workers_changes_nothing(pair: data.Pair[StoredImages]) -> None:
    pair.train[0]  # handles opened before the fork must not reach the workers
    here, there = _all(pair.train, 0, epochs=2), _all(pair.train, 2, epochs=2)
    for one, other in zip(here, there, strict=True):
        for a, b in zip(one, other, strict=True):
            assert torch.equal(a, b)
    assert here[0][2].tolist() == list(range(len(pair.train)))
    assert not torch.equal(here[0][0], here[1][0])  # a new epoch, new crops


def test_what_is_drawn_depends_on_seed_epoch_and_index_alone(pair: data.Pair[StoredImages]) -> None:
    train = pair.train
    first = train[1][0]
    _ = [train[i] for i in range(len(train))]
    assert torch.equal(train[1][0], first)
    assert not torch.equal(train.with_transform(train.transform, seed=1)[1][0], first)
    train.set_epoch(3)
    assert not torch.equal(train[1][0], first)
    train.set_epoch(0)
    assert torch.equal(train[1][0], first)


def test_evaluation_draws_nothing(pair: data.Pair[StoredImages]) -> None:
    before = pair.test[0][0]
    pair.test.set_epoch(9)
    assert torch.equal(pair.test[0][0], before)
    clean = pair.train.with_transform(pair.test.transform)
    assert torch.equal(clean[2][0], clean.with_transform(pair.test.transform, seed=5)[2][0])


def test_a_pickled_copy_reads_the_same(pair: data.Pair[StoredImages]) -> None:
    first = pair.train[0][0]
    copy = pickle.loads(pickle.dumps(pair.train))
    assert torch.equal(copy[0][0], first)


def test_an_index_outside_is_refused(pair: data.Pair[StoredImages]) -> None:
    for index in (-1, len(pair.train)):
        with pytest.raises(IndexError, match="is outside 0"):
            pair.train[index]


def test_nothing_is_damaged_and_check_says_so(pair: data.Pair[StoredImages]) -> None:
    seen: list[tuple[int, int]] = []
    assert problems(lambda at: pair.train[at], len(pair.train), 2, lambda *p: seen.append(p)) == []
    assert seen[-1] == (len(pair.train), len(pair.train))


def test_pixels_are_those_of_the_file(tmp_path: Path) -> None:
    expected = decode(encoded(3))
    rows = [(encoded(3), 0), (encoded(4), 1), (encoded(5), 2)]
    from tests.support.tiny_sets import lmdb_set, parquet_set

    parquet = data.open_data(parquet_set(tmp_path / "p", {"train": [rows], "test": [rows]}, None))
    lmdb = data.open_data(lmdb_set(tmp_path / "l", {"train": rows, "test": rows}, None, first=0))
    for opened in (parquet, lmdb):
        assert isinstance(opened.train, StoredImages)
        assert torch.equal(opened.train.with_transform(None)[0][0], expected)
        assert opened.classes == ("0", "1", "2")


def test_grey_palette_and_cmyk_images_become_rgb(tmp_path: Path) -> None:
    from PIL import Image

    for mode in ("L", "P", "CMYK", "RGBA", "1", "I;16"):
        path = tmp_path / ("x.tif" if mode in ("CMYK", "I;16") else "x.png")
        base = Image.new("I;16", (6, 5)) if mode == "I;16" else Image.new("RGB", (6, 5)).convert(mode)
        base.save(path)
        assert decode(path.read_bytes()).shape == (3, 5, 6)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "TIFF", "WEBP"])
@pytest.mark.parametrize("orientation", range(10))
def test_the_rotation_that_a_camera_notes_is_applied(kind: str, orientation: int) -> None:
    from PIL import Image, ImageOps

    exif = Image.Exif()
    exif[0x0112] = orientation
    buffer = io.BytesIO()
    Image.fromarray(pixels(3)).save(buffer, kind, exif=exif)
    expected = ImageOps.exif_transpose(Image.open(io.BytesIO(buffer.getvalue()))).convert("RGB")
    found = decode(buffer.getvalue())
    assert found.shape == ((3, 48, 40) if 5 <= orientation <= 8 else (3, 40, 48))
    assert torch.equal(found.permute(1, 2, 0), torch.from_numpy(np.array(expected)))


@pytest.mark.parametrize("reduce", [1, 2, 4, 8])
@pytest.mark.parametrize("side", [30, 300, 449])
def test_a_reduced_jpeg_is_the_mean_of_its_pixels(side: int, reduce: int) -> None:
    content = encoded(3, height=side, width=side + 40)
    whole, found = (np.asarray(open_image(content, "x", reduce=each), dtype=np.float64) for each in (1, reduce))
    assert found.shape == (-(-side // reduce), -(-(side + 40) // reduce), 3)
    rows, columns = side // reduce, (side + 40) // reduce
    blocks = whole[: rows * reduce, : columns * reduce].reshape(rows, reduce, columns, reduce, 3).mean((1, 3))
    assert np.abs(found[:rows, :columns] - blocks).mean() < 3


@pytest.mark.filterwarnings("ignore:Corrupt EXIF")
def test_damaged_exif_beside_whole_pixels_does_no_harm() -> None:
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(pixels(3)).save(buffer, "JPEG", exif=b"Exif\0\0II*\0\x08\0\0\0\xff\xff")
    assert torch.equal(decode(buffer.getvalue()), decode(encoded(3)))


@pytest.mark.parametrize("kind", ["folder", "parquet", "lmdb"])
def test_damaged_images_are_named_by_check(tmp_path: Path, kind: str) -> None:
    from tests.support.tiny_sets import lmdb_set, parquet_set

    whole = encoded(1)
    bad = {"cut": whole[: len(whole) // 2], "text": b"hello", "empty": b""}
    rows = [(whole, 0), (bad["cut"], 1), (bad["text"], 0), (bad["empty"], 1)]
    if kind == "folder":
        root = image_folder(tmp_path / "set", classes=("a", "b"))
        for name, content in bad.items():
            (root / "train/a" / f"{name}.jpg").write_bytes(content)
        marks = [f"train/a/{name}.jpg: " for name in ("cut", "empty", "text")]
    elif kind == "parquet":
        root = parquet_set(tmp_path / "set", {"train": [rows], "test": [ROWS]}, ["a", "b"])
        marks = ["row group 0, row 1", "row group 1, row 0", "row group 0, row 2"]
    else:
        root = lmdb_set(tmp_path / "set", {"train": rows, "test": ROWS}, ["a", "b"])
        marks = [f"image-00000000{n}" for n in (2, 3, 4)]
    headers = "\n".join(data.check(root).problems)  # of whose images only the header is read
    assert "an empty file" in headers
    assert "not an image" in headers
    report = data.check(root, decode=True, workers=2)
    assert len(report.problems) == 3
    for mark in marks:
        assert any(mark in problem for problem in report.problems), (mark, report.problems)
    said = "\n".join(report.problems)
    assert "a damaged image (" in said
    assert "not an image" in said
    assert "an empty file" in said


def test_a_damaged_image_raises_in_a_worker_and_names_the_file(tmp_path: Path) -> None:
    root = image_folder(tmp_path / "set")
    path = root / "train/n01440764/n01440764_0.JPEG"
    path.write_bytes(path.read_bytes()[:200])
    opened = data.open_data(root, size=16)
    iterator = iter(DataLoader(opened.train, batch_size=3, num_workers=2))  # type: ignore[arg-type]
    with pytest.raises(DataError, match=r"n01440764_0.JPEG: a damaged image"):
        next(iterator)
    iterator._shutdown_workers()  # type: ignore[attr-defined]  # left to the garbage collector it takes 5 s each


def test_small_images_of_one_size_load_into_memory(tmp_path: Path) -> None:
    root = tmp_path / "set"
    for split in ("train", "test"):
        for c in "ab":
            (root / split / c).mkdir(parents=True)
            for i in range(3):
                (root / split / c / f"{i}.png").write_bytes(encoded(i, "PNG", 16, 24))
    pair = data.load(root)
    assert pair.train.images.shape == (6, 3, 16, 24)
    assert torch.equal(pair.train.images[1], decode(encoded(1, "PNG", 16, 24)))
    assert pair.train.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert pair.augmentation.pad == 2
    (root / "train/a/1.png").write_bytes(encoded(1, "PNG", 16, 25))
    with pytest.raises(DataError, match=r"train/a/1.png: 25×16 pixels, but the first image has 24×16"):
        data.load(root)


def test_a_choice_of_records_keeps_names_and_stamps(tmp_path: Path) -> None:
    records = data.open_data(image_folder(tmp_path / "set")).train.records  # type: ignore[union-attr]
    chosen = records.subset(torch.tensor([5, 2]), "some")  # type: ignore[attr-defined]
    assert chosen.labels.tolist() == records.labels[[5, 2]].tolist()
    assert chosen.source(0) == records.source(5)
    assert chosen.stamp(1) == records.stamp(2)
    assert chosen.encoded(1) == records.encoded(2)
    assert np.array_equal(decode(chosen.encoded(0)), decode(records.encoded(5)))


def test_arguments_that_make_no_sense_are_refused(tmp_path: Path) -> None:
    pair = data.open_data(image_folder(tmp_path / "set"))
    assert isinstance(pair.train, StoredImages)
    with pytest.raises(ValueError, match="epoch must be at least 0"):
        pair.train.set_epoch(-1)
    with pytest.raises(ValueError, match="seed must be at least 0"):
        pair.train.with_transform(None, seed=-1)


@pytest.fixture
def few_files() -> Iterator[None]:
    """Let this process open 80 more files."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 80, limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@pytest.mark.parametrize("kind", ["packed", "parquet"])
def test_a_set_may_have_more_files_than_a_process_may_open(tmp_path: Path, kind: str, few_files: None) -> None:
    if kind == "packed":
        image_folder(tmp_path / "source", per_class={"train": 40, "val": 1})
        data.pack(tmp_path / "source", tmp_path / kind, workers=1, shard_records=1)
    else:
        rows = [[(encoded(i), i % 3)] for i in range(120)]
        parquet_set(tmp_path / kind, {"train": rows, "test": rows[:3]}, ["a", "b", "c"])
    records = data.open_data(tmp_path / kind, size=16).train.records  # type: ignore[union-attr]
    assert len({records.encoded(index) for index in range(120)}) == 120
    assert data.check(tmp_path / kind, workers=1).ok


def test_only_the_last_row_groups_stay_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import pyarrow

    monkeypatch.setattr(parquet, "_KEPT_BYTES", 1_000_000)
    rows = [(bytes([i]) * 100_000, i % 3) for i in range(6)]
    parquet_set(tmp_path, {"train": [rows] * 10, "test": [rows]}, ["a", "b", "c"], group=2)
    records = data.open_data(tmp_path).train.records  # type: ignore[union-attr]
    before = pyarrow.total_allocated_bytes()
    for index in range(60):
        records.encoded(index)
    assert pyarrow.total_allocated_bytes() - before < 2_000_000  # of 6,000,000


def test_row_groups_that_fit_into_memory_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pyarrow.parquet import ParquetFile

    rows = [(bytes([i]) * 1000, i % 3) for i in range(6)]
    parquet_set(tmp_path, {"train": [rows] * 8, "test": [rows]}, ["a", "b", "c"], group=6)
    records = data.open_data(tmp_path).train.records  # type: ignore[union-attr]
    read, reads = ParquetFile.read_row_group, []
    monkeypatch.setattr(ParquetFile, "read_row_group", lambda *given, **more: reads.append(1) or read(*given, **more))
    for index in [*range(0, 48, 6)] * 5:  # one of every file, five times
        records.encoded(index)
    assert len(reads) == 8
