"""How runs are trained, for every command that trains: flags, options, what `aol resume` needs, and progress."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aol.cli.output import console
from aol.cli.parser import Flag, choice, count, defaults_of, folder, seconds, switch, value
from aol.lab.engine.device import launched

if TYPE_CHECKING:
    from aol.lab.train.driver import Job, OpenData
    from aol.lab.train.group_training import Stop
    from aol.lab.train.groups import ExecutionOptions
    from aol.lab.train.progress import Silent
    from aol.records.record import Json

DEVICE = value("--device", "NAME", "auto, cpu, cuda, cuda:1 ...", default="auto")
_RAY = "train on a Ray cluster: at ADDRESS, 'auto', or a new one on this machine; all machines must share --out"
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
    switch("--deterministic", "use deterministic kernels only, on CUDA too (slower)"),
    value("--ray", "ADDRESS", _RAY, nargs="?", const="local"),
)
_DEFAULTS = defaults_of(EXECUTION) | {"keep_samples": False}
_NOT_NOTED = ("minutes", "ray")  # of the command line alone


def unchanged(flags: Iterable[Flag]) -> list[Flag]:
    """Return flags for `aol resume`: what is not given is as it was."""
    return [
        (name, named | {"default": argparse.SUPPRESS, "help": named["help"].split(" (default")[0]})
        for name, named in flags
    ]


def options_of(args: argparse.Namespace, **more: Any) -> ExecutionOptions:
    """Return how to train, from the flags; `more` overrides them. On a cluster each worker chooses its device."""
    import torch

    from aol.lab.engine.device import usable_device
    from aol.lab.train.groups import ExecutionOptions

    if getattr(args, "deterministic", False):
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # else cuBLAS has no deterministic kernels
        torch.use_deterministic_algorithms(True)
        torch.backends.cudnn.benchmark = False
    names = ExecutionOptions.__dataclass_fields__
    given = {name: getattr(args, name) for name in names if hasattr(args, name)} | more
    if args.stacking == "alone":
        given["together"] = 1
    return ExecutionOptions(**given | {"device": usable_device("cpu" if args.ray else args.device)})


def work_of(args: argparse.Namespace, open_data: OpenData) -> Callable[[Job, Stop], None] | None:
    """Return what trains groups elsewhere than in this process: a Ray cluster, or None."""
    if args.ray is None:
        return None
    from aol.lab.train.ray import train_on_ray

    return partial(train_on_ray, args.ray, args.device, open_data)


def noted(args: argparse.Namespace) -> dict[str, Json]:
    """Return how runs are trained, for `aol resume`, from any folder."""
    given = {name: getattr(args, name) for name in _DEFAULTS if hasattr(args, name) and name not in _NOT_NOTED}
    return given | {"data_dir": absolute(args.data_dir)}


def add_noted(args: argparse.Namespace, *noted: Mapping[str, object]) -> None:
    """Add what was noted to the arguments of `aol resume`, which take precedence."""
    given = _DEFAULTS.copy()
    for values in noted:
        given |= values
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
