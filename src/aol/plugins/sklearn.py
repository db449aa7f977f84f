"""Offsets and ages for scikit-learn: a classifier whose scores are adjusted, and one that is fitted in rounds.

Follows the conventions of scikit-learn: parameters are checked in `fit`, fitted attributes end in an underscore, and
`clone`, pipelines and searches work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass
from inspect import Parameter, isclass, signature
from typing import Any, Self, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from scipy.special import log_softmax, softmax
from sklearn import get_config
from sklearn.base import BaseEstimator, ClassifierMixin, MetaEstimatorMixin, clone, is_regressor
from sklearn.model_selection import check_cv
from sklearn.pipeline import Pipeline
from sklearn.utils import Tags, column_or_1d, get_tags, indexable
from sklearn.utils.class_weight import compute_class_weight
from sklearn.utils.metaestimators import _safe_split, available_if
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.parallel import Parallel, delayed
from sklearn.utils.validation import _check_method_params, check_array, check_is_fitted, validate_data

from aol import _check
from aol.ages import SampleAges
from aol.offsets import fit_offsets, logit_offsets, posthoc_logits
from aol.plugins._records import Recording, recorder_of
from aol.records.recorder import Recorder

Floats: TypeAlias = npt.NDArray[np.float64]
Indices: TypeAlias = npt.NDArray[np.int64]
Labels: TypeAlias = npt.NDArray[Any]
Folds: TypeAlias = int | object | Iterable[tuple[Indices, Indices]]
Part: TypeAlias = tuple[Indices | None, Indices]  # fit on these (None: on all), then predict those
Answers: TypeAlias = tuple[Indices, Any, Floats | None]  # of which samples: classes, if asked for, and scores

TINY = float(np.finfo(np.float32).eps)  # the least probability whose logarithm is used


# Data, and one fit


@dataclass(frozen=True)
class _Samples:
    """Checked data: N samples that can be indexed, their labels, and the index of each label in `classes`."""

    X: object
    y: Labels
    classes: Labels
    code: Indices
    given: Floats  # the user's weights: how many samples each one counts for
    params: dict[str, object]  # the user's own arguments of `fit`

    def class_mean(self, value: Floats) -> Floats:
        """Return the weighted mean of each class's values, `[C]`; NaN values do not count, NaN for a class without any.

        >>> y = np.array([0, 0, 1])
        >>> _Samples(None, y, np.arange(2), y, np.array([2.0, 1.0, 1.0]), {}).class_mean(np.array([1.0, 4.0, np.nan]))
        array([ 2., nan])
        """
        known, size = ~np.isnan(value), len(self.classes)
        mass = np.bincount(self.code[known], self.given[known], size)
        total = np.bincount(self.code[known], (self.given * value)[known], size)
        return np.divide(total, mass, out=np.full(size, np.nan), where=mass > 0)

    def times(self) -> Indices:
        """Return how often each sample counts in `fit_offsets`: its weight, if all are whole numbers, else once."""
        whole = self.given.astype(np.int64)
        return whole if np.array_equal(whole, self.given) else (self.given > 0).astype(np.int64)

    def offsets(self, given: str | _check.Numbers, tau: float = 1.0) -> Floats:
        """Return the offsets of logit adjustment, "counts", or those that were given, `[C]`."""
        if isinstance(given, str):
            mass = np.bincount(self.code, self.given, len(self.classes))
            return logit_offsets(mass, tau).numpy().astype(np.float64)
        own: Floats = _check.real("offset", given).numpy().astype(np.float64)
        if own.shape != self.classes.shape or not np.isfinite(own).all():
            wanted = f"one finite number for each of {len(self.classes)} classes"
            raise ValueError(f"offset must hold {wanted}, not {_check.shown(given)}.")
        return own

    def fitted(
        self, estimator: BaseEstimator, rows: Indices | None, weight: Floats | None, offset: Floats | None = None
    ) -> BaseEstimator:
        """Fit an estimator on some samples (None: on all), with weights `[N]` and offsets of trees `[C]`; return it."""
        X, y, part = self.X, self.y, slice(None) if rows is None else rows
        if rows is not None:
            X, y = _safe_split(estimator, X, y, rows)
        own = {} if weight is None else {_in_fit(estimator, "sample_weight"): weight[part]}
        if offset is not None:
            own[_in_fit(estimator, _start_name(estimator))] = _start_scores(offset, self.code[part])
            last = _last_step(estimator)
            if last.get_params().get("base_score", 0) is None:  # XGBoost's own, the class frequencies, undoes offsets
                last.set_params(base_score=0.5)
        if clash := own.keys() & self.params.keys():
            raise ValueError(f"fit must not be given {', '.join(sorted(clash))}, which is set here.")
        estimator.fit(X, y, **own, **_check_method_params(self.X, self.params, rows))
        return estimator

    def predicted(
        self,
        estimator: BaseEstimator,
        part: Part,
        weight: Floats | None,
        offset: Floats | None = None,
        *,
        classes: bool,
        scores: bool,
    ) -> tuple[BaseEstimator, Answers]:
        """Fit an estimator on one part of the samples; return it with its classes and scores `[B, C]` of the other."""
        train, test = part
        estimator = self.fitted(estimator, train, weight, offset)
        X = self.X if train is None else _safe_split(estimator, self.X, None, test, train)[0]
        score = _log_scores(estimator, X, self.classes) if scores and _has_scores(estimator) else None
        return estimator, (test, np.asarray(estimator.predict(X)) if classes else None, score)


def _last_step(estimator: BaseEstimator) -> BaseEstimator:
    """Return the estimator that gets the weights: itself, or the last step of a pipeline."""
    return _last_step(estimator.steps[-1][1]) if isinstance(estimator, Pipeline) else estimator


def _in_fit(estimator: BaseEstimator, argument: str) -> str:
    """Return the name of an argument of the last step in an estimator's `fit`."""
    if isinstance(estimator, Pipeline) and not get_config()["enable_metadata_routing"]:
        name, step = estimator.steps[-1]
        return f"{name}__{_in_fit(step, argument)}"
    return argument


