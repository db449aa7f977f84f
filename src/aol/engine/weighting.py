"""The weightings by name: what each computes, which settings it uses, and one line of help.

To add one, write a function from `Inputs` to class weights and add a line to `WEIGHTINGS`: settings, command line,
method names and documentation read it from there. This module imports torch only when weights are computed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from aol.engine.settings import Settings


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
        import torch

        return torch.tensor([getattr(run, name) for run in self.runs], dtype=torch.float64, device=self.age.device)


@dataclass(frozen=True)
class Weighting:
    """A rule for class weights: the product of its factors, tempered and scaled to mean one.

    Args:
        factors: functions from `Inputs` to class weights `[C]` or `[R, C]`.
        settings: names of the settings it uses, in the order in which a method's name shows them.
        needs_answers: whether it uses earlier right and wrong answers.
        help: one line for help texts and documentation.
    """

    factors: tuple[Callable[[Inputs], Tensor], ...]
    settings: tuple[str, ...]
    needs_answers: bool
    help: str

    @property
    def uses_ages(self) -> bool:
        """Whether ages enter, by class or by sample."""
        return "level" in self.settings


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


WEIGHTINGS = {
    "none": Weighting((), (), False, "all weights are one"),
    "cb": Weighting((class_balanced,), ("beta", "temper"), False, "class-balanced: inverse effective number"),
    "aol": Weighting((age,), ("rho", "level", "threshold", "temper"), True, "age of learning"),
    "cb+aol": Weighting(
        (class_balanced, age), ("beta", "rho", "level", "threshold", "temper"), True, "product of cb and aol"
    ),
    "frequency": Weighting((frequency,), ("power", "temper"), False, "inverse class frequency to a power"),
    "error": Weighting((error,), ("rho", "temper"), True, "smoothed error rate of each class"),
}
FROM_ANSWERS = tuple(name for name, weighting in WEIGHTINGS.items() if weighting.needs_answers)
