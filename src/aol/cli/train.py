"""`aol train` and `aol stream`: from flags to runs, and training them; `aol resume` continues them."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from aol.cli.flags import add_execution, add_output, add_settings, in_flags, runs_of, settings_of
from aol.cli.parser import Commands, add_command, check_data, usable_device
from aol.engine.settings import Settings, WrongSettingsError

if TYPE_CHECKING:
    from aol.engine.source import AnyPair

BASE = Path("runs")  # of folders that were not named
_SEVERAL = "Every setting takes several values with commas between them; each combination is a run."
_TRAIN = (
    "aol train --weighting none,cb,aol --seed 0-4",
    "aol train --data cifar10 --imbalance 100 --weighting none,aol --out runs/cifar10",
    "aol train --data photos --image-size 64 --weighting none,aol --keep-samples",
)
_STREAM = (
    "aol stream --weighting none,cb,aol --seed 0-2",
    "aol stream --stream access --fraction 0.1 --memory reservoir:1000",
)
_SLOW_PIXELS = 128


def add(commands: Commands) -> None:
    """Add `aol train` and `aol stream`."""
    for name, text, examples in (
        ("train", "Train on a whole data set.", _TRAIN),
        ("stream", "Train on a stream of data that changes over time.", _STREAM),
    ):
        parser = add_command(commands, name, _train, text, examples)
        parser.description = f"{text} {_SEVERAL}"
        add_settings(parser, name)
        add_output(parser, name)
        add_execution(parser, checkpoint_seconds=30.0)


def _train(words: argparse.Namespace) -> int:
    """Train; what is wrong with a setting is said in the words of the command line."""
    try:
        runs = runs_of(words.command, {name: getattr(words, name) for name in settings_of(words.command)})
        check_data(dict.fromkeys(run.data for run in runs))
        if words.resume and words.fresh:
            raise WrongSettingsError("--resume and --fresh contradict each other: continue, or delete and start again.")
        return _carry_out(words, runs)
    except WrongSettingsError as error:
        raise WrongSettingsError(in_flags(str(error), words.command)) from error


def _carry_out(words: argparse.Namespace, runs: Sequence[Settings]) -> int:
    from rich.console import Console

    from aol.data import open_data
    from aol.engine import display
    from aol.engine.training import Conduct, train

    if words.deterministic:
        use_deterministic_kernels()
    device = usable_device(words.device)
    pairs: dict[str, AnyPair] = {
        name: open_data(name, data_dir=words.data_dir) for name in dict.fromkeys(run.data for run in runs)
    }
    first = os.environ.get("RANK", "0") == "0"
    if first and device.type == "cpu":
        warn_of_large_images(runs, pairs)
    out = output_folder(words)
    words.stopped = f"`aol resume {out}` continues from the last checkpoint"
    conduct = Conduct(
        out=out,
        device=device,
        resume=words.resume,
        fresh=words.fresh,
        together=words.together,
        workers=words.workers,
        keep_samples=words.command == "train" and words.keep_samples,
        checkpoint_seconds=words.checkpoint_seconds,
        parallel=words.parallel,
        tensorboard=words.tensorboard,
        data_dir=words.data_dir,
    )
    console = Console(stderr=True)
    quiet = words.json or not first
    progress = display.Quiet() if quiet else display.Screen(console) if console.is_terminal else display.Lines()
    try:
        results = train(runs, pairs, conduct, progress)
    finally:
        progress.close()
    if words.json and first:
        print(json.dumps({"runs": results}, ensure_ascii=False, allow_nan=False))
    elif first:
        display.report(results, conduct.out, try_next=_STREAM[0] if words.command == "train" else _TRAIN[0])
    return 1 if any(each.get("failed_at_epoch") for each in results) else 0


def use_deterministic_kernels() -> None:
    """Allow only deterministic kernels, on CUDA too."""
    import torch

    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # else cuBLAS has no deterministic kernels
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False


def warn_of_large_images(runs: Sequence[Settings], pairs: dict[str, AnyPair]) -> None:
    """Warn before training on large images without a GPU."""
    from aol.engine.source import shape_of

    for run in {run.data: run for run in runs}.values():
        size = shape_of(pairs[run.data], run.image_size)[1]
        if size >= _SLOW_PIXELS:
            print(
                f"aol: warning: images of {size} pixels train slowly on a CPU: add --image-size 64, or use a GPU "
                "(--device cuda).",
                file=sys.stderr,
            )


def output_folder(words: argparse.Namespace) -> Path:
    """Return `--out`; without it a new folder named by date and time, or with `--resume` the latest one."""
    if words.out is not None:
        return Path(words.out)
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise WrongSettingsError("--out must be given where several processes train together: they share the folder.")
    if words.fresh:
        raise WrongSettingsError("--fresh deletes the runs in --out: name the folder.")
    latest = BASE / "latest"
    if words.resume:
        if not latest.is_dir():
            raise WrongSettingsError(f"there is no {latest} to continue: name the folder by --out.")
        return latest.resolve()
    return new_folder(BASE)


def new_folder(base: Path) -> Path:
    """Make a folder named by date and time below `base`, and let `base/latest` point to it."""
    name = datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
    base.mkdir(parents=True, exist_ok=True)
    for again in range(1, 1000):
        path = base / (name if again == 1 else f"{name}-{again}")
        try:
            path.mkdir()
        except FileExistsError:
            continue
        _link(base / "latest", path.name)
        return path
    raise WrongSettingsError(f"{base} has a thousand folders of this second: name one by --out.")


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