def _start_name(estimator: BaseEstimator) -> str:
    """Return the argument of `fit` with the scores that trees start from, or raise TypeError."""
    last = _last_step(estimator)
    for name in {"init_score", "base_margin"} & signature(last.fit).parameters.keys():
        return name
    raise TypeError(
        "offset needs an estimator whose fit takes init_score (LightGBM) or base_margin (XGBoost), not "
        f"{type(last).__name__}: use OffsetClassifier for it."
    )


def _start_scores(offset: Floats, code: Indices) -> Floats:
    """Return the scores that trees start from, for offsets `[C]`: `[N, C]`, or `[N]` for two classes.

    Trees are fitted on these scores plus their own, and predict by their own: the offset is there in training only.
    Classes that do not occur have no column, as trees number only those they are shown.

    >>> _start_scores(np.array([1.0, -1.0]), np.array([0, 1]))
    array([-2., -2.])
    """
    shown = offset[np.unique(code)]
    return np.full(len(code), shown[1] - shown[0]) if len(shown) == 2 else np.tile(shown, (len(code), 1))


# Scores, with a column for every class


def _has_scores(estimator: BaseEstimator) -> bool:
    return hasattr(estimator, "predict_proba") or hasattr(estimator, "decision_function")


def _log(probability: object) -> Floats:
    return np.log(np.asarray(probability, dtype=np.float64).clip(TINY))


def _log_scores(estimator: BaseEstimator, X: object, classes: Labels) -> Floats:
    """Return log-probabilities, or decision values without `predict_proba`, `[N, C]`."""
    if hasattr(estimator, "predict_proba"):
        return _of_all(_log(estimator.predict_proba(X)), estimator, classes, float(np.log(TINY)))
    scores = np.asarray(estimator.decision_function(X), dtype=np.float64)
    scores = np.stack((-scores / 2, scores / 2), axis=1) if scores.ndim == 1 else scores
    return _of_all(scores, estimator, classes, float(scores.min(initial=0.0)))


def _of_all(scores: Floats, estimator: BaseEstimator, classes: Labels, least: float) -> Floats:
    """Return scores of `classes`: the least where the estimator does not know one. A frozen one may know more."""
    own = estimator.classes_
    if scores.shape[1:] != (len(own),):
        raise ValueError(f"estimator must give one score for each of {len(own)} classes, not {list(scores.shape[1:])}.")
    wanted, shared = np.full((len(scores), len(classes)), least), np.isin(own, classes)
    wanted[:, np.searchsorted(classes, own[shared])] = scores[:, shared]
    return wanted


def _out_of_bag(estimator: BaseEstimator, classes: Labels) -> Answers:
    """Return the out-of-bag predictions of a forest or a bagging classifier."""
    votes = getattr(estimator, "oob_decision_function_", None)
    if votes is None:
        raise ValueError(
            'cv="oob" needs an estimator that keeps out-of-bag votes, as RandomForestClassifier(oob_score=True) does; '
            f"{type(estimator).__name__} has no oob_decision_function_."
        )
    (asked,) = np.nonzero(np.nan_to_num(votes).sum(1) > 0)  # not of samples that are in every bag
    scores = _of_all(_log(votes[asked]), estimator, classes, float(np.log(TINY)))
    return asked, estimator.classes_[votes[asked].argmax(1)], scores


