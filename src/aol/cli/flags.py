"""The flags of a run: every setting of `Settings` by group, defaults by data set, and from text to settings.

Every setting takes several values with commas between them: each combination is a run.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import fields

from aol._values import THRESHOLDS
from aol.cli.parser import Flag, folder, seed_list, switch, value
from aol.lab.settings import Settings, Value, WrongSettingsError, grid, word

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

GROUPS: dict[str, dict[str, str]] = {}  # help texts by the title of their group
for _field in fields(Settings):
    if "help" in _field.metadata:
        GROUPS.setdefault(_field.metadata["group"], {})[_field.name] = _field.metadata["help"]
_STREAM_ONLY = tuple(_field.name for _field in fields(Settings) if _field.metadata.get("stream"))


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
    switch("--fresh", "delete the runs that are asked for and start again"),
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
