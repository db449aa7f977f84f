"""`aol train` and `aol stream`: from flags to runs, and training them; `aol resume` continues them."""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import shutil
import signal
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from aol.cli.execution import EXECUTION, add_noted, is_first, noted, options_of, progress_for, unchanged, work_of
from aol.cli.flags import KEEP_SAMPLES, OUTPUT, in_flags, runs_of, setting_flags, settings_of
from aol.cli.parser import check_data, command, path, value
from aol.cli.show import print_json, print_runs
from aol.lab.engine.device import launched
from aol.lab.settings import Settings, WrongSettingsError

if TYPE_CHECKING:
    from aol.lab.engine.source import AnyPair
    from aol.lab.train.progress import Silent
    from aol.records.record import Json
    from aol.records.store import Store

BASE = Path("runs")  # of folders that were not named
_SLOW_PIXELS = 128
_ENOUGH = 3.0  # moves of margins in a training, times their gain
_SEVERAL = "Every setting takes several values with commas between them; each combination is a run."


@command(
    "train",
    f"Train on a whole data set. {_SEVERAL}",
    (
        "aol train --weighting none,cb,aol --seed 0-4",
        "aol train --data cifar10 --imbalance 100 --weighting none,aol --out runs/cifar10",
        "aol train --data photos --image-size 64 --weighting none,aol --keep-samples",
    ),
    groups=setting_flags("train") | {"output and resuming": (*OUTPUT, KEEP_SAMPLES), "execution": EXECUTION},
)
@command(
    "stream",
    f"Train on a stream of data that changes over time. {_SEVERAL}",
    (
        "aol stream --weighting none,cb,aol --seed 0-2",
        "aol stream --stream access --fraction 0.1 --memory reservoir:1000",
    ),
    groups=setting_flags("stream") | {"output and resuming": OUTPUT, "execution": EXECUTION},
)
def _train(args: argparse.Namespace) -> int:
    """Train; errors about settings name the flags of the command line."""
    try:
        runs = runs_of(args.command, {name: getattr(args, name) for name in settings_of(args.command)})
        check_data(dict.fromkeys(run.data for run in runs))
        if args.resume and args.fresh:
            raise WrongSettingsError("--resume and --fresh contradict each other: continue, or delete and start again.")
        return _carry_out(args, runs)
    except WrongSettingsError as error:
        raise WrongSettingsError(in_flags(str(error), args.command)) from error


def _carry_out(args: argparse.Namespace, runs: Sequence[Settings]) -> int:
    """Train the runs of `aol train` or `aol stream` into `--out`, and note there what was asked for."""
    from aol.records.store import Store

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


@command(
    "resume",
    "Continue the runs of a folder: what was asked for is read from it, flags are needed only to change how.",
    ("aol resume runs/latest", "aol resume runs/cifar10 --device cuda:1 --minutes 60"),
    value("folder", "FOLDER", "--out of aol train, aol stream or aol study run", type=path),
    groups={"execution": unchanged(EXECUTION)},
)
def _resume(args: argparse.Namespace) -> int | None:
    from aol.lab.train.request import requested_options, requested_runs
    from aol.records.store import Store, read_request

    if not args.folder.is_dir():
        raise WrongSettingsError(f"there is no folder {args.folder}.")
    request = read_request(args.folder)
    if request is None:
        raise WrongSettingsError(
            f"{args.folder} does not say what to continue: aol resume takes the --out of aol train, aol stream or "
            "aol study run."
        )
    if request.get("command") == "study":
        from aol.cli import study

        return study.resume(args, request)
    add_noted(args, {"out": str(args.folder), "fresh": False}, requested_options(request))
    return train_runs(args, requested_runs(request), Store(args.folder), request, resume=True)


