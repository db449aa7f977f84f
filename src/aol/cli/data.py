"""`aol data list`, `get`, `check` and `pack`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path

from aol.cli.flags import DATA_SETS
from aol.cli.output import note, tell
from aol.cli.parser import check_data, command, count, folder, show_help, switch, value
from aol.lab.settings import WrongSettingsError

_NAMES = ", ".join(DATA_SETS)
_LOOK = value("--data-dir", "FOLDER", "look here first", type=folder)
_STOPPED = "run the same command again to continue"
command(
    "data",
    "List, download, check and pack data sets.",
    ("aol data list", "aol data get cifar10", "aol data pack photos packed --size 256"),
)(show_help)


def _progress(args: argparse.Namespace) -> Callable[[str, int, int], None] | None:
    """Return a progress line for a terminal; nothing when the output is JSON or goes into a file."""
    if args.json or not sys.stderr.isatty():
        return None

    def show(what: str, done: int, total: int) -> None:
        end = "\n" if done >= total else ""
        print(f"\r{what}: {done:,} of {total:,} ({done / max(total, 1):.0%})", end=end, file=sys.stderr)

    return show


@command(
    "data list", "List the built-in data sets and where each one is.", ("aol data list", "aol data list --json"), _LOOK
)
def _list(args: argparse.Namespace) -> None:
    from aol.lab.data.named import list_sets

    sets = list_sets(data_dir=args.data_dir)
    places = [each.where or f"not on this machine: aol data get {each.name}" for each in sets]
    lines = [f"{each.name:<14} {each.title:<50} {place}" for each, place in zip(sets, places, strict=True)]
    tell(args, {"sets": [asdict(each) for each in sets]}, lines)


@command(
    "data get",
    "Download a data set from its official address; an interrupted download can be continued.",
    ("aol data get cifar10", "aol data get cifar100 --data-dir data"),
    value("name", "NAME", f"one of {_NAMES}"),
    value("--data-dir", "FOLDER", "put it here (default: the cache folder)", type=folder),
    value("--mirror", "URL", "fetch the same files from this address"),
    stopped=_STOPPED,
)
def _get(args: argparse.Namespace) -> None:
    from aol._values import did_you_mean
    from aol.lab.data.download import get
    from aol.lab.data.named import NAMES

    if args.name not in NAMES:
        hint = did_you_mean(args.name, NAMES)
        raise WrongSettingsError(f"there is no data set {args.name!r}; built-in are {', '.join(NAMES)}.{hint}")
    place = get(args.name, args.data_dir, progress=_progress(args), mirror=args.mirror)
    where = "inside scikit-learn" if place is None else str(place)
    tell(args, {"name": args.name, "where": where}, [f"{args.name}: {where}"])


@command(
    "data check",
    "Show where a data set is and how large it is, and list all its problems: exit status 1 if there are any.",
    ("aol data check cifar10", "aol data check photos --decode"),
    value("name", "NAME_OR_FOLDER", f"a folder, hf:NAME, torchvision:NAME, or one of {_NAMES}"),
    _LOOK,
    switch("--decode", "decode every image; without it, only the header of each is read"),
    value("--workers", "N", "threads that decode", type=count(1), default=4),
)
def _check(args: argparse.Namespace) -> int:
    from aol.lab.data.open import check

    check_data([args.name], "NAME_OR_FOLDER")
    found = check(args.name, data_dir=args.data_dir, decode=args.decode, workers=args.workers, progress=_progress(args))
    sizes = "".join(f", {number:,} {split}" for split, number in found.sizes.items())
    classes = f", {found.classes} classes" if found.sizes else ""
    about = f"{found.name}: {found.kind}, {found.where}{classes}{sizes}: no problems found"
    tell(args, {**asdict(found), "ok": found.ok}, found.problems or [about])
    if found.ok:
        return 0
    note(f"{found.name}: {len(found.problems):,} problem{'s' * (len(found.problems) > 1)} found.")
    return 1


@command(
    "data pack",
    "Pack a large data set into a few files that are fast to read at random (resumable).",
    ("aol data pack photos packed --size 256", "aol train --data packed"),
    value("source", "SOURCE", "an image folder, Parquet, LMDB or packed set", type=folder),
    value("dest", "DEST", "a new folder, or that of an earlier packing", type=folder),
    value("--size", "PIXELS", "shrink images to this shorter side", type=count(1)),
    value("--quality", "Q", "JPEG quality of shrunk images", type=count(1), default=90),
    value("--workers", "N", "processes (default: all cores)", type=count(1)),
    stopped=_STOPPED,
)
def _pack(args: argparse.Namespace) -> None:
    from aol.lab.data.pack import pack

    _check_source(Path(args.source))
    show = _progress(args)
    progress = None if show is None else partial(show, "packed")
    packed = pack(args.source, args.dest, size=args.size, quality=args.quality, workers=args.workers, progress=progress)
    line = (
        f"{packed.where}: {packed.records:,} images, {packed.bytes / 1e6:,.1f} MB; "
        f"{packed.written} shards written, {packed.kept} already there"
    )
    tell(args, asdict(packed), [line])


def _check_source(source: Path) -> None:
    """Refuse what cannot or need not be packed: a built-in set, by its name or folder, or a word that is no folder."""
    from aol.lab.data.named import official_at
    from aol.lab.data.sources import is_source

    check_data([str(source)], "SOURCE")
    known = official_at(source) if source.is_dir() else None
    if known is None and source.is_dir():
        return
    name = str(source) if known is None else known.name
    what = f"is the built-in data set {name}, which is held in memory and needs no packing"
    if is_source(name):
        what = "is read by another library and not from a folder"
    raise WrongSettingsError(
        f"SOURCE {source} {what}: use it by --data {source}. Packing is for image folders, Parquet and LMDB."
    )
