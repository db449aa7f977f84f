"""The command line: words to calls. Exit status 0 done, 1 a run failed, 2 the words were wrong.

Every setting of a run is an option, and every option takes several values with commas between them: each combination is
a run, and runs that allow it are trained together.
"""

from __future__ import annotations

import argparse
import errno
import io
import json
import os
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from rich.console import Console

from aol._version import __version__
from aol._words import (
    DEFAULTS,
    OPTIONAL,
    Parser,
    count,
    dashed,
    folder,
    in_flags,
    seconds,
    setting_value,
    usable_device,
)
from aol.data import DataError, open_data
from aol.data import commands as data_commands
from aol.data.named import NAMES
from aol.engine import display
from aol.engine.settings import Settings, Value, WrongSettingsError, grid
from aol.engine.training import Conduct, train
from aol.report import commands as report_commands
from aol.study import commands as study_commands

# What each setting means; the order is that of --help.
_COMMON = {
    "data": "built-in: digits, fashion-mnist, cifar10, cifar100; or a folder: images by class, LMDB, Parquet, packed",
    "image_size": "pixels a side to which the images of a folder are cropped (default: 224)",
    "imbalance": "largest class over smallest; 'none' takes the set as it is (default: 50 for built-in sets)",
    "profile": "shape of the long tail: exp, step",
    "weighting": "none, cb, aol, cb+aol, frequency, error",
    "rho": "how fast the smoothed age (or error rate) follows, 0 to 1; 0 is uniform",
    "beta": "of class-balanced weights, 0 to 1",
    "power": "of frequency weights: n ** -power",
    "temper": "weights ** temper",
    "level": "weights by class or by sample: class, sample",
    "fuse": "ages over time become one number by ema or mean",
    "mechanism": "reweight (the loss) or resample (the order)",
    "loss": "softmax, sigmoid, focal",
    "gamma": "of the focal loss",
    "divide_by": "weighted losses are divided by weight, by count, or auto: as the released code does",
    "signal": "ages from a clean pass (eval), from the training pass (train: no extra cost), or none",
    "seed": "of data, network and order",
    "net": "auto, cnn, resnet32, resnet34-cifar, resnet34, vit",
    "epochs": "passes over the data",
    "batch_size": "samples a step",
    "optimiser": "sgd, adamw",
    "lr": "learning rate",
    "momentum": "of SGD; the first beta of AdamW",
    "weight_decay": "strength",
    "schedule": "paper (warm-up, then a hundredth at 80 % and a ten-thousandth at 90 %), cosine, fixed",
    "warmup": "epochs of linear warm-up, 0.5 too; none: 2.5 % of the epochs",
    "average": "also evaluate an average of the weights with this decay; 0 for none",
    "precision": "fp32, bf16",
    "normalisation": "pixels centred (the paper) or standardised (mean and standard deviation)",
    "augment": "crop and flip while training: true, false",
    "validation": "part of each class held out before the long tail is made, 0 to 1",
    "eval_every": "epochs between two readings on test",
}
_TRAIN = {"fraction": "train on this part of the set each epoch, the rest absent (arrival imbalance)"}
_STREAM = {
    "stream": "shifting (a long tail whose head moves) or access (a part of the set a step)",
    "fraction": "the part of the set that each step of stream access shows",
    "period": "steps between two orders of the classes",
    "memory": "all, none, or reservoir:K",
    "threshold": "accuracy below which a class grows older; default: the median class's",
}
_START: Mapping[str, Mapping[str, Value]] = {
    "train": {},
    "stream": {"scenario": "stream", "schedule": "fixed", "epochs": 100, "fraction": 0.05, "rho": 0.1, "warmup": 0},
}
# What to look at when a command is done.
_NEXT = {
    "train": "aol stream --weighting none,cb,aol --seed 0,1,2 --out runs/stream",
    "stream": "aol train --weighting none,cb,aol --level class,sample --seed 0,1,2 --out runs/offline",
}


def _flag(command: str, name: str) -> str:
    return "--steps" if command == "stream" and name == "epochs" else f"--{dashed(name)}"


def _settings_of(command: str) -> dict[str, str]:
    return {**_COMMON, **(_TRAIN if command == "train" else _STREAM)}


