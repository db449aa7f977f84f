"""The built-in data sets: their files and checksums, where they are looked for, downloading and loading them.

Nothing is downloaded without being asked for: a missing set is an error that says how to get it. The search order is
the given folder, `$AOL_DATA`, the cache folder, then the system's own place. A file is read only if its content is the
published one: those of CIFAR are pickles, which can run programs.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import pickle
import sys
import tomllib
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from aol._need import need
from aol.lab.data.images import Augmentation, DataError, ImageSet, Pair, centred, mean_std, split_per_class

Folder = str | os.PathLike[str]
_LARGEST = 2**28  # bytes of a file; that of CIFAR-100 has 155 million


@dataclass(frozen=True)
class Official:
    """A set that can be downloaded, as `sets.toml` has it: one folder of files, each stored as `NAME` or `NAME.gz`."""

    name: str
    title: str
    folder: str
    files: Mapping[str, str]
    downloads: Mapping[str, str]
    mean: Sequence[float]
    std: Sequence[float]
    pad: int
    system: Sequence[str] = ()

    def missing(self, folder: Path) -> list[str]:
        """Return the files that are not in `folder`."""
        return [name for name in self.files if not any(path.is_file() for path in _files(folder, name))]

    def read(self, folder: Path, name: str) -> bytes:
        """Return the content of a file; `DataError` unless it is the published one."""
        path = next(path for path in _files(folder, name) if path.is_file())
        try:
            with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
                content = file.read(_LARGEST)  # of more, the checksum cannot be the published one
        except (OSError, EOFError, zlib.error) as reason:
            raise DataError(f"{path}: cannot be read ({reason})") from None
        digest = hashlib.sha256(content).hexdigest()
        if digest != self.files[name]:
            raise DataError(
                f"{path}: not the published file (sha256 {digest[:12]}… instead of {self.files[name][:12]}…); "
                f"remove it, and `aol data get {self.name}` downloads the original"
            )
        return content

    def load(self, folder: Path) -> Pair[ImageSet]:
        """Read the set from its files. Training shifts and mirrors: clothes, too, have no left or right."""
        parts = (_idx_parts if self.name == "fashion-mnist" else _cifar_parts)(self, folder)
        train, test = (
            ImageSet(images, labels.to(torch.int64), tuple(classes), f"{self.name}/{part}")
            for part, (images, labels, classes) in zip(("train", "test"), parts, strict=True)
        )
        scale = centred(len(self.mean)), mean_std(self.mean, self.std)
        return Pair(self.name, train, test, train.classes, *scale, Augmentation(pad=self.pad, flip=True))


def _files(folder: Path, name: str) -> tuple[Path, Path]:
    return folder / name, folder / f"{name}.gz"


Parts: TypeAlias = Iterator[tuple[Tensor, Tensor, Sequence[str]]]  # images, labels and classes, of train and of test


def _idx_parts(known: Official, folder: Path) -> Parts:
    """Read IDX files of unsigned bytes: 0, 0, 8, the number of axes, big-endian sizes, then the values."""
    classes = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")
    for part in ("train", "t10k"):
        content = [known.read(folder, f"{part}-{name}") for name in ("images-idx3-ubyte", "labels-idx1-ubyte")]
        images, labels = (np.frombuffer(own, np.uint8, offset=4 + 4 * own[3]).copy() for own in content)
        yield torch.from_numpy(images).view(-1, 1, 28, 28), torch.from_numpy(labels), classes


def _cifar_parts(known: Official, folder: Path) -> Parts:
    """Read the official Python files."""
    fine = "fine_" if known.name == "cifar100" else ""
    content: dict[str, Any] = {file: pickle.loads(known.read(folder, file), encoding="bytes") for file in known.files}
    (meta,) = (value for file, value in content.items() if file.endswith("meta"))
    classes = [label.decode() for label in meta[f"{fine}label_names".encode()]]
    for start in (("data_batch", "train"), ("test",)):
        batches = [value for file, value in content.items() if file.startswith(start)]
        pixels = np.concatenate([batch[b"data"] for batch in batches]).reshape(-1, 3, 32, 32)
        labels = torch.tensor([label for batch in batches for label in batch[f"{fine}labels".encode()]])
        yield torch.from_numpy(pixels), labels, classes


@cache
def _load_digits() -> Pair[ImageSet]:
    """Return the 1,797 digits inside scikit-learn, split per class with a fixed seed.

    Pixels 0..16 become `round(x * 255 / 16)`. Training shifts by up to one pixel and never mirrors: a mirrored digit
    is no digit.
    """
    from sklearn import datasets  # here, because it takes a second that no other data set needs

    pixels, target = datasets.load_digits(return_X_y=True)
    images = (torch.from_numpy(pixels) * (255 / 16)).round().to(torch.uint8).view(-1, 1, 8, 8)
    labels, classes = torch.from_numpy(target).to(torch.int64), tuple("0123456789")
    parts = zip(("train", "test"), split_per_class(labels, 0.2, seed=0), strict=True)
    train, test = (ImageSet(images[index], labels[index], classes, f"digits/{name}") for name, index in parts)
    scale = centred(1), mean_std((0.3060,), (0.3763,))
    return Pair("digits", train, test, classes, *scale, Augmentation(pad=1, flip=False))


_SETS = tomllib.loads(Path(__file__).with_name("sets.toml").read_text(encoding="utf-8"))
OFFICIAL: Mapping[str, Official] = {name: Official(name, **own) for name, own in _SETS.items()}
NAMES: tuple[str, ...] = ("digits", *OFFICIAL)
NUM_CLASSES: Mapping[str, int] = {"digits": 10, "fashion-mnist": 10, "cifar10": 10, "cifar100": 100}


def search_folders(data_dir: Folder | None = None) -> list[Path]:
    """Return the folders a named set is looked for in, first to last; downloads go to the first."""
    cache_folder = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "aol"
    folders = (data_dir, os.environ.get("AOL_DATA") or None, cache_folder)
    return list(dict.fromkeys(Path(folder).expanduser().absolute() for folder in folders if folder is not None))


def official_at(folder: Path) -> Official | None:
    """Return the official set whose files a folder holds, or None."""
    return next((known for known in OFFICIAL.values() if not known.missing(folder)), None)


def _places(known: Official, data_dir: Folder | None) -> list[Path]:
    """Return each folder itself, its subfolder of the official name, and that inside one named like the set."""
    inside = ("", known.folder, known.name, f"{known.name}/{known.folder}")
    return [root / path for root in search_folders(data_dir) for path in inside] + [*map(Path, known.system)]


def find(name: str, *, data_dir: Folder | None = None) -> Path | None:
    """Return the folder that holds every file of a set that is downloaded, or None."""
    known = OFFICIAL[name]
    return next((folder for folder in _places(known, data_dir) if not known.missing(folder)), None)


def list_sets(*, data_dir: Folder | None = None) -> list[dict[str, str | None]]:
    """List the built-in sets and where each is; None when it is not on this machine."""
    rows = [("digits", "8×8 grey, 10 classes, 1,438 + 359", "inside scikit-learn")]
    rows += [(name, known.title, str(find(name, data_dir=data_dir) or "")) for name, known in OFFICIAL.items()]
    return [{"name": name, "title": title, "where": where or None} for name, title, where in rows]


def load_named(name: str, *, data_dir: Folder | None = None) -> Pair[ImageSet]:
    """Load a built-in set into memory; its input is `pixel / 128 - 1`.

    >>> pair = load_named("digits")
    >>> len(pair.train), len(pair.test), pair.train.shape, pair.test.counts.tolist()
    (1438, 359, (1, 8, 8), [36, 36, 35, 37, 36, 36, 36, 36, 35, 36])
    """
    if name == "digits":
        return _load_digits()
    known, folder = OFFICIAL[name], find(name, data_dir=data_dir)
    if folder is not None:
        return known.load(folder)
    places = ", ".join(map(str, (*search_folders(data_dir), *known.system)))
    problem = f"{name} was not found in {places}"
    for folder in _places(known, data_dir):
        if 0 < len(missing := known.missing(folder)) < len(known.files):
            problem = f"{name} is incomplete: {folder} lacks {', '.join(missing)}"
    raise FileNotFoundError(f"{problem}; `aol data get {name}` downloads it")


def get(name: str, data_dir: Folder | None = None) -> Path | None:
    """Download a named set (default: into the cache folder) and return its folder; None for `digits`.

    What is there is not downloaded again; an archive that was put there by hand is used.
    """
    if name == "digits":
        return None
    known, root = OFFICIAL[name], search_folders(data_dir)[0]
    folder = root / known.folder
    bar = sys.stderr.isatty() and find_spec("tqdm") is not None
    for url, md5 in known.downloads.items() if known.missing(folder) else ():
        pooch = need("pooch", "downloading a data set")
        file, place, unpack = url.rpartition("/")[2], folder, None
        if file.endswith(".tar.gz"):
            place = root
            unpack = pooch.Untar([f"{known.folder}/{member}" for member in known.files], extract_dir=".")
        try:
            pooch.retrieve(url, f"md5:{md5}", fname=file, path=place, processor=unpack, progressbar=bar)
        except OSError as reason:
            hint = f"without a network, first put {file} into {place}"
            raise OSError(f"{url} could not be fetched ({reason}); {hint}") from None
        except ValueError as reason:  # another content than the published one; it was removed
            raise DataError(f"{url}: {reason}") from None
        if unpack:
            (place / file).unlink()
    for member in known.files:
        known.read(folder, member)
    return folder
