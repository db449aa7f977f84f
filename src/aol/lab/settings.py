"""The settings of a run, checked; grids of them; and which runs can be trained as one group.

One table: the fields of `Settings`, each with its default, help text, group of flags and allowed values, from which the
checks, the command line and the docs are made. Imports no torch. Equal `Settings` are the same run, with one `run_id`.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, partial
from typing import Any, TypeAlias

from aol import _values as _check
from aol.lab.methods import MARGINS as MARGINS
from aol.lab.methods import WEIGHTINGS as WEIGHTINGS
from aol.lab.nets.registry import NETWORKS, is_external
from aol.records import METHOD_SETTINGS

Value: TypeAlias = str | float | int | bool | None

# What may differ between the runs of a group: all of a method, but whether the head is trained alone.
PER_RUN = tuple(name for name in METHOD_SETTINGS if name not in ("retrain", "smoothing"))
# In the name of a method.
SYMBOLS = {"beta": "β", "gamma": "γ", "power": "p", "rho": "ρ", "threshold": "τ"}
_OF_MARGINS = {"gain": "gain {}", "margin_memory": "last {} labels", "margin_steps": "every {} steps", "tau": "τ = {}"}


class WrongSettingsError(ValueError):
    """A setting, or a combination of settings, that is not possible; the message names it."""


def _setting(group: str, default: Value, text: str, **rules: Any) -> Any:
    """Return a field of a group of flags, with its help text.

    `rules`: `choices`, or the bounds `low` and `high` of a number, of which `open` ("low" or "high") is not allowed
    itself, and `words` that are possible instead; `stream`: for streams only.
    """
    for name in ("choices", "words"):
        text = text.replace(f"{{{name}}}", ", ".join(rules.get(name, ())))
    return field(default=default, metadata={"group": group, "help": text, **rules})


_data = partial(_setting, "data")
_train = partial(_setting, "network and optimisation")
_rule = partial(_setting, "errors and imbalance")
_share = {"low": 0.0, "high": 1.0}
_positive = {"low": 0.0, "high": 1e6}


@dataclass(frozen=True)
class Settings:
    """All settings of one run. Units: epochs, samples, fractions; the rate is per step.

    >>> Settings(weighting="aol", rho=0.3).run_id == Settings(weighting="aol", rho=0.3, beta=0.5).run_id
    True
    """

    # fmt: off
    scenario: str = field(default="offline", metadata={"choices": ("offline", "arrival", "stream")})
    data: str = _data("digits", "digits, fashion-mnist, cifar10, cifar100; a folder of images by class; "
        "hf:NAME_OR_FOLDER (Hugging Face datasets)")
    image_size: int | None = _data(None, "crop large images to this many pixels a side (default: 224)", low=1)
    imbalance: float | None = _data(50.0, "size of the largest class over that of the smallest; 'none' keeps the set",
        low=1.0, high=1e9)
    validation: float = _data(0.0, "fraction of each class to hold out for validation, 0 to 1", **_share, open="high")
    samples: int | None = _data(None, "train on this many samples only, of each class its share; 'none' for all", low=1)
    nuisance: str = _data("none", "what gives the class away in all but a few training images: {choices}",
        choices=("none", "tint", "patch"))
    conflicts: float = _data(0.02, "share of the training images whose nuisance is that of another class", **_share,
        open="high")
    noise: float = _data(0.0, "share of the training labels to replace by others", **_share, open="high")
    fraction: float = _data(1.0, "fraction of the set that is there in each epoch or step", **_share, open="low")
    stream: str = _data("shifting", "shifting (a long tail whose head moves), access (a fraction of the set each step)",
        choices=("access", "shifting"), stream=True)
    period: int = _data(10, "steps between two orders of the classes", low=1, stream=True)
    memory: str = _data("all", "samples to keep: all, none, or reservoir:K", stream=True)

    net: str = _train("auto", "{choices}, timm:NAME, MODULE:FUNCTION (your own); auto: by the size of the images",
        choices=("auto", *NETWORKS), external=("timm:NAME", "MODULE:FUNCTION"))
    epochs: int = _train(30, "passes over the data, or steps of a stream", low=1)
    batch_size: int = _train(128, "samples in a batch", low=1)
    lr: float = _train(0.1, "learning rate", **_positive)
    momentum: float = _train(0.9, "of SGD", **_share)
    weight_decay: float = _train(2e-4, "strength of weight decay", **_positive)
    schedule: str = _train("paper", "paper (warm-up, 1/100 at 80 % and 1/10000 at 90 % of the epochs), cosine, fixed",
        choices=("paper", "cosine", "fixed"))
    warmup: float | None = _train(None, "epochs of linear warm-up, 0.5 for half of one", **_positive)  # None: 2.5 %
    precision: str = _train("fp32", "{choices}", choices=("fp32", "bf16"))
    normalisation: str = _train("centred", "centred (as in the paper) or standardised pixels (mean and standard "
        "deviation)", choices=("centred", "standardised"))
    augment: bool = _train(True, "random crops and flips in training: true, false")
    mixup: float = _train(0.0, "train on mixtures of two images and their labels: α of the Beta distribution of their "
        "shares, 1 is usual; 0 for none", **_positive)
    retrain: int = _train(0, "in so many last epochs, train the last layer only, on smoothed labels (label "
        "over-smoothing; 20 are usual)", low=0)
    smoothing: float = _train(0.98, "of labels in these epochs", **_share)

    weighting: str = _rule("none", "; ".join(f"{name}: {rule.help}" for name, rule in WEIGHTINGS.items()),
        choices=WEIGHTINGS.keys())
    rho: float = _rule(0.5, "smoothing rate of ages (or error rates), 0 to 1; 0 gives uniform weights", **_share)
    beta: float = _rule(0.9999, "of class-balanced weights (cb), 0 to 1", **_share, open="high")
    power: float = _rule(0.5, "of frequency weights: count ** -power", **_positive)
    temper: float = _rule(1.0, "weights ** temper", **_positive)
    level: str = _rule("class", "weights by class or by sample: {choices}", choices=("class", "sample"))
    after: int = _rule(5, "of old: wrong answers in a row; of jtt: the epoch whose wrong answers count", low=1)
    factor: float = _rule(0.0, "of old and jtt: factor on the weight of these samples; 0 gives them half of the total "
        "weight", **_positive)
    fuse: str = _rule("ema", "how the ages of a sample over time become one number: {choices}", choices=("ema", "peak"))
    mechanism: str = _rule("reweight", "weights in the loss (reweight) or in sampling (resample)",
        choices=("reweight", "resample"))
    loss: str = _rule("softmax", "{choices}", choices=("softmax", "sigmoid", "focal"))
    gamma: float = _rule(1.0, "of the focal loss", **_positive)
    divide_by: str = _rule("auto", "weighted losses are divided by weight, by count, or auto (as in the paper's code)",
        choices=("auto", "weight", "count"))
    start: float = _rule(0.0, "share of the epochs before which all weights are one: 0.8 weights the last fifth",
        **_share, open="high")
    signal: str = _rule("eval", "where answers come from: a clean pass afterwards (eval), the training pass (train, no "
        "extra cost), a pass over what a step shows, before training on it (before: streams and arrivals), none",
        choices=("eval", "train", "before", "none"))
    margin: str = _rule("none", "; ".join(f"{name}: {rule.help}" for name, rule in MARGINS.items()),
        choices=MARGINS.keys())
    tau: float = _rule(1.0, "strength of margins from class counts or from probabilities", **_positive)
    margin_memory: int | None = _rule(None, "labels that counts-seen counts, where frequent classes change: about a "
        "twentieth of those between two changes (default: all)", low=1)
    gain: float = _rule(0.1, "speed of margins from answers, each time that they move", low=0.0, high=1e3)
    margin_steps: int | None = _rule(None, "move margins after so many training steps, by the answers in training; a "
        "hundredth of all steps for fewer than 30 epochs (default: once per epoch or step of a stream, by --signal; "
        "10 steps for probability-seen)", low=1)
    threshold: float | str | None = _rule(None, "accuracy below which a class grows older: a number, or {words} of the "
        "classes; positive-median is never 0 (default: median)", **_share, words=_check.THRESHOLDS, stream=True)

    seed: int = _data(0, "of data, network and order: 0, 0,1,2 or 0-4", low=0)
    eval_every: int = _train(1, "epochs between two evaluations on the test set", low=1)
    # fmt: on

    def __post_init__(self) -> None:
        try:
            for option in fields(self):
                value = getattr(self, option.name)
                if value is not option.default:
                    check_value(option.name, value, str(option.type), option.metadata)
            self._check_combinations()
        except (TypeError, ValueError) as error:
            raise WrongSettingsError(str(error)) from error
        for name, value in self._canonical().items():
            object.__setattr__(self, name, value)

    def _check_combinations(self) -> None:
        memory_capacity(self.memory)
        weighting, of_answers = WEIGHTINGS[self.weighting], MARGINS[self.margin].signal is not None
        stream, blind, mixed = self.scenario == "stream", self.signal == "none", f"mixup={self.mixup:g} is not possible"
        signal, rule, margin = (f"{name}={getattr(self, name)!r}" for name in ("signal", "weighting", "margin"))
        by_sample = f"level={self.level!r}" if weighting.uses_ages else rule
        plain = {"scenario": "offline", "weighting": "none", "margin": "none", "loss": "softmax"}
        other = [f"{name}={value!r}" for name, value in plain.items() if getattr(self, name) != value]
        # fmt: off
        wrong = {
            f"{signal} tracks no ages, which {rule} needs.": weighting.needs_answers and blind,
            f"{signal} has no answers, which {margin} needs; or give margin_steps.":
                of_answers and blind and self.margin_steps is None,
            f"{signal} is for streams and arrivals: offline, every sample was trained on before.":
                self.signal == "before" and self.scenario == "offline",
            f"{signal} knows no losses, which {rule} needs.": weighting.needs_loss and self.signal == "train",
            f"{mixed} with signal='train' or margin_steps: answers to mixtures are not right or wrong.":
                self.mixup and (self.signal == "train" or (of_answers and self.margin_steps)),
            "mechanism='resample' is not possible with weighting='aol-seen', which weights the loss.":
                self.weighting == "aol-seen" and self.mechanism == "resample",
            f"retrain={self.retrain} needs {(*other, '')[0]}.": self.retrain and other,
            f"retrain must be fewer than all {self.epochs} epochs, not {self.retrain}.":
                self.retrain and self.retrain >= self.epochs,
            f"{by_sample} is not possible on a stream, where samples do not come back.":
                stream and weighting.by_sample(self.level),
            "imbalance must be given for stream='shifting'.":
                stream and self.stream == "shifting" and self.imbalance is None,
        }
        # fmt: on
        for text in (text for text, condition in wrong.items() if condition):
            raise ValueError(text)

    def _canonical(self) -> dict[str, Value]:
        """Return settings to replace, unused ones by defaults, numbers by floats, so that equal runs are equal."""
        weighting, stream = WEIGHTINGS[self.weighting], self.scenario == "stream"
        unused = _OF_METHODS - {*weighting.settings, *MARGINS[self.margin].settings}
        for unset, without in (
            (("conflicts",), self.nuisance == "none"),
            (("start",), weighting.is_uniform),
            (("gamma",), self.loss != "focal"),
            (("fraction",), self.scenario == "offline" or (stream and self.stream == "shifting")),
            (("stream", "period", "memory", "threshold"), not stream),
            (("fuse",), stream),  # class ages are always smoothed
            (("period",), self.stream == "access"),
            (("rho",), not stream and self._fuses_without_rate),
            (("smoothing",), not self.retrain),
        ):
            if without:
                unused.update(unset)
        canonical = {name: _DEFAULTS[name] for name in unused}
        for name in _REAL - unused:  # 50 and 50.0 must not give two ids
            value = getattr(self, name)
            if isinstance(value, int):
                canonical[name] = float(value)
        if self.threshold == "median":
            canonical["threshold"] = None
        if self.schedule == "fixed":
            canonical["warmup"] = 0.0
        elif self.warmup is None:
            canonical["warmup"] = (self.epochs - self.retrain) / 40
        if self.margin == "probability-seen" and self.margin_steps is None:
            canonical["margin_steps"] = 10
        if self.divide_by == "auto":  # as in the paper's released code
            canonical["divide_by"] = _usual_divisor(self.loss)
        return canonical

    @property
    def _fuses_without_rate(self) -> bool:
        """Whether ages become one number by their maximum, which has no smoothing rate."""
        return self.fuse != "ema" and WEIGHTINGS[self.weighting].uses_ages and self.rho != 0.0

    def as_dict(self) -> dict[str, Value]:
        """Return every setting by name."""
        return {name: getattr(self, name) for name in _DEFAULTS}

    @cached_property
    def run_id(self) -> str:
        """A name that follows from the settings alone.

        Settings at their defaults do not enter, so that adding a setting, or removing an unused one, changes no id.
        """
        defaults = {**_DEFAULTS, "warmup": 5.0}  # the default of 0.1.0
        changed = {name: value for name, value in self.as_dict().items() if value != defaults[name]}
        if self.warmup is not None and self.warmup.is_integer() and "warmup" in changed:
            changed["warmup"] = int(self.warmup)  # as in 0.1.0
        return hashlib.sha256(json.dumps(changed, sort_keys=True).encode()).hexdigest()[:12]

    @property
    def method(self) -> str:
        """A short name of the method: weighting, margin, mechanism and loss; the same for all seeds.

        >>> Settings(weighting="cb+aol", rho=0.3, mechanism="resample", loss="sigmoid").method
        'cb+aol β=0.9999 ρ=0.3 class resample sigmoid'
        >>> Settings(margin="age", gain=0.05).method
        'margins by age (gain 0.05)'
        """
        words = [self.weighting]
        for name in WEIGHTINGS[self.weighting].settings:
            value = getattr(self, name)
            if name == "rho" and self._fuses_without_rate:
                words.append(self.fuse)
            elif name == "factor":
                words.append(f"×{value:g}" if value else "balanced")
            elif isinstance(value, str) and name != "threshold":
                words.append(value)
            elif value is not None and (name != "temper" or value != 1.0):
                words.append(f"{SYMBOLS.get(name, name)}={word(value)}")
        words += [f"from {word(self.start)}"] if self.start else []
        parts = []
        if self.margin != "none":
            values = {name: getattr(self, name) for name in MARGINS[self.margin].settings}
            told = [_OF_MARGINS[name].format(word(value)) for name, value in values.items() if value is not None]
            parts.append(f"{MARGINS[self.margin].title} ({', '.join(told)})")
        parts += [f"mixup (α = {word(self.mixup)})"] if self.mixup else []
        parts += [f"over-smoothing ({self.retrain} epochs, {word(self.smoothing)})"] if self.retrain else []
        if self.weighting != "none" or not parts:
            parts.insert(0, " ".join(words))
        end = [self.mechanism] if self.mechanism != "reweight" else []
        end += [self.loss] if self.loss != "softmax" else []
        end += [f"γ={word(self.gamma)}"] if self.loss == "focal" else []
        end += [f"divided by {self.divide_by}"] if self.divide_by != _usual_divisor(self.loss) else []
        return " ".join([" + ".join(parts), *end])

    @property
    def baseline(self) -> str:
        """The method of the runs that this one is compared with: no weights, margins, mixtures, the same loss.

        >>> Settings(weighting="aol", margin="age", loss="sigmoid").baseline
        'none sigmoid'
        """
        return replace(self, weighting="none", margin="none", mechanism="reweight", mixup=0.0, retrain=0).method

    @property
    def changes_data(self) -> bool:
        """Whether images or labels are changed after they are read."""
        return self.nuisance != "none" or self.noise > 0.0

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


_DEFAULTS: Mapping[str, Any] = {option.name: option.default for option in fields(Settings)}
_REAL = {name for name, default in _DEFAULTS.items() if isinstance(default, float)} | {"threshold", "warmup"}
_OF_METHODS = {name for table in (WEIGHTINGS, MARGINS) for rule in table.values() for name in rule.settings}


def check_value(name: str, value: object, kind: str, rules: Mapping[str, Any]) -> None:
    """Raise an error that names the setting, unless its value is allowed."""
    if "choices" in rules:
        if "external" in rules and isinstance(value, str) and is_external(value):
            return
        _check.choice(name, value, (*rules["choices"], *rules.get("external", ())))
    elif isinstance(value, str) and "words" in rules:
        _check.choice(name, value, rules["words"])
    elif kind == "str" and not isinstance(value, str):
        raise TypeError(f"{name} must be text, not {_check.shown(value)}.")
    elif kind == "bool" and not isinstance(value, bool):
        raise TypeError(f"{name} must be true or false, not {_check.shown(value)}.")
    elif value is None and kind.endswith("None"):
        return
    elif kind.startswith("int"):
        _check.whole(name, value, rules["low"])
    elif kind.startswith("float"):
        _check.number(name, value, rules["low"], rules["high"], open_below=rules.get("open") == "low")
        if rules.get("open") == "high" and value == rules["high"]:
            raise ValueError(f"{name} must be a number in [{rules['low']:g}, {value:g}), not {value:g}.")


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
    combinations = (dict(zip(varied, values, strict=True)) for values in itertools.product(*varied.values()))
    return list(dict.fromkeys(Settings(**{**common, **values}) for values in combinations))  # type: ignore[arg-type]
