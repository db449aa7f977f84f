"""Layouts: what is recognised, and what is said of one that is wrong."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

import pytest
import torch

from aol.lab.data import DataError, Pair, StoredImages, open_data
from tests.support.tiny_sets import encoded, image_folder

# sha256 of all pixels of a folder of PNG files, and the files of its splits, as version 0.2 read them.
PIXELS = {
    "train": "e3ce10f8fa3a7501edad4fcf9804cc61f05bc9c73d34aa9136558e12b5690398",
    "test": "7364be3500b54eeb5284a1956389030edba2adb8e399114e95b7af6c966687f0",
}
HELD_OUT = ["n01440764/n01440764_4.png", "n01443537/n01443537_3.png", "n01484850/n01484850_2.png"]


def opened(root: Path) -> Pair[StoredImages]:
    pair = open_data(root)
    assert isinstance(pair.train, StoredImages)
    return pair  # type: ignore[return-value]


def refused(root: Path, said: str) -> None:
    with pytest.raises(DataError, match=said):
        open_data(root)


def names(split: StoredImages) -> list[str]:
    return split.names(torch.arange(len(split)))


def test_pixels_labels_and_names_of_a_folder_are_those_that_version_02_read(tmp_path: Path) -> None:
    pair = opened(image_folder(tmp_path, suffix=".png"))
    for name, split in (("train", pair.train), ("test", pair.test)):
        digest = hashlib.sha256()
        for place in range(len(split)):
            digest.update(split.whole(place).contiguous().numpy().tobytes())
        assert digest.hexdigest() == PIXELS[name]
    assert pair.train.labels.tolist() == [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2]
    assert names(pair.test)[:3] == [
        f"val/n0144{name}.png" for name in ("0764/n01440764_0", "0764/n01440764_1", "3537/n01443537_0")
    ]
    assert pair.test.encoded(2) == str(tmp_path / "val/n01443537/n01443537_0.png")


def test_imagenet_and_places_layouts_are_image_folders(tmp_path: Path) -> None:
    imagenet = image_folder(tmp_path / "imagenet")
    (imagenet / "test").mkdir()  # ImageNet's test images have no labels
    (imagenet / "test/ILSVRC2012_test_00000001.JPEG").write_bytes(encoded(0))
    pair = opened(imagenet)
    assert pair.classes == ("n01440764", "n01443537", "n01484850")
    assert (len(pair.train), len(pair.test), pair.validation) == (12, 6, None)
    places = image_folder(tmp_path / "places365", classes=("airfield", "alley", "zen_garden"), suffix=".jpg")
    assert opened(places).classes == ("airfield", "alley", "zen_garden")


def test_a_labelled_test_folder_beside_val_leaves_val_for_validation(tmp_path: Path) -> None:
    pair = opened(image_folder(tmp_path, per_class={"train": 3, "val": 2, "test": 1}))
    assert pair.validation is not None
    assert [len(split) for split in (pair.train, pair.test, pair.validation)] == [9, 3, 6]


def test_nested_hidden_and_foreign_files_in_a_class_folder(tmp_path: Path) -> None:
    folder = image_folder(tmp_path) / "train/n01440764"
    (folder / "more").mkdir()
    (folder / "more/deep.PNG").write_bytes(encoded(9, "PNG"))
    (folder / ".hidden.jpg").write_bytes(b"")
    (folder / ".cache").mkdir()
    (folder / ".cache/small.jpg").write_bytes(b"")
    (folder / "readme.txt").write_text("hello")
    (folder / "again").symlink_to(tmp_path / "train")  # nothing is read twice
    pair = opened(tmp_path)
    assert pair.train.counts.tolist() == [5, 4, 4]
    assert "train/n01440764/more/deep.PNG" in names(pair.train)


def test_a_class_folder_may_be_a_link(tmp_path: Path) -> None:
    root = image_folder(tmp_path / "set")
    shutil.move(root / "train/n01443537", tmp_path / "elsewhere")
    (root / "train/n01443537").symlink_to(tmp_path / "elsewhere")
    assert opened(root).train.counts.tolist() == [4, 4, 4]


@pytest.mark.parametrize("inside", [".", "train"])
def test_a_set_without_a_test_split_gets_one_split_off_and_says_so(
    tmp_path: Path, inside: str, caplog: pytest.LogCaptureFixture
) -> None:
    root = image_folder(tmp_path / "set", suffix=".png", per_class={inside: 5})
    pair = opened(root)
    assert caplog.messages == ["set has no test split: a fifth of each class is held out as one."]
    assert pair.train.counts.tolist() == [4, 4, 4]
    assert pair.test.counts.tolist() == [1, 1, 1]
    assert names(pair.test) == [os.path.normpath(f"{inside}/{name}") for name in HELD_OUT]  # as version 0.2 drew them
    assert not set(names(pair.train)) & set(names(pair.test))
    assert pair.test.size_of(2) == (40, 56)


def test_a_class_with_one_image_cannot_be_split(tmp_path: Path) -> None:
    root = image_folder(tmp_path, per_class={".": 2})
    (root / "n01443537/n01443537_0.JPEG").unlink()
    refused(root, "a single image of class 'n01443537'")


@pytest.mark.parametrize("split", ["train", "val"])
def test_an_empty_class_folder_is_named(tmp_path: Path, split: str) -> None:
    (image_folder(tmp_path) / split / "n02").mkdir()
    refused(tmp_path, f"{split}/n02: an empty class folder")


def test_classes_that_differ_are_named(tmp_path: Path) -> None:
    root = image_folder(tmp_path)
    shutil.move(root / "val/n01443537", root / "val/n09")
    refused(root, r"the classes of .*/train and .*/val differ: 'n01443537'")


def test_folders_that_hold_no_data_set_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"'.*/nowhere': no such folder, .* digits, fashion-mnist, cifar10, cifar100\.$"
    ):
        open_data(tmp_path / "nowhere")
    refused(tmp_path, r"neither a folder named train nor at least two class folders in it$")
    (tmp_path / "file").write_text("x")
    with pytest.raises(ValueError, match="file is a file, and images are read from folders; for tables"):
        open_data(tmp_path / "file")
    (tmp_path / "flat/train").mkdir(parents=True)
    refused(tmp_path / "flat", "flat/train: no class folders in it")
    (tmp_path / "one/only").mkdir(parents=True)
    (tmp_path / "one/only/0.jpg").write_bytes(encoded(0))
    refused(tmp_path / "one", "one: neither a folder named train nor at least two class folders")
    refused(
        image_folder(tmp_path / "upper", per_class={"Train": 4, "Test": 2}), "neither a folder named train"
    )  # splits of other names are no classes
    (tmp_path / "tables/data").mkdir(parents=True)
    (tmp_path / "tables/data/train-00000-of-00001.parquet").write_bytes(b"PAR1")
    refused(tmp_path / "tables", f"it has tables: use hf:{tmp_path}/tables")


def test_names_that_are_no_utf8_become_text(tmp_path: Path) -> None:
    folder = image_folder(tmp_path) / "train/n01440764"
    os.rename(folder / "n01440764_0.JPEG", os.fsencode(folder) + b"/caf\xe9.JPEG")
    pair = opened(tmp_path)
    assert names(pair.train)[0] == "train/n01440764/caf\\xe9.JPEG"
    assert pair.train.size_of(0) == (40, 40)
