"""The built-in data sets: their files and checksums, where they are looked for, and loading one by its name.

Nothing is downloaded without being asked for: a missing set is an error that says how to get it. The search order is
the given folder, `$AOL_DATA`, the cache folder, then the system's own place. Checksums are compared by `check` and
`get`, and before a pickle is read (CIFAR); loading others checks shapes and labels.
"""

from __future__ import annotations

import gzip
import hashlib
import math
import os
import pickle
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from aol._files import NotRegularError, read_regular, unpacked
from aol.lab.data.errors import DataError
from aol.lab.data.images import Augmentation, ImageSet, Normalisation, Pair, centred, mean_std, split_per_class

Folder = str | os.PathLike[str]
_CHUNK = 1 << 20
_LARGEST = 2**28  # bytes of a file of Fashion-MNIST, which has 47 million at most


@dataclass(frozen=True)
class Member:
    """One file of an official set: name, bytes and sha256 of its content, uncompressed."""

    name: str
    size: int
    sha256: str

    def problem(self, path: Path) -> str | None:
        """Say what is wrong with a file that should hold this member; None when size and checksum are right."""
        found, size = hashlib.sha256(), 0
        try:
            with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
                while size <= self.size and (chunk := file.read(_CHUNK)):
                    found.update(chunk)
                    size += len(chunk)
        except (OSError, EOFError, zlib.error) as reason:
            return f"cannot be read ({reason})"
        if size != self.size:
            found_size = f"{size:,}" if size < self.size else f"more than {self.size:,}"
            return f"{found_size} bytes instead of {self.size:,}"
        if found.hexdigest() != self.sha256:
            return f"sha256 {found.hexdigest()[:12]}… instead of {self.sha256[:12]}…"
        return None


@dataclass(frozen=True)
class Download:
    """One file at an official address, and its size and checksum."""

    name: str
    size: int
    md5: str


@dataclass(frozen=True)
class Official:
    """A named data set: one folder of files. `gzipped`: a member may also be stored as `name.gz`.

    A download is either one archive holding `folder/member` for every member, or one `member.gz` each.
    """

    name: str
    title: str
    folder: str
    addresses: tuple[str, ...]  # of the same files; the first that answers is used
    members: tuple[Member, ...]
    downloads: tuple[Download, ...]
    load: Callable[[Path], Pair[ImageSet]]
    gzipped: bool = False
    system: tuple[Path, ...] = ()

    def present(self, folder: Path) -> list[Path | None]:
        """Return the file of each member under `folder`, or None where it is missing."""
        return [self.member_file(folder, member.name) for member in self.members]

    def state(self, folder: Path) -> list[tuple[Path, str | None]]:
        """Return the file of each member with what is wrong with it, or None."""
        found = zip(self.members, self.present(folder), strict=True)
        return [(at, each.problem(at)) if at else (folder / each.name, "missing") for each, at in found]

    def member_file(self, folder: Path, name: str) -> Path | None:
        """Return the file that holds a member, gzipped or not, or None."""
        for candidate in (folder / name, folder / f"{name}.gz") if self.gzipped else (folder / name,):
            if candidate.is_file():
                return candidate
        return None


@dataclass(frozen=True)
class Listing:
    """One line of `aol data list`. `where` is None when the set is not on this machine."""

    name: str
    title: str
    where: str | None


def _pair(train: ImageSet, test: ImageSet, standardised: Normalisation, *, pad: int, flip: bool) -> Pair[ImageSet]:
    name = train.name.partition("/")[0]
    scale = centred(train.shape[0])
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


def read_idx(content: bytes, where: str) -> Tensor:
    """Read an IDX file of unsigned bytes: 0, 0, 8, the number of axes, big-endian sizes, then the values.

    >>> read_idx(bytes([0, 0, 8, 2, 0, 0, 0, 1, 0, 0, 0, 3, 7, 8, 9]), "tiny")
    tensor([[7, 8, 9]], dtype=torch.uint8)
    >>> read_idx(bytes([0, 0, 8, 1, 0, 0, 0, 5, 1]), "tiny")
    Traceback (most recent call last):
    ...
    aol.lab.data.errors.DataError: tiny: 9 bytes, but its header asks for 13
    """
    if len(content) < 4 or content[:3] != b"\0\0\x08":
        raise DataError(f"{where}: not an IDX file of unsigned bytes")
    start = 4 + 4 * content[3]
    shape = [int.from_bytes(content[at : at + 4], "big") for at in range(4, start, 4)]
    if len(content) != start + math.prod(shape):
        raise DataError(f"{where}: {len(content)} bytes, but its header asks for {start + math.prod(shape)}")
    return torch.from_numpy(np.frombuffer(content, np.uint8, offset=start).reshape(shape).copy())


