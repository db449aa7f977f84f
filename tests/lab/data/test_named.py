"""Built-in sets: their pixels, where they are looked for, and what is refused."""

from __future__ import annotations

import gzip
import hashlib
import pickle
import tracemalloc
from pathlib import Path

import pytest
import torch
from torch import Tensor

from aol.lab import data
from aol.lab.data import DataError, Pair, named
from aol.lab.data.images import IMAGENET, centred
from tests.support.tiny_sets import cifar10_files, cifar100_files, fashion_files, stated_as_official

# sha256 of the pixels and labels of train and test, as version 0.2 read them: runs are compared across versions.
PIXELS = {
    "digits": ("3a6b7a74df26a5ba", "b0e523ed89489b2e", "9e1786794306b79a", "77ce7673e8f7a2f5"),
    "fashion-mnist": ("2e487a6c89124f78", "e3245b63f7c40d1c", "c867c93ff9536059", "d51d859896c55775"),
    "cifar10": ("9d5c2eddadb0deff", "f5cfe00b0f00968c", "177777c33ba79825", "cbb7365de8ed11f0"),
    "cifar100": ("de64658905c6b161", "8bf4935e7c77a309", "83c56492b2c11211", "80031c23f8300724"),
}
TINY = {
    "fashion-mnist": ("1a45fcb461a5f3cc", "281b02b10f5f4997", "946b5d050afd1ecc", "281b02b10f5f4997"),
    "cifar10": ("c6f965a9ffbaffb1", "acdc639432bd84b3", "21a605b0f65ca49d", "9785f4a0ff2437f6"),
    "cifar100": ("e6f1c45a2062f0c8", "d3d2b69358a8262d", "3c31cc3f7a933503", "46b6fee552128950"),
}
MAKE = {"fashion-mnist": fashion_files, "cifar10": cifar10_files, "cifar100": cifar100_files}


def hashes(pair: object) -> tuple[str, ...]:
    def digest(values: Tensor) -> str:
        return hashlib.sha256(values.contiguous().numpy().tobytes()).hexdigest()[:16]

    assert isinstance(pair, Pair)
    return tuple(digest(part) for split in (pair.train, pair.test) for part in (split.images, split.labels))


@pytest.mark.parametrize("name", PIXELS)
def test_pixels_and_labels_are_those_that_version_02_read(name: str) -> None:
    if name != "digits" and named.find(name) is None:
        pytest.skip(f"{name} is not on this machine (AOL_DATA)")
    assert hashes(data.open_data(name)) == PIXELS[name]


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No data set of this machine is seen, so that the tests find what they made and nothing else."""
    monkeypatch.delenv("AOL_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name, known in list(named.OFFICIAL.items()):
        object_ = type(known)(**{**known.__dict__, "system": ()})
        monkeypatch.setitem(named.OFFICIAL, name, object_)  # type: ignore[arg-type]
    return tmp_path


@pytest.mark.parametrize("name", TINY)
def test_official_files_are_read_as_version_02_did(name: str, machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = stated_as_official(monkeypatch, name, MAKE[name](machine / named.OFFICIAL[name].folder))
    assert hashes(data.open_data(name, machine)) == TINY[name]
    assert hashes(data.open_data(folder)) == TINY[name]  # the official folder itself is a data set too
    for path in folder.glob("*.gz"):  # unpacked, they are the same
        path.with_suffix("").write_bytes(gzip.decompress(path.read_bytes()))
        path.unlink()
    assert hashes(data.open_data(folder)) == TINY[name]


class Spy:
    """Leaves a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("name", ["batches.meta", "data_batch_3", "test_batch"])
def test_a_pickle_that_is_not_the_published_one_is_not_read(
    machine: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    folder = stated_as_official(monkeypatch, "cifar10", cifar10_files(machine / "c"))
    (folder / name).write_bytes(pickle.dumps(Spy(machine / "executed")))
    with pytest.raises(DataError, match=rf"{name}: not the published file .*`aol data get cifar10`"):
        named.OFFICIAL["cifar10"].load(folder)
    assert not (machine / "executed").exists()


def test_a_damaged_archive_names_the_file(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = stated_as_official(monkeypatch, "fashion-mnist", fashion_files(machine / "f"))
    path = folder / "t10k-labels-idx1-ubyte.gz"
    content = path.read_bytes()
    for bad in (content[:-9], b"hello", b""):
        path.write_bytes(bad)
        with pytest.raises(DataError, match=r"t10k-labels-idx1-ubyte\.gz: (cannot be read|not the published)"):
            named.OFFICIAL["fashion-mnist"].load(folder)


def test_an_archive_that_unpacks_to_far_more_takes_no_memory(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = stated_as_official(monkeypatch, "fashion-mnist", fashion_files(machine / "f"))
    for path in folder.glob("*.gz"):
        path.write_bytes(gzip.compress(bytes(10**8), 1))
    monkeypatch.setattr(named, "_LARGEST", 10**6, raising=False)
    tracemalloc.start()
    with pytest.raises(DataError, match="not the published file"):
        named.OFFICIAL["fashion-mnist"].load(folder)
    assert tracemalloc.get_traced_memory()[1] < 10**7
    tracemalloc.stop()


def test_the_protocol_input_is_pixel_over_128_minus_one(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = stated_as_official(monkeypatch, "cifar10", cifar10_files(machine / "c"))
    pair = named.OFFICIAL["cifar10"].load(folder)
    unit = pair.train.images.double() / 255
    torch.testing.assert_close(pair.normalisation(pair.train.images).double(), unit * 255 / 128 - 1, atol=1e-7, rtol=0)
    mean, std = torch.tensor([0.4914, 0.4822, 0.4465]), torch.tensor([0.2470, 0.2435, 0.2616])
    expected = (unit - mean.view(3, 1, 1)) / std.view(3, 1, 1)
    torch.testing.assert_close(pair.standardised(pair.train.images), expected.float(), atol=1e-5, rtol=1e-5)


def test_normalising_leaves_the_pixels_alone() -> None:
    floats = torch.full((1, 3, 2, 2), 9.0)
    for n in (centred(3), IMAGENET):
        n(floats)
        assert (floats == 9).all()


def test_the_search_goes_from_the_given_folder_to_the_cache(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert data.find("cifar10") is None
    cached = cifar10_files(machine / "cache/aol/cifar-10-batches-py")
    assert data.find("cifar10") == cached
    chosen = cifar10_files(machine / "env/cifar10/cifar-10-batches-py")
    monkeypatch.setenv("AOL_DATA", str(machine / "env"))
    assert data.find("cifar10") == chosen
    given = cifar10_files(machine / "given")
    assert data.find("cifar10", data_dir=given) == given
    assert {row["name"]: row["where"] for row in data.list_sets()}["cifar10"] == str(chosen)


def test_a_set_that_is_not_there_says_where_it_was_looked_for(machine: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"cifar10 was not found in .*given.*cache/aol; `aol data get"):
        data.open_data("cifar10", data_dir=machine / "given")
    folder = cifar10_files(machine / "given/cifar-10-batches-py")
    (folder / "data_batch_3").unlink()
    with pytest.raises(FileNotFoundError, match="cifar-10-batches-py lacks data_batch_3"):
        data.open_data("cifar10", data_dir=machine / "given")


def test_built_in_sets_have_the_number_of_classes_that_is_known_of_them() -> None:
    assert tuple(named.NUM_CLASSES) == named.NAMES
    assert data.open_data("digits").num_classes == named.NUM_CLASSES["digits"]
    for name, known in named.OFFICIAL.items():
        assert f" {named.NUM_CLASSES[name]} classes" in known.title
