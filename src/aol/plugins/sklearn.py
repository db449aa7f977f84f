"""Ages and margins for scikit-learn: a classifier fitted in rounds, and one whose scores are adjusted afterwards.

Follows the conventions of scikit-learn: parameters are checked in `fit`, fitted attributes end in an underscore, and
`clone`, pipelines, searches and metadata routing work.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import torch
from scipy.special import log_softmax, softmax
from sklearn import get_config
from sklearn.base import BaseEstimator, ClassifierMixin, MetaEstimatorMixin, clone
from sklearn.model_selection import check_cv
from sklearn.utils import column_or_1d, indexable
from sklearn.utils.class_weight import compute_class_weight
from sklearn.utils.metadata_routing import MetadataRouter, MethodMapping, process_routing
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.parallel import Parallel, delayed
from sklearn.utils.validation import check_is_fitted

from aol import _check
from aol.ages import SampleAges
from aol.class_ages import ClassAges, Threshold
from aol.margins import Margins
from aol.offsets import fit_offsets, posthoc_logits
from aol.plugins._records import Recording, Records
from aol.plugins._rounds import (
    Answers,
    Fit,
    Floats,
    Indices,
    Labels,
    Part,
    Samples,
    check_classifier,
    check_estimator,
    check_params,
    check_weight,
    count_offsets,
    keep_sum,
    log_scores,
    scores_known,
    start_name,
)

try:
    from sklearn.utils import Tags, get_tags
    from sklearn.utils.validation import validate_data
except ImportError as error:
    raise ImportError("aol.plugins.sklearn needs scikit-learn 1.6 or newer: pip install -U scikit-learn") from error


def _has(method: str) -> Callable[[_Wrapper], bool]:
    """Return a check for `available_if`: whether the estimator has this method."""

    def check(self: _Wrapper) -> bool:
        getattr(getattr(self, "estimator_", self.estimator), method)  # its AttributeError says who lacks what
        return True

    return check


def _of_estimator(name: str) -> property:
    def read(self: _Wrapper) -> object:
        return getattr(self.estimator_, name)

    return property(read, doc=f"The `{name}` of `estimator_`, if it has one.")


class _Wrapper(MetaEstimatorMixin, ClassifierMixin, BaseEstimator):
    """A classifier around another one, with folds."""

    estimator: BaseEstimator
    cv: int | str | object | Iterable[tuple[Indices, Indices]]
    method: str = "fit"

    coef_ = _of_estimator("coef_")
    intercept_ = _of_estimator("intercept_")
    feature_importances_ = _of_estimator("feature_importances_")

    def _check_samples(
        self, X: object, y: object, sample_weight: object, *, stream: bool = False, classes: object = None
    ) -> Samples:
        """Return checked data; set `classes_` and the feature names."""
        if y is None:
            raise ValueError(f"{type(self).__name__} requires y to be passed, but the target y is None.")
        anew = not (stream and hasattr(self, "estimator_"))
        X, y = indexable(X, y)
        validate_data(self, X, reset=anew, skip_check_array=True)
        label: Labels = column_or_1d(y, warn=True)
        missing = _missing(label)
        if missing:
            raise ValueError(f"y must hold a class for each sample, not NaN or None ({missing} of {len(label)}).")
        check_classification_targets(label)
        announced = None if classes is None else np.unique(column_or_1d(classes))
        known: Labels = self.classes_ if not anew else np.unique(label) if announced is None else announced
        if announced is not None and not np.array_equal(announced, known):
            told = _check.shown(announced.tolist())
            raise ValueError(f"classes must be those of the first call, {_check.shown(known.tolist())}, not {told}.")
        code = np.searchsorted(known, label).clip(0, len(known) - 1)
        if not np.array_equal(known[code], label):
            raise ValueError(f"y must hold only classes announced on the first call, {_check.shown(known.tolist())}.")
        given = check_weight(sample_weight, len(label))
        weighty = np.count_nonzero(np.bincount(code, given))
        if not stream and weighty < 2:
            some = "1 class" if weighty else "no class"
            name = type(self).__name__
            raise ValueError(f"{name} needs samples of two classes or more that have a weight, not of {some}.")
        self.classes_: Labels = known
        return Samples(X, label, known, code, given)

    def _folds(self, samples: Samples, params: dict[str, object]) -> list[Part]:
        """Return the parts of cross-validation; `params` are for the splitter."""
        found = check_cv(self.cv, samples.y, classifier=True).split(samples.X, samples.y, **params)
        parts: list[Part] = [(np.asarray(train), np.asarray(test)) for train, test in found]
        if not parts:
            raise ValueError("cv must give at least one fold, and gave none.")
        return parts

    def _routed(self, params: dict[str, object]) -> tuple[dict[str, object], dict[str, object]]:
        """Return which of `params` are for the estimator, and which for the splitter."""
        if get_config()["enable_metadata_routing"]:
            routed = process_routing(self, "fit", **params)
            return dict(routed["estimator"][self.method]), dict(routed["splitter"]["split"])
        check_params(self.estimator, self.method, params)
        return params, {}

    # Conventions of scikit-learn

    def get_metadata_routing(self) -> MetadataRouter:
        """Return the routing: `sample_weight` to this object, `groups` to the splitter, the rest to the estimator."""
        router = MetadataRouter(owner=self).add_self_request(self)
        splitter = None if isinstance(self.cv, str) else check_cv(self.cv, classifier=True)
        router.add(splitter=splitter, method_mapping=MethodMapping().add(caller="fit", callee="split"))
        return router.add(
            estimator=self.estimator, method_mapping=MethodMapping().add(caller="fit", callee=self.method)
        )

    def __sklearn_tags__(self) -> Tags:
        tags, inner = super().__sklearn_tags__(), get_tags(self.estimator)
        tags.input_tags = inner.input_tags
        tags.non_deterministic = inner.non_deterministic
        if inner.classifier_tags is not None:
            tags.classifier_tags.multi_class = inner.classifier_tags.multi_class
            tags.classifier_tags.poor_score = inner.classifier_tags.poor_score
        return tags


@dataclass
class _Rounds:
    """State between rounds and, with `warm_start`, between calls of `fit`."""

    labels: Labels
    method: str
    parts: list[Part]
    learners: list[BaseEstimator | None]  # of each part; None: to be made anew
    ages: SampleAges
    margins: Margins | None
    steered: tuple[str | None, float]  # margins and gain, as they were given
    scores: list[float]


class AgedClassifier(_Wrapper):
    r"""Fits a classifier in rounds, with more weight on samples that have been wrong for many rounds.

    A round fits the estimator with the current weights, predicts all samples, and updates their ages. In the first
    round all weights are one. From your weights $s$ and the smoothed ages $\bar a$:

    .. math::
        w_i = s_i \, u_i \, \frac{\sum_j s_j}{\sum_j s_j u_j}, \qquad
        u_i = \frac{\sum_{j: y_j = y_i} s_j \bar a_j}{\sum_{j: y_j = y_i} s_j} \;\text{("class")}
        \quad \text{or} \quad u_i = \bar a_i \;\text{("sample")}

    The sum of the weights is kept, so that regularisation keeps its meaning. A sample of weight two counts as two.

    Args:
        estimator: any classifier whose `fit` takes `sample_weight`; of a `Pipeline`, its last step.
        rounds: number of rounds, at least 1. One round is the estimator alone.
        rho: smoothing rate of ages, in [0, 1]; 0 means weights of one.
        level: weights by "class" or by "sample".
        cv: which predictions count. Folds (a number, a splitter or an iterable): those of estimators that were not
            fitted on the sample. "oob": out-of-bag predictions, from `oob_decision_function_` of a forest or bagging
            classifier. "train": predictions on the training set; cheap, but useless for estimators that memorise it, as
            trees do.
        method: "fit" starts again in each round; "partial_fit" continues, and a round is an epoch.
        keep: the estimator of the "last" round, or of the "best" by balanced accuracy of the predictions, which is then
            optimistic. "best" needs folds or "oob".
        class_weight: a dict or "balanced": weights of classes, multiplied with those from ages.
        margins: for LightGBM and XGBoost: offsets of the scores that are found from the predictions of each round, by
            "age" or "error" as in `aol.Margins`; or None.
        offset: for LightGBM and XGBoost: a static offset of the scores: "counts" (logit adjustment), `[C]`, or None.
            Trees are fitted on offset plus scores (`init_score`, `base_margin`), and predict by the scores alone.
        gain: speed of the margins per round.
        tau: strength of the offset "counts".
        threshold: for `partial_fit` of this object, as in `aol.ClassAges`.
        warm_start: further calls of `fit` continue for `rounds` more rounds, with the same samples.
        n_jobs: number of folds fitted in parallel.
        recorder: records rounds of `fit` and steps of `partial_fit` as epochs for `aol report`: a folder, or a
            function from the ages to an `aol.Recorder`. Costs a second prediction of every sample.

    Attributes:
        estimator_: the fitted estimator.
        round_: its round, counted from 1.
        ages_: rounds since each sample was last predicted right, counted from one, after the last round.
        class_age_: the smoothed age of each class of `classes_`.
        sample_weight_: the weights of `estimator_`.
        offset_: the offset of `estimator_`, for each class of `classes_`; only with `margins` or `offset`.
        scores_: the balanced accuracy of the predictions of each round.

    With folds, a round costs one fit per fold, and the kept estimator one more on all data.

    >>> from sklearn.datasets import load_iris
    >>> from sklearn.naive_bayes import GaussianNB
    >>> X, y = load_iris(return_X_y=True)
    >>> model = AgedClassifier(GaussianNB(), rounds=3).fit(X, y)
    >>> model.class_age_.round(2)
    array([1.  , 1.14, 1.18])
    """

    def __init__(
        self,
        estimator: BaseEstimator,
        *,
        rounds: int = 5,
        rho: float = 0.5,
        level: str = "class",
        cv: int | str | object | Iterable[tuple[Indices, Indices]] = 5,
        method: str = "fit",
        keep: str = "last",
        class_weight: dict[object, float] | str | None = None,
        margins: str | None = None,
        offset: str | _check.Numbers | None = None,
        gain: float = 0.2,
        tau: float = 1.0,
        threshold: Threshold = "median",
        warm_start: bool = False,
        n_jobs: int | None = None,
        recorder: Recording = None,
    ) -> None:
        self.estimator = estimator
        self.rounds = rounds
        self.rho = rho
        self.level = level
        self.cv = cv
        self.method = method
        self.keep = keep
        self.class_weight = class_weight
        self.margins = margins
        self.offset = offset
        self.gain = gain
        self.tau = tau
        self.threshold = threshold
        self.warm_start = warm_start
        self.n_jobs = n_jobs
        self.recorder = recorder

    # Learning

    def fit(self, X: object, y: object, sample_weight: object = None, **params: object) -> Self:
        """Fit in rounds. `sample_weight` multiplies.

        `params` go to every fit of the estimator: `eval_set=[(X_val, y_val)]` stops LightGBM and XGBoost early. Of
        those with a value per sample, a fold gets its own. With metadata routing, they also go to the splitter.
        """
        self._check_settings("fit")
        given, of_splitter = self._routed(params)
        samples = self._check_samples(X, y, sample_weight)
        base = self._base(samples)
        rounds = self._start(samples, of_splitter)
        with self._recording(rounds.ages) as records:
            kept = self._run(rounds, samples, base, given, records)
        self.round_, self.sample_weight_, offset, whole = kept
        if whole is None:
            whole = Fit(samples, self.sample_weight_, given, offset=offset).fitted(clone(self.estimator))
        self.__dict__.pop("offset_", None)
        if offset is not None:
            self.offset_ = offset
        self.estimator_ = whole
        self.ages_ = rounds.ages.age.numpy()
        self.class_age_ = samples.class_age(rounds.ages)
        self.scores_ = np.array(rounds.scores)
        self._rounds = rounds if self.warm_start else None
        self._stream: ClassAges | None = None
        return self

    @contextmanager
    def _recording(self, ages: SampleAges | ClassAges) -> Iterator[Records]:
        records, finished = Records(self.recorder), False
        try:
            records.begin(ages, classes=[str(label) for label in self.classes_.tolist()])
            yield records
            finished = True
        finally:
            records.end(finished=finished)

    def _run(
        self, rounds: _Rounds, samples: Samples, base: Floats, given: dict[str, object], records: Records
    ) -> tuple[int, Floats, Floats | None, BaseEstimator | None]:
        """Fit all rounds; return number, weights, offset and, if fitted on all samples, estimator of the kept one."""
        best, kept = -1.0, None
        for _ in range(self.rounds):
            weight, offset = keep_sum(base, samples.age_factor(rounds.ages)), self._offset(samples, rounds)
            scored = records.recorder is not None
            fit = Fit(samples, weight, given, self.method, offset, oob=self.cv == "oob", scored=scored)
            trained = Parallel(n_jobs=self.n_jobs)(
                delayed(fit.predicted)(self._new_if_none(learner), part)
                for learner, part in zip(rounds.learners, rounds.parts, strict=True)
            )
            score = self._end_round(rounds, samples, [answers for _, answers in trained], records)
            whole = trained[-1][0] if rounds.parts[-1][0] is None else None
            if self.method == "partial_fit":
                rounds.learners = [learner for learner, _ in trained]
                whole = copy.deepcopy(whole)  # it is going to learn on
            if self.keep == "last" or score > best:
                best, kept = score, (len(rounds.scores), weight, offset, whole)
        assert kept is not None
        return kept

    def _offset(self, samples: Samples, rounds: _Rounds) -> Floats | None:
        """Return the offset of the next round, `[C]`."""
        if self.margins is None and self.offset is None:
            return None
        found = np.zeros(len(samples.classes))
        if self.offset is not None:
            found += count_offsets(samples, self.tau) if isinstance(self.offset, str) else _given(self.offset, samples)
        return found if rounds.margins is None else found + rounds.margins.offsets.numpy()

    def _new_if_none(self, learner: BaseEstimator | None) -> BaseEstimator:
        return clone(self.estimator) if learner is None else learner

    def _start(self, samples: Samples, params: dict[str, object]) -> _Rounds:
        ages = SampleAges(samples.code, num_classes=len(samples.classes), rho=self.rho, level=self.level)
        before: _Rounds | None = getattr(self, "_rounds", None) if self.warm_start else None
        if before is not None:
            if self.method != before.method or not np.array_equal(samples.y, before.labels):
                raise ValueError("warm_start goes on with what the fit before had: y and method must be the same.")
            ages.load_state_dict({**before.ages.state_dict(), "rho": ages.state_dict()["rho"]})
            if (self.margins, self.gain) != before.steered:
                raise ValueError("warm_start goes on with what the fit before had: margins and gain must be the same.")
            margins = copy.deepcopy(before.margins)
            learners = copy.deepcopy(before.learners)
            return replace(before, ages=ages, margins=margins, learners=learners, scores=before.scores.copy())
        parts: list[Part] = [(None, np.arange(len(samples.y)))]
        if not isinstance(self.cv, str):
            parts = self._folds(samples, params)
            if self.method == "partial_fit":
                parts.append((None, samples.code[:0]))  # the kept one learns along, and is asked nothing
        margins = None
        if self.margins is not None:
            size = len(samples.classes)
            margins = Margins(size, labels=samples.code, signal=self.margins, gain=self.gain)
        return _Rounds(samples.y, self.method, parts, [None] * len(parts), ages, margins, (self.margins, self.gain), [])

    def _end_round(self, rounds: _Rounds, samples: Samples, answers: list[Answers], records: Records) -> float:
        """Update ages and margins, record the round, and return the balanced accuracy."""
        right, named = np.full(len(samples.y), np.nan), np.zeros(len(samples.y), dtype=np.int64)
        for index, answer, scores in answers:
            records.observe(index, None if scores is None else torch.from_numpy(scores))
            right[index] = answer == samples.y[index]
            named[index] = np.searchsorted(samples.classes, answer)
        (seen,) = np.nonzero(~np.isnan(right))
        rounds.ages.observe(seen, right[seen] > 0)
        rounds.ages.advance(sync=False)  # a matter of this process alone
        if rounds.margins is not None:
            rounds.margins.observe(seen, named[seen], times=samples.times()[seen])
            rounds.margins.advance(sync=False)
        rounds.scores.append(float(np.nanmean(samples.class_mean(right))))
        offset = {} if rounds.margins is None else {"offset": rounds.margins.offsets}
        records.advance(balanced_accuracy=rounds.scores[-1], **offset)
        return rounds.scores[-1]

    @available_if(_has("partial_fit"))
    def partial_fit(self, X: object, y: object, classes: object = None, sample_weight: object = None) -> Self:
        """Learn one step of a stream, whose samples do not return.

        Classes have ages, by `threshold`. Samples are predicted before they are learned, unless `cv="train"`. `classes`
        must be given on the first call. `class_weight="balanced"` balances each step separately.
        """
        self._check_settings("partial_fit")
        model = getattr(self, "estimator_", None)
        if model is None and classes is None:
            raise ValueError("classes must be passed on the first call to partial_fit.")
        samples = self._check_samples(X, y, sample_weight, stream=True, classes=classes)
        ages: ClassAges | None = copy.deepcopy(getattr(self, "_stream", None))  # an error leaves it as it was
        if ages is None:
            ages = ClassAges(len(self.classes_), rho=self.rho, threshold=self.threshold)
        if model is not None and self.cv != "train":
            self._step(ages, model, samples)
        model = self._new_if_none(model)
        aged = ages.class_weight.numpy().astype(np.float64)[samples.code]
        weight = keep_sum(self._base(samples), aged)
        model.partial_fit(samples.X, samples.y, classes=self.classes_, sample_weight=weight)
        if self.cv == "train":
            self._step(ages, model, samples)
        self.estimator_, self._stream, self._rounds = model, ages, None
        self.class_age_ = ages.ema.numpy().astype(np.float64)
        for name in ("ages_", "sample_weight_", "scores_", "round_"):
            self.__dict__.pop(name, None)  # those of an earlier fit
        return self

    def _step(self, ages: ClassAges, model: BaseEstimator, samples: Samples) -> None:
        """End a step of a stream: update the ages of classes, and record it."""
        counted = samples.given > 0
        with self._recording(ages) as records:
            if records.recorder is not None and scores_known(model):
                scores = torch.from_numpy(log_scores(model, samples.X, samples.classes))
                records.observe(samples.code[counted], scores[torch.from_numpy(counted)])
            ages.observe(samples.code[counted], (model.predict(samples.X) == samples.y)[counted])
            ages.advance(sync=False)
            records.advance()

    # What was given

    def _check_settings(self, caller: str) -> None:
        _check.whole("rounds", self.rounds, 1)
        _check.number("rho", self.rho, 0.0, 1.0)
        _check.choice("level", self.level, ("class", "sample"))
        _check.choice("method", self.method, ("fit", "partial_fit"))
        _check.choice("keep", self.keep, ("last", "best"))
        if isinstance(self.cv, str):
            _check.choice("cv", self.cv, ("train", "oob"))
        if isinstance(self.class_weight, str):
            _check.choice("class_weight", self.class_weight, ("balanced",))
        self._check_offsets(caller)
        if caller == "fit" and self.keep == "best" and self.cv == "train":
            raise ValueError('keep="best" needs answers on other samples than those fitted on: folds or "oob" as cv.')
        if self.cv == "oob" and "partial_fit" in (caller, self.method):
            raise ValueError('cv="oob" is for method="fit": what is fitted by partial_fit has no bags.')
        if caller == "partial_fit" and self.level == "sample":
            raise ValueError('partial_fit sees a sample once, which then has no age: level must be "class".')
        check_estimator(self.estimator, self.method if caller == "fit" else caller)

    def _check_offsets(self, caller: str) -> None:
        _check.number("gain", self.gain, 0.0, 1e3)
        _check.number("tau", self.tau, 0.0, 1e6)
        if self.margins is not None:
            _check.choice("margins", self.margins, ("age", "error"))
        if isinstance(self.offset, str):
            _check.choice("offset", self.offset, ("counts",))
        if self.margins is not None or self.offset is not None:
            if "partial_fit" in (caller, self.method):
                raise ValueError("offset and margins are for fit: trees that take them start again in each round.")
            start_name(self.estimator)

    def _base(self, samples: Samples) -> Floats:
        """Return weights without ages: `sample_weight` times `class_weight`."""
        if self.class_weight is None:
            return samples.given
        if self.class_weight == "balanced":
            mass = np.bincount(samples.code, samples.given, len(self.classes_))
            factor = np.divide(samples.given.sum(), mass, out=np.ones_like(mass), where=mass > 0)
            return samples.given * (factor / np.count_nonzero(mass))[samples.code]
        found = (
            samples.given * compute_class_weight(self.class_weight, classes=self.classes_, y=samples.y)[samples.code]
        )
        if not found.any():
            raise ValueError("class_weight must leave at least one sample with a weight that is not zero.")
        return found

    # Answering

    def predict(self, X: object) -> Labels:
        """Return the class of each sample."""
        check_is_fitted(self)
        return self.estimator_.predict(X)

    @available_if(_has("predict_proba"))
    def predict_proba(self, X: object) -> Floats:
        """Return the probability of each class; weights shift it towards old classes."""
        check_is_fitted(self)
        return self.estimator_.predict_proba(X)

    @available_if(_has("predict_log_proba"))
    def predict_log_proba(self, X: object) -> Floats:
        """Return the logarithm of `predict_proba`."""
        check_is_fitted(self)
        return self.estimator_.predict_log_proba(X)

    @available_if(_has("decision_function"))
    def decision_function(self, X: object) -> Floats:
        """Return the estimator's decision function."""
        check_is_fitted(self)
        return self.estimator_.decision_function(X)


