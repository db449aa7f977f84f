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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from aol._need import need
from aol.lab.data.errors import DataError
from aol.lab.data.images import Augmentation, ImageSet, Normalisation, Pair, centred, mean_std, split_per_class

Folder = str | os.PathLike[str]


@dataclass(frozen=True)
class Official:
    """A set that can be downloaded: one folder of files, each stored as `NAME` or `NAME.gz`.

    Args:
        members: the files, with the sha256 of their content, uncompressed.
        downloads: addresses with md5 sums: of one archive that holds `folder/member` for every member, or of one
            `member.gz` each.
        load: reads the set from its folder.
        system: places where packages of the system put it.
    """

    name: str
    title: str
    folder: str
    members: Mapping[str, str]
    downloads: Mapping[str, str]
    load: Callable[[Path], Pair[ImageSet]]
    system: tuple[Path, ...] = ()

    def missing(self, folder: Path) -> list[str]:
        """Return the members that are not in `folder`."""
        return [name for name in self.members if _member_file(folder, name) is None]

    def read(self, folder: Path, name: str) -> bytes:
        """Return the content of a member; `DataError` unless it is the published one."""
        path = _member_file(folder, name)
        if path is None:
            raise FileNotFoundError(f"{folder / name}: no such file; {self.name} needs it")
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


def _member_file(folder: Path, name: str) -> Path | None:
    return next((path for path in (folder / name, folder / f"{name}.gz") if path.is_file()), None)


@dataclass(frozen=True)
class Listing:
    """One line of `aol data list`. `where` is None when the set is not on this machine."""

    name: str
    title: str
    where: str | None


def _pair(train: ImageSet, test: ImageSet, standardised: Normalisation, *, pad: int, flip: bool) -> Pair[ImageSet]:
    name, scale = train.name.partition("/")[0], centred(train.shape[0])
    return Pair(name, train, test, train.classes, scale, standardised, Augmentation(pad=pad, flip=flip))


@cache
def _load_digits() -> Pair[ImageSet]:
    """Return the 1,797 digits inside scikit-learn, split per class with a fixed seed.

    Pixels 0..16 become `round(x * 255 / 16)`. Training shifts by up to one pixel and never mirrors: a mirrored digit
    is no digit.
    """
    from sklearn import datasets  # here, because it takes a second that no other data set needs

    pixels, target = datasets.load_digits(return_X_y=True)
    images = (torch.from_numpy(pixels) * (255 / 16)).round().to(torch.uint8).view(-1, 1, 8, 8)
    whole = ImageSet(images, torch.from_numpy(target).to(torch.int64), tuple("0123456789"), "digits/train")
    kept, held = split_per_class(whole.labels, 0.2, seed=0)
    test = replace(whole.subset(held), name="digits/test")
    return _pair(whole.subset(kept), test, mean_std((0.3060,), (0.3763,)), pad=1, flip=False)


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

    return _pair(split("train", "train"), split("t10k", "test"), mean_std((0.2860,), (0.3530,)), pad=2, flip=True)


def _load_cifar(
    name: str, standardised: Normalisation, meta: str, train: Sequence[str], test: str, fine: str, folder: Path
) -> Pair[ImageSet]:
    """Read CIFAR from the official python files. Input, padding and mirroring are the paper's."""

    def unpickled(file: str) -> dict[bytes, Any]:
        content: dict[bytes, Any] = pickle.loads(OFFICIAL[name].read(folder, file), encoding="bytes")
        return content

    classes = tuple(label.decode() for label in unpickled(meta)[f"{fine}label_names".encode()])

    def split(files: Sequence[str], part: str) -> ImageSet:
        batches = [unpickled(file) for file in files]
        pixels = np.concatenate([batch[b"data"] for batch in batches]).reshape(-1, 3, 32, 32)
        labels = torch.tensor([label for batch in batches for label in batch[f"{fine}labels".encode()]])
        return ImageSet(torch.from_numpy(pixels), labels, classes, f"{name}/{part}")

    return _pair(split(train, "train"), split([test], "test"), standardised, pad=4, flip=True)


