from __future__ import annotations

import gzip
import hashlib
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from aol.lab import data
from aol.lab.data import DataError, named
from tests.support.tiny_sets import cifar10_files, cifar100_files, fashion_files, idx, stated_as_official

load_cifar10, load_cifar100 = named.CIFAR10.load, named.CIFAR100.load
load_fashion_mnist = named.FASHION_MNIST.load


@pytest.fixture(autouse=True)
def _empty_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No data set of this machine is seen, so that the tests find what they made and nothing else."""
    monkeypatch.delenv("AOL_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name, known in list(named.OFFICIAL.items()):
        object_ = type(known)(**{**known.__dict__, "system": ()})
        monkeypatch.setitem(named.OFFICIAL, name, object_)  # type: ignore[arg-type]


def test_digits_are_split_per_class_and_always_the_same() -> None:
    pair = data.load("digits")
    assert (len(pair.train), len(pair.test)) == (1438, 359)
    assert pair.train.images.max() == 255
    assert abs(pair.test.counts.float() / pair.train.counts - 0.25).max() < 0.02
    # Results are compared across versions: a change of the split must be noticed.
    content = pair.test.images.numpy().tobytes() + pair.test.labels.numpy().tobytes()
    assert hashlib.sha256(content).hexdigest()[:16] == "36538df8e6fa838c"


def test_cifar_files_give_images_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = stated_as_official(monkeypatch, "cifar10", cifar10_files(tmp_path / "cifar-10-batches-py"))
    pair = load_cifar10(folder)
    first = pickle.loads((folder / "data_batch_1").read_bytes())
    assert pair.train.images.shape == (20, 3, 32, 32)
    assert pair.train.images[0].flatten().tolist() == first[b"data"][0].tolist()
    assert pair.train.labels[:4].tolist() == first[b"labels"]
    assert pair.classes[3] == "class3"
    fine = stated_as_official(monkeypatch, "cifar100", cifar100_files(tmp_path / "cifar-100-python"))
    assert load_cifar100(fine).train.num_classes == 100


class Spy:
    """Leaves a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("name", ["batches.meta", "data_batch_3", "test_batch"])
def test_a_pickle_that_is_not_the_published_one_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    folder = stated_as_official(monkeypatch, "cifar10", cifar10_files(tmp_path / "c"))
    (folder / name).write_bytes(pickle.dumps(Spy(tmp_path / "executed")))
    with pytest.raises(DataError, match=rf"{name}: .* instead of .*`aol data get cifar10`"):
        load_cifar10(folder)
    assert not (tmp_path / "executed").exists()


def test_the_protocol_input_is_pixel_over_128_minus_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pair = load_cifar10(stated_as_official(monkeypatch, "cifar10", cifar10_files(tmp_path / "c")))
    unit = pair.train.images.double() / 255
    torch.testing.assert_close(pair.normalisation(pair.train.images).double(), unit * 255 / 128 - 1, atol=1e-7, rtol=0)
    mean, std = torch.tensor([0.4914, 0.4822, 0.4465]), torch.tensor([0.2470, 0.2435, 0.2616])
    expected = (unit - mean.view(3, 1, 1)) / std.view(3, 1, 1)
    torch.testing.assert_close(pair.standardised(pair.train.images), expected.float(), atol=1e-5, rtol=1e-5)


def test_normalising_leaves_the_pixels_alone() -> None:
    floats = torch.full((1, 3, 2, 2), 9.0)
    for n in (data.centred(3), data.IMAGENET):
        n(floats)
        assert (floats == 9).all()


@pytest.mark.parametrize("zipped", [True, False])
def test_fashion_mnist_is_read_gzipped_or_not(tmp_path: Path, zipped: bool) -> None:
    pair = load_fashion_mnist(fashion_files(tmp_path / "f", zipped=zipped))
    assert pair.train.images.shape == (5, 1, 28, 28)
    assert pair.test.labels.tolist() == [0, 1, 2, 3, 4]