def _given(offset: object, samples: Samples) -> Floats:
    """Return offsets that were given as numbers, `[C]`."""
    found: Floats = _check.real("offset", offset).numpy().astype(np.float64)
    if found.shape != samples.classes.shape or not np.isfinite(found).all():
        wanted = f"one finite number for each of {len(samples.classes)} classes"
        raise ValueError(f"offset must hold {wanted}, not {_check.shown(offset)}.")
    return found


class OffsetClassifier(_Wrapper):
    r"""Adjusts the scores of a classifier after training, so that rare or missed classes are predicted more often.

    .. math:: \hat y = \arg\max_c \big( \log p_c - \tau\, o_c \big)

    For classifiers that cannot be trained with margins. Without `predict_proba`, the decision function takes the place
    of $\log p$.

    Args:
        estimator: any classifier with `predict_proba` or `decision_function`.
        offsets: "counts": from the class counts of the training set (logit adjustment); fits once. "error": from the
            errors of cross-validated predictions, so that every class is as often missed as wrongly named
            (`aol.fit_offsets`); needs no counts, and fits once per fold and once on all data. Or numbers, `[C]`, in the
            order of `classes_`.
        tau: strength; 0 is the estimator alone.
        cv: folds of "error": a number, a splitter or an iterable.
        n_jobs: number of folds fitted in parallel.

    Attributes:
        estimator_: the fitted estimator.
        offsets_: what is subtracted from the scores of each class of `classes_`; with mean zero, except for your own.

    With a `sklearn.frozen.FrozenEstimator`, nothing is fitted again, and `fit` takes samples that the estimator has not
    seen (for "counts", any samples with the class frequencies of its training set).

    >>> from sklearn.linear_model import LogisticRegression
    >>> X, y = np.arange(12.0)[:, None], np.repeat([0, 1], [9, 3])
    >>> OffsetClassifier(LogisticRegression(C=0.01)).fit(X, y).predict(X).tolist()
    [0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1]
    """

    def __init__(
        self,
        estimator: BaseEstimator,
        *,
        offsets: str | _check.Numbers = "counts",
        tau: float = 1.0,
        cv: int | object | Iterable[tuple[Indices, Indices]] = 5,
        n_jobs: int | None = None,
    ) -> None:
        self.estimator = estimator
        self.offsets = offsets
        self.tau = tau
        self.cv = cv
        self.n_jobs = n_jobs

    def fit(self, X: object, y: object, sample_weight: object = None, **params: object) -> Self:
        """Fit the estimator and find the offsets.

        A sample of weight two counts as two; in "error" only if all weights are whole numbers, otherwise once.
        `params` go to every fit of the estimator, such as `eval_set`; with metadata routing also to the splitter.
        """
        check_classifier(self.estimator, "fit")
        _check.number("tau", self.tau, 0.0, 1e6)
        if isinstance(self.offsets, str):
            _check.choice("offsets", self.offsets, ("counts", "error"))
        given, of_splitter = self._routed(params)
        samples = self._check_samples(X, y, sample_weight)
        fit = Fit(samples, None if sample_weight is None else samples.given, given)
        if not isinstance(self.offsets, str):
            offsets = self.tau * _given(self.offsets, samples)
        elif self.offsets == "counts":
            offsets = count_offsets(samples, self.tau)
        else:
            offsets = self.tau * self._from_errors(fit, self._folds(samples, of_splitter))
        fitted = fit.fitted(clone(self.estimator))
        if not scores_known(fitted):
            wanted = "predict_proba or decision_function"
            raise TypeError(f"estimator must have {wanted}, which {type(fitted).__name__} has not.")
        self.estimator_ = fitted
        self.offsets_: Floats = offsets
        return self

    def _from_errors(self, fit: Fit, parts: list[Part]) -> Floats:
        """Return the offsets that balance the errors of cross-validated predictions, `[C]`."""
        found = Parallel(n_jobs=self.n_jobs)(
            delayed(fit.held_out_scores)(clone(self.estimator), part) for part in parts
        )
        index = np.concatenate([index for index, _ in found])
        scores = torch.from_numpy(np.concatenate([scores for _, scores in found]))
        label, times = fit.samples.code[index], fit.samples.times()[index]
        return fit_offsets(scores, label, times=times).numpy().astype(np.float64)

    # Answering

    def _scores(self, X: object) -> Floats:
        check_is_fitted(self)
        scores = torch.from_numpy(log_scores(self.estimator_, X, self.classes_))
        adjusted: Floats = posthoc_logits(scores, self.offsets_).numpy()
        return adjusted

    def predict(self, X: object) -> Labels:
        """Return the class of each sample."""
        scores = self._scores(X)
        return self.classes_[scores.argmax(1)]

    def decision_function(self, X: object) -> Floats:
        """Return the adjusted scores, `[N, C]`; for two classes their difference, `[N]`."""
        scores = self._scores(X)
        return scores[:, 1] - scores[:, 0] if len(self.classes_) == 2 else scores

    @available_if(_has("predict_proba"))
    def predict_proba(self, X: object) -> Floats:
        """Return the probability of each class, as if the classes were balanced."""
        found: Floats = softmax(self._scores(X), axis=1)
        return found

    @available_if(_has("predict_proba"))
    def predict_log_proba(self, X: object) -> Floats:
        """Return the logarithm of `predict_proba`."""
        found: Floats = log_softmax(self._scores(X), axis=1)
        return found


def _missing(label: Labels) -> int:
    """Return how many labels are none: NaN, None or NA among words."""
    if label.dtype != object:
        return 0
    import pandas as pd

    return int(pd.isna(label).sum())
