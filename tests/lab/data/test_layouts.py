"""Layouts: what is recognised, and what is said of one that is wrong."""

from __future__ import annotations

import os
import random
import shutil
import sys
from pathlib import Path

import pytest
import torch

from aol.lab import data
from aol.lab.data import DataError
from aol.lab.data.encoded_images import typical_bytes
from aol.lab.data.folder import FileNames
from tests.support.tiny_sets import encoded, image_folder, lmdb_set, parquet_set, tiny_lmdb, tiny_parquet

ROW = [(encoded(0), 0), (encoded(1), 1)]


def test_imagenet_and_places_layouts_are_image_folders(tmp_path: Path) -> None:
    imagenet = image_folder(tmp_path / "imagenet")
    (imagenet / "test").mkdir()  # ImageNet's test images have no labels
    (imagenet / "test/ILSVRC2012_test_00000001.JPEG").write_bytes(encoded(0))
    opened = data.open_data(imagenet)
    assert opened.classes == ("n01440764", "n01443537", "n01484850")
    assert (len(opened.train), len(opened.test), opened.validation) == (12, 6, None)  # type: ignore[arg-type]
    places = image_folder(tmp_path / "places365", classes=("airfield", "alley", "zen_garden"), suffix=".jpg")
    assert data.open_data(places).classes == ("airfield", "alley", "zen_garden")


def test_a_link_back_to_a_folder_above_is_named_and_other_links_are_followed(tmp_path: Path) -> None:
    root = image_folder(tmp_path / "set", classes=("cat", "cat2"))
    (root / "train" / "cat2" / "more").symlink_to(root / "train" / "cat")
    assert len(data.open_data(root).train) == 12  # type: ignore[arg-type]
    (root / "train" / "cat" / "again").symlink_to(root / "train")
    with pytest.raises(DataError, match="train/cat/again: a link that leads back to a folder above it"):
        data.open_data(root)


def test_a_labelled_test_folder_beside_val_leaves_val_for_validation(tmp_path: Path) -> None:
    root = image_folder(tmp_path / "set", per_class={"train": 3, "val": 2, "test": 1})
    opened = data.open_data(root)
    assert opened.validation is not None
    assert [len(s) for s in (opened.train, opened.test, opened.validation)] == [9, 3, 6]  # type: ignore[arg-type]


def test_nested_hidden_and_foreign_files_in_a_class_folder(tmp_path: Path) -> None:
    root = image_folder(tmp_path / "set")
    folder = root / "train/n01440764"
    (folder / "more").mkdir()
    (folder / "more/deep.PNG").write_bytes(encoded(9, "PNG"))
    (folder / ".hidden.jpg").write_bytes(b"")
    (folder / "readme.txt").write_text("hello")
    opened = data.open_data(root)
    assert opened.train.counts.tolist() == [5, 4, 4]  # type: ignore[union-attr]


def test_class_folders_alone_are_split_and_always_the_same(tmp_path: Path) -> None:
    root = image_folder(tmp_path / "set", per_class={"all": 10}) / "all"
    one, two = data.open_data(root), data.open_data(root)
    for opened in (one, two):
        assert opened.train.counts.tolist() == [8, 8, 8]  # type: ignore[union-attr]
        assert opened.test.counts.tolist() == [2, 2, 2]  # type: ignore[union-attr]
    sources = [[s.records.source(i) for i in range(6)] for s in (one.test, two.test)]  # type: ignore[union-attr]
    assert sources[0] == sources[1]
    train = {one.train.records.source(i) for i in range(24)}  # type: ignore[union-attr]
    assert not train & set(sources[0])


def test_a_class_with_one_image_cannot_be_split(tmp_path: Path) -> None:
    root = image_folder(tmp_path / "set", per_class={"all": 2}) / "all"
    (root / "n01443537/n01443537_0.JPEG").unlink()
    with pytest.raises(DataError, match="n01443537: a single image"):
        data.open_data(root)


def test_an_empty_class_folder_is_named(tmp_path: Path) -> None:
    root = image_folder(tmp_path / "set")
    (root / "train/n02").mkdir()
    with pytest.raises(DataError, match="train/n02: an empty class folder"):
        data.open_data(root)


