"""Ages of classes for River: a wrapper of any classifier, for streams whose hard classes change."""

from __future__ import annotations

import inspect
import random
from collections import Counter
from collections.abc import Hashable, Iterator
from typing import Any, TypeAlias

from aol import _check
from aol._need import explaining
from aol.class_ages import ClassAges, Threshold

with explaining("aol.plugins.river", "river"):
    from river import base, linear_model, multiclass, utils

Features: TypeAlias = dict[Hashable, object]


class AgedClassifier(base.Wrapper, base.Classifier):
    """Weights the samples of a stream by how long the accuracy of their class has been below a threshold.

    Ages and weights are those of `aol.ClassAges`, updated after every `step` samples; new classes start at age one.
    Learning a sample costs one extra prediction.

    Args:
        classifier: any classifier of River, or a pipeline that ends in one.
        step: samples between two updates of the ages.
        rho: smoothing rate of ages, in [0, 1]; 0 means weights of one.
        threshold: as in `aol.ClassAges`.
        seed: of the random draws; None for a random seed.

    Weights go to `learn_one` as `w`. A classifier that has none learns a sample a Poisson number of times with that
    mean, as with River's samplers, but the first sample of a class at least once.

    >>> from river import evaluate, linear_model, metrics, preprocessing, datasets
    >>> model = preprocessing.StandardScaler() | AgedClassifier(linear_model.LogisticRegression(), step=50)
    >>> evaluate.progressive_val_score(datasets.Phishing(), model, metrics.BalancedAccuracy())
    BalancedAccuracy: 89.15%
    >>> {label: round(age, 2) for label, age in model["AgedClassifier"].class_age.items()}
    {True: 1.59, False: 2.03}
    """

    def __init__(
        self,
        classifier: base.Classifier,
        step: int = 100,
        rho: float = 0.1,
        threshold: Threshold = "median",
        seed: int | None = None,
    ) -> None:
        if not isinstance(classifier, base.Classifier):
            raise TypeError(f"classifier must be a classifier of River, not {_check.shown(classifier)}.")
        self._ages = ClassAges(1, rho=_check.number("rho", rho, 0.0, 1.0), threshold=threshold)
        self.classifier, self.rho, self.threshold = classifier, rho, threshold
        self.step = _check.whole("step", step, 1)
        self.seed, self._reweigh = seed, _takes_weight(classifier)
        self._rng = random.Random(seed)
        self._place: dict[Hashable, int] = {}  # of the classes among the ages, in the order they came
        self._right: Counter[Hashable] = Counter()  # of the present step
        self._total: Counter[Hashable] = Counter()
        self._weight: dict[Hashable, float] = {}

    @property
    def class_age(self) -> dict[Hashable, float]:
        """The smoothed ages of the classes after the last complete step."""
        ages = self._ages.ema.tolist()
        return {label: ages[place] if place < len(ages) else 1.0 for label, place in self._place.items()}

    @property
    def class_weight(self) -> dict[Hashable, float]:
        """The current weights of the classes, with mean one over those of the last step."""
        return {label: self._weight.get(label, 1.0) for label in self._place}

    def predict_one(self, x: Features, **kwargs: Any) -> Hashable:
        """Return the prediction of the classifier."""
        return self.classifier.predict_one(x, **kwargs)

    def predict_proba_one(self, x: Features, **kwargs: Any) -> dict[Hashable, float]:
        """Return the probabilities of the classifier; weights shift them towards old classes."""
        return self.classifier.predict_proba_one(x, **kwargs)

    def learn_one(self, x: Features, y: Hashable, *, w: float = 1.0, **kwargs: Any) -> None:
        """Predict the sample, then learn it with the weight of its class, times `w`."""
        weight = _check.number("w", w, 0.0, 1e300) * self._weight.get(y, 1.0)
        answer = self.classifier.predict_one(x)
        if self._reweigh:
            self.classifier.learn_one(x, y, w=weight, **kwargs)
        else:
            for _ in range(self._times(weight, new=y not in self._place)):
                self.classifier.learn_one(x, y, **kwargs)
        self._place.setdefault(y, len(self._place))
        self._total[y] += 1
        self._right[y] += bool(answer == y)
        if self._total.total() == self.step:
            self._end_step()

    def _times(self, weight: float, *, new: bool) -> int:
        """Draw how often a sample is learned; the first one of a new class at least once."""
        drawn = utils.random.poisson(weight, rng=self._rng) if weight < 500 else round(weight)  # exp(-weight) vanishes
        return max(drawn, 1) if new and weight > 0 else drawn

    def _end_step(self) -> None:
        """Update ages and weights."""
        self._ages = _with_classes(self._ages, len(self._place), self.threshold)
        place, right = [self._place[y] for y in self._total], [self._right[y] for y in self._total]
        wrong = [total - self._right[y] for y, total in self._total.items()]
        self._ages.observe(place * 2, [True] * len(place) + [False] * len(place), times=right + wrong)
        self._ages.advance(sync=False)  # a matter of this process alone
        weight = self._ages.class_weight.tolist()
        self._weight = {label: weight[place] for label, place in self._place.items()}
        self._right.clear()
        self._total.clear()

    @property
    def _wrapped_model(self) -> base.Classifier:
        return self.classifier

    @classmethod
    def _unit_test_params(cls) -> Iterator[dict[str, object]]:
        yield {"classifier": linear_model.LogisticRegression(), "step": 20}

    def _unit_test_skips(self) -> set[str]:
        return self.classifier._unit_test_skips()


def _with_classes(ages: ClassAges, num_classes: int, threshold: Threshold) -> ClassAges:
    """Return ages of more classes: as if they had been there, and never been observed."""
    more = ClassAges(num_classes, rho=ages.rho, threshold=threshold)
    for name, value in ages.named_buffers():
        more.get_buffer(name)[tuple(map(slice, value.shape))] = value
    more.epoch = ages.epoch
    return more


def _takes_weight(model: base.Classifier) -> bool:
    """Return whether a classifier uses weights: some accept any keyword `w` and ignore it."""
    model = getattr(model, "_last_step", model)  # of a pipeline
    if isinstance(model, multiclass.OneVsRestClassifier | multiclass.OneVsOneClassifier):
        return _takes_weight(model.classifier)
    return "w" in inspect.signature(model.learn_one).parameters
