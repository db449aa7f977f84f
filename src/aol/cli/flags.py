"""The flags of a run: every setting of `Settings` by group, defaults by data set, and from words to settings.

Every setting takes several values with commas between them: each combination is a run.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING

from aol.cli.parser import add_common, count, folder, seconds, seed_list, shard
from aol.engine.settings import WEIGHTINGS, Settings, Value, WrongSettingsError, grid
from aol.nets.registry import names as networks

if TYPE_CHECKING:
    from aol.cli.parser import Parser

DEFAULTS: Mapping[str, Value] = {field.name: field.default for field in fields(Settings)}  # type: ignore[misc]
# What may be missing, and the kind of number it is otherwise.
OPTIONAL: Mapping[str, Callable[[str], float]] = {
    "imbalance": float,
    "threshold": float,
    "image_size": int,
    "warmup": float,
}
# Where a command starts from. `folder` is any data set that is not built in.
BY_DATA: Mapping[str, Mapping[str, Value]] = {
    "digits": {"epochs": 60, "batch_size": 32, "imbalance": 50.0},
    "fashion-mnist": {"epochs": 30, "batch_size": 128, "imbalance": 50.0},
    "cifar10": {"epochs": 200, "batch_size": 128, "imbalance": 50.0},
    "cifar100": {"epochs": 200, "batch_size": 128, "imbalance": 50.0},
    "folder": {"epochs": 30, "batch_size": 128, "imbalance": None},
}
# What `aol stream` changes of it.
STREAM: Mapping[str, Value] = {
    "scenario": "stream", "schedule": "fixed", "epochs": 100, "fraction": 0.05, "rho": 0.1, "warmup": 0,
    "imbalance": 50.0,
}  # fmt: skip

_DATA = {
    "data": "built-in: digits, fashion-mnist, cifar10, cifar100; or a folder: images by class, LMDB, Parquet, packed",
    "image_size": "crop the images of a folder to this many pixels a side (default: 224)",
    "imbalance": "size of the largest class over that of the smallest; 'none' keeps the set as it is",
    "profile": "shape of the long tail: exp, step",
    "validation": "fraction of each class to hold out for validation, 0 to 1",
    "stream": "shifting (a long tail whose head moves) or access (a fraction of the set each step)",
    "fraction": "fraction of the set that is there in each epoch or step",
    "period": "steps between two orders of the classes",
    "memory": "samples to keep: all, none, or reservoir:K",
    "seed": "of data, network and order: 0, 0,1,2 or 0-4",
}
_TRAINING = {
    "net": ", ".join(("auto (by the size of the images)", *networks())),
    "epochs": "passes over the data",
    "batch_size": "samples in a batch",
    "optimiser": "sgd, adamw",
    "lr": "learning rate",
    "momentum": "of SGD; the first beta of AdamW",
    "weight_decay": "strength of weight decay",
    "schedule": "paper (warm-up, then 1/100 at 80 % and 1/10000 at 90 % of the epochs), cosine, fixed",
    "warmup": "epochs of linear warm-up, 0.5 for half of one",
    "average": "also evaluate an average of the weights with this decay; 0 for none",
    "precision": "fp32, bf16",
    "normalisation": "centred (as in the paper) or standardised pixels (mean and standard deviation)",
    "augment": "random crops and flips in training: true, false",
    "eval_every": "epochs between two evaluations on the test set",
}
_IMBALANCE = {
    "weighting": "; ".join(f"{name}: {each.help}" for name, each in WEIGHTINGS.items()),
    "rho": "smoothing rate of ages (or error rates), 0 to 1; 0 gives uniform weights",
    "beta": "of class-balanced weights (cb), 0 to 1",
    "power": "of frequency weights: count ** -power",
    "temper": "weights ** temper",
    "level": "weights by class or by sample: class, sample",
    "fuse": "how the ages of a sample over time become one number: ema, mean",
    "mechanism": "weights in the loss (reweight) or in sampling (resample)",
    "loss": "softmax, sigmoid, focal",
    "gamma": "of the focal loss",
    "divide_by": "weighted losses are divided by weight, by count, or auto (as in the paper's code)",
    "signal": "where ages come from: a clean pass (eval), the training pass (train, no extra cost), none",
    "threshold": "accuracy below which a class grows older (default: that of the median class)",
}
GROUPS: Mapping[str, Mapping[str, str]] = {
    "data": _DATA,
    "network and optimisation": _TRAINING,
    "errors and imbalance": _IMBALANCE,
}
_ONLY = {"stream": ("stream", "period", "memory", "threshold"), "train": ("fuse",)}


def dashed(name: str) -> str:
    """Return a setting's name as a flag has it."""
    return name.replace("_", "-")


