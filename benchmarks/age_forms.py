"""Forms of age and simpler weights: products of powers of signals, used instead of the engine's weights.

    w_c ∝ ∏_s s_c^{k_s},  s one of: 1 / n_c, the smoothed age, the smoothed error rate, or a function of these

`like` keeps the direction of a form with the strength of another: the spread of the logarithms of its weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from aol.ages import ClassAges
from aol.ages.rules import mean_one
from aol.lab.engine import OfflineLoop, Settings, StreamLoop
from aol.lab.engine.run_weights import RunWeights
from aol.weights import class_balanced_weight

Factor: TypeAlias = tuple[str, float]
LEAST = 0.01  # of a weight, where its logarithm is taken
CAP = 3.0
BETA = 0.99


@dataclass(frozen=True)
class Form:
    """One form of class weights: signals with their powers, the rate of the EMA, and the form whose strength it has."""

    factors: tuple[Factor, ...] = ()
    rho: float = 0.3
    like: tuple[Factor, ...] = ()
    level: str = "class"

    @property
    def name(self) -> str:
        """The name in the record.

        >>> Form((("frequency", 0.5), ("age", 1.0)), like=(("error", 1.0),)).name
        'frequency^-0.5 × age, ρ=0.3, strength of error'
        """
        if not self.factors:
            return "none"
        words = _product(self.factors)
        if any(signal not in ("frequency", "cb") for signal, _ in self.factors):
            words += f", ρ={self.rho:g}"
        return words + (f", strength of {_product(self.like)}" if self.like else "")

    def settings(self, common: Settings) -> dict[str, object]:
        """Return the settings for the engine: rate and level."""
        return common.as_dict() | {"weighting": "aol", "rho": self.rho, "level": self.level}


def _product(factors: tuple[Factor, ...]) -> str:
    words = []
    for signal, power in factors:
        shown = -power if signal == "frequency" else power
        words.append(signal if shown == 1.0 else f"{signal}^{shown:g}")
    return " × ".join(words)


class FormWeighting(RunWeights):
    """The weights of R runs, each by its own form."""

    def __init__(self, forms: list[Form], loop: OfflineLoop | StreamLoop) -> None:
        super().__init__(loop.runs, loop.device)
        self._forms, self._loop = forms, loop
        self._soft = torch.ones((len(forms), loop.num_classes), dtype=torch.float64)
        self._below = torch.zeros_like(self._soft)  # steps of a stream at which a class was below the threshold
        self.shift = [1 + run.seed % (loop.num_classes - 1) for run in loop.runs]

    def by_class(self, counts: Tensor, age_weight: Tensor, error_weight: Tensor, *, epoch: int) -> Tensor:
        """Return class weights `float32 [R, C]`."""
        signals = self._signals(counts)
        rows = []
        for row, form in enumerate(self._forms):
            own = {name: values[row] for name, values in signals.items()}
            if form.level == "sample":  # `by_sample` brings the sample's own age in
                rows.append(weight_of(tuple(f for f in form.factors if f[0] != "sample age"), own))
            else:
                rows.append(weight_of(form.factors, own, form.like))
        return torch.stack(rows)

    def _signals(self, counts: Tensor) -> dict[str, Tensor]:
        """Return every signal `float64 [R, C]`, NaN where a class has none yet."""
        loop, shape = self._loop, self._soft.shape
        ages = loop.ages
        age = (ages.ema if isinstance(ages, ClassAges) else ages.class_age).double()
        if loop.epoch == 0:
            age = torch.ones(shape, dtype=torch.float64)
        error = loop.error_rates.error_rate.double()
        # The age after so many epochs, were each answer wrong by lot at this rate: 1 + ε + ε² + … + ε^epochs.
        rate = error.clamp_max(1 - 1e-6)
        expected = usual = (1 - rate ** (loop.epoch + 1)) / (1 - rate)
        if isinstance(ages, ClassAges):
            if loop.epoch:
                wrong = 1 - ages.accuracy
                self._soft = torch.where(wrong.isnan(), self._soft, 1 + wrong * self._soft)
                self._below += ages.age > 1
            usual = (loop.epoch + 2) / (loop.epoch + 1 - self._below)  # here it is steps below the threshold that count
        number = counts.double().expand(shape)
        return {
            "frequency": (1 / number).masked_fill(number == 0, torch.nan),
            "cb": class_balanced_weight(counts, BETA).double().expand(shape),
            "age": age,
            "log age": 1 + age.log(),
            "capped age": age.clamp_max(CAP),
            "soft age": self._soft,
            "wrong class's age": torch.stack([row.roll(by) for row, by in zip(age, self.shift, strict=True)]),
            "error": error,
            "expected age": expected,
            "persistence": age / usual,
        }


def weight_of(factors: tuple[Factor, ...], signals: dict[str, Tensor], like: tuple[Factor, ...] = ()) -> Tensor:
    """Return the weights `float32 [C]` of a product of powers, of mean one; a class without a signal counts as average.

    >>> weight_of((("age", 0.5),), {"age": torch.tensor([1.0, 9.0, torch.nan])})
    tensor([0.5000, 1.5000, 1.0000])
    """
    some = next(iter(signals.values()))
    product = torch.ones_like(some, dtype=torch.float64)
    for signal, power in factors:
        product = product * mean_one(signals[signal] ** power).double()
    weight = mean_one(product)
    if not like:
        return weight
    return at_strength(weight, spread(weight_of(like, signals)))


def _log(weight: Tensor) -> Tensor:
    return weight.double().clamp_min(LEAST).log()


def spread(weight: Tensor) -> float:
    """Return the standard deviation of the logarithms of the weights.

    >>> round(spread(torch.tensor([0.5, 2.0])), 3)
    0.693
    """
    return float(_log(weight).std(correction=0))


def at_strength(weight: Tensor, wanted: float) -> Tensor:
    """Return weights with their logarithms scaled to another spread.

    >>> at_strength(torch.tensor([0.5, 1.5]), 0.0)
    tensor([1., 1.])
    """
    log = _log(weight)
    own = spread(weight)
    if own < 1e-6:  # nothing stands out, so there is no direction to go
        return torch.ones_like(weight)
    return mean_one(torch.exp((log - log.mean()) * (wanted / own)))