def test_the_search_goes_from_the_given_folder_to_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert data.find("cifar10") is None
    cached = cifar10_files(tmp_path / "cache/aol/cifar-10-batches-py")
    assert data.find("cifar10") == cached
    chosen = cifar10_files(tmp_path / "env/cifar10/cifar-10-batches-py")
    monkeypatch.setenv("AOL_DATA", str(tmp_path / "env"))
    assert data.find("cifar10") == chosen
    given = cifar10_files(tmp_path / "given")
    assert data.find("cifar10", data_dir=given) == given
    assert {s.name: s.where for s in data.list_sets()}["cifar10"] == str(chosen)
    stated_as_official(monkeypatch, "cifar10", given)
    assert len(data.load(str(given)).train) == 20  # the official folder itself is a data set too


def test_a_set_that_is_not_there_says_where_it_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"cifar10 was not found in .*given.*cache/aol; `aol data get"):
        data.load("cifar10", data_dir=tmp_path / "given")
    folder = cifar10_files(tmp_path / "given/cifar-10-batches-py")
    (folder / "data_batch_3").unlink()
    with pytest.raises(FileNotFoundError, match="cifar-10-batches-py lacks data_batch_3"):
        data.load("cifar10", data_dir=tmp_path / "given")


def test_unknown_names_are_refused() -> None:
    with pytest.raises(ValueError, match=r"unknown data set 'cifar'.*digits, fashion-mnist, cifar10, cifar100"):
        data.load("cifar")
    with pytest.raises(ValueError, match="unknown data set 'x'"):
        data.find("x")
    with pytest.raises(ValueError, match="unknown data set 'x'"):
        data.get("x")


def test_wrong_sizes_name_the_file(tmp_path: Path) -> None:
    fashion = fashion_files(tmp_path / "f")
    path = fashion / "train-labels-idx1-ubyte.gz"
    path.write_bytes(gzip.compress(idx(np.zeros(3))))
    with pytest.raises(DataError, match="train-labels-idx1-ubyte: 3 labels for the 5 images"):
        load_fashion_mnist(fashion)
    path.write_bytes(gzip.compress(idx(np.zeros(5)))[:-9])
    with pytest.raises(DataError, match=r"train-labels-idx1-ubyte.gz: not a whole file"):
        load_fashion_mnist(fashion)
    path.write_bytes(gzip.compress(b"hello"))
    with pytest.raises(DataError, match="train-labels-idx1-ubyte: not an IDX file"):
        load_fashion_mnist(fashion)
    path.write_bytes(gzip.compress(idx(np.zeros((5, 28, 28)))))
    (fashion / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(np.zeros((5, 28, 27)))))
    with pytest.raises(DataError, match=r"train-images-idx3-ubyte: images must be \[N, 28, 28\]"):
        load_fashion_mnist(fashion)


def test_check_compares_with_the_published_checksums(tmp_path: Path) -> None:
    folder = cifar10_files(tmp_path / "c")
    report = data.check("cifar10", data_dir=folder)
    assert not report.ok
    assert len(report.problems) == 7
    assert "data_batch_1: " in report.problems[1]
    assert "bytes instead of 31,035,704" in report.problems[1]
    assert data.check("digits").ok
    missing = data.check("cifar100", data_dir=tmp_path)
    assert missing.where is None
    assert "was not found" in missing.problems[0]


def test_an_in_memory_split_checks_itself() -> None:
    images, labels = torch.zeros(2, 1, 4, 4, dtype=torch.uint8), torch.tensor([0, 1])
    with pytest.raises(DataError, match="x: images must be uint8"):
        data.ImageSet(images.float(), labels, ("a", "b"), "x")
    with pytest.raises(DataError, match="x: labels must be int64"):
        data.ImageSet(images, labels[:1], ("a", "b"), "x")
    with pytest.raises(DataError, match=r"x: label 1 at position 1 is outside 0..0"):
        data.ImageSet(images, labels, ("a",), "x")
    with pytest.raises(DataError, match="x: no images"):
        data.ImageSet(images[:0], labels[:0], ("a",), "x")
    with pytest.raises(ValueError, match="fraction must be above 0"):
        data.split_per_class(labels, 1.0, seed=0)


def test_built_in_sets_have_the_number_of_classes_that_is_known_of_them() -> None:
    assert tuple(named.NUM_CLASSES) == named.NAMES
    assert data.load("digits").num_classes == named.NUM_CLASSES["digits"]
    for name, known in named.OFFICIAL.items():
        assert f" {named.NUM_CLASSES[name]} classes" in known.title
