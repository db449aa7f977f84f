"""The command that repeats a run, read by the command line, asks for that run and no other."""

from __future__ import annotations

import random
import shlex

import pytest

from aol.cli import _parser, _runs, _settings_of
from aol.engine.settings import Settings
from aol.engine.words import command

CHOICES: dict[str, list[object]] = {
    "data": ["digits", "cifar10", "a folder/with 'quotes'"], "imbalance": [None, 1.0, 50.0, 0.1 + 99.9],
    "weighting": ["none", "cb", "aol", "cb+aol", "frequency", "error"], "rho": [0.0, 0.1, 1 / 3], "epochs": [3, 30],
    "beta": [0.9, 0.99999], "power": [0.25], "temper": [0.5, 1.0], "level": ["class", "sample"], "seed": [0, 2**40],
    "fuse": ["ema", "mean"], "mechanism": ["reweight", "resample"], "loss": ["softmax", "sigmoid", "focal"],
    "gamma": [2.0], "augment": [True, False], "divide_by": ["auto", "weight", "count"], "signal": ["eval", "train"],
    "threshold": [None, 0.5], "average": [0.0, 0.9], "net": ["auto", "resnet32"], "image_size": [None, 64],
    "lr": [0.1, 1e-5], "schedule": ["paper", "cosine", "fixed"], "warmup": [0, 7], "validation": [0.0, 0.2],
    "eval_every": [1, 5], "stream": ["shifting", "access"], "period": [3], "memory": ["all", "none", "reservoir:77"],
    "fraction": [0.05, 1.0], "profile": ["exp", "step"], "scenario": ["offline", "arrival", "stream"],
}  # fmt: skip


def some_settings(seed: int) -> Settings:
    draws = random.Random(seed)
    while True:
        try:
            return Settings(**{name: draws.choice(values) for name, values in CHOICES.items()})  # type: ignore[arg-type]
        except ValueError:
            continue  # not every combination can be run


@pytest.mark.parametrize("seed", range(200))
def test_the_command_of_a_run_asks_for_that_run(seed: int) -> None:
    run = some_settings(seed)
    words = shlex.split(command(run, data_dir="/my data", keep_samples=run.scenario != "stream"))
    assert words[0] == "aol"
    found = _parser().parse_args(words[1:])
    given = {name: getattr(found, name) for name in _settings_of(found.command)}
    assert _runs(found.command, given) == [run]
    assert found.data_dir == "/my data"


def test_usual_settings_are_not_spelled_out() -> None:
    assert command(Settings()) == "aol train --imbalance 50 --epochs 30 --seed 0"
