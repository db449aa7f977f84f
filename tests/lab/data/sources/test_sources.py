"""`hf:NAME`, `torchvision:NAME` and `timm:NAME`: opened, checked and trained on, with the real packages."""

from __future__ import annotations

import json

import datasets
import numpy as np
import pytest
import torch
from PIL import Image

from aol.cli import main
from aol.lab import nets
from aol.lab.data import ImageSet, StoredImages, check, open_data
from aol.lab.data.errors import DataError

NAMES = ["cat", "dog", "owl"]


def picture(number: int, size: int) -> np.ndarray:
    """Rising grey, the darker the higher the class: easy to learn."""
    return np.full((size, size, 3), 40 + 80 * (number % 3), dtype=np.uint8) + np.uint8(number % 20)


def rows(count: int, size: int, label: str = "label") -> datasets.Dataset:
    items = [{"picture": Image.fromarray(picture(n, size)), label: n % 3, "note": str(n)} for n in range(count)]
    kinds = {"picture": datasets.Image(), label: datasets.ClassLabel(names=NAMES), "note": datasets.Value("string")}
    return datasets.Dataset.from_list(items, features=datasets.Features(kinds))


@pytest.fixture
def small(tmp_path):
    both = datasets.DatasetDict(train=rows(60, 16), test=rows(30, 16))
    both.save_to_disk(str(tmp_path / "pets"))
    return f"hf:{tmp_path / 'pets'}"


def test_small_images_of_a_set_on_the_disk_are_held_in_memory(small):
    pair = open_data(small)
    assert isinstance(pair.train, ImageSet)
    assert pair.classes == tuple(NAMES)
    assert (len(pair.train), len(pair.test), pair.train.shape) == (60, 30, (3, 16, 16))
    assert pair.train.labels[:4].tolist() == [0, 1, 2, 0]
    assert pair.train.images[7].permute(1, 2, 0).numpy().tolist() == picture(7, 16).tolist()
    assert pair.train.names(torch.tensor([3])) == [f"{small}/train#3"]


def test_large_images_are_decoded_when_asked_for(tmp_path):
    splits = {name: rows(6, 80, "fine_label") for name in ("train", "validation", "test")}
    datasets.DatasetDict(splits).save_to_disk(str(tmp_path / "large"))
    pair = open_data(f"hf:{tmp_path / 'large'}", size=32)
    assert isinstance(pair.train, StoredImages)
    assert pair.train[4][0].shape == (3, 32, 32)
    assert pair.train[4][1] == 1
    assert isinstance(pair.validation, StoredImages)


def test_images_that_are_files_are_read_from_there(tmp_path):
    for number in range(6):
        Image.fromarray(picture(number, 16)).save(tmp_path / f"{number}.png")
    items = [{"image": str(tmp_path / f"{number}.png"), "label": number % 3} for number in range(6)]
    kinds = datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")})
    some = datasets.Dataset.from_list(items, features=kinds)
    datasets.DatasetDict(train=some, test=some).save_to_disk(str(tmp_path / "files"))
    pair = open_data(f"hf:{tmp_path / 'files'}")
    assert pair.classes == ("0", "1", "2")
    assert pair.train.images[5].permute(1, 2, 0).numpy().tolist() == picture(5, 16).tolist()


def test_classes_without_names_are_those_of_the_training_split(tmp_path):
    kinds = datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")})

    def split(labels):
        items = [{"image": Image.fromarray(picture(label, 16)), "label": label} for label in labels]
        return datasets.Dataset.from_list(items, features=kinds)

    datasets.DatasetDict(train=split([0, 1, 2]), test=split([0, 1])).save_to_disk(str(tmp_path / "few"))
    assert open_data(f"hf:{tmp_path / 'few'}").test.classes == ("0", "1", "2")
    datasets.DatasetDict(train=split([0, 1]), test=split([0, 2])).save_to_disk(str(tmp_path / "more"))
    with pytest.raises(DataError, match="label 2 at position 1"):
        open_data(f"hf:{tmp_path / 'more'}")


def test_a_folder_of_parquet_is_loaded_by_datasets_too(tmp_path):
    for split, count in (("train", 9), ("test", 6)):
        rows(count, 16).to_parquet(str(tmp_path / f"{split}.parquet"))
    assert len(open_data(f"hf:{tmp_path}").test) == 6


@pytest.mark.parametrize(
    ("splits", "words"),
    [
        ({"train": 6}, "a train and a labelled test"),
        ({"test": 6}, "a train and a labelled test"),
        ({"train": 6, "other": 3}, "not train, other"),
    ],
)
def test_splits_that_are_missing_are_named(tmp_path, splits, words):
    datasets.DatasetDict({name: rows(count, 16) for name, count in splits.items()}).save_to_disk(str(tmp_path / "set"))
    with pytest.raises(DataError, match=words):
        open_data(f"hf:{tmp_path / 'set'}")


@pytest.mark.parametrize(("gone", "words"), [("picture", "Image column"), ("label", "column of labels")])
def test_columns_that_are_missing_are_named(tmp_path, gone, words):
    some = rows(6, 16).remove_columns(gone)
    datasets.DatasetDict(train=some, test=some).save_to_disk(str(tmp_path / "set"))
    with pytest.raises(DataError, match=words):
        open_data(f"hf:{tmp_path / 'set'}")


