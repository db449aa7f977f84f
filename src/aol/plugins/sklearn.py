"""Offsets and ages for scikit-learn: a classifier whose scores are adjusted, and one that is fitted in rounds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass
from inspect import Parameter, isclass, signature
from typing import Any, Self, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from scipy.special import softmax
from sklearn import get_config
from sklearn.base import BaseEstimator, ClassifierMixin, MetaEstimatorMixin, clone, is_classifier
from sklearn.frozen import FrozenEstimator
from sklearn.model_selection import check_cv, cross_val_predict
from sklearn.pipeline import Pipeline
from sklearn.utils import Tags, column_or_1d, get_tags, indexable
from sklearn.utils.class_weight import compute_class_weight
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, _estimator_has, check_is_fitted, validate_data

from aol import _check
from aol.ages import SampleAges
from aol.offsets import fit_offsets, logit_offsets, posthoc_logits

Floats: TypeAlias = npt.NDArray[np.float64]
Indices: TypeAlias = npt.NDArray[np.int64]
Labels: TypeAlias = npt.NDArray[Any]
Folds: TypeAlias = int | object | Iterable[tuple[Indices, Indices]]

TINY = float(np.finfo(np.float32).eps)  # the least probability whose logarithm is used


@dataclass(frozen=True)
class _Samples:
    """Checked data of `fit`: N samples that can be indexed, their labels, and the indices of these in `classes`."""

    X: object
    y: Labels
    classes: Labels
    code: Indices
    given: Floats  # the user's weights: how many samples one counts for
    params: dict[str, object]  # the user's own arguments of `fit`

    def class_mean(self, value: npt.NDArray[Any]) -> Floats:
        """Return the weighted mean of values by class, `[C]`; NaN for a class without a weight."""
        mass = np.bincount(self.code, self.given)
        total = np.bincount(self.code, self.given * value)
        return np.divide(total, mass, out=np.full(len(mass), np.nan), where=mass > 0)

    def params_with(self, weight: Floats | None, estimator: BaseEstimator) -> dict[str, object]:
        """Return the arguments of an estimator's `fit` beside X and y."""
        name = _weight_name(estimator)
        if weight is not None and name in self.params:
            raise ValueError(f"fit must not be given {name}, which is set here: give sample_weight.")
        return self.params if weight is None else {**self.params, name: weight}

    def fitted(self, estimator: BaseEstimator, weight: Floats | None) -> BaseEstimator:
        """Return a clone that is fitted on all samples, with weights `[N]`."""
        estimator = clone(estimator)
        estimator.fit(self.X, self.y, **self.params_with(weight, estimator))
        return estimator


def _last_step(estimator: BaseEstimator) -> BaseEstimator:
    """Return the estimator that gets the weights: itself, or the last step of a pipeline."""
    return _last_step(estimator.steps[-1][1]) if isinstance(estimator, Pipeline) else estimator


def _weight_name(estimator: BaseEstimator) -> str:
    """Return the name that the weights of the last step have in an estimator's `fit`."""
    if isinstance(estimator, Pipeline) and not get_config()["enable_metadata_routing"]:
        name, step = estimator.steps[-1]
        return f"{name}__{_weight_name(step)}"
    return "sample_weight"


def _score_method(estimator: BaseEstimator) -> str:
    for method in ("predict_proba", "decision_function"):
        if hasattr(estimator, method):
            return method
    raise TypeError(f"estimator must have predict_proba or decision_function: {type(estimator).__name__} has neither.")


def _scores(answer: object, method: str, size: int) -> Floats:
    """Return `[N, C]` from what a method of an estimator with C classes returns: log-probabilities, or decisions."""
    scores = np.asarray(answer, dtype=np.float64)
    scores = np.stack((-scores / 2, scores / 2), axis=1) if scores.ndim == 1 else scores
    if scores.shape[1:] != (size,):
        raise ValueError(f"estimator must give one score for each of {size} classes, not {list(scores.shape[1:])}.")
    if method == "predict_proba":
        return np.log(scores.clip(TINY))
    lowest = np.finfo(np.float64).min  # of a class that a fold lacks
    return scores.clip(scores[scores > lowest].min(initial=0.0))


def _check_classifier(estimator: BaseEstimator) -> None:
    if isclass(estimator) or not hasattr(estimator, "fit") or not is_classifier(estimator):
        raise TypeError(f"estimator must be a classifier of scikit-learn, not {_check.shown(estimator)}.")


