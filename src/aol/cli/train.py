"""`aol train` and `aol stream`: from flags to runs, and training them; `aol resume` continues them."""

from __future__ import annotations

import argparse
import contextlib
import os
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from aol.cli.flags import add_execution, add_output, add_settings, in_flags, runs_of, settings_of
from aol.cli.parser import Commands, add_command, add_common, check_data
from aol.cli.show import asked_for, print_json, print_runs
from aol.engine.settings import Settings, WrongSettingsError

if TYPE_CHECKING:
    import torch

    from aol.engine.source import AnyPair
    from aol.runs.progress import Silent
    from aol.runs.record import Json
    from aol.runs.store import Store

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
_RESUME = ("aol resume runs/latest", "aol resume runs/cifar10 --device cuda:1 --minutes 60")
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
        if name == "stream":
            parser.set_defaults(keep_samples=False)

    text = "Continue the runs of a folder: what was asked for is read from it, flags are needed only to change how."
    parser = add_command(commands, "resume", _resume, text, _RESUME)
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="--out of aol train, aol stream or aol study run")
    add_common(parser)
    group = add_execution(parser)
    for action in group._group_actions:  # what is not given is as it was
        action.default = argparse.SUPPRESS
        action.help = (action.help or "").split(" (default")[0]


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
    """Train the runs of `aol train` or `aol stream` into `--out`, and note there what was asked for."""
    from aol.engine.device import usable_device

    device = usable_device(words.device)
    open_data = _opener(words.data_dir, os.getcwd())
    out = _output_folder(words)
    request: dict[str, Json] = {"command": words.command, "directory": os.getcwd(), "options": _options_given(words)}

    def prepare() -> None:
        from aol.runs import driver

        # Shares of one folder are trained by commands of their own: each finds the runs of the others there.
        resume = words.resume or (words.shard is not None and not words.fresh)
        driver.prepare(runs, Store(out), request, resume=resume, fresh=words.fresh)

    from aol.runs.store import Store

    try:
        return train_runs(words, runs, Store(out), open_data, device, prepare)
    except WrongSettingsError:
        if words.out is None and not words.resume:
            _remove_if_empty(out)
        raise


def train_runs(
    words: argparse.Namespace,
    runs: Sequence[Settings],
    store: Store,
    open_data: Callable[[Sequence[Settings]], dict[str, AnyPair]],
    device: torch.device,
    prepare: Callable[[], None],
) -> int:
    """Train runs and print what came of it; return the exit status."""
    from rich.console import Console

    from aol.runs.driver import ExecutionOptions, train
    from aol.runs.progress import Lines, Live, Silent

    if words.deterministic:
        _use_deterministic_kernels()
    options = ExecutionOptions(
        device=device,
        together=words.together,
        workers=words.workers,
        keep_samples=words.keep_samples,
        checkpoint_seconds=words.checkpoint_seconds,
        parallel=words.parallel,
        shard=words.shard,
        minutes=words.minutes,
        tensorboard=words.tensorboard,
        data_dir=words.data_dir,
    )
    words.stopped = f"`aol resume {store.folder}` continues from the last checkpoint"
    first = os.environ.get("RANK", "0") == "0"
    console = Console(stderr=True)
    progress = Silent() if words.json or not first else Live(console) if console.is_terminal else Lines()

    def opened(some: Sequence[Settings]) -> dict[str, AnyPair]:
        pairs = open_data(some)
        if first and device.type == "cpu":
            _warn_of_large_images(some, pairs, progress)
        return pairs

    try:
        outcome = train(runs, store, opened, options, progress, prepare=prepare)
    finally:
        progress.close()
    failed = False
    if first:
        frame = asked_for(store, runs)
        failed = bool(frame.failed_at_epoch.notna().any()) if len(frame) else False
        if words.json:
            print_json(frame)
        else:
            print_runs(frame, [store.folder], asked=len(runs))
    return 143 if outcome.terminated else 1 if failed or outcome.untrained else 0


def _use_deterministic_kernels() -> None:
    """Allow only deterministic kernels, on CUDA too."""
    import torch

    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # else cuBLAS has no deterministic kernels
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False


def _warn_of_large_images(runs: Sequence[Settings], pairs: dict[str, AnyPair], progress: Silent) -> None:
    """Warn before training on large images without a GPU."""
    from aol.engine.source import shape_of

    for run in {run.data: run for run in runs}.values():
        size = shape_of(pairs[run.data], run.image_size)[1]
        if size >= _SLOW_PIXELS:
            progress.say_once(
                f"Warning: images of {size} pixels train slowly on a CPU: add --image-size 64, or use a GPU."
            )


def _output_folder(words: argparse.Namespace) -> Path:
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
    return _new_folder(BASE)


def _new_folder(base: Path) -> Path:
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


def _remove_if_empty(out: Path) -> None:
    """Remove a new folder in which nothing was trained, because the words were wrong."""
    for name in (".lock", "runs"):
        with contextlib.suppress(OSError):
            (out / name).rmdir() if name == "runs" else (out / name).unlink()
    with contextlib.suppress(OSError):
        out.rmdir()


# Continuing

_OPTIONS: dict[str, Json] = {
    "data_dir": None, "device": "auto", "together": None, "workers": 0, "keep_samples": False,
    "checkpoint_seconds": 30.0, "parallel": "data", "tensorboard": False, "deterministic": False, "shard": None,
}  # fmt: skip


def _resume(words: argparse.Namespace) -> int:
    from aol.runs.store import Store, read_request

    if not words.folder.is_dir():
        raise WrongSettingsError(f"there is no folder {words.folder}.")
    request = read_request(words.folder)
    if request is None:
        raise WrongSettingsError(
            f"{words.folder} does not say what to continue: aol resume takes the --out of aol train, aol stream or "
            "aol study run."
        )
    if request.get("command") == "study":
        from aol.cli import study

        return study.resume(words, request)
    from aol.engine.device import usable_device
    from aol.runs import driver

    runs, store = driver.requested_runs(request), Store(words.folder)
    given = request.get("options")
    asked = argparse.Namespace(
        **{**_OPTIONS, "minutes": None, **(given if isinstance(given, dict) else {}), **vars(words)}
    )
    asked.shard = tuple(asked.shard) if asked.shard else None
    directory = request.get("directory")
    open_data = _opener(asked.data_dir, directory if isinstance(directory, str) else os.getcwd())
    try:
        return train_runs(
            asked, runs, store, open_data, usable_device(asked.device),
            lambda: driver.prepare(runs, store, request, resume=True),
        )  # fmt: skip
    finally:
        words.stopped = getattr(asked, "stopped", "")


def _options_given(words: argparse.Namespace) -> dict[str, Json]:
    """Return how the runs are trained, for `aol resume`."""
    given: dict[str, Json] = {name: getattr(words, name) for name in _OPTIONS}
    return given | {"shard": list(words.shard) if words.shard else None}


def _opener(data_dir: str | None, directory: str) -> Callable[[Sequence[Settings]], dict[str, AnyPair]]:
    """Return what opens the data sets of some runs; relative folders refer to `directory`."""

    def opened(runs: Sequence[Settings]) -> dict[str, AnyPair]:
        from aol.data import open_data
        from aol.data.named import NAMES

        names = dict.fromkeys(run.data for run in runs)
        places = {name: name if name in NAMES else str(Path(directory, Path(name).expanduser())) for name in names}
        check_data(places.values())
        return {name: open_data(place, data_dir=data_dir) for name, place in places.items()}

    return opened