def _add_settings(parser: argparse.ArgumentParser, command: str) -> None:
    for name, text in _settings_of(command).items():
        flag = _flag(command, name)
        default = {**DEFAULTS, **_START[command]}[name]
        shown = "" if name in OPTIONAL else f" [{str(default).lower()}]"
        text = ("steps of the stream" if flag == "--steps" else text) + shown
        parser.add_argument(flag, dest=name, action="append", metavar="VALUES", help=text.replace("%", "%%"))


def _add_conduct(parser: argparse.ArgumentParser, command: str) -> None:
    add = parser.add_argument_group("how it is carried out").add_argument
    add("--data-dir", type=folder, metavar="FOLDER", help="where data sets lie, besides $AOL_DATA and the cache folder")
    add("--out", type=folder, metavar="FOLDER", default="runs/latest", help="for records and checkpoints [runs/latest]")
    add("--resume", action="store_true", help="go on with what is in --out")
    add("--fresh", action="store_true", help="delete the runs in --out and start again")
    add("--device", metavar="NAME", default="auto", help="auto, cpu, cuda, cuda:1 ... [auto]")
    add("--together", type=count(1), metavar="N", help="the most runs trained as one; default: what suits the device")
    add("--workers", type=count(0), metavar="N", default=0, help="processes that decode images of a large set [0]")
    add("--parallel", choices=("data", "runs"), default="data", help="what processes of torchrun share [data]")
    if command == "train":  # on a stream only classes have ages
        add("--keep-samples", action="store_true", help="keep each sample's answers, and so its age, at every epoch")
    add("--tensorboard", action="store_true", help="write TensorBoard event files too")
    add("--checkpoint-seconds", type=seconds, metavar="S", default=30.0, help="least time between checkpoints [30]")
    add("--deterministic", action="store_true", help="only deterministic kernels, on CUDA too (slower)")
    add("--json", action="store_true", help="print one JSON object and nothing else")
    add("--debug", action="store_true", help="show the traceback of an error")


def _counts(text: str) -> list[int]:
    return [count(1)(part.strip()) for part in text.split(",")]


def _positive(text: str) -> float:
    found = seconds(text)
    if found == 0.0:
        raise argparse.ArgumentTypeError("must be above 0")
    return found


def _runs(command: str, given: Mapping[str, Sequence[str] | None]) -> list[Settings]:
    """Return the runs that the options ask for."""
    varied: dict[str, Sequence[Value]] = {}
    for name, texts in given.items():
        values = [part.strip() for text in texts or () for part in text.split(",")]
        if values:
            varied[name] = [setting_value(name, value) for value in values]
    common = {name: value for name, value in _START[command].items() if name not in varied}
    if "imbalance" not in varied:
        builtin = all(name in NAMES for name in varied.get("data", ["digits"]))
        common["imbalance"] = 50.0 if builtin or command == "stream" else None
    if command == "train" and "fraction" in varied:
        common["scenario"] = "arrival"
    return grid(common, **varied)


def _trained(words: argparse.Namespace) -> int:
    """Train; what is wrong with a setting is said in the words of the command line."""
    try:
        return _train(words)
    except WrongSettingsError as error:
        flags = {name: _flag(words.command, name) for name in _settings_of(words.command)}
        raise WrongSettingsError(in_flags(str(error), flags)) from error


def _train(words: argparse.Namespace) -> int:
    command: str = words.command
    runs = _runs(command, {name: getattr(words, name) for name in _settings_of(command)})
    if words.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # else cuBLAS has no deterministic kernels
        torch.use_deterministic_algorithms(True)
        torch.backends.cudnn.benchmark = False
    conduct = Conduct(
        out=Path(words.out),
        device=usable_device(words.device),
        resume=words.resume,
        fresh=words.fresh,
        together=words.together,
        workers=words.workers,
        keep_samples=command == "train" and words.keep_samples,
        checkpoint_seconds=words.checkpoint_seconds,
        parallel=words.parallel,
        tensorboard=words.tensorboard,
        data_dir=words.data_dir,
    )
    pairs = {name: open_data(name, data_dir=words.data_dir) for name in dict.fromkeys(run.data for run in runs)}
    first = os.environ.get("RANK", "0") == "0"
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
        display.report(results, conduct.out, try_next=_NEXT[command])
    return 1 if any(each.get("failed_at_epoch") for each in results) else 0