def _check_weighted(estimator: BaseEstimator) -> None:
    """Raise unless this is a classifier that takes weights as they are."""
    _check_classifier(estimator)
    last = _last_step(estimator)
    if not _takes_weight(last):
        raise TypeError(f"estimator must take sample_weight in fit, which {type(last).__name__} does not.")
    for name, value in last.get_params().items():  # also of what it wraps: bags, votes, searches
        if name.split("__")[-1] == "class_weight" and isinstance(value, str):
            # Many count with the weights they are given: their balance undoes the ages of classes without a word.
            raise ValueError(
                f"{type(last).__name__} must not balance classes itself ({name}), which can undo their ages: give "
                'class_weight="balanced" to AgedClassifier in its place.'
            )


def _takes_weight(estimator: BaseEstimator) -> bool:
    """Return whether `fit` has a `sample_weight`, or passes on what it is given to an estimator that has."""
    known = signature(estimator.fit).parameters
    inner = (value for value in estimator.get_params().values() if hasattr(value, "fit") and not isclass(value))
    passes_on = any(parameter.kind is Parameter.VAR_KEYWORD for parameter in known.values())
    return "sample_weight" in known or (passes_on and any(_takes_weight(value) for value in inner))


class _Wrapper(MetaEstimatorMixin, ClassifierMixin, BaseEstimator):
    """A classifier around another one, with folds."""

    estimator: BaseEstimator
    cv: Folds
    n_jobs: int | None

    def _samples(self, X: object, y: object, sample_weight: object, params: dict[str, object]) -> _Samples:
        """Return checked data; set `classes_` and the feature names."""
        X, y = indexable(X, y)
        validate_data(self, X, y, skip_check_array=True)
        label: Labels = column_or_1d(y, warn=True)
        missing = sum(type(value).__name__ == "NAType" or value is None or value != value for value in label.tolist())
        if missing and label.dtype == object:
            raise ValueError(f"y must hold a class for each sample, not NaN or None ({missing} of {len(label)}).")
        check_classification_targets(label)
        self.classes_, code = np.unique(label, return_inverse=True)
        given = _check_sample_weight(sample_weight, label[:, None], dtype=np.float64, ensure_non_negative=True)
        weighty = np.count_nonzero(np.bincount(code, given))
        if weighty < 2:
            raise ValueError(f"{type(self).__name__} needs two classes or more with a weight, not {weighty} class.")
        return _Samples(X, label, self.classes_, code, given, params)

    def _folds(self, samples: _Samples) -> list[tuple[Indices, Indices]]:
        return list(check_cv(self.cv, samples.y, classifier=True).split(samples.X, samples.y))

    def _cross_validated(self, samples: _Samples, folds: Folds, weight: Floats | None, method: str) -> Labels | Floats:
        """Return what estimators answer that were not fitted on the sample."""
        options = {"n_jobs": self.n_jobs, "params": samples.params_with(weight, self.estimator), "method": method}
        return np.asarray(cross_val_predict(self.estimator, samples.X, samples.y, cv=folds, **options))

    def __sklearn_tags__(self) -> Tags:
        tags, inner = super().__sklearn_tags__(), get_tags(self.estimator)
        tags.input_tags, tags.non_deterministic = inner.input_tags, inner.non_deterministic
        if inner.classifier_tags is not None:
            tags.classifier_tags.multi_class = inner.classifier_tags.multi_class
            tags.classifier_tags.poor_score = inner.classifier_tags.poor_score
        return tags


