"""`aol data list`, `get`, `check` and `pack`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from aol.cli.parser import Commands, add_command, add_common, count, folder, show_help
from aol.engine.settings import WrongSettingsError

NAMES = "digits, fashion-mnist, cifar10, cifar100"


def add(commands: Commands) -> None:
    """Add `aol data` and its commands."""
    parser = add_command(commands, "data", show_help, "List, download, check and pack data sets.", (
        "aol data list", "aol data get cifar10", "aol data pack photos packed --size 256",
    ))  # fmt: skip
    more = parser.add_subparsers(dest="subcommand", metavar="COMMAND", title="commands", prog="aol data")

    show = add_command(more, "list", _list, "List the built-in data sets and where each one is.", (
        "aol data list", "aol data list --json",
    ))  # fmt: skip
    _add_data_dir(show, "look here first")
    add_common(show)

    text = "Download a data set from its official address; an interrupted download can be continued."
    get = add_command(more, "get", _get, text, ("aol data get cifar10", "aol data get cifar100 --data-dir data"))
    get.add_argument("name", metavar="NAME", help=f"one of {NAMES}")
    _add_data_dir(get, "put it here (default: the cache folder)")
    get.add_argument("--mirror", metavar="URL", help="fetch the same files from this address")
    add_common(get)

    text = "Show where a data set is and how large it is, and find damaged files."
    check = add_command(more, "check", _check, text, ("aol data check cifar10", "aol data check photos --decode"))
    check.add_argument("name", metavar="NAME_OR_FOLDER", help=f"a folder, or one of {NAMES}")
    _add_data_dir(check, "look here first")
    check.add_argument("--decode", action="store_true", help="decode every image of a folder")
    check.add_argument("--workers", type=count(1), metavar="N", default=4, help="threads that decode")
    add_common(check)

    text = "Pack a large data set into a few files that are fast to read at random (resumable)."
    pack = add_command(more, "pack", _pack, text, (
        "aol data pack photos packed --size 256", "aol train --data packed",
    ))  # fmt: skip
    pack.add_argument("source", metavar="SOURCE", type=Path, help="an image folder, Parquet, LMDB or packed set")
    pack.add_argument("dest", metavar="DEST", type=Path, help="a new folder, or that of an earlier packing")
    pack.add_argument("--size", type=count(1), metavar="PIXELS", help="shrink images to this shorter side")
    pack.add_argument("--quality", type=count(1), metavar="Q", default=90, help="JPEG quality of shrunk images")
    pack.add_argument("--workers", type=count(1), metavar="N", help="threads (default: all cores)")
    add_common(pack)
    for each in (get, pack):
        each.set_defaults(stopped="run the same command again to continue")


def _add_data_dir(parser: argparse.ArgumentParser, text: str) -> None:
    parser.add_argument("--data-dir", type=folder, metavar="FOLDER", help=text)


def _progress(words: argparse.Namespace) -> Callable[[str, int, int], None] | None:
    """Return a progress line for a terminal; nothing when the output is JSON or goes into a file."""
    if words.json or not sys.stderr.isatty():
        return None

    def show(what: str, done: int, total: int) -> None:
        end = "\n" if done >= total else ""
        print(f"\r{what}: {done:,} of {total:,} ({done / max(total, 1):.0%})", end=end, file=sys.stderr)

    return show


def _list(words: argparse.Namespace) -> int:
    from aol.data.named import list_sets

    sets = list_sets(data_dir=words.data_dir)
    if words.json:
        print(json.dumps({"sets": [asdict(each) for each in sets]}))
        return 0
    for each in sets:
        where = each.where or f"not on this machine: aol data get {each.name}"
        print(f"{each.name:<14} {each.title:<50} {where}")
    return 0


def _get(words: argparse.Namespace) -> int:
    from aol._values import did_you_mean
    from aol.data.download import get
    from aol.data.named import NAMES

    if words.name not in NAMES:
        hint = did_you_mean(words.name, NAMES)
        raise WrongSettingsError(f"there is no data set {words.name!r}; built-in are {', '.join(NAMES)}.{hint}")
    found = get(words.name, words.data_dir, progress=_progress(words), mirror=words.mirror)
    where = str(found) if found is not None else "inside scikit-learn"
    print(json.dumps({"name": words.name, "where": where}) if words.json else f"{words.name}: {where}")
    return 0


def _check(words: argparse.Namespace) -> int:
    from aol.cli.parser import check_data
    from aol.data.open import check

    check_data([words.name], "NAME_OR_FOLDER")
    found = check(
        words.name, data_dir=words.data_dir, decode=words.decode, workers=words.workers, progress=_progress(words)
    )
    if words.json:
        print(json.dumps({**asdict(found), "ok": found.ok}))
    elif found.ok:
        sizes = ", ".join(f"{number:,} {split}" for split, number in found.sizes.items())
        print(f"{found.name}: {found.kind}, {found.where}, {found.classes} classes, {sizes}: no problems found")
    if not found.ok:
        more = f" (and {len(found.problems) - 1} more)" if len(found.problems) > 1 else ""
        raise RuntimeError(found.problems[0] + more)
    return 0


def _pack(words: argparse.Namespace) -> int:
    from aol.data.pack import pack

    show = _progress(words)

    def report(done: int, total: int) -> None:
        if show is not None:
            show("packed", done, total)

    packed = pack(
        words.source, words.dest, size=words.size, quality=words.quality, workers=words.workers, progress=report
    )
    if words.json:
        print(json.dumps(asdict(packed)))
    else:
        print(
            f"{packed.where}: {packed.records:,} images, {packed.bytes / 1e6:,.1f} MB; "
            f"{packed.written} shards written, {packed.kept} already there"
        )
    return 0