def _bench(words: argparse.Namespace) -> int:
    from aol.bench import measure

    device = usable_device(words.device)
    usual = measure.usual(device)
    scale = usual.scale if words.scale is None else words.scale
    rows = measure.measure(
        device,
        runs=words.runs or usual.runs,
        scale=scale,
        epochs=words.epochs or usual.epochs,
        workers=words.workers,
        say=lambda text: print(text, file=sys.stderr, flush=True),
    )
    if words.out:
        measure.write(rows, device, scale, Path(words.out))
    told = {"scale": scale, "rows": [vars(row) for row in rows]}
    print(json.dumps(told) if words.json else measure.table(rows, device, scale))
    return 0


def _parser() -> argparse.ArgumentParser:
    about = "Age of Learning: train with, and look at, how long a model has kept getting something wrong."
    parser = Parser("aol", description=about, allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"aol {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    several = "Every setting takes several values with commas between them; each combination is a run."
    for name, text in (("train", "Train on a whole set, or on what arrives of it."), ("stream", "Train on a stream.")):
        command = commands.add_parser(name, help=text, description=f"{text} {several}", allow_abbrev=False)
        _add_settings(command, name)
        _add_conduct(command, name)
    bench = commands.add_parser("bench", help="Speed and memory of the engine on this machine.", allow_abbrev=False)
    bench.add_argument("--runs", type=_counts, metavar="VALUES", help="how many runs together [1,16,64; on a CPU 1,2]")
    bench.add_argument(
        "--scale", type=_positive, metavar="S", help="size of the data against CIFAR-10's [1; on a CPU 0.01]"
    )
    bench.add_argument("--epochs", type=count(1), metavar="N", help="epochs that are timed [3; on a CPU 1]")
    bench.add_argument(
        "--workers", type=count(0), default=2, metavar="N", help="workers of the straightforward loop [2]"
    )
    bench.add_argument("--device", default="auto", metavar="NAME", help="auto, cpu, cuda ... [auto]")
    bench.add_argument("--out", metavar="FILE", help="write the figures here as JSON")
    bench.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    bench.add_argument("--debug", action="store_true", help="show the traceback of an error")
    commands.add_parser("study", help="Whole tables: which runs they need, running them, showing them.", add_help=False)
    commands.add_parser("data", help="Data sets: where they are, fetching, checking, packing.", add_help=False)
    commands.add_parser("report", help="One page that shows where runs have been wrong; figures.", add_help=False)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit status."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if isinstance(sys.stdout, io.TextIOWrapper):  # a path that is no UTF-8 must not lose what was trained
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        if words[:1] == ["data"]:
            return data_commands.main(words[1:])
        if words[:1] == ["study"]:
            return study_commands.main(words[1:])
        if words[:1] == ["report"]:
            return report_commands.main(words[1:])
        found = _parser().parse_args(words)
        return _bench(found) if found.command == "bench" else _trained(found)
    except SystemExit as stop:  # --help and --version
        return int(stop.code or 0)
    except KeyboardInterrupt:
        return _refuse("stopped; add --resume to go on from the last checkpoint.", 130, False)
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        text = "the disk is full; the last checkpoint is whole: make room, then add --resume." if full else str(error)
        return _refuse(text, 2 if isinstance(error, FileNotFoundError) else 1, "--debug" in words)
    except DataError as error:
        return _refuse(str(error), 1, "--debug" in words)
    except (ValueError, TypeError) as error:
        return _refuse(str(error), 2, "--debug" in words)
    except (RuntimeError, ImportError) as error:
        return _refuse(str(error), 1, "--debug" in words)
    except Exception as error:
        text = f"{type(error).__name__}: {error} (a mistake in aol; --debug shows where)"
        return _refuse(text, 1, "--debug" in words)


def _refuse(text: str, status: int, debug: bool) -> int:
    if debug:
        traceback.print_exc()
    print(f"aol: {' '.join(text.split())}", file=sys.stderr)
    return status