# Checks


def _check_classifier(estimator: BaseEstimator) -> None:
    """Raise unless this is a classifier."""
    last = _last_step(estimator)
    # A stack has no predict before it is fitted: its type says whether it will.
    able = hasattr(estimator, "fit") and (hasattr(last, "predict") or hasattr(type(last), "predict"))
    if isclass(estimator) or not able or is_regressor(estimator):
        raise TypeError(f"estimator must be a classifier with fit and predict, not {_check.shown(estimator)}.")


def _check_weighted(estimator: BaseEstimator) -> None:
    """Raise unless this is a classifier that takes weights as they are, of samples as they are."""
    _check_classifier(estimator)
    last = _last_step(estimator)
    if not _takes_weight(last):
        raise TypeError(f"estimator must take sample_weight in fit, which {type(last).__name__} does not.")
    for _, step in estimator.steps if isinstance(estimator, Pipeline) else ():
        if hasattr(step, "fit_resample"):
            name = type(step).__name__
            raise TypeError(f"estimator must keep its samples; {name} resamples them: put it before AgedClassifier.")
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


def _checked_weight(sample_weight: object, size: int) -> Floats:
    """Return the user's weights, `[N]`, or ones."""
    if sample_weight is None:
        return np.ones(size)
    given: Floats = check_array(sample_weight, ensure_2d=False, dtype=np.float64, input_name="sample_weight")
    if given.shape != (size,) or (given < 0).any() or not given.any():
        raise ValueError(f"sample_weight must hold {size} numbers, none below zero and not all of them zero.")
    return given


# Estimators


def _has(method: str) -> Callable[[_Wrapper], bool]:
    """Return a check for `available_if`: whether the estimator has this method."""

    def check(self: _Wrapper) -> bool:
        getattr(getattr(self, "estimator_", self.estimator), method)  # its AttributeError says who lacks what
        return True

    return check


def _of_estimator(name: str) -> property:
    return property(lambda self: getattr(self.estimator_, name), doc=f"The `{name}` of `estimator_`, if it has one.")


