"""The weightings by name: what each computes, which settings it uses, and one line of help.

To add one, write a function from `Inputs` to class weights, or from `SampleInputs` to sample weights, and add a line to
`WEIGHTINGS`: settings, command line, method names and documentation read it from there. This module imports torch only
when weights are computed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from aol.ages import SampleAges
    from aol.lab.engine.sample_signals import SampleSignals
    from aol.lab.settings import Settings


@dataclass(frozen=True)
class Inputs:
    """What class weights are computed from. A row is a run.

    Args:
        counts: training samples of each class, `[C]` or `[R, C]`.
        age: class weights from ages, `[R, C]`; ones for runs with level="sample", whose samples get their own.
        error: class weights from smoothed error rates, `[R, C]`.
        runs: the settings of each run.
    """

    counts: Tensor
    age: Tensor
    error: Tensor
    runs: Sequence[Settings]

    def setting(self, name: str) -> Tensor:
        """Return a numeric setting of every run, `float64 [R]`."""
        return _setting(self.runs, name, self.age.device)


@dataclass(frozen=True)
class SampleInputs:
    """What sample weights are computed from. A row is a run.

    Args:
        ages: ages of the N training samples.
        signals: what else is remembered of them; None unless a run needs it.
        runs: the settings of each run.
    """

    ages: SampleAges
    signals: SampleSignals | None
    runs: Sequence[Settings]

    def setting(self, name: str) -> Tensor:
        """Return a numeric setting of every run, `float64 [R]`."""
        return _setting(self.runs, name, self.ages.device)

    @property
    def remembered(self) -> SampleSignals:
        """The signals, which a weighting with `remembers=True` always has."""
        assert self.signals is not None
        return self.signals


def _setting(runs: Sequence[Settings], name: str, device: torch.device) -> Tensor:
    import torch

    return torch.tensor([getattr(run, name) for run in runs], dtype=torch.float64, device=device)


@dataclass(frozen=True)
class Weighting:
    """A rule for weights: the product of its factors, tempered and scaled to mean one.

    Args:
        factors: functions from `Inputs` to class weights `[C]` or `[R, C]`.
        settings: names of the settings it uses, in the order in which a method's name shows them.
        needs_answers: whether it uses earlier right and wrong answers.
        help: one line for help texts and documentation.
        sample: a function from `SampleInputs` to weights of samples, `[R, N]`; a run uses it in addition to the factors
            at level="sample", or always if the weighting has no level.
        remembers: whether `sample` needs `SampleInputs.signals`.
        needs_loss: whether it needs the loss of each sample.
    """

    factors: tuple[Callable[[Inputs], Tensor], ...]
    settings: tuple[str, ...]
    needs_answers: bool
    help: str
    sample: Callable[[SampleInputs], Tensor] | None = None
    remembers: bool = False
    needs_loss: bool = False

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


def class_balanced(inputs: Inputs) -> Tensor:
    """Inverse effective number of samples."""
    from aol.weights import class_balanced_weight

    return class_balanced_weight(inputs.counts, inputs.setting("beta"))


def frequency(inputs: Inputs) -> Tensor:
    """Inverse class frequency to a power."""
    from aol.weights import frequency_weight

    return frequency_weight(inputs.counts, inputs.setting("power"))


def age(inputs: Inputs) -> Tensor:
    """Smoothed age of each class."""
    return inputs.age


def error(inputs: Inputs) -> Tensor:
    """Smoothed error rate of each class."""
    return inputs.error


def sample_age(inputs: SampleInputs) -> Tensor:
    """Age of each sample over time, by `fuse`."""
    return inputs.ages.sample_weight


def sample_error(inputs: SampleInputs) -> Tensor:
    """Mean error rate of each sample, over all epochs so far."""
    from aol.ages.rules import mean_one

    return mean_one(inputs.remembered.error_rate)


def sample_loss(inputs: SampleInputs) -> Tensor:
    """Last loss of each sample."""
    from aol.ages.rules import mean_one

    return mean_one(inputs.remembered.loss)


def old(inputs: SampleInputs) -> Tensor:
    """Constant factor on samples that were ever wrong `after` times in a row."""
    return _in_set(inputs, inputs.remembered.peak > inputs.setting("after")[:, None])


def just_train_twice(inputs: SampleInputs) -> Tensor:
    """Constant factor on samples that were wrong at the end of epoch `after`, from the next epoch on."""
    return _in_set(inputs, inputs.remembered.marked)


def _in_set(inputs: SampleInputs, member: Tensor) -> Tensor:
    """Return the weights of a set by the setting `factor`; where that is 0, the set is balanced with the others."""
    import torch

    from aol.weights import set_weight

    factor = inputs.setting("factor")
    return torch.where(factor[:, None] == 0, set_weight(member), set_weight(member, factor))


_SET = ("after", "factor")
WEIGHTINGS = {
    "none": Weighting((), (), False, "all weights are one"),
    "cb": Weighting((class_balanced,), ("beta", "temper"), False, "class-balanced: inverse effective number"),
    "aol": Weighting((age,), ("rho", "level", "threshold", "temper"), True, "age of learning", sample_age),
    "cb+aol": Weighting(
        (class_balanced, age),
        ("beta", "rho", "level", "threshold", "temper"),
        True,
        "product of cb and aol",
        sample_age,
    ),
    "frequency": Weighting((frequency,), ("power", "temper"), False, "inverse class frequency to a power"),
    "error": Weighting((error,), ("rho", "temper"), True, "smoothed error rate of each class"),
    "old": Weighting((), _SET, True, "a factor on samples once wrong --after times in a row", old, True),
    "jtt": Weighting(
        (), _SET, True, "just train twice: a factor on samples wrong at epoch --after", just_train_twice, True
    ),
    "sample-error": Weighting((), ("temper",), True, "mean error rate of each sample", sample_error, True),
    "sample-loss": Weighting((), ("temper",), True, "last loss of each sample", sample_loss, True, needs_loss=True),
}
FROM_ANSWERS = tuple(name for name, weighting in WEIGHTINGS.items() if weighting.needs_answers)