def _fashion_file(folder: Path, name: str) -> Tensor:
    path = FASHION_MNIST.member_file(folder, name)
    if path is None:
        raise FileNotFoundError(f"{folder / name}: no such file; fashion-mnist needs it")
    try:
        content = read_regular(path, _LARGEST)
        content = unpacked(content, _LARGEST) if path.suffix == ".gz" else content
    except (NotRegularError, ValueError) as reason:
        raise DataError(f"{path}: not a whole file ({reason})") from None
    return read_idx(content, str(folder / name))


def _load_fashion_mnist(folder: Path) -> Pair[ImageSet]:
    """Read Fashion-MNIST: training shifts by up to two pixels and mirrors, as clothes have no left or right."""
    classes = ["T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"]

    def split(prefix: str, name: str) -> ImageSet:
        images_name, labels_name = f"{prefix}-images-idx3-ubyte", f"{prefix}-labels-idx1-ubyte"
        images, labels = _fashion_file(folder, images_name), _fashion_file(folder, labels_name)
        if images.dim() != 3 or images.shape[1:] != (28, 28):
            raise DataError(f"{folder / images_name}: images must be [N, 28, 28], got {list(images.shape)}")
        if labels.shape != images.shape[:1]:
            raise DataError(
                f"{folder / labels_name}: {labels.numel()} labels for the {len(images)} images of {images_name}"
            )
        return ImageSet(images.unsqueeze(1), labels.to(torch.int64), tuple(classes), f"fashion-mnist/{name}")

    return _pair(split("train", "train"), split("t10k", "test"), mean_std((0.2860,), (0.3530,)), pad=2, flip=True)


def _verified(name: str, path: Path) -> dict[bytes, Any]:
    """Read a pickle of an official set if its content is the published one, and only then: pickles can run programs."""
    member = next(each for each in OFFICIAL[name].members if each.name == path.name)
    content = read_regular(path, 2 * member.size)
    if hashlib.sha256(content).hexdigest() != member.sha256:
        raise DataError(f"{path}: {member.problem(path)}; `aol data get {name}` downloads the original")
    found: dict[bytes, Any] = pickle.loads(content, encoding="bytes")
    return found


def _load_cifar(
    name: str, standardised: Normalisation, meta: str, train: Sequence[str], test: str, fine: str, folder: Path
) -> Pair[ImageSet]:
    """Read CIFAR from the official python files. Input, padding and mirroring are the paper's."""
    classes = tuple(each.decode() for each in _verified(name, folder / meta)[f"{fine}label_names".encode()])

    def split(files: Sequence[str], part: str) -> ImageSet:
        batches = [_verified(name, folder / file) for file in files]
        pixels = np.concatenate([batch[b"data"] for batch in batches]).reshape(-1, 3, 32, 32)
        labels = torch.tensor([label for batch in batches for label in batch[f"{fine}labels".encode()]])
        return ImageSet(torch.from_numpy(pixels), labels, classes, f"{name}/{part}")

    return _pair(split(train, "train"), split([test], "test"), standardised, pad=4, flip=True)


FASHION_MNIST = Official(
    name="fashion-mnist",
    title="clothes, 28×28 grey, 10 classes, 60,000 + 10,000",
    folder="fashion-mnist",
    addresses=(
        "https://fashion-mnist.s3.eu-central-1.amazonaws.com",
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
    ),
    # Of the content, not of the .gz: the Debian package compresses the same bytes anew.
    members=tuple(
        Member(*row)
        for row in (
            ("train-images-idx3-ubyte", 47_040_016, "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888"),
            ("train-labels-idx1-ubyte", 60_008, "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9"),
            ("t10k-images-idx3-ubyte", 7_840_016, "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b"),
            ("t10k-labels-idx1-ubyte", 10_008, "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34"),
        )
    ),
    downloads=(
        Download("train-images-idx3-ubyte.gz", 26_421_880, "8d4fb7e6c68d591d4c3dfef9ec88bf0d"),
        Download("train-labels-idx1-ubyte.gz", 29_515, "25c81989df183df01b3e8a0aad5dffbe"),
        Download("t10k-images-idx3-ubyte.gz", 4_422_102, "bef4ecab320f06d8554ea6380940ec79"),
        Download("t10k-labels-idx1-ubyte.gz", 5_148, "bb300cfdad3c16e7a12a480ee83cd310"),
    ),
    load=_load_fashion_mnist,
    gzipped=True,
    system=(Path("/usr/share/datasets/fashion-mnist"),),
)