_ZALANDO, _TORONTO = "https://fashion-mnist.s3.eu-central-1.amazonaws.com", "https://www.cs.toronto.edu/~kriz"
FASHION_MNIST = Official(
    name="fashion-mnist",
    title="clothes, 28×28 grey, 10 classes, 60,000 + 10,000",
    folder="fashion-mnist",
    members={  # of the content, not of the .gz: the Debian package compresses the same bytes anew
        "train-images-idx3-ubyte": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        "train-labels-idx1-ubyte": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        "t10k-images-idx3-ubyte": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        "t10k-labels-idx1-ubyte": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    },
    downloads={
        f"{_ZALANDO}/train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        f"{_ZALANDO}/train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
        f"{_ZALANDO}/t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
        f"{_ZALANDO}/t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
    },
    load=_load_fashion_mnist,
    system=(Path("/usr/share/datasets/fashion-mnist"),),
)

_BATCHES = tuple(f"data_batch_{number}" for number in range(1, 6))
_CIFAR10_INPUT = mean_std((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))
CIFAR10 = Official(
    name="cifar10",
    title="32×32 colour, 10 classes, 50,000 + 10,000",
    folder="cifar-10-batches-py",
    members={
        "batches.meta": "f962466ef690d46b226450fb9aadc74ba4bc64a76aa526b5827fe4bc5c7125cb",
        "data_batch_1": "54636561a3ce25bd3e19253c6b0d8538147b0ae398331ac4a2d86c6d987368cd",
        "data_batch_2": "766b2cef9fbc745cf056b3152224f7cf77163b330ea9a15f9392beb8b89bc5a8",
        "data_batch_3": "0f00d98ebfb30b3ec0ad19f9756dc2630b89003e10525f5e148445e82aa6a1f9",
        "data_batch_4": "3f7bb240661948b8f4d53e36ec720d8306f5668bd0071dcb4e6c947f78e9682b",
        "data_batch_5": "d91802434d8376bbaeeadf58a737e3a1b12ac839077e931237e0dcd43adcb154",
        "test_batch": "f53d8d457504f7cff4ea9e021afcf0e0ad8e24a91f3fc42091b8adef61157831",
    },
    downloads={f"{_TORONTO}/cifar-10-python.tar.gz": "c58f30108f718f92721af3b95e74349a"},
    load=partial(_load_cifar, "cifar10", _CIFAR10_INPUT, "batches.meta", _BATCHES, "test_batch", ""),
)

_CIFAR100_INPUT = mean_std((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762))
CIFAR100 = Official(
    name="cifar100",
    title="32×32 colour, 100 classes, 50,000 + 10,000",
    folder="cifar-100-python",
    members={
        "meta": "a5d4786345c961390f865e93b434dbd5c6904ce880667e0cb888c97d449f28b9",
        "train": "735e79b04f092ca3d2e6d07f368c0a7d70d48c48d28865950cc24454cf45129b",
        "test": "4b67687d9933c4db8f0831104447f15b93774f4f464bd0516f0f0f2ac83b7864",
    },
    downloads={f"{_TORONTO}/cifar-100-python.tar.gz": "eb9058c3a382ffc7106e4002c42a8d85"},
    load=partial(_load_cifar, "cifar100", _CIFAR100_INPUT, "meta", ["train"], "test", "fine_"),
)

OFFICIAL: Mapping[str, Official] = {known.name: known for known in (FASHION_MNIST, CIFAR10, CIFAR100)}
NAMES: tuple[str, ...] = ("digits", *OFFICIAL)
NUM_CLASSES: Mapping[str, int] = {"digits": 10, "fashion-mnist": 10, "cifar10": 10, "cifar100": 100}


def search_folders(data_dir: Folder | None = None) -> list[Path]:
    """Return the folders a named set is looked for in, first to last; downloads go to the first.

    >>> search_folders("/data")[0].as_posix()
    '/data'
    """
    cache_folder = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "aol"
    folders = (data_dir, os.environ.get("AOL_DATA") or None, cache_folder)
    return list(dict.fromkeys(Path(folder).expanduser().absolute() for folder in folders if folder is not None))


