"""`aol train`, `aol stream`, `aol resume` and `aol data`: from flags to runs, and training them.

Every setting of `Settings` is a flag that takes several values with commas between them: each combination is a run.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import math
import os
import re
import shutil
import signal
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aol._values import shown
from aol.cli import Flag, UsageError, command, path, show_help, switch, tell, value
from aol.lab.engine.device import launched
from aol.lab.settings import Settings, Value, check_value, grid, word
from aol.show import print_json, print_runs

if TYPE_CHECKING:
    from aol.lab.train.driver import OpenData, Outcome
    from aol.lab.train.group_training import ExecutionOptions
    from aol.records.record import Json
    from aol.records.store import Store

BASE = Path("runs")  # of folders that were not named
MOST_SEEDS = 10_000
SEVERAL = "Every setting takes several values with commas between them; each combination is a run."

# Types of flags


def number(least: float, *, whole: bool = False) -> Callable[[str], Any]:
    """Return a reader of numbers, or whole numbers, of at least `least`, up to 1e9."""

    def number(text: str) -> float:
        try:
            value = int(text) if whole else float(text)
        except ValueError:
            value = math.nan
        if not least <= value <= 1e9:
            kind = "whole number" if whole else "number"
            raise argparse.ArgumentTypeError(f"must be a {kind} in [{least:g}, 1e+09], not {text!r}")
        return value

    return number


count = partial(number, whole=True)
seconds = number(0.0)


def folder(text: str) -> str:
    """Return the name of a folder."""
    return str(path(text))


def seed_list(flag: str, text: str) -> list[int]:
    """Return seeds from numbers and ranges with commas between them.

    >>> seed_list("--seed", "0,2,7-9")
    [0, 2, 7, 8, 9]
    """
    seeds: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d+)\s*(?:-\s*(\d+)\s*)?", part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, -1)
        if not first <= last < first + MOST_SEEDS:
            wanted = f"whole numbers or ranges such as 0-4, of at most {MOST_SEEDS:,}"
            raise UsageError(f"{flag} must be {wanted}, not {part.strip()!r}.")
        seeds += range(first, last + 1)
    return seeds


# Settings as flags

FIELDS = {field.name: field for field in fields(Settings)}
DEFAULTS: Mapping[str, Value] = {name: field.default for name, field in FIELDS.items()}  # type: ignore[misc]
# Where a command starts from. `folder` is any data set that is not built in.
BY_DATA: Mapping[str, Mapping[str, Value]] = {
    "digits": {"epochs": 60, "batch_size": 32, "imbalance": 50.0},
    "fashion-mnist": {"epochs": 30, "batch_size": 128, "imbalance": 50.0},
    "cifar10": {"epochs": 200, "batch_size": 128, "imbalance": 50.0},
    "cifar100": {"epochs": 200, "batch_size": 128, "imbalance": 50.0},
    "folder": {"epochs": 30, "batch_size": 128, "imbalance": None},
}
DATA_SETS = tuple(name for name in BY_DATA if name != "folder")
STREAM: Mapping[str, Value] = {  # what `aol stream` changes of it
    "scenario": "stream", "schedule": "fixed", "epochs": 100, "fraction": 0.05, "rho": 0.1, "warmup": 0,
    "imbalance": 50.0,
}  # fmt: skip


def flag_of(command: str, name: str) -> str:
    """Return the flag of a setting in `aol train` or `aol stream`."""
    return "--steps" if command == "stream" and name == "epochs" else f"--{name.replace('_', '-')}"


def setting_flags(command: str) -> dict[str, list[Flag]]:
    """Return a flag for each setting, by group."""
    groups: dict[str, list[Flag]] = {}
    for name, rules in ((name, field.metadata) for name, field in FIELDS.items()):
        if "group" in rules and (command == "stream" or not rules.get("stream")):
            text = f"{rules['help']}{_default(command, name)}".replace("%", "%%")
            flag = value(flag_of(command, name), "VALUES", text, dest=name, action="append")
            groups.setdefault(rules["group"], []).append(flag)
    return groups


def settings_of(command: str) -> list[str]:
    """Return the settings that a command has flags for, by group: seeds vary before weightings, as records expect."""
    return [options["dest"] for flags in setting_flags(command).values() for _, options in flags]


def _default(command: str, name: str) -> str:
    """Return the end of a help text: what a setting is when its flag is not given."""
    if name in BY_DATA["digits"] and not (command == "stream" and name in STREAM):
        by_value: dict[str, list[str]] = {}
        for data, values in BY_DATA.items():
            by_value.setdefault(word(values[name]), []).append("folders" if data == "folder" else data)
        return f" (default: {'; '.join(f'{value} for ' + ', '.join(sets) for value, sets in by_value.items())})"
    if command == "train" and name == "warmup":
        return " (default: 2.5 % of the epochs)"
    if command == "train" and name == "fraction":
        return "; below 1 the rest is absent (arrival imbalance; default: 1)"
    if "(default" in FIELDS[name].metadata["help"]:
        return ""
    start = {**DEFAULTS, **(STREAM if command == "stream" else {})}
    return f" (default: {word(start[name])})"


def setting_values(name: str, text: str, flag: str | None = None) -> list[Value]:
    """Return the values of a setting from a text with commas between them; seeds may be ranges."""
    flag = flag or f"--{name.replace('_', '-')}"
    if name == "seed":
        return list(seed_list(flag, text))
    kind, _, optional = str(FIELDS[name].type).partition(" | ")
    words = {word: word for word in FIELDS[name].metadata.get("words", ())} | ({"none": None} if optional else {})
    read, wanted = _READS[kind]
    values: list[Value] = []
    for part in map(str.strip, text.split(",")):
        try:
            values.append(words[part] if part in words and kind != "str" else read(part))
        except (KeyError, ValueError):
            allowed = " or ".join([wanted, *(word for word in words if word != "none")])
            raise UsageError(f"{flag} must be {allowed}, not {part!r}.") from None
        check_value(flag, values[-1], str(FIELDS[name].type), FIELDS[name].metadata)
    return values


_TRUTH: dict[str, Value] = {"true": True, "false": False}
_READS: dict[str, tuple[Callable[[str], Value], str]] = {  # by type: the reader of a value, and what that is
    "str": (str, "text"), "int": (int, "a whole number"), "float": (float, "a number"),
    "bool": (_TRUTH.__getitem__, "true or false"),
}  # fmt: skip


def runs_of(command: str, texts: Mapping[str, Sequence[str] | None]) -> list[Settings]:
    """Return the runs that the flags of `aol train` or `aol stream` ask for; `texts` by setting."""
    varied = {
        name: [one for text in several for one in setting_values(name, text, flag_of(command, name))]
        for name, several in texts.items()
        if several
    }
    start: Mapping[str, Value] = STREAM if command == "stream" else {}
    if command == "train" and "fraction" in varied:
        start = {"scenario": "arrival"}
    runs: list[Settings] = []
    for data in varied.get("data", [DEFAULTS["data"]]):
        runs += grid({**BY_DATA.get(str(data), BY_DATA["folder"]), **start}, **{**varied, "data": [data]})
    return list(dict.fromkeys(runs))


# How runs are trained, for every command that trains


def defaults_of(flags: Iterable[Flag]) -> dict[str, Any]:
    """Return what flags are when they are not given, by their names in Python."""
    return {options.get("dest", name.strip("-").replace("-", "_")): options.get("default") for name, options in flags}


_RAY = "train on a Ray cluster: at ADDRESS, 'auto', or a new one on this machine; all machines must share --out"
EXECUTION: tuple[Flag, ...] = (
    value("--data-dir", "FOLDER", "look for data sets here before $AOL_DATA and the cache folder", type=folder),
    value("--device", "NAME", "auto, cpu, cuda, cuda:1 ...", default="auto"),
    value("--together", "N", "most runs trained as one network (default: by the device)", type=count(1)),
    value("--stacking", None, "train runs as one network, or alone", choices=("grouped", "alone"), default="grouped"),
    value("--workers", "N", "processes that decode large images (default: on a GPU one a core, else 0)", type=count(0)),
    value("--checkpoint-seconds", "S", "shortest time between two checkpoints", type=seconds, default=30.0),
    value("--minutes", "M", "stop after this many minutes; resume later", type=seconds),
    switch("--deterministic", "use deterministic kernels only, on CUDA too (slower)"),
    value("--ray", "ADDRESS", _RAY, nargs="?", const="local"),
)
_DEFAULTS = defaults_of(EXECUTION) | {"keep_samples": False}
# What a request notes, and its types; a folder of somebody else's names no address, and deletes nothing.
_NOTED: Mapping[str, Any] = {
    "data_dir": str | None, "device": str, "stacking": str, "together": int | None, "workers": int | None,
    "checkpoint_seconds": int | float, "deterministic": bool, "keep_samples": bool,
    "only": list, "seeds": str | None, "set": list, "data": list,
}  # fmt: skip


def unchanged(flags: Iterable[Flag]) -> list[Flag]:
    """Return flags for `aol resume`: what is not given is as it was."""
    return [
        (name, options | {"default": argparse.SUPPRESS, "help": options["help"].split(" (default")[0]})
        for name, options in flags
    ]


def options_of(args: argparse.Namespace, **more: Any) -> ExecutionOptions:
    """Return how to train, from the flags; `more` overrides them. On a cluster each worker chooses its device."""
    import torch

    from aol.lab.engine.device import usable_device
    from aol.lab.train.group_training import ExecutionOptions

    if getattr(args, "deterministic", False):
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # else cuBLAS has no deterministic kernels
        torch.use_deterministic_algorithms(True)
        torch.backends.cudnn.benchmark = False
    names = ExecutionOptions.__dataclass_fields__
    given = {name: getattr(args, name) for name in names if hasattr(args, name)} | more
    if args.stacking == "alone":
        given["together"] = 1
    return ExecutionOptions(**given | {"device": usable_device("cpu" if args.ray else args.device)})


def train_with(
    args: argparse.Namespace,
    runs: Sequence[Settings],
    store: Store,
    open_data: OpenData,
    options: ExecutionOptions,
    *,
    name: str = "",
    **how: Any,
) -> Outcome:
    """Train runs here or on a Ray cluster, `how` as `train` takes it; Ctrl-C is raised once what is done is saved.

    Progress is shown in lines; with `--json` not at all.
    """
    from aol.lab.train.driver import train
    from aol.lab.train.progress import Progress

    if args.ray is not None:
        from aol.lab.train.ray import train_on_ray

        how["work"] = partial(train_on_ray, args.ray, args.device, open_data)
    progress = Progress(None if args.json or launched()[0] else name)  # one process of several prints
    try:
        outcome = train(runs, store, open_data, options, progress, **how)
    finally:
        progress.close()
    if outcome.signal == signal.SIGINT:
        raise KeyboardInterrupt
    return outcome


def noted(args: argparse.Namespace) -> dict[str, Json]:
    """Return how runs are trained, for `aol resume`, from any folder."""
    given = {name: getattr(args, name) for name in _DEFAULTS if hasattr(args, name) and name in _NOTED}
    return given | {"data_dir": absolute(args.data_dir)}


def add_noted(
    args: argparse.Namespace,
    request: Mapping[str, Any],
    part: str = "options",
    defaults: Mapping[str, object] = _DEFAULTS,
) -> None:
    """Add what a request notes, and nothing else than is noted, to the arguments of `aol resume`, which go first."""
    noted = request.get(part)
    given = {name: own for name, own in noted.items() if name in _NOTED} if isinstance(noted, dict) else {}
    for name, own in given.items():
        fits = isinstance(own, _NOTED[name]) and (not isinstance(own, list) or {*map(type, own)} <= {str})
        if isinstance(own, bool):
            fits = _NOTED[name] is bool
        elif isinstance(own, int | float):
            fits = fits and own >= (1 if name == "together" else 0)  # which NaN is not
        elif name == "stacking":
            fits = own in ("grouped", "alone")
        if not fits:
            raise UsageError(f"request.json: {name} cannot be {shown(own)}.")
    vars(args).update({name: given.get(name, default) for name, default in defaults.items()} | vars(args))


def absolute(path: str | None) -> str | None:
    """Return a path that is the same from any folder."""
    return None if path is None else str(Path(path).expanduser().absolute())


# Training

_OUT = "folder of the results (default: a new runs/DATE_TIME, which runs/latest then points to)"
OUTPUT: tuple[Flag, ...] = (
    value("--out", "FOLDER", _OUT, type=folder),
    switch("--resume", "continue the runs in --out (as `aol resume FOLDER` does)"),
    switch("--fresh", "delete the runs that are asked for and start again"),
)
KEEP_SAMPLES = switch("--keep-samples", "record every sample's answers, and so its age, at every epoch")


@command(
    "train",
    f"Train on a whole data set. {SEVERAL}",
    (
        "aol train --margin none,counts --seed 0-4                   # logit adjustment beside plain training",
        "aol train --data cifar10 --imbalance 100 --margin none,counts --out runs/cifar10",
        "aol train --data photos --image-size 64 --margin none,counts --keep-samples",
    ),
    groups=setting_flags("train") | {"output and resuming": (*OUTPUT, KEEP_SAMPLES), "execution": EXECUTION},
)
@command(
    "stream",
    f"Train on a stream of data that changes over time. {SEVERAL}",
    (
        "aol stream --margin none,counts --seed 0-2",
        "aol stream --stream access --fraction 0.1 --memory reservoir:1000 --weighting none,aol",
    ),
    groups=setting_flags("stream") | {"output and resuming": OUTPUT, "execution": EXECUTION},
)
def _train(args: argparse.Namespace) -> int:
    """Train the runs that the flags ask for into `--out`, and note there what was asked for."""
    from aol.records.store import Store

    runs = runs_of(args.command, {name: getattr(args, name) for name in settings_of(args.command)})
    if args.resume and args.fresh:
        raise UsageError("--resume and --fresh contradict each other: continue, or delete and start again.")
    out = _output_folder(args)
    request: dict[str, Json] = {"command": args.command, "directory": os.getcwd(), "options": noted(args)}
    try:
        return train_runs(args, runs, Store(out), request, resume=args.resume)
    except BaseException:
        empty = not any(path.is_file() and path.name != ".lock" for path in out.rglob("*"))
        if empty and args.out is None and not args.resume:
            shutil.rmtree(out, ignore_errors=True)
            args.stopped = "nothing has been trained yet"
        raise


def train_runs(
    args: argparse.Namespace, runs: Sequence[Settings], store: Store, request: dict[str, Json], *, resume: bool
) -> int:
    """Train runs and print what came of it; return the exit status."""
    from aol.lab.data.named import NAMES
    from aol.lab.data.open import is_source, open_sets
    from aol.lab.train.folder import prepare
    from aol.records.store import resume_command
    from aol.records.table import frame_of

    options = options_of(args)
    args.stopped = f"`{resume_command(store.folder)}` continues from the last checkpoint"
    directory, names = Path(str(request.get("directory") or "")), {run.data for run in runs}
    named = {name for name in names if name in NAMES or is_source(name)}
    folders = {name: str(directory / Path(name).expanduser()) for name in names - named - {""}}
    opened = partial(open_sets, folders, args.data_dir)
    latest = BASE / "latest" if args.out is None and not args.resume else None
    begin = partial(prepare, runs, store, request, resume=resume, fresh=args.fresh, latest=latest)
    outcome = train_with(args, runs, store, opened, options, fresh=args.fresh, prepare=begin)
    if launched()[0]:  # the first of several processes reads and prints
        return outcome.exit_status(False)
    read = [(store.path(run.run_id), store.get(run.run_id)) for run in runs]
    frame = frame_of([(folder, run) for folder, run in read if run is not None])
    if args.json:
        print_json(frame)
    else:
        print_runs(frame, [store.folder], asked=len(runs))
    failed = any(run.failed_at_epoch is not None for run in frame.runs.values())
    return outcome.exit_status(failed)


def _output_folder(args: argparse.Namespace) -> Path:
    """Return `--out`; without it a new folder named by date and time, or with `--resume` the latest one."""
    from aol._files import usable

    if args.out is not None:
        return Path(args.out)
    if launched()[1] > 1:
        raise UsageError("--out must be given where several processes train together: they share the folder.")
    if args.fresh:
        raise UsageError("--fresh deletes the runs in --out: name the folder.")
    if args.resume:
        latest = BASE / "latest"
        if not latest.is_dir():
            raise UsageError(f"there is no {latest} to continue: name the folder by --out.")
        return latest.resolve()
    name = datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
    with usable(BASE):
        BASE.mkdir(parents=True, exist_ok=True)
    for again in itertools.count(1):
        path = BASE / (name if again == 1 else f"{name}-{again}")
        with contextlib.suppress(FileExistsError):
            path.mkdir()
            break
    return path


# Data sets

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
    missing = "not on this machine: aol data get "
    lines = [f"{row['name']:<14} {row['title']:<50} {row['where'] or missing + str(row['name'])}" for row in sets]
    tell(args, {"sets": sets}, lines)


@command(
    "data get",
    "Download a data set from its official address.",
    ("aol data get cifar10", "aol data get cifar100 --data-dir data"),
    value("name", "NAME", f"one of {', '.join(DATA_SETS)}", choices=DATA_SETS),
    value("--data-dir", "FOLDER", "put it here (default: the cache folder)", type=folder),
    stopped="run the same command again",
)
def _get(args: argparse.Namespace) -> None:
    from aol.lab.data.named import get

    place = get(args.name, args.data_dir)
    where = "inside scikit-learn" if place is None else str(place)
    tell(args, {"name": args.name, "where": where}, [f"{args.name}: {where}"])