class _Wrapper(MetaEstimatorMixin, ClassifierMixin, BaseEstimator):
    """A classifier around another one, with folds."""

    estimator: BaseEstimator
    cv: Folds

    coef_ = _of_estimator("coef_")
    intercept_ = _of_estimator("intercept_")
    feature_importances_ = _of_estimator("feature_importances_")

    def _samples(self, X: object, y: object, sample_weight: object, params: dict[str, object]) -> _Samples:
        """Return checked data; set `classes_` and the feature names."""
        if y is None:
            raise ValueError(f"{type(self).__name__} requires y to be passed, but the target y is None.")
        X, y = indexable(X, y)
        validate_data(self, X, skip_check_array=True)
        label: Labels = column_or_1d(y, warn=True)
        missing = sum(type(value).__name__ == "NAType" or value is None or value != value for value in label.tolist())
        if missing and label.dtype == object:
            raise ValueError(f"y must hold a class for each sample, not NaN or None ({missing} of {len(label)}).")
        check_classification_targets(label)
        self.classes_, code = np.unique(label, return_inverse=True)
        given = _checked_weight(sample_weight, len(label))
        weighty = np.count_nonzero(np.bincount(code, given))
        if weighty < 2:
            some, name = "1 class" if weighty else "no class", type(self).__name__
            raise ValueError(f"{name} needs samples of two classes or more that have a weight, not of {some}.")
        return _Samples(X, label, self.classes_, code, given, params)

    def _parts(self, samples: _Samples) -> list[Part]:
        """Return the parts of cross-validation."""
        splits = check_cv(self.cv, samples.y, classifier=True).split(samples.X, samples.y)
        parts: list[Part] = [(np.asarray(train), np.asarray(test)) for train, test in splits]
        if not parts:
            raise ValueError("cv must give at least one fold, and gave none.")
        return parts

    def __sklearn_tags__(self) -> Tags:
        tags, inner = super().__sklearn_tags__(), get_tags(self.estimator)
        tags.input_tags, tags.non_deterministic = inner.input_tags, inner.non_deterministic
        if inner.classifier_tags is not None:
            tags.classifier_tags.multi_class = inner.classifier_tags.multi_class
            tags.classifier_tags.poor_score = inner.classifier_tags.poor_score
        return tags


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
        cv: Folds = 5,
        n_jobs: int | None = None,
    ) -> None:
        self.estimator = estimator
        self.offsets = offsets
        self.tau = tau
        self.cv = cv
        self.n_jobs = n_jobs

    def fit(self, X: object, y: object, sample_weight: object = None, **params: Any) -> Self:
        """Fit the estimator and find the offsets.

        A sample of weight two counts as two; in "error" only if all weights are whole numbers, otherwise once.
        `params` go to every fit of the estimator, such as `eval_set`.
        """
        _check_classifier(self.estimator)
        tau = _check.number("tau", self.tau, 0.0, 1e6)
        if isinstance(self.offsets, str):
            _check.choice("offsets", self.offsets, ("counts", "error"))
        samples = self._samples(X, y, sample_weight, params)
        weight = None if sample_weight is None else samples.given
        estimator = samples.fitted(clone(self.estimator), None, weight)
        if not _has_scores(estimator):
            wanted = "predict_proba or decision_function"
            raise TypeError(f"estimator must have {wanted}, which {type(estimator).__name__} has not.")
        if not isinstance(self.offsets, str):
            self.offsets_ = samples.offsets(self.offsets) * tau
        elif self.offsets == "counts":
            self.offsets_ = samples.offsets("counts", tau)
        else:
            self.offsets_ = tau * self._from_errors(samples, weight)
        self.estimator_ = estimator
        return self

    def _from_errors(self, samples: _Samples, weight: Floats | None) -> Floats:
        """Return the offsets that balance the errors of cross-validated predictions, `[C]`."""
        job = delayed(samples.predicted)
        answers = Parallel(n_jobs=self.n_jobs)(
            job(clone(self.estimator), part, weight, classes=False, scores=True) for part in self._parts(samples)
        )
        index = np.concatenate([index for _, (index, _, _) in answers])
        scores = torch.from_numpy(np.concatenate([scores for _, (_, _, scores) in answers]))
        return fit_offsets(scores, samples.code[index], times=samples.times()[index]).numpy().astype(np.float64)

    def _scores(self, X: object) -> Floats:
        check_is_fitted(self)
        scores = torch.from_numpy(_log_scores(self.estimator_, X, self.classes_))
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
        return np.asarray(softmax(self._scores(X), axis=1))

    @available_if(_has("predict_log_proba"))
    def predict_log_proba(self, X: object) -> Floats:
        """Return the logarithm of `predict_proba`."""
        return np.asarray(log_softmax(self._scores(X), axis=1))


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
        class_weight: a dict or "balanced": weights of classes, multiplied with those from ages.
        offset: for LightGBM and XGBoost: a static offset of the scores: "counts" (logit adjustment), `[C]`, or None.
            Trees are fitted on offset plus scores (`init_score`, `base_margin`), and predict by the scores alone.
        tau: strength of the offset "counts".
        n_jobs: number of folds fitted in parallel.
        recorder: records rounds as epochs for `aol report`: a folder, or a function from the ages to an
            `aol.Recorder`. Costs a second prediction of every sample.

    Attributes:
        estimator_: the fitted estimator of the last round.
        ages_: rounds since each sample was last predicted right, counted from one, after the last round.
        class_age_: the smoothed age of each class of `classes_`.
        sample_weight_: the weights of `estimator_`.
        offset_: the offset of `estimator_`, for each class of `classes_`; only with `offset`.
        scores_: the balanced accuracy of the predictions of each round.

    With folds, a round costs one fit per fold, and the last estimator one more on all data.

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
        cv: Folds = 5,
        class_weight: dict[object, float] | str | None = None,
        offset: str | _check.Numbers | None = None,
        tau: float = 1.0,
        n_jobs: int | None = None,
        recorder: Recording = None,
    ) -> None:
        self.estimator = estimator
        self.rounds = rounds
        self.rho = rho
        self.level = level
        self.cv = cv
        self.class_weight = class_weight
        self.offset = offset
        self.tau = tau
        self.n_jobs = n_jobs
        self.recorder = recorder

    def fit(self, X: object, y: object, sample_weight: object = None, **params: Any) -> Self:
        """Fit in rounds. `sample_weight` multiplies.

        `params` go to every fit of the estimator: `eval_set=[(X_val, y_val)]` stops LightGBM and XGBoost early. Of
        those with a value per sample, a fold gets its own.
        """
        rounds = self._check_settings()
        samples = self._samples(X, y, sample_weight, params)
        base = self._base(samples)
        offset = None if self.offset is None else samples.offsets(self.offset, self.tau)
        parts = [(None, np.arange(len(samples.y)))] if isinstance(self.cv, str) else self._parts(samples)
        oob, job = isinstance(self.cv, str) and self.cv == "oob", delayed(samples.predicted)
        asked = {"classes": not oob, "scores": not oob and self.recorder is not None}
        ages = SampleAges(samples.code, num_classes=len(self.classes_), rho=self.rho, level=self.level)
        self.scores_ = np.empty(0)
        recorder = recorder_of(self.recorder, ages, [str(label) for label in self.classes_.tolist()])
        with nullcontext() if recorder is None else recorder:
            for _ in range(rounds):
                weight = _keep_sum(base, _age_factor(samples, ages))
                trained = Parallel(n_jobs=self.n_jobs)(
                    job(clone(self.estimator), part, weight, offset, **asked) for part in parts
                )
                answers = [_out_of_bag(trained[0][0], self.classes_)] if oob else [given for _, given in trained]
                self._end_round(samples, answers, ages, recorder)
        on_all = isinstance(self.cv, str)
        self.estimator_ = trained[0][0] if on_all else samples.fitted(clone(self.estimator), None, weight, offset)
        self.sample_weight_, self.ages_ = weight, ages.age.numpy()
        self.class_age_ = samples.class_mean(ages.ema.numpy().astype(np.float64))
        self.__dict__.pop("offset_", None)
        if offset is not None:
            self.offset_ = offset
        return self

    def _check_settings(self) -> int:
        """Raise where a setting is wrong; return the number of rounds."""
        _check.number("rho", self.rho, 0.0, 1.0)
        _check.choice("level", self.level, ("class", "sample"))
        _check.number("tau", self.tau, 0.0, 1e6)
        words = {"cv": ("train", "oob"), "class_weight": ("balanced",), "offset": ("counts",)}
        for name, allowed in words.items():
            if isinstance(getattr(self, name), str):
                _check.choice(name, getattr(self, name), allowed)
        _check_weighted(self.estimator)
        if self.offset is not None:
            _start_name(self.estimator)
        return _check.whole("rounds", self.rounds, 1)

    def _base(self, samples: _Samples) -> Floats:
        """Return weights without ages: `sample_weight` times `class_weight`."""
        if self.class_weight == "balanced":
            mass = np.bincount(samples.code, samples.given)
            factor = mass.sum() / np.count_nonzero(mass) / np.where(mass > 0, mass, 1.0)
        else:
            factor = compute_class_weight(self.class_weight, classes=self.classes_, y=samples.y)
        weight: Floats = samples.given * factor[samples.code]
        if not weight.any():
            raise ValueError("class_weight must leave at least one sample with a weight that is not zero.")
        return weight

    def _end_round(
        self, samples: _Samples, answers: list[Answers], ages: SampleAges, recorder: Recorder | None
    ) -> None:
        """Update ages, and record the round."""
        right = np.full(len(samples.y), np.nan)
        for index, answer, scores in answers:
            if recorder is not None and scores is not None:
                recorder.observe(index, torch.from_numpy(scores).float())
            right[index] = answer == samples.y[index]
        (seen,) = np.nonzero(~np.isnan(right))
        ages.observe(seen, right[seen] > 0)
        ages.advance(sync=False)  # a matter of this process alone
        balanced = float(np.nanmean(samples.class_mean(right)))
        self.scores_ = np.append(self.scores_, balanced)
        if recorder is not None:
            recorder.advance(balanced_accuracy=balanced)

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


def _age_factor(samples: _Samples, ages: SampleAges) -> Floats:
    """Return the weight of each sample from ages, `[N]`, up to a common factor; without an age, the mean weight."""
    if float(ages.rho) == 0 or ages.epoch == 0:
        return np.ones(len(samples.y))
    age = ages.ema.numpy().astype(np.float64)
    if ages.level == "class":
        by_class = samples.class_mean(age)
        return np.where(np.isnan(by_class), np.nanmean(by_class), by_class)[samples.code]
    seen = ~np.isnan(age) & (samples.given > 0)
    return np.where(np.isnan(age), np.average(age[seen], weights=samples.given[seen]), age)


def _keep_sum(weight: Floats, factor: Floats) -> Floats:
    """Return the product of both, scaled to the sum of the first, so that regularisation keeps its meaning.

    >>> _keep_sum(np.array([1.0, 1.0]), np.array([1.0, 3.0]))
    array([0.5, 1.5])
    """
    product = weight * factor
    return product * (weight.sum() / product.sum())