def official(name: str) -> Official:
    """Return what is known of a downloadable set.

    >>> official("cifar10").folder
    'cifar-10-batches-py'
    >>> official("cifar")
    Traceback (most recent call last):
    ...
    ValueError: unknown data set 'cifar'; built-in names are digits, fashion-mnist, cifar10, cifar100
    """
    if name not in OFFICIAL:
        raise ValueError(f"unknown data set {name!r}; built-in names are {', '.join(NAMES)}")
    return OFFICIAL[name]


def official_at(folder: Path) -> Official | None:
    """Return the official set whose files a folder holds, or None."""
    return next((known for known in OFFICIAL.values() if not known.missing(folder)), None)


def _places(known: Official, data_dir: Folder | None) -> Iterator[Path]:
    for root in search_folders(data_dir):
        yield from (root, root / known.folder, root / known.name, root / known.name / known.folder)
    yield from known.system


def find(name: str, *, data_dir: Folder | None = None) -> Path | None:
    """Return the folder that holds every file of a named set, or None; `digits` has none and needs none.

    A folder is looked at itself, then its subfolder of the official name, then that inside one named like the set.

    >>> find("cifar10", data_dir="/nowhere") == find("cifar10")
    True
    """
    if name == "digits":
        return None
    known = official(name)
    return next((folder for folder in _places(known, data_dir) if not known.missing(folder)), None)


def list_sets(*, data_dir: Folder | None = None) -> list[Listing]:
    """List the built-in sets and where each is.

    >>> list_sets()[0]
    Listing(name='digits', title='8×8 grey, 10 classes, 1,438 + 359', where='inside scikit-learn')
    """
    places = {name: find(name, data_dir=data_dir) for name in OFFICIAL}
    digits = Listing("digits", "8×8 grey, 10 classes, 1,438 + 359", "inside scikit-learn")
    return [digits, *(Listing(name, OFFICIAL[name].title, str(at) if at else None) for name, at in places.items())]


def load_named(name: str, *, data_dir: Folder | None = None) -> Pair[ImageSet]:
    """Load a built-in set into memory; its input is `pixel / 128 - 1`.

    >>> pair = load_named("digits")
    >>> len(pair.train), len(pair.test), pair.train.shape, pair.test.counts.tolist()
    (1438, 359, (1, 8, 8), [36, 36, 35, 37, 36, 36, 36, 36, 35, 36])
    """
    if name == "digits":
        return _load_digits()
    known, folder = official(name), find(name, data_dir=data_dir)
    if folder is None:
        raise FileNotFoundError(_missing_message(known, data_dir))
    return known.load(folder)


def _missing_message(known: Official, data_dir: Folder | None) -> str:
    """Say which files are missing, where they were looked for and how to get them."""
    how = f"`aol data get {known.name}` downloads it"
    for folder in _places(known, data_dir):
        if 0 < len(missing := known.missing(folder)) < len(known.members):
            return f"{known.name} is incomplete: {folder} lacks {', '.join(missing)}; {how}"
    places = ", ".join(str(folder) for folder in (*search_folders(data_dir), *known.system))
    return f"{known.name} was not found in {places}; {how}"


def get(name: str, data_dir: Folder | None = None) -> Path | None:
    """Download a named set (default: into the cache folder) and return its folder; None for `digits`.

    What is there is not downloaded again; an archive that was put there by hand is used.

    >>> get("digits") is None
    True
    """
    if name == "digits":
        return None
    known, root = official(name), search_folders(data_dir)[0]
    folder = root / known.folder
    missing = known.missing(folder)
    pooch = need("pooch", package="pooch", extra="lab", why="downloading a data set") if missing else None
    for url, md5 in known.downloads.items() if pooch else ():
        file, place, unpack = url.rpartition("/")[2], folder, None
        if file.endswith(".tar.gz"):
            place = root
            unpack = pooch.Untar([f"{known.folder}/{member}" for member in known.members], extract_dir=".")
        elif file.removesuffix(".gz") not in missing:
            continue
        bar = sys.stderr.isatty() and find_spec("tqdm") is not None
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
