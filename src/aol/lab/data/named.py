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
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from aol._need import need
from aol.lab.data.images import Augmentation, DataError, ImageSet, Pair, centred, mean_std, split_per_class

Folder = str | os.PathLike[str]
Numbers = tuple[float, ...]  # one a channel


@dataclass(frozen=True)
class Official:
    """A set that can be downloaded: one folder of files, each stored as `NAME` or `NAME.gz`."""

    name: str
    title: str
    folder: str
    members: Mapping[str, str]  # the files, with the sha256 of their content, uncompressed
    downloads: Mapping[str, str]  # addresses with md5: of an archive of all `folder/member`, or of one `member.gz` each
    load: Callable[[Path], Pair[ImageSet]]
    system: tuple[Path, ...] = ()  # where packages of the system put it

    def missing(self, folder: Path) -> list[str]:
        """Return the members that are not in `folder`."""
        return [name for name in self.members if not any(path.is_file() for path in _files(folder, name))]

    def read(self, folder: Path, name: str) -> bytes:
        """Return the content of a member; `DataError` unless it is the published one."""
        path = next(path for path in _files(folder, name) if path.is_file())
        try:
            content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        except (OSError, EOFError, zlib.error) as reason:
            raise DataError(f"{path}: cannot be read ({reason})") from None
        digest = hashlib.sha256(content).hexdigest()
        if digest != self.members[name]:
            raise DataError(
                f"{path}: not the published file (sha256 {digest[:12]}… instead of {self.members[name][:12]}…); "
                f"remove it, and `aol data get {self.name}` downloads the original"
            )
        return content


def _files(folder: Path, name: str) -> tuple[Path, Path]:
    return folder / name, folder / f"{name}.gz"


def _pair(train: ImageSet, test: ImageSet, mean: Numbers, std: Numbers, *, pad: int, flip: bool) -> Pair[ImageSet]:
    name, scale = train.name.partition("/")[0], centred(train.shape[0])
    return Pair(name, train, test, train.classes, scale, mean_std(mean, std), Augmentation(pad=pad, flip=flip))


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
    return _pair(train, test, (0.3060,), (0.3763,), pad=1, flip=False)


def _idx(content: bytes, *shape: int) -> Tensor:
    """Read an IDX file of unsigned bytes: 0, 0, 8, the number of axes, big-endian sizes, then the values."""
    values = np.frombuffer(content, np.uint8, offset=4 + 4 * content[3])
    return torch.from_numpy(values.reshape(-1, *shape).copy())


def _load_fashion_mnist(folder: Path) -> Pair[ImageSet]:
    """Read Fashion-MNIST: training shifts by up to two pixels and mirrors, as clothes have no left or right."""
    classes = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")
    read = partial(OFFICIAL["fashion-mnist"].read, folder)

    def split(prefix: str, name: str) -> ImageSet:
        images = _idx(read(f"{prefix}-images-idx3-ubyte"), 1, 28, 28)
        labels = _idx(read(f"{prefix}-labels-idx1-ubyte"))
        return ImageSet(images, labels.to(torch.int64), classes, f"fashion-mnist/{name}")

    return _pair(split("train", "train"), split("t10k", "test"), (0.2860,), (0.3530,), pad=2, flip=True)


def _load_cifar(name: str, fine: str, mean: Numbers, std: Numbers, folder: Path) -> Pair[ImageSet]:
    """Read CIFAR from the official python files. Input, padding and mirroring are the paper's."""
    known = OFFICIAL[name]
    content: dict[str, Any] = {file: pickle.loads(known.read(folder, file), encoding="bytes") for file in known.members}
    (meta,) = (value for file, value in content.items() if file.endswith("meta"))
    classes = tuple(label.decode() for label in meta[f"{fine}label_names".encode()])

    def split(part: str, start: tuple[str, ...]) -> ImageSet:
        batches = [value for file, value in content.items() if file.startswith(start)]
        pixels = np.concatenate([batch[b"data"] for batch in batches]).reshape(-1, 3, 32, 32)
        labels = torch.tensor([label for batch in batches for label in batch[f"{fine}labels".encode()]])
        return ImageSet(torch.from_numpy(pixels), labels, classes, f"{name}/{part}")

    return _pair(split("train", ("data_batch", "train")), split("test", ("test",)), mean, std, pad=4, flip=True)


def _sums(start: str) -> dict[str, str]:
    """Return the checksums of the files whose paths or addresses begin so; paths without it."""
    rows = [line.split() for line in Path(__file__).with_name("checksums.txt").read_text().splitlines()[1:]]
    return {name if "://" in name else name.removeprefix(start): sum_ for name, sum_ in rows if name.startswith(start)}


_ALL = (
    Official(
        "fashion-mnist",
        "clothes, 28×28 grey, 10 classes, 60,000 + 10,000",
        "fashion-mnist",
        _sums("fashion-mnist/"),  # of the content, not of the .gz: the Debian package compresses the same bytes anew
        _sums("https://fashion-mnist"),
        _load_fashion_mnist,
        system=(Path("/usr/share/datasets/fashion-mnist"),),
    ),
    Official(
        "cifar10",
        "32×32 colour, 10 classes, 50,000 + 10,000",
        "cifar-10-batches-py",
        _sums("cifar-10-batches-py/"),
        _sums("https://www.cs.toronto.edu/~kriz/cifar-10-"),
        partial(_load_cifar, "cifar10", "", (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    ),
    Official(
        "cifar100",
        "32×32 colour, 100 classes, 50,000 + 10,000",
        "cifar-100-python",
        _sums("cifar-100-python/"),
        _sums("https://www.cs.toronto.edu/~kriz/cifar-100-"),
        partial(_load_cifar, "cifar100", "fine_", (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
    ),
)
OFFICIAL: Mapping[str, Official] = {known.name: known for known in _ALL}
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
    return [root / path for root in search_folders(data_dir) for path in inside] + [*known.system]


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
    places = ", ".join(str(folder) for folder in (*search_folders(data_dir), *known.system))
    problem = f"{name} was not found in {places}"
    for folder in _places(known, data_dir):
        if 0 < len(missing := known.missing(folder)) < len(known.members):
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
            unpack = pooch.Untar([f"{known.folder}/{member}" for member in known.members], extract_dir=".")
        try:
            pooch.retrieve(url, f"md5:{md5}", fname=file, path=place, processor=unpack, progressbar=bar)
        except OSError as reason:
            hint = f"without a network, first put {file} into {place}"
            raise OSError(f"{url} could not be fetched ({reason}); {hint}") from None
        except ValueError as reason:  # another content than the published one; it was removed
            raise DataError(f"{url}: {reason}") from None
        if unpack:
            (place / file).unlink()
    for member in known.members:
        known.read(folder, member)
    return folder
