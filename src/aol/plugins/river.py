"""Ages for River: a wrapper of any classifier, for streams whose hard classes change.

Samples of a stream do not return, so classes have ages, and a step is a number of samples. Memory is O(classes), plus
the samples of `memory`.
"""

from __future__ import annotations

import copy
import inspect
import math
import random
from collections import Counter
from collections.abc import Hashable, Iterator
from numbers import Real
from typing import Any, TypeAlias

from aol import _check
from aol._need import explaining
from aol.class_ages import ClassAges, Threshold
from aol.plugins._records import Recording, recorder_of
from aol.records.recorder import Recorder

with explaining("aol.plugins.river", "river"):
    from river import base, linear_model, multiclass, naive_bayes, utils

Features: TypeAlias = dict[Hashable, object]


class _OpenAges(ClassAges):
    """Ages of classes that are added as they come: as if they had been there, and never been observed."""

    grows = True  # a recorder may be shown more classes

    def grow(self, num_classes: int, threshold: Threshold) -> None:
        """Make room for more classes."""
        bigger = ClassAges(num_classes, rho=self.rho, threshold=threshold)
        for name, value in list(self.named_buffers()):
            grown = bigger.get_buffer(name)
            grown[tuple(map(slice, value.shape))] = value
            setattr(self, name, grown)
        self.num_classes = num_classes