def flag_of(command: str, name: str) -> str:
    """Return the flag of a setting in `aol train` or `aol stream`."""
    return "--steps" if command == "stream" and name == "epochs" else f"--{dashed(name)}"


def settings_of(command: str) -> list[str]:
    """Return the settings that a command has flags for."""
    other = "stream" if command == "train" else "train"
    return [name for texts in GROUPS.values() for name in texts if name not in _ONLY[other] or name == "fuse"]


def add_settings(parser: Parser, command: str) -> dict[str, argparse._ArgumentGroup]:
    """Add a flag for each setting, in groups; return the groups."""
    groups, names = {}, settings_of(command)
    for title, texts in GROUPS.items():
        groups[title] = parser.add_argument_group(title)
        for name in (name for name in texts if name in names):
            text = "steps of the stream" if flag_of(command, name) == "--steps" else texts[name]
            groups[title].add_argument(
                flag_of(command, name), dest=name, action="append", metavar="VALUES",
                help=f"{text}{_default(command, name)}".replace("%", "%%"),
            )  # fmt: skip
    return groups


def _default(command: str, name: str) -> str:
    """Return what the help says about a setting's default."""
    if name in BY_DATA["digits"] and not (command == "stream" and name in STREAM):
        by_value: dict[str, list[str]] = {}
        for data, values in BY_DATA.items():
            by_value.setdefault(_word(values[name]), []).append("folders" if data == "folder" else data)
        return f" (default: {'; '.join(f'{value} for ' + ', '.join(sets) for value, sets in by_value.items())})"
    if command == "train" and name == "warmup":
        return " (default: 2.5 % of the epochs)"
    if name in ("threshold", "image_size"):
        return ""  # the text says it
    if command == "train" and name == "fraction":
        return "; below 1 the rest is absent (arrival imbalance; default: 1)"
    start = {**DEFAULTS, **(STREAM if command == "stream" else {})}
    return f" (default: {_word(start[name])})"


def _word(value: Value) -> str:
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value).lower()


def add_output(parser: Parser, command: str) -> argparse._ArgumentGroup:
    """Add the flags that say where results go, and what to do with those that are there."""
    group = parser.add_argument_group("output and resuming")
    add = group.add_argument
    add("--out", type=folder, metavar="FOLDER", help="folder of the results (default: a new runs/DATE_TIME, which "
        "runs/latest then points to)")  # fmt: skip
    add("--resume", action="store_true", help="continue the runs in --out (as `aol resume FOLDER` does)")
    add("--fresh", action="store_true", help="delete the runs in --out and start again")
    if command == "train":  # on a stream only classes have ages
        add("--keep-samples", action="store_true", help="record every sample's answers, and so its age, at every epoch")
    add("--tensorboard", action="store_true", help="also write TensorBoard event files")
    add_common(group)
    return group


