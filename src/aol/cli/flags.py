"""The flags of a run: every setting of `Settings` by group, defaults by data set, and from text to settings.

Every setting takes several values with commas between them: each combination is a run.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields

from aol._values import THRESHOLDS
from aol.cli.parser import Flag, folder, loggers, seed_list, switch, value
from aol.lab.settings import CHOICES, MARGINS, WEIGHTINGS, Settings, Value, WrongSettingsError, grid, word

DEFAULTS: Mapping[str, Value] = {field.name: field.default for field in fields(Settings)}  # type: ignore[misc]
_TYPES = {field.name: str(field.type) for field in fields(Settings)}
# Where a command starts from. `folder` is any data set that is not built in.
BY_DATA: Mapping[str, Mapping[str, Value]] = {
    "digits": {"epochs": 60, "batch_size": 32, "imbalance": 50.0},
    "fashion-mnist": {"epochs": 30, "batch_size": 128, "imbalance": 50.0},
    "cifar10": {"epochs": 200, "batch_size": 128, "imbalance": 50.0},
    "cifar100": {"epochs": 200, "batch_size": 128, "imbalance": 50.0},
    "folder": {"epochs": 30, "batch_size": 128, "imbalance": None},
}
DATA_SETS = tuple(name for name in BY_DATA if name != "folder")
# What `aol stream` changes of it.
STREAM: Mapping[str, Value] = {
    "scenario": "stream", "schedule": "fixed", "epochs": 100, "fraction": 0.05, "rho": 0.1, "warmup": 0,
    "imbalance": 50.0,
}  # fmt: skip

_ANY = {name: ", ".join(words) for name, words in CHOICES.items()}
_DATA = {
    "data": f"built-in: {', '.join(DATA_SETS)}; a folder of images by class; hf:NAME_OR_FOLDER (Hugging Face datasets)",
    "image_size": "crop the images of a folder to this many pixels a side (default: 224)",
    "imbalance": "size of the largest class over that of the smallest; 'none' keeps the set as it is",
    "profile": f"shape of the long tail: {_ANY['profile']}",
    "validation": "fraction of each class to hold out for validation, 0 to 1",
    "samples": "train on this many samples only, of each class its share; 'none' for all",
    "nuisance": "what gives the class away in all but a few training images: tint or patch; none",
    "conflicts": "share of the training images whose nuisance is that of another class",
    "noise": "share of the training labels to replace by others",
    "stream": "shifting (a long tail whose head moves) or access (a fraction of the set each step)",
    "fraction": "fraction of the set that is there in each epoch or step",
    "period": "steps between two orders of the classes",
    "memory": "samples to keep: all, none, or reservoir:K",
    "seed": "of data, network and order: 0, 0,1,2 or 0-4",
}
_TRAINING = {
    "net": ", ".join(
        ("auto (by the size of the images)", *tuple(CHOICES["net"])[1:], "timm:NAME, MODULE:FUNCTION (your own)")
    ),
    "epochs": "passes over the data",
    "batch_size": "samples in a batch",
    "optimiser": _ANY["optimiser"],
    "lr": "learning rate",
    "momentum": "of SGD; the first beta of AdamW",
    "weight_decay": "strength of weight decay",
    "schedule": "paper (warm-up, then 1/100 at 80 % and 1/10000 at 90 % of the epochs), cosine, fixed",
    "warmup": "epochs of linear warm-up, 0.5 for half of one",
    "average": "also evaluate an average of the weights with this decay; 0 for none",
    "precision": _ANY["precision"],
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
    "level": f"weights by class or by sample: {_ANY['level']}",
    "after": "of old: wrong answers in a row; of jtt: the epoch whose wrong answers count",
    "factor": "of old and jtt: factor on the weight of these samples; 0 gives them half of the total weight",
    "fuse": f"how the ages of a sample over time become one number: {_ANY['fuse']}",
    "mechanism": "weights in the loss (reweight) or in sampling (resample)",
    "loss": _ANY["loss"],
    "gamma": "of the focal loss",
    "divide_by": "weighted losses are divided by weight, by count, or auto (as in the paper's code)",
    "start": "share of the epochs before which all weights are one: 0.8 weights the last fifth (deferred weights)",
    "margin": "; ".join(f"{name}: {each.help}" for name, each in MARGINS.items()),
    "tau": "strength of margins from class counts or from probabilities",
    "gain": "speed of margins from answers, each time that they move",
    "margin_steps": "move margins after so many training steps, by the answers in training; for fewer than 30 epochs, "
    "take a hundredth of all steps (default: once per epoch or step of a stream, by --signal)",
    "signal": "where answers come from: a clean pass afterwards (eval), the training pass (train, no extra cost), "
    "a pass over what a step shows, before training on it (before: streams and arrivals), none",
    "clean_part": "part of the training samples in each clean pass, drawn anew each epoch, above 0 to 1: quicker, "
    "and accuracies have a standard error",
    "threshold": f"accuracy below which a class grows older: a number, or {', '.join(THRESHOLDS)} of the classes; "
    "positive-median is never 0 (default: median)",
}
GROUPS: Mapping[str, Mapping[str, str]] = {
    "data": _DATA,
    "network and optimisation": _TRAINING,
    "errors and imbalance": _IMBALANCE,
}
_STREAM_ONLY = ("stream", "period", "memory", "threshold")


def flag_of(command: str, name: str) -> str:
    """Return the flag of a setting in `aol train` or `aol stream`."""
    return "--steps" if command == "stream" and name == "epochs" else f"--{name.replace('_', '-')}"


def settings_of(command: str) -> list[str]:
    """Return the settings that a command has flags for."""
    return [name for texts in GROUPS.values() for name in texts if command == "stream" or name not in _STREAM_ONLY]


def setting_flags(command: str) -> dict[str, list[Flag]]:
    """Return a flag for each setting, by group."""

    def flag(name: str, text: str) -> Flag:
        text = "steps of the stream" if flag_of(command, name) == "--steps" else text
        text = f"{text}{_default(command, name)}".replace("%", "%%")
        return value(flag_of(command, name), "VALUES", text, dest=name, action="append")

    names = settings_of(command)
    return {title: [flag(*each) for each in texts.items() if each[0] in names] for title, texts in GROUPS.items()}


def _default(command: str, name: str) -> str:
    if name in BY_DATA["digits"] and not (command == "stream" and name in STREAM):
        by_value: dict[str, list[str]] = {}
        for data, values in BY_DATA.items():
            by_value.setdefault(word(values[name]), []).append("folders" if data == "folder" else data)
        return f" (default: {'; '.join(f'{value} for ' + ', '.join(sets) for value, sets in by_value.items())})"
    if command == "train" and name == "warmup":
        return " (default: 2.5 % of the epochs)"
    if name in ("threshold", "image_size", "margin_steps"):
        return ""  # the text says it
    if command == "train" and name == "fraction":
        return "; below 1 the rest is absent (arrival imbalance; default: 1)"
    start = {**DEFAULTS, **(STREAM if command == "stream" else {})}
    return f" (default: {word(start[name])})"


_OUT = "folder of the results (default: a new runs/DATE_TIME, which runs/latest then points to)"
OUTPUT: tuple[Flag, ...] = (
    value("--out", "FOLDER", _OUT, type=folder),
    switch("--resume", "continue the runs in --out (as `aol resume FOLDER` does)"),
    switch("--fresh", "delete the runs in --out and start again; with --shard, those of the share only"),
    value("--log", "NAMES", "also log to tensorboard, wandb, mlflow (commas between them)", type=loggers, default=()),
    ("--tensorboard", {"action": "store_const", "const": ("tensorboard",), "dest": "log", "help": argparse.SUPPRESS}),
)
KEEP_SAMPLES = switch("--keep-samples", "record every sample's answers, and so its age, at every epoch")


def setting_value(name: str, text: str) -> Value:
    """Return the value of a setting from its text."""
    kind, _, optional = _TYPES[name].partition(" | ")
    if name == "threshold" and text in THRESHOLDS:
        return text
    if kind == "str" or (optional and text == "none"):
        return text if kind == "str" else None
    wanted = {"bool": "true or false", "int": "a whole number", "float": "a number"}[kind]
    wanted += f", {', '.join(THRESHOLDS[:-1])} or {THRESHOLDS[-1]}" if name == "threshold" else ""
    try:
        return {"true": True, "false": False}[text] if kind == "bool" else int(text) if kind == "int" else float(text)
    except (KeyError, ValueError):
        raise WrongSettingsError(f"--{name.replace('_', '-')} must be {wanted}, not {text!r}.") from None


def setting_values(name: str, text: str) -> list[Value]:
    """Return the values of a setting from a text with commas between them; seeds may be ranges."""
    if name == "seed":
        return list(seed_list("--seed", text))
    return [setting_value(name, part.strip()) for part in text.split(",")]


def runs_of(command: str, given: Mapping[str, Sequence[str] | None]) -> list[Settings]:
    """Return the runs that the flags of `aol train` or `aol stream` ask for; `given` holds their texts by setting."""
    varied = {
        name: [each for text in texts for each in setting_values(name, text)] for name, texts in given.items() if texts
    }
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
    """Return a sentence about settings with the flags of the command line.

    >>> in_flags("net='vit' does not fit: image_size must be 8.", "train")
    '--net vit does not fit: --image-size must be 8.'
    """
    flags = {name: flag_of(command, name) for name in settings_of(command)}
    names = "|".join(flags)
    text = re.sub(rf"(?<![\w/=-])({names})='([^']*)'", lambda found: f"{flags[found[1]]} {found[2]}", text)
    return re.sub(rf"(^|: )({names})(?= must | is for )", lambda found: f"{found[1]}{flags[found[2]]}", text)
