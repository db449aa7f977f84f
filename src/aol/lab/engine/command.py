"""The command that repeats a run, from its settings."""

from __future__ import annotations

import shlex
from dataclasses import fields, replace

from aol.lab.settings import MARGINS, WEIGHTINGS, Settings, word

# Settings whose defaults depend on the data set or the command: always part of the command.
_ALWAYS = ("epochs", "batch_size", "imbalance", "seed")


def command(run: Settings, *, data_dir: str | None = None, keep_samples: bool = False) -> str:
    """Return the command that repeats a run: every setting that differs from its default.

    >>> command(Settings(weighting="aol", rho=0.3))
    'aol train --imbalance 50 --epochs 30 --batch-size 128 --weighting aol --rho 0.3 --seed 0'
    """
    stream = run.scenario == "stream"
    words = ["aol", "stream" if stream else "train"]
    shown = set(_ALWAYS)
    if stream:
        shown |= {"schedule", "warmup"}
    if run.scenario == "arrival" or (stream and run.stream == "access"):
        shown |= {"fraction"}
    if "rho" in WEIGHTINGS[run.weighting].settings:
        shown |= {"rho"}
    shown |= set(MARGINS[run.margin].settings)
    usual = replace(run, divide_by="auto", warmup=None)
    for field in fields(Settings):
        value = getattr(run, field.name)
        if field.name in {"divide_by", "warmup"} - shown and value == getattr(usual, field.name):
            continue
        if field.name != "scenario" and (field.name in shown or value != field.default):
            flag = "steps" if stream and field.name == "epochs" else field.name.replace("_", "-")
            words += [f"--{flag}", word(value)]
    if data_dir is not None:
        words += ["--data-dir", data_dir]
    return shlex.join([*words, *(["--keep-samples"] if keep_samples else [])])
