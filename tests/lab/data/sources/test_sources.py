"""`hf:NAME_OR_FOLDER` and `timm:NAME`: opened and trained on, with the real packages."""

from __future__ import annotations

import json

import datasets
import numpy as np
import pytest
import torch
from PIL import Image

from aol.cli import main
from aol.lab.data import DataError, ImageSet, StoredImages, open_data
from aol.lab.data.open import open_source
from aol.lab.nets.registry import make

NAMES = ["cat", "dog", "owl"]


def picture(number: int, size: int) -> np.ndarray:
    """Rising grey, the darker the higher the class: easy to learn."""
    return np.full((size, size, 3), 40 + 80 * (number % 3), dtype=np.uint8) + np.uint8(number % 20)


def rows(count: int, size: int, label: str = "label") -> datasets.Dataset:
    items = [{"picture": Image.fromarray(picture(n, size)), label: n % 3, "note": str(n)} for n in range(count)]
    kinds = {"picture": datasets.Image(), label: datasets.ClassLabel(names=NAMES), "note": datasets.Value("string")}
    return datasets.Dataset.from_list(items, features=datasets.Features(kinds))


def saved(folder, **splits):
    datasets.DatasetDict(splits).save_to_disk(str(folder))
    return f"hf:{folder}"


@pytest.fixture
def small(tmp_path):
    return saved(tmp_path / "pets", train=rows(60, 16), test=rows(30, 16))


def test_small_images_of_a_set_on_the_disk_are_held_in_memory(small):
    pair = open_data(small)
    assert isinstance(pair.train, ImageSet)
    assert pair.classes == tuple(NAMES)
    assert (len(pair.train), len(pair.test), pair.train.shape) == (60, 30, (3, 16, 16))
    assert pair.train.labels[:4].tolist() == [0, 1, 2, 0]
    assert pair.train.images[7].permute(1, 2, 0).numpy().tolist() == picture(7, 16).tolist()


def test_images_of_several_sizes_are_decoded_when_asked_for(tmp_path):
    mixed = datasets.concatenate_datasets([rows(6, 16), rows(6, 20)])
    pair = open_data(saved(tmp_path / "mixed", train=mixed, test=rows(6, 16)))
    assert isinstance(pair.train, StoredImages)
    assert [pair.train.size_of(place) for place in (5, 6)] == [(16, 16), (20, 20)]


def test_large_images_are_decoded_when_asked_for(tmp_path):
    word = saved(tmp_path, **{name: rows(6, 80, "fine_label") for name in ("train", "validation", "test")})
    pair = open_data(word)
    assert isinstance(pair.train, StoredImages)
    assert pair.train.view(4, None, 32).unique().tolist() == np.unique(picture(4, 80)).tolist()
    assert pair.train.labels[4] == 1
    assert pair.train.names(torch.tensor([3])) == [f"{word}/train#3"]
    assert isinstance(pair.validation, StoredImages)