_BATCHES = tuple(f"data_batch_{number}" for number in range(1, 6))
_CIFAR10_INPUT = mean_std((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))
CIFAR10 = Official(
    name="cifar10",
    title="32×32 colour, 10 classes, 50,000 + 10,000",
    folder="cifar-10-batches-py",
    addresses=("https://www.cs.toronto.edu/~kriz",),
    members=(
        Member("batches.meta", 158, "f962466ef690d46b226450fb9aadc74ba4bc64a76aa526b5827fe4bc5c7125cb"),
        Member("data_batch_1", 31_035_704, "54636561a3ce25bd3e19253c6b0d8538147b0ae398331ac4a2d86c6d987368cd"),
        Member("data_batch_2", 31_035_320, "766b2cef9fbc745cf056b3152224f7cf77163b330ea9a15f9392beb8b89bc5a8"),
        Member("data_batch_3", 31_035_999, "0f00d98ebfb30b3ec0ad19f9756dc2630b89003e10525f5e148445e82aa6a1f9"),
        Member("data_batch_4", 31_035_696, "3f7bb240661948b8f4d53e36ec720d8306f5668bd0071dcb4e6c947f78e9682b"),
        Member("data_batch_5", 31_035_623, "d91802434d8376bbaeeadf58a737e3a1b12ac839077e931237e0dcd43adcb154"),
        Member("test_batch", 31_035_526, "f53d8d457504f7cff4ea9e021afcf0e0ad8e24a91f3fc42091b8adef61157831"),
    ),
    downloads=(Download("cifar-10-python.tar.gz", 170_498_071, "c58f30108f718f92721af3b95e74349a"),),
    load=partial(_load_cifar, "cifar10", _CIFAR10_INPUT, "batches.meta", _BATCHES, "test_batch", ""),
)

_CIFAR100_INPUT = mean_std((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762))
CIFAR100 = Official(
    name="cifar100",
    title="32×32 colour, 100 classes, 50,000 + 10,000",
    folder="cifar-100-python",
    addresses=("https://www.cs.toronto.edu/~kriz",),
    members=(
        Member("meta", 1_473, "a5d4786345c961390f865e93b434dbd5c6904ce880667e0cb888c97d449f28b9"),
        Member("train", 155_249_918, "735e79b04f092ca3d2e6d07f368c0a7d70d48c48d28865950cc24454cf45129b"),
        Member("test", 31_049_707, "4b67687d9933c4db8f0831104447f15b93774f4f464bd0516f0f0f2ac83b7864"),
    ),
    downloads=(Download("cifar-100-python.tar.gz", 169_001_437, "eb9058c3a382ffc7106e4002c42a8d85"),),
    load=partial(_load_cifar, "cifar100", _CIFAR100_INPUT, "meta", ["train"], "test", "fine_"),
)

OFFICIAL: Mapping[str, Official] = {o.name: o for o in (FASHION_MNIST, CIFAR10, CIFAR100)}
NAMES: tuple[str, ...] = ("digits", *OFFICIAL)
NUM_CLASSES: Mapping[str, int] = {"digits": 10, "fashion-mnist": 10, "cifar10": 10, "cifar100": 100}


def search_folders(data_dir: Folder | None = None) -> list[Path]:
    """Return the folders a named set is looked for in, first to last; without `data_dir`, downloads go to the first.

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
    return next((known for known in OFFICIAL.values() if all(known.present(folder))), None)


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
    return next((folder for folder in _places(known, data_dir) if all(known.present(folder))), None)


def list_sets(*, data_dir: Folder | None = None) -> list[Listing]:
    """List the built-in sets and where each was found.

    >>> list_sets()[0]
    Listing(name='digits', title='8×8 grey, 10 classes, 1,438 + 359', where='inside scikit-learn')
    """
    listings = [Listing("digits", "8×8 grey, 10 classes, 1,438 + 359", "inside scikit-learn")]
    for known in OFFICIAL.values():
        folder = find(known.name, data_dir=data_dir)
        listings.append(Listing(known.name, known.title, None if folder is None else str(folder)))
    return listings


def missing_message(known: Official, data_dir: Folder | None = None) -> str:
    """Say which files are missing, where they were looked for and how to get them."""
    how = f"`aol data get {known.name}` downloads it"
    for folder in _places(known, data_dir):
        found = known.present(folder)
        if any(found) and not all(found):
            lacking = [m.name for m, at in zip(known.members, found, strict=True) if at is None]
            return f"{known.name} is incomplete: {folder} lacks {', '.join(lacking)}; {how}"
    places = ", ".join(str(folder) for folder in (*search_folders(data_dir), *known.system))
    return f"{known.name} was not found in {places}; {how}"


def load_named(name: str, *, data_dir: Folder | None = None) -> Pair[ImageSet]:
    """Load a built-in set into memory; its input is `pixel / 128 - 1`.

    >>> pair = load_named("digits")
    >>> len(pair.train), len(pair.test), pair.train.shape, pair.test.counts.tolist()
    (1438, 359, (1, 8, 8), [36, 36, 35, 37, 36, 36, 36, 36, 35, 36])
    """
    if name == "digits":
        return _load_digits()
    known = official(name)
    folder = find(name, data_dir=data_dir)
    if folder is None:
        raise FileNotFoundError(missing_message(known, data_dir))
    return known.load(folder)
