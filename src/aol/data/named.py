"""The built-in data sets: their names, where they are looked for, and loading one by its name.

Nothing is downloaded without being asked for: a missing set is an error that says how to get it. The search order is
the given folder, `$AOL_DATA`, the cache folder, then the system's own place.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from aol.data.cifar import CIFAR10, CIFAR100
from aol.data.digits import load_digits
from aol.data.fashion_mnist import FASHION_MNIST
from aol.data.images import ImageSet, Pair
from aol.data.registry import Official

OFFICIAL: Mapping[str, Official] = {o.name: o for o in (FASHION_MNIST, CIFAR10, CIFAR100)}
NAMES: tuple[str, ...] = ("digits", *OFFICIAL)
NUM_CLASSES: Mapping[str, int] = {"digits": 10, "fashion-mnist": 10, "cifar10": 10, "cifar100": 100}


@dataclass(frozen=True)
class Listing:
    """One line of `aol data list`. `where` is None when the set is not on this machine."""

    name: str
    title: str
    where: str | None


def cache_folder() -> Path:
    """Return the folder data sets are kept in: `$AOL_DATA`, else `aol` in the user's cache folder.

    >>> cache_folder().is_absolute()
    True
    """
    if chosen := os.environ.get("AOL_DATA"):
        return Path(chosen).expanduser().absolute()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser().absolute() / "aol"


def search_folders(data_dir: str | os.PathLike[str] | None = None) -> list[Path]:
    """Return the folders a named set is looked for in, first to last.

    >>> search_folders("/data")[0].as_posix()
    '/data'
    """
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    folders = [Path(data_dir).expanduser().absolute()] if data_dir is not None else []
    folders += [cache_folder(), Path(base).expanduser().absolute() / "aol"]
    return list(dict.fromkeys(folders))


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


def find(name: str, *, data_dir: str | os.PathLike[str] | None = None) -> Path | None:
    """Return the folder that holds every file of a named set, or None; `digits` has none and needs none.

    A folder is looked at itself, then its subfolder of the official name, then that inside one named like
    the set.

    >>> find("cifar10", data_dir="/nowhere") == find("cifar10")
    True
    """
    if name == "digits":
        return None
    known = official(name)
    for root in search_folders(data_dir):
        for folder in (root, root / known.folder, root / name, root / name / known.folder):
            if all(known.present(folder)):
                return folder
    for folder in known.system:
        if all(known.present(folder)):
            return folder
    return None


def list_sets(*, data_dir: str | os.PathLike[str] | None = None) -> list[Listing]:
    """List the built-in sets and where each was found.

    >>> list_sets()[0]
    Listing(name='digits', title='8×8 grey, 10 classes, 1,438 + 359', where='inside scikit-learn')
    """
    listings = [Listing("digits", "8×8 grey, 10 classes, 1,438 + 359", "inside scikit-learn")]
    for known in OFFICIAL.values():
        folder = find(known.name, data_dir=data_dir)
        listings.append(Listing(known.name, known.title, None if folder is None else str(folder)))
    return listings


def missing_message(known: Official, data_dir: str | os.PathLike[str] | None = None) -> str:
    """Say which files are missing, where they were looked for and how to get them."""
    for root in search_folders(data_dir):
        for folder in (root / known.folder, root / known.name, root):
            found = known.present(folder)
            if any(found) and not all(found):
                lacking = [m.name for m, at in zip(known.members, found, strict=True) if at is None]
                return (
                    f"{known.name} is incomplete: {folder} lacks {', '.join(lacking)}; "
                    f"`aol data get {known.name}` downloads it"
                )
    places = ", ".join(str(folder) for folder in (*search_folders(data_dir), *known.system))
    return f"{known.name} was not found in {places}; `aol data get {known.name}` downloads it"


def load_named(name: str, *, data_dir: str | os.PathLike[str] | None = None) -> Pair[ImageSet]:
    """Load a built-in set into memory.

    >>> load_named("digits").train.images.shape
    torch.Size([1438, 1, 8, 8])
    """
    if name == "digits":
        return load_digits()
    known = official(name)
    folder = find(name, data_dir=data_dir)
    if folder is None:
        raise FileNotFoundError(missing_message(known, data_dir))
    return known.load(folder)