def train_runs(
    args: argparse.Namespace, runs: Sequence[Settings], store: Store, request: dict[str, Json], *, resume: bool
) -> int:
    """Train runs and print what came of it; return the exit status."""
    from aol.lab.train import driver
    from aol.lab.train.request import prepare
    from aol.records.store import resume_command
    from aol.records.table import frame_of

    options = options_of(args)
    args.stopped = f"`{resume_command(store.folder)}` continues from the last checkpoint"
    opened = partial(_open, Path(str(request.get("directory") or "")), args.data_dir)
    progress = progress_for(args)

    def begin(pairs: Mapping[str, AnyPair]) -> None:
        _warn_of_small_gains([] if resume else runs, progress)
        if options.device.type == "cpu":
            _warn_of_large_images(runs, pairs, progress)
        prepare(runs, store, request, resume=resume, fresh=args.fresh)
        if args.out is None and not args.resume:
            _link(BASE / "latest", store.folder.name)

    try:
        work = work_of(args, opened)
        outcome = driver.train(runs, store, opened, options, progress, fresh=args.fresh, prepare=begin, work=work)
    finally:
        progress.close()
    if outcome.signal == signal.SIGINT:
        raise KeyboardInterrupt
    read = [(store.path(run.run_id), store.get(run.run_id)) for run in (runs if is_first() else [])]
    frame = frame_of((folder, run) for folder, run in read if run is not None)
    if is_first() and args.json:
        print_json(frame)
    elif is_first():
        print_runs(frame, [store.folder], asked=len(runs))
    failed = any(run.failed_at_epoch is not None for run in frame.runs.values())
    return 128 + outcome.signal if outcome.signal else 1 if failed or outcome.untrained else 0


def _open(directory: Path, data_dir: str | None, runs: Sequence[Settings]) -> dict[str, AnyPair]:
    """Open the data sets of some runs; relative folders refer to `directory`."""
    from aol.lab.data import open_data
    from aol.lab.data.named import NAMES
    from aol.lab.data.sources import is_source

    names = dict.fromkeys(run.data for run in runs)
    known = {name for name in names if name in NAMES or is_source(name)}
    places = {name: name if name in known else str(directory / Path(name).expanduser()) for name in names}
    check_data(places.values())
    return {name: open_data(place, data_dir=data_dir) for name, place in places.items()}


def _warn_of_small_gains(runs: Sequence[Settings], progress: Silent) -> None:
    for run in runs:
        if run.moves_margins_once_an_epoch and 0.0 < run.gain * run.epochs < _ENOUGH:
            progress.say_once(
                f"Warning: margins move once per epoch, which is little in {run.epochs} epochs: add --margin-steps N "
                "to move them after every N training steps, a hundredth of all steps."
            )


def _warn_of_large_images(runs: Sequence[Settings], pairs: Mapping[str, AnyPair], progress: Silent) -> None:
    from aol.lab.engine.source import shape_of

    for run in {run.data: run for run in runs if run.data in pairs}.values():
        size = shape_of(pairs[run.data], run.image_size)[1]
        if size >= _SLOW_PIXELS:
            text = f"images of {size} pixels train slowly on a CPU: add --image-size 64, or use a GPU."
            progress.say_once(f"Warning: {text}")


def _output_folder(args: argparse.Namespace) -> Path:
    """Return `--out`; without it a new folder named by date and time, or with `--resume` the latest one."""
    if args.out is not None:
        return Path(args.out)
    if launched()[1] > 1:
        raise WrongSettingsError("--out must be given where several processes train together: they share the folder.")
    if args.fresh:
        raise WrongSettingsError("--fresh deletes the runs in --out: name the folder.")
    latest = BASE / "latest"
    if not args.resume:
        return _new_folder(BASE)
    if not latest.is_dir():
        raise WrongSettingsError(f"there is no {latest} to continue: name the folder by --out.")
    return latest.resolve()


def _new_folder(base: Path) -> Path:
    """Make a folder named by date and time below `base`."""
    from aol._files import usable

    name = datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
    with usable(base):
        base.mkdir(parents=True, exist_ok=True)
    for again in itertools.count(1):
        path = base / (name if again == 1 else f"{name}-{again}")
        with contextlib.suppress(FileExistsError):
            path.mkdir()
            break
    return path


def _link(link: Path, target: str) -> None:
    """Point a symbolic link at a folder beside it, atomically; where links cannot be made, do nothing."""
    if link.exists() and not link.is_symlink():  # a folder of somebody's own
        return
    temporary = link.with_name(f".latest-{os.getpid()}")
    try:
        temporary.symlink_to(target, target_is_directory=True)
        temporary.replace(link)
    except OSError:
        temporary.unlink(missing_ok=True)