def test_one_check_names_every_problem_of_a_folder(tmp_path: Path) -> None:
    root = image_folder(tmp_path / "set", classes=("cat", "dog"))
    whole = encoded(1)
    contents = {"cat/empty.jpg": b"", "cat/text.png": b"hello", "dog/cut.jpg": whole[: len(whole) // 2]}
    for name, content in contents.items():
        (root / "train" / name).write_bytes(content)
    for name in ("train/fox", "train/gnu", "val/fox", "val/owl"):
        (root / name).mkdir()
    (root / "train/fox/moving.GIF").write_bytes(b"GIF89a")
    (root / "train/dog/gone.jpg").symlink_to(tmp_path / "nowhere")
    (root / "train/dog/again").symlink_to(root / "train")
    os.mkfifo(root / "val/cat/pipe.jpg")
    problems = data.check(root, decode=True).problems
    expected = {
        ("train/cat/empty.jpg", "empty file"),
        ("train/cat/text.png", "not an image"),
        ("train/dog/cut.jpg", "damaged"),
        ("train/dog/gone.jpg", "link to nothing"),
        ("train/dog/again", "leads back"),
        ("train/fox/moving.GIF", "GIF is not read"),
        ("train/fox", "no image in it"),
        ("train/gnu", "no image in it"),
        ("val/cat/pipe.jpg", "not a file"),
        ("val/fox", "no image in it"),
        ("val/owl", "no image in it"),
        ("val/owl", "no such class in train"),
        ("val", "no folder of class 'gnu'"),
    }
    for path, text in expected:
        assert any(p.startswith(f"{root / path}: ") and text in p for p in problems), (path, problems)
    assert len(problems) == len(expected)


@pytest.mark.parametrize("name", ["train/n01440764/gone.jpg", "train/n01440764/pipe.jpg"])
def test_what_is_not_a_file_is_named_on_opening(tmp_path: Path, name: str) -> None:
    root = image_folder(tmp_path / "set")
    if "gone" in name:
        (root / name).symlink_to(tmp_path / "nowhere")
    else:
        os.mkfifo(root / name)
    with pytest.raises(DataError, match=name):
        data.open_data(root)


def test_check_names_classes_without_an_image_and_single_classes(tmp_path: Path) -> None:
    parquet = parquet_set(tmp_path / "p", {"train": [ROW], "test": [ROW]}, ["a", "b", "c"])
    assert data.check(parquet).problems == ["p/train: no image of class 'c'", "p/test: no image of class 'c'"]
    single = image_folder(tmp_path / "single", classes=("cat",))
    assert data.check(single).problems == [f"{single}: a single class; at least two are needed"]
    (tmp_path / "flat/train").mkdir(parents=True)
    assert len(data.check(tmp_path / "flat").problems) == 2  # neither classes nor a test folder


def test_classes_that_differ_are_named(tmp_path: Path) -> None:
    root = image_folder(tmp_path / "set")
    shutil.move(root / "val/n01443537", root / "val/n09")
    with pytest.raises(DataError, match=r"val lacks 'n01443537' of .*train and .*val has 'n09', which .*train has"):
        data.open_data(root)


def test_folders_that_hold_no_data_set_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"nowhere: no such folder; built-in names are digits"):
        data.open_data(tmp_path / "nowhere")
    with pytest.raises(DataError, match="no data set recognised; expected train and test folders"):
        data.open_data(tmp_path)
    (tmp_path / "file").write_text("x")
    with pytest.raises(DataError, match="file: a file, not a folder"):
        data.open_data(tmp_path / "file")
    (tmp_path / "a/train/x").mkdir(parents=True)
    (tmp_path / "a/train/x/0.jpg").write_bytes(encoded(0))
    with pytest.raises(DataError, match="a: has a train folder but no test or val folder"):
        data.open_data(tmp_path / "a")
    (tmp_path / "b/only").mkdir(parents=True)
    (tmp_path / "b/only/0.jpg").write_bytes(encoded(0))
    with pytest.raises(DataError, match="b: neither a train folder nor at least two class folders"):
        data.open_data(tmp_path / "b")
    report = data.check(tmp_path / "b")
    assert not report.ok
    assert "neither a train folder" in report.problems[0]


def test_splits_of_other_names_are_not_taken_for_classes(tmp_path: Path) -> None:
    root = image_folder(tmp_path / "set", per_class={"Train": 4, "Test": 2})
    with pytest.raises(DataError, match="set: its folders are splits, not classes: they must be called train"):
        data.open_data(root)
    (problem,) = data.check(root).problems
    assert "splits, not classes" in problem


def test_parquet_takes_class_names_from_the_metadata(tmp_path: Path) -> None:
    opened = data.open_data(tiny_parquet(tmp_path / "set"))
    assert opened.classes == ("tench", "goldfish", "shark")
    assert opened.train.labels.tolist() == [i % 3 for i in range(10)]  # type: ignore[union-attr]
    whole = opened.train.with_transform(None)  # type: ignore[union-attr]
    for i in range(10):
        assert whole.records.encoded(i) == encoded(i)


def test_a_parquet_test_split_without_labels_gives_way(tmp_path: Path) -> None:
    root = parquet_set(
        tmp_path / "set", {"train": [ROW], "validation": [ROW[:1]], "test": [[(encoded(5), -1)]]}, ["a", "b"]
    )
    opened = data.open_data(root)
    assert opened.validation is None
    assert len(opened.test) == 1  # type: ignore[arg-type]


def test_parquet_that_is_wrong_is_named(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    root = parquet_set(tmp_path / "label", {"train": [ROW], "test": [[(encoded(0), 7)]]}, ["a", "b"])
    with pytest.raises(DataError, match=r"label/test: label 7 at position 0 is outside 0..1"):
        data.open_data(root)
    root = parquet_set(tmp_path / "alone", {"train": [ROW]}, ["a", "b"])
    with pytest.raises(DataError, match="no labelled test"):
        data.open_data(root)
    root = parquet_set(tmp_path / "cut", {"train": [ROW], "test": [ROW]}, ["a", "b"])
    path = next((root / "data").glob("test*"))
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(DataError, match=r"test-00000-of-00001.parquet: not a whole Parquet file"):
        data.open_data(root)
    (tmp_path / "columns").mkdir()
    pq.write_table(pa.table({"text": ["x"], "label": [0]}), tmp_path / "columns/train.parquet")
    with pytest.raises(DataError, match="no image column"):
        data.open_data(tmp_path / "columns")
    image = pa.array([{"bytes": b"", "path": ""}])
    pq.write_table(pa.table({"image": image, "text": ["x"]}), tmp_path / "columns/train.parquet")
    with pytest.raises(DataError, match=r"no label column \(label, labels, fine_label"):
        data.open_data(tmp_path / "columns")
    root = parquet_set(tmp_path / "names", {"train": [ROW]}, ["a", "b"])
    other = parquet_set(tmp_path / "others", {"test": [ROW]}, ["b", "a"])
    shutil.copy(next((other / "data").iterdir()), root / "data")
    with pytest.raises(DataError, match="classes differ: names/test has another order than names/train"):
        data.open_data(root)


def test_lmdb_that_is_wrong_is_named(tmp_path: Path) -> None:
    root = tiny_lmdb(tmp_path / "whole")
    assert data.open_data(root).classes == ("a", "b", "c")
    root = lmdb_set(tmp_path / "alone", {"train": ROW}, None)
    with pytest.raises(DataError, match="no labelled test"):
        data.open_data(root)
    root = lmdb_set(tmp_path / "label", {"train": ROW, "val": [(encoded(0), 5)]}, None)
    with pytest.raises(DataError, match=r"label/val: label 5 at position 0 is outside 0..1"):
        data.open_data(root)
    root = lmdb_set(tmp_path / "names", {"train": ROW}, ["a", "b"])
    lmdb_set(root, {"val": ROW}, ["a", "c"])
    with pytest.raises(DataError, match=r"classes differ: names/val lacks 'b'"):
        data.open_data(root)
    root = lmdb_set(tmp_path / "keys", {"train": ROW, "val": ROW}, None)
    import lmdb

    env = lmdb.open(str(root / "val.lmdb"), map_size=1 << 24)
    with env.begin(write=True) as view:
        view.put(b"label-000000002", b"cat")
    env.close()
    with pytest.raises(DataError, match="key 'label-000000002' is not a whole number: b'cat'"):
        data.open_data(root)
    root = tiny_lmdb(tmp_path / "broken")
    (root / "val.lmdb/data.mdb").write_bytes(b"x" * 8192)
    with pytest.raises(DataError, match=r"val.lmdb/data.mdb: not an LMDB environment"):
        data.open_data(root)


def test_an_lmdb_cut_short_or_damaged_is_one_sentence_and_not_the_end_of_the_process(tmp_path: Path) -> None:
    rows = [(encoded(i) + bytes(5000 * (i % 2)), i % 3) for i in range(300)]
    root = lmdb_set(tmp_path / "set", {"train": rows, "test": rows[:6]}, None)
    path = root / "train.lmdb/data.mdb"
    whole = path.read_bytes()
    assert data.check(root).ok
    opened = data.open_data(root)
    assert [opened.train.records.encoded(place) for place in range(300)] == [content for content, _ in rows]
    path.write_bytes(whole[:-4096])
    with pytest.raises(DataError, match=r"cut short"):
        data.open_data(root)
    assert not data.check(root).ok
    path.write_bytes(whole[: len(whole) // 2])  # while it is open
    with pytest.raises(DataError, match=r"cut short"):
        list(map(opened.train.records.encoded, range(300)))
    chance = random.Random(0)
    refused = 0
    for _ in range(200):
        damaged = bytearray(whole)
        for _ in range(20):
            damaged[chance.randrange(len(whole))] = chance.randrange(256)
        path.write_bytes(damaged)
        refused += not data.check(root).ok
    assert refused > 30


@pytest.mark.parametrize("made", [lmdb_set, lambda root, splits, names: parquet_set(root, _in_shards(splits), names)])
def test_a_label_beyond_all_samples_is_named_with_its_row(made: object, tmp_path: Path) -> None:
    rows = [(encoded(0), 0), (encoded(1), 2**62), (encoded(2), 1)]
    with pytest.raises(DataError, match=r"label 4611686018427387904 at position 1 is too large"):
        data.open_data(made(tmp_path / "set", {"train": rows, "test": rows}, None))


def _in_shards(splits: dict[str, list[tuple[bytes, int]]]) -> dict[str, list[list[tuple[bytes, int]]]]:
    return {name: [rows] for name, rows in splits.items()}


@pytest.mark.parametrize(
    ("module", "make", "said"),
    [
        (
            "pyarrow.parquet",
            tiny_parquet,
            r"needs pyarrow, which is not installed: pip install '\.\[parquet\]' in a checkout of aol",
        ),
        (
            "PIL.Image",
            image_folder,
            r"needs pillow, which is not installed: pip install '\.\[images\]' in a checkout of aol",
        ),
    ],
)
def test_a_missing_package_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, make: object, said: str
) -> None:
    assert callable(make)
    root = make(tmp_path / "set")
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ModuleNotFoundError, match=said):
        data.open_data(root).train[0]  # type: ignore[index]
    with pytest.raises(ModuleNotFoundError, match=said):
        typical_bytes(data.open_data(root).train.records, decoded=True)  # type: ignore[union-attr]


def test_many_names_in_little_memory() -> None:
    names = ["a", "", "ü/é.jpg", "b" * 300]
    kept = FileNames(names)
    assert [kept[i] for i in range(4)] == names
    assert len(kept) == 4


def test_labels_are_those_of_sorted_folders(tmp_path: Path) -> None:
    root = image_folder(tmp_path / "set", classes=("b", "a"))
    opened = data.open_data(root)
    assert opened.classes == ("a", "b")
    assert torch.equal(opened.train.labels, torch.tensor([0] * 4 + [1] * 4))  # type: ignore[union-attr]
    assert "/a/" in opened.train.records.source(0)  # type: ignore[union-attr]