@pytest.mark.parametrize("label", ["cat", 0.7, None, [0, 1]])
def test_labels_that_are_not_whole_numbers_are_refused(tmp_path, label):
    some = rows(6, 16).remove_columns("label").add_column("label", [1 if label is None else label] * 5 + [label])
    datasets.DatasetDict(train=some, test=some).save_to_disk(str(tmp_path / "set"))
    with pytest.raises(DataError, match="set/train: one whole number as the label of each image is needed"):
        open_data(f"hf:{tmp_path / 'set'}")


def test_a_name_that_is_not_in_the_cache_is_said_in_one_sentence(capsys):
    assert main(["train", "--data", "hf:nobody/nothing"]) == 1
    assert "hf:nobody/nothing" in capsys.readouterr().err


def test_a_command_trains_on_it_checks_it_and_reports_it(small, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["data", "check", small]) == 0
    assert "60 train" in capsys.readouterr().out
    words = ["--data", small, "--epochs", "8", "--weighting", "none,aol", "--augment", "false"]
    assert main(["train", *words, "--out", "runs", "--json", "--keep-samples"]) == 0
    runs = json.loads(capsys.readouterr().out)["runs"]
    assert [run["config"]["data"] for run in runs] == [small, small]
    assert min(run["accuracy"]["best"] for run in runs) > 0.6
    assert main(["report", "runs", "--write", "page.html"]) == 0
    assert "No pictures" not in (tmp_path / "page.html").read_text()


# torchvision


def idx(array: np.ndarray) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">i4").tobytes() + array.astype(np.uint8).tobytes()


@pytest.fixture
def fashion(tmp_path):
    """The files of torchvision's FashionMNIST, with a few grey pictures in them."""
    raw = tmp_path / "FashionMNIST" / "raw"
    raw.mkdir(parents=True)
    for split, count in (("train", 60), ("t10k", 30)):
        labels = np.arange(count) % 10
        pixels = np.stack([np.full((28, 28), 20 * label) for label in labels])
        (raw / f"{split}-images-idx3-ubyte").write_bytes(idx(pixels))
        (raw / f"{split}-labels-idx1-ubyte").write_bytes(idx(labels))
    return tmp_path


def test_a_set_of_torchvision_is_found_in_the_folder_of_data(fashion):
    pair = open_data("torchvision:FashionMNIST", fashion)
    assert isinstance(pair.train, ImageSet)
    assert (len(pair.train), len(pair.test), pair.train.shape) == (60, 30, (3, 28, 28))
    assert pair.classes[0] == "T-shirt/top"
    assert pair.train.labels.tolist() == [number % 10 for number in range(60)]
    assert pair.train.images[13].unique().tolist() == [60]
    assert check("torchvision:FashionMNIST", data_dir=fashion, decode=True).ok


def test_sets_with_named_splits_are_opened_by_them(tmp_path, monkeypatch):
    from torchvision import datasets as vision

    class Made:
        classes = ("a", "b")

        def __init__(self, root, split="train", transform=None, download=False):
            if split not in ("train", "val"):
                raise ValueError(f"Unknown value '{split}' for argument split.")
            self._labels = [0, 1, 1] if split == "train" else [1, 0]

        def __len__(self):
            return len(self._labels)

        def __getitem__(self, index):
            return Image.new("RGB", (90, 70)), self._labels[index]

    monkeypatch.setattr(vision, "Made", Made, raising=False)
    pair = open_data("torchvision:Made", tmp_path)
    assert isinstance(pair.train, StoredImages)
    assert pair.test.labels.tolist() == [1, 0]


def test_what_torchvision_lacks_is_said(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"FashionMNIST was not found in .*download=True"):
        open_data("torchvision:FashionMNIST", tmp_path)
    with pytest.raises(DataError, match="no data set 'Nothing'"):
        open_data("torchvision:Nothing", tmp_path)
    with pytest.raises(DataError, match="no train and test splits"):
        open_data("torchvision:EuroSAT", tmp_path)


# timm


@pytest.mark.parametrize("name", ["resnet18", "vit_tiny_patch16_224", "mobilenetv3_small_050"])
def test_networks_of_timm_take_the_images_and_classes_of_the_data(name):
    net = nets.make(f"timm:{name}", num_classes=7, in_channels=1, image_size=32, seed=3)
    again = nets.make(f"timm:{name}", num_classes=7, in_channels=1, image_size=32, seed=3)
    assert net.eval()(torch.zeros(2, 1, 32, 32)).shape == (2, 7)
    assert all(one.equal(other) for one, other in zip(net.parameters(), again.parameters(), strict=True))


def test_timm_trains_on_the_command_line(tmp_path, capsys):
    words = ["--net", "timm:test_resnet", "--samples", "100", "--epochs", "1", "--loss", "softmax,sigmoid"]
    assert main(["train", *words, "--out", str(tmp_path), "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["runs"]) == 2
    assert main(["train", "--net", "timm:nothing", "--out", str(tmp_path / "other")]) == 2
    assert "timm has no model 'nothing'" in capsys.readouterr().err
