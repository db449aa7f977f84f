"""Words of a command line to values, for every command: settings, numbers, devices; wrong ones are one sentence."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import NoReturn

import torch

from aol.engine.settings import Settings, Value, WrongSettingsError

DEFAULTS: Mapping[str, Value] = {field.name: field.default for field in fields(Settings)}  # type: ignore[misc]
# What may be missing, and the kind of number it is otherwise.
OPTIONAL: Mapping[str, Callable[[str], float]] = {
    "imbalance": float,
    "threshold": float,
    "image_size": int,
    "warmup": float,
}


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


def _number(name: str, text: str, kind: Callable[[str], float]) -> float:
    try:
        return kind(text)
    except ValueError:
        what = "a whole number" if kind is int else "a number"
        raise WrongSettingsError(f"--{dashed(name)} must be {what}, not {text!r}.") from None


def dashed(name: str) -> str:
    """Return a setting's name as an option has it."""
    return name.replace("_", "-")


def in_flags(text: str, flags: Mapping[str, str]) -> str:
    """Return a sentence about settings in the words of a command line, whose options are given by setting.

    >>> in_flags("net='vit' does not fit: image_size must be 8.", {"net": "--net", "image_size": "--image-size"})
    '--net vit does not fit: --image-size must be 8.'
    """
    names = "|".join(flags)
    text = re.sub(rf"(?<![\w/=-])({names})='([^']*)'", lambda found: f"{flags[found[1]]} {found[2]}", text)
    return re.sub(rf"(^|: )({names})(?= must | is for )", lambda found: f"{found[1]}{flags[found[2]]}", text)


def count(least: int) -> Callable[[str], int]:
    """Return what reads a whole number of at least so much."""

    def count(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"must be a whole number of {least} or more, not {text!r}")
        return int(text)

    return count


def seconds(text: str) -> float:
    """Return a number of 0 or more."""
    try:
        found = float(text)
    except ValueError:
        found = -1.0
    if not 0.0 <= found < float("inf"):
        raise argparse.ArgumentTypeError(f"must be a number of 0 or more, not {text!r}")
    return found


def folder(text: str) -> str:
    """Return the name of a folder; an empty one, as an unset variable leaves it, would mean this folder."""
    if not text:
        raise argparse.ArgumentTypeError("must name a folder, not ''")
    return text


def usable_device(name: str) -> torch.device:
    """Return the device that a word names, after seeing that it can be used."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise WrongSettingsError(f"--device must be auto, cpu, cuda or cuda:N, not {name!r}.") from error
    if device.type not in ("cpu", "cuda"):
        raise WrongSettingsError(f"--device must be auto, cpu, cuda or cuda:N, not {name!r}.")
    try:
        device = torch.empty(0, device=device).device
    except (RuntimeError, AssertionError) as error:
        raise WrongSettingsError(f"--device {name} cannot be used here: {str(error).splitlines()[0]}") from error
    if name == "cuda":
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    if device.type == "cuda":
        torch.cuda.set_device(device)
    return device


class Parser(argparse.ArgumentParser):
    """Wrong words become an error like any other, instead of a page of usage."""

    def error(self, message: str) -> NoReturn:
        raise WrongSettingsError(f"{message}; see {self.prog} --help.")