class AgedClassifier(base.Wrapper, base.Classifier):
    r"""Weights the samples of a stream by how long the accuracy of their class has been below a threshold.

    After every `step` samples, each class seen in them has an accuracy $r_c$. If it is below the threshold $\tau$, the
    age grows by one; otherwise it becomes one. A class that was not seen keeps its age. New classes start at age one.

    .. math::
        a_c \leftarrow \begin{cases} a_c + 1 & r_c < \tau \\ 1 & r_c \ge \tau \end{cases} \qquad
        \bar a_c \leftarrow (1 - \rho)\, \bar a_c + \rho\, a_c \qquad
        w_c = \frac{\bar a_c}{\frac{1}{C} \sum_k \bar a_k}

    A sample is predicted before it is learned, at the cost of one extra prediction.

    Args:
        classifier: any classifier of River, or a pipeline that ends in one.
        step: samples between two updates of the ages.
        rho: smoothing rate of ages, in [0, 1]; 0 means weights of one.
        threshold: as in `aol.ClassAges`.
        mechanism: "reweight" passes weights to `learn_one` as `w`; "resample" learns a sample a Poisson number of times
            with that mean, as River's samplers do, but the first sample of a class at least once. "auto" reweights if
            the classifier has a `w`, and resamples otherwise.
        memory: size of a reservoir of samples on which accuracies are measured at the end of a step, instead of on the
            predictions of the step. 0: no memory.
        seed: of the random draws; None for a random seed.
        recorder: records the steps as epochs for `aol report`: a folder, or a function from the ages to an
            `aol.Recorder`. Every step writes the whole record: take larger steps for long streams.

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
        mechanism: str = "auto",
        memory: int = 0,
        seed: int | None = None,
        recorder: Recording = None,
    ) -> None:
        if not isinstance(classifier, base.Classifier):
            raise TypeError(f"classifier must be a classifier of River, not {_check.shown(classifier)}.")
        self._ages = _OpenAges(1, rho=_check.number("rho", rho, 0.0, 1.0), threshold=threshold)
        self.classifier, self.rho, self.threshold = classifier, rho, threshold
        self.step = _check.whole("step", step, 1)
        self.mechanism = _check.choice("mechanism", mechanism, ("auto", "reweight", "resample"))
        self.memory = _check.whole("memory", memory, 0)
        self.seed, self.recorder = seed, recorder
        self._reweigh = mechanism != "resample" and _takes_weight(classifier)
        if mechanism == "reweight" and not self._reweigh:
            raise ValueError(f'mechanism="reweight" needs a w in learn_one, which {classifier} does not have.')
        self._open: Recorder | None = None
        self._rng = random.Random(seed)
        self._since = self._offered = 0  # samples of the present step, and samples offered to the memory
        self._place: dict[Hashable, int] = {}  # of each class among the ages, in the order they came
        self._names: list[str] = []  # of the classes, for the record
        self._right: Counter[Hashable] = Counter()
        self._total: Counter[Hashable] = Counter()
        self._weight: dict[Hashable, float] = {}
        self._kept: list[tuple[Features, Hashable]] = []

    @property
    def class_age(self) -> dict[Hashable, float]:
        """The smoothed age of each class after the last complete step."""
        ages = self._ages.ema.tolist()
        return {label: ages[place] if place < len(ages) else 1.0 for label, place in self._place.items()}

    @property
    def class_weight(self) -> dict[Hashable, float]:
        """The current weight of each class, with mean one over the classes of the last step."""
        return {label: self._weight.get(label, 1.0) for label in self._place}

    def predict_one(self, x: Features, **kwargs: Any) -> Hashable:
        """Return the prediction of the classifier."""
        return self.classifier.predict_one(x, **kwargs)

    def predict_proba_one(self, x: Features, **kwargs: Any) -> dict[Hashable, float]:
        """Return the probabilities of the classifier; weights shift them towards old classes."""
        return self.classifier.predict_proba_one(x, **kwargs)

    def learn_one(self, x: Features, y: Hashable, *, w: float = 1.0, **kwargs: Any) -> None:
        """Predict the sample, then learn it with the weight of its class, times `w`."""
        given: object = w
        if not (isinstance(given, Real) and 0 <= w < math.inf):
            raise ValueError(f"w must be a number of 0 or more, not {_check.shown(w)}.")
        answer, weight = None if self.memory else self.classifier.predict_one(x), w * self._weight.get(y, 1.0)
        if self._reweigh:
            self.classifier.learn_one(x, y, w=weight, **kwargs)
        else:
            for _ in range(self._times(weight, new=y not in self._place)):
                self.classifier.learn_one(x, y, **kwargs)
        if y not in self._place:
            self._place[y] = len(self._place)
            self._names.append(str(y).strip() or repr(y))
        if self.memory:
            self._keep(x, y)
        else:
            self._count(y, answer)
        self._since += 1
        if self._since == self.step:
            self._end_step()

    def _times(self, weight: float, *, new: bool) -> int:
        """Draw how often a sample is learned; the first one of a new class at least once."""
        drawn = utils.random.poisson(weight, rng=self._rng) if weight < 500 else round(weight)  # exp(-weight) vanishes
        return max(drawn, 1) if new and weight > 0 else drawn

    def _keep(self, x: Features, y: Hashable) -> None:
        """Offer a sample to the memory: the n-th enters a full one with probability memory / n, in place of any."""
        self._offered += 1
        place = len(self._kept) if len(self._kept) < self.memory else self._rng.randrange(self._offered)
        if place < self.memory:
            self._kept[place : place + 1] = [(copy.copy(x), y)]  # a dict, or what a pipeline begins with: a text

    def _count(self, y: Hashable, answer: Hashable) -> None:
        self._total[y] += 1
        self._right[y] += bool(answer == y)

    def _end_step(self) -> None:
        """Update ages, weights and the record."""
        for x, y in self._kept:
            self._count(y, self.classifier.predict_one(x))
        self._ages.grow(len(self._place), self.threshold)
        self._open = self._open or recorder_of(self.recorder, self._ages, self._names)
        place, right = [self._place[y] for y in self._total], [self._right[y] for y in self._total]
        wrong = [total - self._right[y] for y, total in self._total.items()]
        self._ages.observe(place * 2, [True] * len(place) + [False] * len(place), times=right + wrong)
        self._ages.advance(sync=False)  # a matter of this process alone
        if self._open is not None:
            self._open.advance()
        weight = self._ages.class_weight.tolist()
        self._weight = {label: weight[place] for label, place in self._place.items()}
        self._right.clear()
        self._total.clear()
        self._since = 0

    def __getstate__(self) -> dict[str, object]:
        # Without the recorder, which holds a lock: what is loaded goes on with the record in its folder.
        return self.__dict__ | {"_open": None}

    # Conventions of River

    @property
    def _wrapped_model(self) -> base.Classifier:
        return self.classifier

    @classmethod
    def _unit_test_params(cls) -> Iterator[dict[str, object]]:
        yield {"classifier": linear_model.LogisticRegression(), "step": 20}
        yield {"classifier": naive_bayes.GaussianNB(), "step": 20, "memory": 30}

    def _unit_test_skips(self) -> set[str]:
        return self.classifier._unit_test_skips()


def _takes_weight(model: base.Classifier) -> bool:
    """Return whether a classifier uses weights: some accept any keyword `w` and ignore it.

    >>> _takes_weight(linear_model.LogisticRegression()), _takes_weight(naive_bayes.GaussianNB())
    (True, False)
    """
    model = getattr(model, "_last_step", model)  # of a pipeline
    if isinstance(model, multiclass.OneVsRestClassifier | multiclass.OneVsOneClassifier):
        return _takes_weight(model.classifier)
    return "w" in inspect.signature(model.learn_one).parameters