def test_a_set_of_one_split_gets_a_test_split(tmp_path, caplog):
    rows(30, 80).save_to_disk(str(tmp_path / "one"))
    pair = open_data(f"hf:{tmp_path / 'one'}")
    assert (pair.train.counts.tolist(), pair.test.counts.tolist()) == ([8, 8, 8], [2, 2, 2])
    assert "has no test split" in caplog.messages[0]
    for split in (pair.train, pair.test):
        shown = [int(split.view(place, None, 8)[0, 0, 0]) for place in range(len(split))]
        assert [(grey - 40) // 80 for grey in shown] == split.labels.tolist()
        rows_ = [int(name.removeprefix(f"hf:{tmp_path / 'one'}/train#")) for name in split.names(torch.arange(3))]
        assert [row % 3 for row in rows_] == split.labels[:3].tolist()  # rows of the one split that there is


def test_a_damaged_image_is_named_by_its_row(tmp_path):
    kinds = datasets.Features({"image": datasets.Image(decode=False), "label": datasets.Value("int64")})
    items = [{"image": {"bytes": b"hello", "path": None} if n == 3 else None, "label": n % 2} for n in range(4)]
    some = datasets.Dataset.from_list(items, features=kinds)
    train = open_source(saved(tmp_path / "set", train=some, test=some))["train"]
    with pytest.raises(DataError, match=r"set/train#3: not an image$"):
        train.size_of(3)
    with pytest.raises(DataError, match=r"set/train#2: no image in it$"):
        train.size_of(2)


def test_large_images_of_a_table_train_in_worker_processes(tmp_path, capsys):
    word = saved(tmp_path / "large", train=rows(30, 80), test=rows(6, 80))
    words = ["--data", word, "--image-size", "32", "--net", "cnn", "--batch-size", "8"]
    found = []
    for workers in ("0", "2"):
        out = tmp_path / workers
        assert main(["train", *words, "--epochs", "2", "--workers", workers, "--out", str(out), "--json"]) == 0
        found.append(json.loads(capsys.readouterr().out)["runs"][0]["per_class_accuracy"])
    assert found[0] == found[1]


def test_images_that_are_files_are_read_from_there(tmp_path):
    for number in range(6):
        Image.fromarray(picture(number, 16)).save(tmp_path / f"{number}.png")
    items = [{"image": str(tmp_path / f"{number}.png"), "label": number % 3} for number in range(6)]
    kinds = datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")})
    some = datasets.Dataset.from_list(items, features=kinds)
    pair = open_data(saved(tmp_path / "files", train=some, test=some))
    assert pair.classes == ("0", "1", "2")
    assert pair.train.images[5].permute(1, 2, 0).numpy().tolist() == picture(5, 16).tolist()


def test_classes_without_names_are_those_of_the_training_split(tmp_path):
    kinds = datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")})

    def split(labels):
        items = [{"image": Image.fromarray(picture(label, 16)), "label": label} for label in labels]
        return datasets.Dataset.from_list(items, features=kinds)

    few = saved(tmp_path / "few", train=split([0, 1, 2]), test=split([0, 1]))
    assert open_data(few).test.classes == ("0", "1", "2")
    far = saved(tmp_path / "far", train=split([0, 7, 1]), test=split([0, 1]))
    more = saved(tmp_path / "more", train=split([0, 1]), test=split([0, 2]))
    for word, label in ((far, 7), (more, 2)):
        with pytest.raises(DataError, match=f"label {label} at position 1"):
            open_data(word)


def test_a_folder_of_parquet_is_loaded_by_datasets_too(tmp_path):
    for split, count in (("train", 9), ("test", 6)):
        rows(count, 16).to_parquet(str(tmp_path / f"{split}.parquet"))
    assert len(open_data(f"hf:{tmp_path}").test) == 6


@pytest.mark.parametrize(
    ("splits", "said"),
    [
        ({"test": 6, "other": 6}, "set: a train split is needed, not test, other"),
        ({"train": 2, "test": 6}, "set/train: no image of class 'owl'"),
    ],
)
def test_a_split_or_class_that_is_missing_is_named(tmp_path, splits, said):
    word = saved(tmp_path / "set", **{name: rows(count, 16) for name, count in splits.items()})
    with pytest.raises(DataError, match=said):
        open_data(word)


def test_an_unlabelled_test_split_is_left_out(tmp_path):
    hidden = rows(6, 16).cast_column("label", datasets.Value("int64")).map(lambda _: {"label": -1})
    kinds = hidden.features.copy()
    kinds["label"] = datasets.ClassLabel(names=NAMES)
    pair = open_data(saved(tmp_path / "set", train=rows(9, 16), validation=rows(6, 16), test=hidden.cast(kinds)))
    assert (len(pair.test), pair.validation) == (6, None)


@pytest.mark.parametrize(("gone", "words"), [("picture", "Image column"), ("label", "column of labels")])
def test_columns_that_are_missing_are_named(tmp_path, gone, words):
    some = rows(6, 16).remove_columns(gone)
    word = saved(tmp_path / "set", train=some, test=some)
    with pytest.raises(DataError, match=words):
        open_data(word)


@pytest.mark.parametrize("label", ["cat", 0.7, None, [0, 1]])
def test_labels_that_are_not_whole_numbers_are_refused(tmp_path, label):
    some = rows(6, 16).remove_columns("label").add_column("label", [1 if label is None else label] * 5 + [label])
    word = saved(tmp_path / "set", train=some, test=some)
    with pytest.raises(DataError, match="set/train: one whole number as the label of each image is needed"):
        open_data(word)


def test_a_name_that_is_not_in_the_cache_is_said_in_one_sentence(capsys):
    assert main(["train", "--data", "hf:nobody/nothing"]) == 1
    assert "hf:nobody/nothing" in capsys.readouterr().err


def test_a_command_trains_on_it_and_reports_it(small, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["--data", small, "--epochs", "8", "--weighting", "none,aol", "--augment", "false"]
    assert main(["train", *words, "--out", "runs", "--json", "--keep-samples"]) == 0
    runs = json.loads(capsys.readouterr().out)["runs"]
    assert [run["config"]["data"] for run in runs] == [small, small]
    assert min(run["accuracy"]["best"] for run in runs) > 0.6
    assert main(["report", "runs", "--write", "page.html"]) == 0
    assert "No pictures" not in (tmp_path / "page.html").read_text()


# timm


@pytest.mark.parametrize("name", ["resnet18", "vit_tiny_patch16_224", "mobilenetv3_small_050"])
def test_networks_of_timm_take_the_images_and_classes_of_the_data(name):
    net = make(f"timm:{name}", num_classes=7, in_channels=1, image_size=32, seed=3)
    again = make(f"timm:{name}", num_classes=7, in_channels=1, image_size=32, seed=3)
    assert net.eval()(torch.zeros(2, 1, 32, 32)).shape == (2, 7)
    assert all(one.equal(other) for one, other in zip(net.parameters(), again.parameters(), strict=True))


def test_timm_trains_on_the_command_line(tmp_path, capsys):
    words = ["--net", "timm:test_resnet", "--samples", "100", "--epochs", "1", "--loss", "softmax,sigmoid"]
    assert main(["train", *words, "--out", str(tmp_path), "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["runs"]) == 2
    assert main(["train", "--net", "timm:nothing", "--out", str(tmp_path / "other")]) == 2
    assert "timm has no model 'nothing'" in capsys.readouterr().err
