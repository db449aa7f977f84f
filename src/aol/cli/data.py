"""`aol data list` and `aol data get`."""

from __future__ import annotations

import argparse
from dataclasses import asdict

from aol.cli.flags import DATA_SETS
from aol.cli.output import tell
from aol.cli.parser import command, folder, show_help, value
from aol.lab.settings import WrongSettingsError

_NAMES = ", ".join(DATA_SETS)
command("data", "List and download data sets.", ("aol data list", "aol data get cifar10"))(show_help)


@command(
    "data list",
    "List the built-in data sets and where each one is.",
    ("aol data list", "aol data list --json"),
    value("--data-dir", "FOLDER", "look here first", type=folder),
)
def _list(args: argparse.Namespace) -> None:
    from aol.lab.data.named import list_sets

    sets = list_sets(data_dir=args.data_dir)
    places = [known.where or f"not on this machine: aol data get {known.name}" for known in sets]
    lines = [f"{known.name:<14} {known.title:<50} {place}" for known, place in zip(sets, places, strict=True)]
    tell(args, {"sets": [asdict(known) for known in sets]}, lines)


@command(
    "data get",
    "Download a data set from its official address.",
    ("aol data get cifar10", "aol data get cifar100 --data-dir data"),
    value("name", "NAME", f"one of {_NAMES}"),
    value("--data-dir", "FOLDER", "put it here (default: the cache folder)", type=folder),
    stopped="run the same command again",
)
def _get(args: argparse.Namespace) -> None:
    from aol._values import did_you_mean
    from aol.lab.data.named import NAMES, get

    if args.name not in NAMES:
        hint = did_you_mean(args.name, NAMES)
        raise WrongSettingsError(f"there is no data set {args.name!r}; built-in are {', '.join(NAMES)}.{hint}")
    place = get(args.name, args.data_dir)
    where = "inside scikit-learn" if place is None else str(place)
    tell(args, {"name": args.name, "where": where}, [f"{args.name}: {where}"])
