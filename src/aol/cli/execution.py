"""How runs are trained, for every command that trains: flags, options, what `aol resume` needs, and progress."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aol._used import is_remembered, remember
from aol.cli.output import console
from aol.cli.parser import Flag, choice, count, defaults_of, folder, seconds, shard, switch, value
from aol.lab.engine.device import launched
from aol.lab.settings import Settings, WrongSettingsError

if TYPE_CHECKING:
    from aol.lab.train.groups import ExecutionOptions
    from aol.lab.train.progress import Silent
    from aol.records.record import Json

DEVICE = value("--device", "NAME", "auto, cpu, cuda, cuda:1 ...", default="auto")
EXECUTION: tuple[Flag, ...] = (
    value("--data-dir", "FOLDER", "look for data sets here before $AOL_DATA and the cache folder", type=folder),
    DEVICE,
    value("--together", "N", "most runs trained as one network (default: by the device)", type=count(1)),
    choice(
        "--stacking",
        ("grouped", "alone"),
        "train runs as one network where it allows that (grouped), or one after the other (alone)",
        default="grouped",
    ),
    value("--workers", "N", "processes that decode large images (default: on a GPU one a core, else 0)", type=count(0)),
    value("--checkpoint-seconds", "S", "shortest time between two checkpoints", type=seconds, default=30.0),
    value("--minutes", "M", "stop after this many minutes; resume later", type=seconds),
    value("--limit-minutes", "M", argparse.SUPPRESS, type=seconds, dest="minutes"),  # its name in 0.1
    value("--shard", "I/N", "train only the I-th of N shares of the runs, counted from 1", type=shard),
)
PARALLEL: tuple[Flag, ...] = (
    choice("--parallel", ("data", "runs"), "what processes of torchrun share: data, runs", default="data"),
    switch("--deterministic", "use deterministic kernels only, on CUDA too (slower)"),
)
_DEFAULTS = defaults_of((*EXECUTION, *PARALLEL)) | {"keep_samples": False, "log": (), "ray": None}
_NOT_NOTED = ("minutes", "shard")


def unchanged(flags: Iterable[Flag]) -> list[Flag]:
    """Return flags for `aol resume`: what is not given is as it was."""
    return [
        (name, named | {"default": argparse.SUPPRESS, "help": named["help"].split(" (default")[0]})
        for name, named in flags
    ]


def options_of(args: argparse.Namespace, **more: Any) -> ExecutionOptions:
    """Return how to train, from the flags; `more` overrides them."""
    import torch

    from aol.lab.engine.device import usable_device
    from aol.lab.train.groups import ExecutionOptions

    if getattr(args, "deterministic", False):
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # else cuBLAS has no deterministic kernels
        torch.use_deterministic_algorithms(True)
        torch.backends.cudnn.benchmark = False
    given: dict[str, Any] = {
        name: getattr(args, name) for name in ExecutionOptions.__dataclass_fields__ if hasattr(args, name)
    }
    given |= {"shares": tuple((i, n) for i, n in _shares(args)), "log": tuple(getattr(args, "log", ())), **more}
    return ExecutionOptions(**given | {"device": usable_device(given["device"])})


def noted(args: argparse.Namespace) -> dict[str, Json]:
    """Return how runs are trained, for `aol resume`, from any folder."""
    given = {name: getattr(args, name) for name in _DEFAULTS if hasattr(args, name) and name not in _NOT_NOTED}
    return given | {"data_dir": absolute(args.data_dir), "shares": _shares(args)}


def _shares(args: argparse.Namespace) -> list[Any]:
    """Return the shares to train: `--shard`, or for `aol resume` all that were begun; none: all runs."""
    return [list(args.shard)] if args.shard else getattr(args, "shares", [])


def add_noted(args: argparse.Namespace, *noted: object) -> None:
    """Add what was noted to the arguments of `aol resume`, which take precedence."""
    given = _DEFAULTS.copy()
    for each in noted:
        given |= each if isinstance(each, Mapping) else {}
    vars(args).update(given | vars(args))


def absolute(path: str | None) -> str | None:
    """Return a path that is the same from any folder."""
    return None if path is None else str(Path(path).expanduser().absolute())


def is_first() -> bool:
    """Return whether this is the one process of several started by torchrun that prints."""
    return launched()[0] == 0


def progress_for(args: argparse.Namespace, name: str = "") -> Silent:
    """Return how progress is shown: live on a terminal, else in lines; with `--json` not at all."""
    from aol.lab.train.progress import Lines, Live, Silent

    if args.json or not is_first():
        return Silent()
    screen = console(stderr=True)
    return Live(screen, name) if screen.is_terminal else Lines()


def check_networks(runs: Sequence[Settings], named: Sequence[str], instead: str) -> None:
    """Refuse functions of a module as networks, unless the command line names them or this user has used them here.

    A folder of runs and a study may come from anywhere: what they name must not be imported only because of that.
    """
    for name in dict.fromkeys(run.net for run in runs if ":" in run.net and not run.net.startswith("timm:")):
        used = Path(os.getcwd(), name)
        if name in named:
            remember(used)
        elif not is_remembered(used):
            raise WrongSettingsError(
                f"net is the function {name}, which would be imported and called, and which you have not used from "
                f"this folder: if you trust it, {instead}."
            )