@dataclass(eq=False, repr=False)
class OffsetClassifier(_Wrapper):
    r"""Adjusts the scores of a classifier after training, so that rare or missed classes are predicted more often.

    .. math:: \hat y = \arg\max_c \big( \log p_c - \tau\, o_c \big)

    Without `predict_proba`, the decision function takes the place of $\log p$.

    Args:
        estimator: any classifier with `predict_proba` or `decision_function`.
        offsets: "counts": from the class counts of the training set (logit adjustment); fits once. "error": from the
            errors of cross-validated predictions, so that every class is as often missed as wrongly named
            (`aol.fit_offsets`); needs no counts, and fits once per fold and once on all data. Or numbers, `[C]`, in the
            order of `classes_`.
        tau: strength; 0 is the estimator alone.
        cv: folds of "error": a number, a splitter or an iterable; a sample is in one test part.
        n_jobs: number of folds fitted in parallel.

    Attributes:
        estimator_: the fitted estimator.
        offsets_: what is subtracted from the scores of `classes_`; with mean zero, except for your own.

    With a `sklearn.frozen.FrozenEstimator`, nothing is fitted again, and `fit` takes samples that the estimator has not
    seen (for "counts", any samples with the class frequencies of its training set).

    >>> from sklearn.linear_model import LogisticRegression
    >>> X, y = np.arange(12.0)[:, None], np.repeat([0, 1], [9, 3])
    >>> OffsetClassifier(LogisticRegression(C=0.01)).fit(X, y).predict(X).tolist()
    [0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1]
    """

    estimator: BaseEstimator
    _: KW_ONLY
    offsets: str | _check.Numbers = "counts"
    tau: float = 1.0
    cv: Folds = 5
    n_jobs: int | None = None

    def fit(self, X: object, y: object, sample_weight: object = None, **params: Any) -> Self:
        """Fit the estimator, with `params`, and find the offsets.

        A sample of weight two counts as two; in "error" only if all weights are whole numbers, otherwise once.
        """
        _check_classifier(self.estimator)
        tau = _check.number("tau", self.tau, 0.0, 1e6)
        if isinstance(self.offsets, str):
            _check.choice("offsets", self.offsets, ("counts", "error"))
        samples = self._samples(X, y, sample_weight, params)
        weight = None if sample_weight is None else samples.given
        self.estimator_ = samples.fitted(self.estimator, weight)
        method = _score_method(self.estimator_)
        if not isinstance(self.offsets, str):
            self.offsets_ = tau * np.asarray(self.offsets, dtype=np.float64)
            if self.offsets_.shape != self.classes_.shape or not np.isfinite(self.offsets_).all():
                wanted = f"one finite number for each of {len(self.classes_)} classes"
                raise ValueError(f"offsets must hold {wanted}, not {_check.shown(self.offsets)}.")
        elif self.offsets == "counts":
            counts = np.bincount(samples.code, samples.given)
            self.offsets_ = logit_offsets(counts, tau).numpy().astype(np.float64)
        else:
            self.offsets_ = tau * self._from_errors(samples, weight, method)
        return self

    def _from_errors(self, samples: _Samples, weight: Floats | None, method: str) -> Floats:
        """Return the offsets that balance the errors of cross-validated predictions, `[C]`."""
        if isinstance(self.estimator, FrozenEstimator):
            scores = self._plain_scores(samples.X)
        else:
            answer = self._cross_validated(samples, self._folds(samples), weight, method)
            scores = _scores(answer, method, len(self.classes_))
        times = samples.given.astype(np.int64)
        if not np.array_equal(times, samples.given):
            times = (samples.given > 0).astype(np.int64)
        return fit_offsets(torch.from_numpy(scores), samples.code, times=times).numpy().astype(np.float64)

    def _plain_scores(self, X: object) -> Floats:
        """Return the scores before adjustment, `[N, C]`; the least for a class that the estimator does not know."""
        method, own = _score_method(self.estimator_), self.estimator_.classes_
        scores = _scores(getattr(self.estimator_, method)(X), method, len(own))
        least = np.log(TINY) if method == "predict_proba" else scores.min(initial=0.0)
        wanted, shared = np.full((len(scores), len(self.classes_)), least), np.isin(own, self.classes_)
        wanted[:, np.searchsorted(self.classes_, own[shared])] = scores[:, shared]
        return wanted

    def _adjusted(self, X: object) -> Floats:
        check_is_fitted(self)
        scores: Floats = posthoc_logits(torch.from_numpy(self._plain_scores(X)), self.offsets_).numpy()
        return scores

    def predict(self, X: object) -> Labels:
        """Return the classes of the samples."""
        scores = self._adjusted(X)
        return self.classes_[scores.argmax(1)]

    def decision_function(self, X: object) -> Floats:
        """Return the adjusted scores, `[N, C]`; for two classes their difference, `[N]`."""
        scores = self._adjusted(X)
        return scores[:, 1] - scores[:, 0] if len(self.classes_) == 2 else scores

    @available_if(_estimator_has("predict_proba"))
    def predict_proba(self, X: object) -> Floats:
        """Return the probabilities of the classes, as if the classes were balanced."""
        return np.asarray(softmax(self._adjusted(X), axis=1))


