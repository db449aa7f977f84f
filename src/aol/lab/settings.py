"""The settings of a run, checked; grids of them; and which runs can be trained as one group.

Imports no torch. Runs with equal `Settings` are the same run and have the same `run_id`.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import TypeAlias

from aol import _values as _check
from aol.lab.engine.margin import MARGINS as MARGINS
from aol.lab.engine.weighting import FROM_ANSWERS as FROM_ANSWERS
from aol.lab.engine.weighting import WEIGHTINGS as WEIGHTINGS
from aol.lab.nets.registry import is_external, names
from aol.records import METHOD_SETTINGS

Value: TypeAlias = str | float | int | bool | None

# What may differ between the runs of a group; all else is common to them.
PER_RUN = METHOD_SETTINGS

# Settings that are words, and the words that are possible.
CHOICES: Mapping[str, Collection[str]] = {
    "scenario": ("offline", "arrival", "stream"), "profile": _check.PROFILES, "stream": ("access", "shifting"),
    "nuisance": _check.NUISANCES,
    "optimiser": ("sgd", "adamw"), "schedule": ("paper", "cosine", "fixed"), "precision": ("fp32", "bf16"),
    "normalisation": ("centred", "standardised"), "weighting": WEIGHTINGS.keys(), "level": ("class", "sample"),
    "fuse": ("ema", "mean", "peak"), "mechanism": ("reweight", "resample"), "loss": ("softmax", "sigmoid", "focal"),
    "divide_by": ("auto", "weight", "count"), "signal": ("eval", "train", "before", "none"),
    "margin": MARGINS.keys(), "net": ("auto", *names()),
}  # fmt: skip

# In the name of a method.
_SYMBOLS = {"beta": "β", "gain": "k", "margin_steps": "steps", "power": "p", "rho": "ρ", "tau": "τ"}


class WrongSettingsError(ValueError):
    """A setting, or a combination of settings, that is not possible; the message names it."""


@dataclass(frozen=True)
class Settings:
    """All settings of one run. Units: epochs, samples, fractions; the rate is per step.

    >>> Settings(weighting="aol", rho=0.3).run_id == Settings(weighting="aol", rho=0.3, beta=0.5).run_id
    True
    """

    # Data
    scenario: str = "offline"
    data: str = "digits"
    image_size: int | None = None
    imbalance: float | None = 50.0
    profile: str = "exp"
    validation: float = 0.0
    samples: int | None = None  # training samples; None: all
    nuisance: str = "none"
    conflicts: float = 0.02
    noise: float = 0.0
    fraction: float = 1.0
    stream: str = "shifting"
    period: int = 10
    memory: str = "all"
    # Training
    net: str = "auto"
    epochs: int = 30
    batch_size: int = 128
    optimiser: str = "sgd"
    lr: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 2e-4
    schedule: str = "paper"
    warmup: float | None = None  # epochs, fractions too; None: 2.5 % of them
    average: float = 0.0
    precision: str = "fp32"
    normalisation: str = "centred"
    augment: bool = True
    # Weights
    weighting: str = "none"
    rho: float = 0.5
    beta: float = 0.9999
    power: float = 0.5
    temper: float = 1.0
    level: str = "class"
    after: int = 5  # epochs
    factor: float = 0.0  # 0: a set has as much total weight as all other samples
    fuse: str = "ema"
    mechanism: str = "reweight"
    loss: str = "softmax"
    gamma: float = 1.0
    divide_by: str = "auto"
    start: float = 0.0  # share of the epochs before which all weights are one
    signal: str = "eval"
    clean_part: float = 1.0  # of the samples, in each clean pass
    margin: str = "none"
    tau: float = 1.0
    gain: float = 0.1
    margin_steps: int | None = None  # margins from answers move after so many training steps; None: once an epoch
    threshold: float | str | None = None  # of a stream; None: the median, the paper's rule
    # Repetition and evaluation
    seed: int = 0
    eval_every: int = 1

    def __post_init__(self) -> None:
        try:
            self._check()
        except (TypeError, ValueError) as error:
            raise WrongSettingsError(str(error)) from error
        for name, value in self._canonical().items():
            object.__setattr__(self, name, value)

    def _check(self) -> None:
        for name, allowed in CHOICES.items():
            if not (name == "net" and isinstance(self.net, str) and is_external(self.net)):
                more = ("timm:NAME", "MODULE:FUNCTION") if name == "net" else ()
                _check.choice(name, getattr(self, name), (*allowed, *more))
        for name in ("data", "memory"):
            if not isinstance(value := getattr(self, name), str):
                raise TypeError(f"{name} must be text, not {_check.shown(value)}.")
        for name in ("epochs", "batch_size", "period", "eval_every", "after"):
            _check.whole(name, getattr(self, name), 1)
        _check.whole("seed", self.seed, 0)
        if self.warmup is not None:
            _check.number("warmup", self.warmup, 0.0, 1e6)
        for name in ("rho", "momentum"):
            _check.number(name, getattr(self, name), 0.0, 1.0)
        for name in ("lr", "weight_decay", "power", "temper", "gamma", "tau", "factor"):
            _check.number(name, getattr(self, name), 0.0, 1e6)
        for name in ("beta", "validation", "average", "start", "noise", "conflicts"):
            if _check.number(name, getattr(self, name), 0.0, 1.0) == 1.0:
                raise ValueError(f"{name} must be a number in [0, 1), not 1.")
        _check.number("gain", self.gain, 0.0, 1e3)
        for name in ("fraction", "clean_part"):
            _check.number(name, getattr(self, name), 0.0, 1.0, open_below=True)
        for name in ("image_size", "samples", "margin_steps"):
            if (size := getattr(self, name)) is not None:
                _check.whole(name, size, 1)
        if not isinstance(self.augment, bool):
            raise TypeError(f"augment must be true or false, not {_check.shown(self.augment)}.")
        if self.imbalance is not None:
            _check.number("imbalance", self.imbalance, 1.0, 1e9)
        if isinstance(self.threshold, str):
            _check.choice("threshold", self.threshold, _check.THRESHOLDS)
        elif self.threshold is not None:
            _check.number("threshold", self.threshold, 0.0, 1.0)
        if self.seed >= 2**63:
            raise ValueError(f"seed must be below 2 ** 63, not {self.seed}.")
        memory_capacity(self.memory)
        weighting = WEIGHTINGS[self.weighting]
        if weighting.needs_answers and self.signal == "none":
            raise ValueError(f"signal='none' tracks no ages, which weighting={self.weighting!r} needs.")
        if MARGINS[self.margin].signal is not None and self.signal == "none" and self.margin_steps is None:
            raise ValueError(f"signal='none' has no answers, which margin={self.margin!r} needs; or give margin_steps.")
        if self.signal == "before" and self.scenario == "offline":
            raise ValueError(
                "signal='before' is for streams and arrivals: offline, every sample was trained on before."
            )
        if self.clean_part < 1.0 and self.scenario != "offline":
            raise ValueError(f"clean_part must be 1 on streams and arrivals, not {self.clean_part:g}.")
        if weighting.needs_loss and self.signal == "train":
            raise ValueError(f"signal='train' knows no losses, which weighting={self.weighting!r} needs.")
        if self.scenario == "stream" and weighting.by_sample(self.level):
            what = "level='sample'" if weighting.uses_ages else f"weighting={self.weighting!r}"
            raise ValueError(f"{what} is not possible on a stream, where samples do not come back.")
        if self.scenario == "stream" and self.stream == "shifting" and self.imbalance is None:
            raise ValueError("imbalance must be given for stream='shifting'.")

    def _canonical(self) -> dict[str, Value]:
        """Return settings to replace, unused ones by defaults, numbers by floats, so that equal runs are equal."""
        defaults = {field.name: field.default for field in fields(self)}
        weighting = WEIGHTINGS[self.weighting]
        unused = {name for other in WEIGHTINGS.values() for name in other.settings} - set(weighting.settings)
        unused |= {name for other in MARGINS.values() for name in other.settings} - set(MARGINS[self.margin].settings)
        if self.nuisance == "none":
            unused |= {"conflicts"}
        if weighting.is_uniform:
            unused |= {"start"}
        if self.loss != "focal":
            unused |= {"gamma"}
        if self.signal != "eval":
            unused |= {"clean_part"}
        if self.scenario == "offline":
            unused |= {"fraction"}
        if self.scenario != "stream":
            unused |= {"stream", "period", "memory", "threshold"}
            if self.fuse != "ema" and weighting.uses_ages and self.rho != 0.0:  # a mean or a maximum has no rate
                unused |= {"rho"}
        else:
            unused |= {"fuse", "period" if self.stream == "access" else "fraction"}  # class ages are always smoothed
        if self.imbalance is None:
            unused |= {"profile"}
        canonical: dict[str, Value] = {name: defaults[name] for name in unused}  # type: ignore[misc]
        for name, default in defaults.items():  # 50 and 50.0 must not give two ids
            value = getattr(self, name)
            real = isinstance(default, float) or name in ("threshold", "warmup")
            if name not in unused and value is not None and real and not isinstance(value, str):
                canonical[name] = float(value)
        if self.threshold == "median":
            canonical["threshold"] = None
        if self.schedule == "fixed":
            canonical["warmup"] = 0.0
        elif self.warmup is None:
            canonical["warmup"] = self.epochs / 40
        if self.divide_by == "auto":  # as in the paper's released code
            canonical["divide_by"] = _usual_divisor(self.loss)
        return canonical

    def as_dict(self) -> dict[str, Value]:
        """Return every setting by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @cached_property
    def run_id(self) -> str:
        """A name that follows from the settings alone.

        Settings at their defaults do not enter, so that adding a setting changes no id.
        """
        defaults = {field.name: field.default for field in fields(self)} | {"warmup": 5.0}  # the default of 0.1.0
        changed = {name: value for name, value in self.as_dict().items() if value != defaults[name]}
        if self.warmup is not None and self.warmup.is_integer() and "warmup" in changed:
            changed["warmup"] = int(self.warmup)  # as in 0.1.0
        text = json.dumps(changed, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    @property
    def method(self) -> str:
        """A short name of the method: weighting, margin, mechanism and loss; the same for all seeds.

        >>> Settings(weighting="cb+aol", rho=0.3, mechanism="resample", loss="sigmoid").method
        'cb+aol β=0.9999 ρ=0.3 class resample sigmoid'
        >>> Settings(margin="age", gain=0.05).method
        'margin age k=0.05'
        """
        weighting, margin = WEIGHTINGS[self.weighting], MARGINS[self.margin]
        words = [self.weighting]
        for name in weighting.settings:
            value = getattr(self, name)
            if name == "rho" and self.fuse != "ema" and weighting.uses_ages and self.rho != 0.0:
                words.append(self.fuse)
            elif name == "factor":
                words.append(f"×{value:g}" if value else "balanced")
            elif name == "threshold":
                words += [] if value is None else [f"τ={value if isinstance(value, str) else f'{value:g}'}"]
            elif isinstance(value, str):
                words.append(value)
            elif name != "temper" or value != 1.0:
                words.append(f"{_SYMBOLS.get(name, name)}={value:g}")
        if self.start:
            words.append(f"from {self.start:g}")
        if self.margin != "none":
            words = [] if weighting.is_uniform else [*words, "+"]
            used = {name: value for name in margin.settings if (value := getattr(self, name)) is not None}
            words += ["margin", self.margin, *(f"{_SYMBOLS[name]}={value:g}" for name, value in used.items())]
        if self.mechanism != "reweight":
            words.append(self.mechanism)
        if self.loss != "softmax":
            words.append(self.loss)
        if self.loss == "focal":
            words.append(f"γ={self.gamma:g}")
        if self.divide_by != _usual_divisor(self.loss):
            words.append(f"divided by {self.divide_by}")
        return " ".join(words)

    @property
    def baseline(self) -> str:
        """The method of the runs that this one is compared with: neither weights nor margins, the same loss.

        >>> Settings(weighting="aol", margin="age", loss="sigmoid").baseline
        'none sigmoid'
        """
        return replace(self, weighting="none", margin="none", mechanism="reweight").method

    @property
    def changes_data(self) -> bool:
        """Whether images or labels are changed after they are read."""
        return self.nuisance != "none" or self.noise > 0.0

    @property
    def moves_margins_once_an_epoch(self) -> bool:
        """Whether margins from answers move at the end of each epoch, and not every few steps."""
        return MARGINS[self.margin].signal is not None and self.margin_steps is None and self.scenario != "stream"

    @property
    def first_weighted_epoch(self) -> int:
        """The epoch, or step, from which on weights are used, counted from zero: `start` of all, at most the last.

        >>> Settings(weighting="cb", start=0.8, epochs=200).first_weighted_epoch
        160
        """
        return min(round(self.start * self.epochs), self.epochs - 1)

    @cached_property
    def group_key(self) -> tuple[tuple[str, Value], ...]:
        """What runs must have in common to be trained as one network."""
        return tuple((name, value) for name, value in self.as_dict().items() if name not in PER_RUN)


def _usual_divisor(loss: str) -> str:
    return "weight" if loss == "softmax" else "count"


def word(value: Value) -> str:
    """Return the value of a setting as the command line takes it.

    >>> word(200.0), word(None), word(True), word("all")
    ('200', 'none', 'true', 'all')
    """
    if not isinstance(value, float):
        return "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    short = f"{value:g}"
    return short if float(short) == value else repr(value)


def memory_capacity(memory: str) -> int | None:
    """Return the capacity of "reservoir:K"; None for "all" and "none".

    >>> memory_capacity("reservoir:10000")
    10000
    """
    if memory in ("all", "none"):
        return None
    kind, _, size = memory.partition(":")
    if kind != "reservoir" or not size.isdecimal() or int(size) < 1:
        raise ValueError(f"memory must be 'all', 'none' or 'reservoir:K' with K of 1 or more, not {memory!r}.")
    return int(size)


def grid(common: Mapping[str, Value], **varied: Sequence[Value]) -> list[Settings]:
    """Return one `Settings` for every combination of the varied values, without duplicates.

    >>> [run.method for run in grid({}, weighting=["none", "aol"], rho=[0.1, 0.9])]
    ['none', 'aol ρ=0.1 class', 'aol ρ=0.9 class']
    """
    known = {field.name for field in fields(Settings)}
    for name in (*common, *varied):
        if name not in known:
            raise WrongSettingsError(f"There is no setting called {name!r}.")
    for name, values in varied.items():
        if not values:
            raise WrongSettingsError(f"{name} must have at least one value.")
    base: dict[str, Value] = dict(common)
    runs = []
    for values in itertools.product(*varied.values()):
        named = base | dict(zip(varied, values, strict=True))
        runs.append(Settings(**named))  # type: ignore[arg-type]
    return list(dict.fromkeys(runs))


def groups(runs: Iterable[Settings], most: int) -> list[list[Settings]]:
    """Group runs that can be trained as one network, at most `most` together and about equally many in each.

    >>> [len(group) for group in groups(grid({}, seed=range(10)), most=4)]
    [4, 3, 3]
    """
    by_key: dict[object, list[Settings]] = {}
    for run in runs:
        by_key.setdefault(run.group_key, []).append(run)
    result = []
    for group in by_key.values():
        parts = -(-len(group) // most)
        sizes = [len(group) // parts + (part < len(group) % parts) for part in range(parts)]
        ends = list(itertools.accumulate(sizes))
        result += [group[end - size : end] for end, size in zip(ends, sizes, strict=True)]
    return result