def add_execution(
    parser: Parser, *, checkpoint_seconds: float | None = None, parallel: bool = True
) -> argparse._ArgumentGroup:
    """Add the flags that change how runs are trained, but not what is learnt."""
    group = parser.add_argument_group("execution")
    add = group.add_argument
    add(
        "--data-dir",
        type=folder,
        metavar="FOLDER",
        help="look for data sets here before $AOL_DATA and the cache folder",
    )
    add("--device", metavar="NAME", default="auto", help="auto, cpu, cuda, cuda:1 ...")
    add("--together", type=count(1), metavar="N", help="most runs trained as one network (default: by the device)")
    add("--workers", type=count(0), metavar="N", default=0, help="processes that decode the images of a large set")
    if parallel:
        add("--parallel", choices=("data", "runs"), default="data", help="what processes of torchrun share: data, runs")
    add("--checkpoint-seconds", type=seconds, metavar="S", default=checkpoint_seconds,
        help="shortest time between two checkpoints")  # fmt: skip
    add("--minutes", type=seconds, metavar="M", dest="minutes",
        help="stop after this many minutes; resume later")  # fmt: skip
    add("--limit-minutes", type=seconds, dest="minutes", help=argparse.SUPPRESS)  # its name in 0.1
    add("--shard", type=shard, metavar="I/N", help="train only the I-th of N shares of the runs, counted from 1")
    if parallel:
        add("--deterministic", action="store_true", help="use deterministic kernels only, on CUDA too (slower)")
    return group


def setting_value(name: str, text: str) -> Value:
    """Return the value of a setting from its text."""
    default = DEFAULTS[name]
    if name in OPTIONAL:
        return None if text == "none" else _number(name, text, OPTIONAL[name])
    if isinstance(default, bool):
        if text not in ("true", "false"):
            raise WrongSettingsError(f"--{dashed(name)} must be true or false, not {text!r}.")
        return text == "true"
    if isinstance(default, int):
        return _number(name, text, int)
    return _number(name, text, float) if isinstance(default, float) else text


def setting_values(name: str, text: str) -> list[Value]:
    """Return the values of a setting from a text with commas between them; seeds may be ranges."""
    if name == "seed":
        return list(seed_list("--seed", text))
    return [setting_value(name, part.strip()) for part in text.split(",")]


def _number(name: str, text: str, kind: Callable[[str], float]) -> float:
    try:
        return kind(text)
    except ValueError:
        what = "a whole number" if kind is int else "a number"
        raise WrongSettingsError(f"--{dashed(name)} must be {what}, not {text!r}.") from None


def runs_of(command: str, given: Mapping[str, Sequence[str] | None]) -> list[Settings]:
    """Return the runs that the flags of `aol train` or `aol stream` ask for; `given` holds their texts by setting."""
    varied = {name: [value for text in texts for value in setting_values(name, text)]
              for name, texts in given.items() if texts}  # fmt: skip
    runs: list[Settings] = []
    for data in varied.get("data", [DEFAULTS["data"]]):
        start = starting_point(command, str(data))
        if command == "train" and "fraction" in varied:
            start["scenario"] = "arrival"
        common = {name: value for name, value in start.items() if name not in varied}
        runs += grid(common, **{**varied, "data": [data]})
    return list(dict.fromkeys(runs))


def starting_point(command: str, data: str) -> dict[str, Value]:
    """Return the settings that a command starts from where they differ from the defaults of `Settings`."""
    return {**BY_DATA.get(data, BY_DATA["folder"]), **(STREAM if command == "stream" else {})}


def in_flags(text: str, command: str) -> str:
    """Return a sentence about settings in the words of the command line.

    >>> in_flags("net='vit' does not fit: image_size must be 8.", "train")
    '--net vit does not fit: --image-size must be 8.'
    """
    flags = {name: flag_of(command, name) for name in settings_of(command)}
    names = "|".join(flags)
    text = re.sub(rf"(?<![\w/=-])({names})='([^']*)'", lambda found: f"{flags[found[1]]} {found[2]}", text)
    return re.sub(rf"(^|: )({names})(?= must | is for )", lambda found: f"{found[1]}{flags[found[2]]}", text)
