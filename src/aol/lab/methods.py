"""The weightings and margins by name: what each computes, which settings it uses, and one line of help.

To add a weighting, write a function from `Inputs` to weights and add a line to `WEIGHTINGS`: settings, command line,
method names and tables read it from there. Torch is imported only when weights are computed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import aol

if TYPE_CHECKING:
    from torch import Tensor

    from aol.ages import SampleAges


@dataclass(frozen=True)
class Inputs:
    """What weights are computed from. A row is a run."""

    runs: Sequence[Any]  # the settings of each run
    counts: Tensor  # training samples of each class, [C] or [R, C]
    age: Tensor  # class weights from ages, [R, C]; ones for runs whose samples get weights of their own
    error: Tensor  # class weights from smoothed error rates, [R, C]
    ages: SampleAges | None = None  # of the N training samples; None on a stream
    signals: Any = None  # SampleSignals, what else is remembered of them, [R, N] each; None unless a run needs it

    def setting(self, name: str) -> Tensor:
        """Return a numeric setting of every run, `float64 [R]`."""
        import torch

        return torch.tensor([getattr(run, name) for run in self.runs], dtype=torch.float64, device=self.age.device)


Rule = Callable[[Inputs], "Tensor"]


@dataclass(frozen=True)
class Weighting:
    """A rule for weights: the product of its factors, tempered and scaled to mean one.

    `sample` gives weights of samples, `[R, N]`; a run uses it in addition to the factors at level="sample", or always
    if the weighting has no level.
    """

    factors: tuple[Rule, ...]  # functions from Inputs to class weights, [C] or [R, C]
    settings: tuple[str, ...]  # that it uses, in the order in which a method's name shows them
    needs_answers: bool  # earlier right and wrong answers
    help: str
    sample: Rule | None = None
    remembers: bool = False  # `sample` needs `Inputs.signals`
    needs_loss: bool = False  # of each sample

    @property
    def uses_ages(self) -> bool:
        """Whether ages enter, by class or by sample."""
        return "level" in self.settings

    @property
    def is_uniform(self) -> bool:
        """Whether all weights are always one."""
        return not self.factors and self.sample is None

    def by_sample(self, level: str) -> bool:
        """Whether samples have weights of their own, at this level."""
        return self.sample is not None and (level == "sample" or not self.uses_ages)


def _balanced(inputs: Inputs) -> Tensor:
    return aol.class_balanced_weight(inputs.counts, inputs.setting("beta"))


def _frequency(inputs: Inputs) -> Tensor:
    return aol.frequency_weight(inputs.counts, inputs.setting("power"))


def _old(inputs: Inputs) -> Tensor:
    """Of samples that were ever wrong `after` times in a row."""
    return _in_set(inputs, inputs.signals.peak > inputs.setting("after")[:, None])


def _twice(inputs: Inputs) -> Tensor:
    """Of samples that were wrong at the end of epoch `after`, from the next epoch on."""
    return _in_set(inputs, inputs.signals.marked)


def _signal(name: str) -> Rule:
    """Return the rule of weights in proportion to one of `SampleSignals`."""

    def weights(inputs: Inputs) -> Tensor:
        from aol.ages import mean_one

        return mean_one(getattr(inputs.signals, name))

    return weights


def _in_set(inputs: Inputs, member: Tensor) -> Tensor:
    """Return the weights of a set by the setting `factor`; where that is 0, the set is balanced with the others."""
    factor = inputs.setting("factor")
    return aol.set_weight(member).where(factor[:, None] == 0, aol.set_weight(member, factor))


_age, _error, _sample_age = (attrgetter(name) for name in ("age", "error", "ages.sample_weight"))
_SET = ("after", "factor")
_AGE = ("rho", "level", "threshold", "temper")
WEIGHTINGS = {
    "none": Weighting((), (), False, "all weights are one"),
    "cb": Weighting((_balanced,), ("beta", "temper"), False, "class-balanced: inverse effective number"),
    "aol": Weighting((_age,), _AGE, True, "age of learning", _sample_age),
    "cb+aol": Weighting((_balanced, _age), ("beta", *_AGE), True, "product of cb and aol", _sample_age),
    "frequency": Weighting((_frequency,), ("power", "temper"), False, "inverse class frequency to a power"),
    "error": Weighting((_error,), ("rho", "temper"), True, "smoothed error rate of each class"),
    "old": Weighting((), _SET, True, "a factor on samples once wrong --after times in a row", _old, True),
    "jtt": Weighting((), _SET, True, "just train twice: a factor on samples wrong at epoch --after", _twice, True),
    "sample-error": Weighting((), ("temper",), True, "mean error rate of each sample", _signal("error_rate"), True),
    "sample-loss": Weighting((), ("temper",), True, "last loss of each sample", _signal("loss"), True, needs_loss=True),
    "aol-seen": Weighting((), ("rho",), False, "age of learning by the answers in training, as aol.AgeWeightedLoss"),
}


@dataclass(frozen=True)
class Margin:
    """A rule for the offsets of logits in training."""

    title: str  # in the name of a method
    settings: tuple[str, ...]  # that it uses, in the order in which a method's name shows them
    signal: str | None  # what errors count in aol.Margins; None for offsets that do not depend on answers
    help: str


_SPEED = ("gain", "tau", "margin_steps")
MARGINS = {
    "none": Margin("", (), None, "no margins"),
    "counts": Margin(
        "logit adjustment", ("tau",), None, "from class counts (logit adjustment; --tau 1 is the balanced softmax)"
    ),
    "counts-seen": Margin(
        "logit adjustment by labels seen", ("tau", "margin_memory"), None, "from labels seen: aol.LogitAdjustedLoss"
    ),
    "probability-seen": Margin(
        "margins by probabilities seen", ("tau", "margin_steps"), None, "from probabilities seen: aol.MarginLoss"
    ),
    "probability": Margin(
        "margins by probability", _SPEED, "probability", "classes missed more than wrongly named get margin; no counts"
    ),
    "error": Margin("margins by error", ("gain", "margin_steps"), "error", "the same, from wrong answers instead"),
    "age": Margin("margins by age", ("gain", "margin_steps"), "age", "the same, from how long answers have been wrong"),
}