@dataclass(eq=False, repr=False)
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
        cv: which predictions count. Folds (a number, a splitter or an iterable; a sample is in one test part): those
            of estimators that were not fitted on the sample. "train": predictions on the training set; cheap, but
            useless for estimators that memorise it, as trees do.
        class_weight: a dict or "balanced": weights of classes, multiplied with those from ages.
        n_jobs: number of folds fitted in parallel.

    Attributes:
        estimator_: the fitted estimator of the last round.
        ages_: rounds since samples were last predicted right, counted from one, after the last round.
        class_age_: the smoothed ages of `classes_`.
        sample_weight_: the weights of `estimator_`.
        scores_: the balanced accuracies of the predictions, by round.

    With folds, a round costs one fit per fold, and the last estimator one more on all data.

    >>> from sklearn.datasets import load_iris
    >>> from sklearn.naive_bayes import GaussianNB
    >>> X, y = load_iris(return_X_y=True)
    >>> model = AgedClassifier(GaussianNB(), rounds=3).fit(X, y)
    >>> model.class_age_.round(2)
    array([1.  , 1.14, 1.18])
    """

    estimator: BaseEstimator
    _: KW_ONLY
    rounds: int = 5
    rho: float = 0.5
    level: str = "class"
    cv: Folds = 5
    class_weight: dict[object, float] | str | None = None
    n_jobs: int | None = None

    def fit(self, X: object, y: object, sample_weight: object = None, **params: Any) -> Self:
        """Fit in rounds. `sample_weight` multiplies.

        `params` go to every fit: `eval_set=[(X_val, y_val)]` stops LightGBM and XGBoost early. A fold gets its part of
        those with a value per sample.
        """
        _check_weighted(self.estimator)
        rounds, rho = _check.whole("rounds", self.rounds, 1), _check.number("rho", self.rho, 0.0, 1.0)
        on_train = isinstance(self.cv, str) and _check.choice("cv", self.cv, ("train",)) == "train"
        samples = self._samples(X, y, sample_weight, params)
        base = self._base(samples)
        folds = [] if on_train else self._folds(samples)
        ages = SampleAges(samples.code, num_classes=len(self.classes_), rho=rho, level=self.level)
        scores = []
        for _ in range(rounds):
            weight = base * _age_factor(samples, ages)
            weight *= base.sum() / weight.sum()  # so that regularisation keeps its meaning
            if on_train:
                self.estimator_ = samples.fitted(self.estimator, weight)
                right = self.estimator_.predict(samples.X) == samples.y
            else:
                right = self._cross_validated(samples, folds, weight, "predict") == samples.y
            ages.observe(range(len(right)), right)
            ages.advance(sync=False)  # a matter of this process alone
            scores.append(np.nanmean(samples.class_mean(right)))
        if not on_train:
            self.estimator_ = samples.fitted(self.estimator, weight)
        self.scores_, self.sample_weight_, self.ages_ = np.array(scores), weight, ages.age.numpy()
        self.class_age_ = samples.class_mean(ages.ema.numpy().astype(np.float64))
        return self

    def _base(self, samples: _Samples) -> Floats:
        """Return weights without ages: `sample_weight` times `class_weight`."""
        if isinstance(self.class_weight, str):
            _check.choice("class_weight", self.class_weight, ("balanced",))
            mass = np.bincount(samples.code, samples.given)
            factor = mass.sum() / np.count_nonzero(mass) / np.where(mass > 0, mass, 1.0)
        else:
            factor = compute_class_weight(self.class_weight, classes=self.classes_, y=samples.y)
        weight: Floats = samples.given * factor[samples.code]
        if not weight.any():
            raise ValueError("class_weight must leave at least one sample with a weight that is not zero.")
        return weight

    def predict(self, X: object) -> Labels:
        """Return the classes of the samples."""
        check_is_fitted(self)
        return self.estimator_.predict(X)

    @available_if(_estimator_has("predict_proba"))
    def predict_proba(self, X: object) -> Floats:
        """Return the probabilities of the classes; weights shift them towards old classes."""
        check_is_fitted(self)
        return self.estimator_.predict_proba(X)

    @available_if(_estimator_has("decision_function"))
    def decision_function(self, X: object) -> Floats:
        """Return the estimator's decision function."""
        check_is_fitted(self)
        return self.estimator_.decision_function(X)


def _age_factor(samples: _Samples, ages: SampleAges) -> Floats:
    """Return the weights of the samples from ages, `[N]`, up to a common factor."""
    if float(ages.rho) == 0 or ages.epoch == 0:
        return np.ones(len(samples.y))
    age = ages.ema.numpy().astype(np.float64)
    return age if ages.level == "sample" else np.nan_to_num(samples.class_mean(age))[samples.code]
