"""Functions of one round for `aol.plugins.sklearn`: weights from ages, offsets, and one fit with its predictions.

They assume data checked as in `Samples`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from inspect import Parameter, isclass, signature
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from sklearn import get_config
from sklearn.base import BaseEstimator, is_regressor
from sklearn.pipeline import Pipeline
from sklearn.utils.metaestimators import _safe_split
from sklearn.utils.validation import _check_method_params, check_array

from aol import _check
from aol.ages import SampleAges
from aol.offsets import logit_offsets

Floats: TypeAlias = npt.NDArray[np.float64]
Indices: TypeAlias = npt.NDArray[np.int64]
Labels: TypeAlias = npt.NDArray[np.generic]
Part: TypeAlias = tuple[Indices | None, Indices]  # fit on these (None: on all), then answer for those
TINY = float(np.finfo(np.float32).eps)  # the least probability whose logarithm is used
Answers: TypeAlias = tuple[Indices, Labels, Floats | None]  # for which samples, what, and by which scores


@dataclass(frozen=True)
class Samples:
    """Checked data: N samples that can be indexed, their labels, and the index of each label in `classes`."""

    X: object
    y: Labels
    classes: Labels
    code: Indices
    given: Floats  # the user's weights: how many samples each one counts for

    def class_mean(self, value: Floats) -> Floats:
        """Return the weighted mean of each class's values, `[C]`; NaN values do not count, NaN for a class without any.

        >>> y = np.array([0, 0, 1])
        >>> Samples(None, y, np.arange(2), y, np.array([2.0, 1.0, 1.0])).class_mean(np.array([1.0, 4.0, np.nan]))
        array([ 2., nan])
        """
        known, size = ~np.isnan(value), len(self.classes)
        mass = np.bincount(self.code[known], self.given[known], size)
        total = np.bincount(self.code[known], (self.given * value)[known], size)
        return np.divide(total, mass, out=np.full(size, np.nan), where=mass > 0)

    def times(self) -> Indices:
        """Return how often each sample counts in margins: its weight, if all are whole numbers, else once.

        >>> y = np.array([0, 1])
        >>> [Samples(None, y, y, y, np.array(given)).times().tolist() for given in ([2.0, 0.0], [0.5, 0.0])]
        [[2, 0], [1, 0]]
        """
        whole = self.given.astype(np.int64)
        return whole if np.array_equal(whole, self.given) else (self.given > 0).astype(np.int64)

    def class_age(self, ages: SampleAges) -> Floats:
        """Return the smoothed age of each class, `[C]`."""
        return self.class_mean(ages.ema.numpy().astype(np.float64))

    def age_factor(self, ages: SampleAges) -> Floats:
        """Return the weight of each sample from ages, `[N]`, up to a common factor; without an age, the mean weight."""
        if float(ages.rho) == 0 or ages.epoch == 0:
            return np.ones(len(self.y))
        if ages.level == "class":
            age = self.class_age(ages)
            return np.where(np.isnan(age), np.nanmean(age), age)[self.code]
        age = ages.ema.numpy().astype(np.float64)
        seen = ~np.isnan(age) & (self.given > 0)
        return np.where(np.isnan(age), np.average(age[seen], weights=self.given[seen]), age)


def keep_sum(weight: Floats, factor: Floats) -> Floats:
    """Return the product of both, scaled to the sum of the first, so that regularisation keeps its meaning.

    >>> keep_sum(np.array([1.0, 1.0]), np.array([1.0, 3.0]))
    array([0.5, 1.5])
    """
    product = weight * factor
    return product * (weight.sum() / product.sum())


@dataclass(frozen=True)
class Fit:
    """How the estimators of a round are fitted, and what is asked of them.

    Args:
        samples: of which a part is fitted on.
        weight: of each sample, `[N]`; None: none is given to the estimator.
        given: the user's own arguments of `fit`; of those with a value per sample, a part gets its own.
        method: "fit" or "partial_fit".
        offset: of the scores, `[C]`, or None.
        oob: predictions are out of bag.
        scored: predictions come with scores, if the estimator has any.
    """

    samples: Samples
    weight: Floats | None
    given: dict[str, object]
    method: str = "fit"
    offset: Floats | None = None
    oob: bool = False
    scored: bool = False

    def fitted(self, estimator: BaseEstimator, train: Indices | None = None) -> BaseEstimator:
        """Return an estimator fitted on some samples; None: on all."""
        samples = self.samples
        X, y, part = samples.X, samples.y, slice(None) if train is None else train
        if train is not None:
            X, y = _safe_split(estimator, X, y, train)
        own = {} if self.weight is None else {in_fit(estimator, "sample_weight"): self.weight[part]}
        if self.offset is not None:
            own[in_fit(estimator, start_name(estimator))] = start_scores(self.offset, samples.code[part])
            forget_prior(estimator)
        if clash := own.keys() & self.given.keys():
            raise ValueError(f"fit must not be given {', '.join(sorted(clash))}, which is set here.")
        arguments = {**own, **_check_method_params(samples.X, self.given, train)}
        if self.method == "partial_fit":
            estimator.partial_fit(X, y, classes=samples.classes, **arguments)
        else:
            estimator.fit(X, y, **arguments)
        return estimator

    def predicted(self, estimator: BaseEstimator, part: Part) -> tuple[BaseEstimator, Answers]:
        """Fit an estimator on one part of the samples; return it with its predictions for the other part."""
        train, test = part
        estimator = self.fitted(estimator, train)
        if self.oob:
            return estimator, out_of_bag(estimator, test, self.samples.classes)
        if len(test) == 0:
            return estimator, (test, self.samples.y[:0], None)
        X = self._held_out(estimator, part)
        scored = self.scored and scores_known(estimator)
        scores = log_scores(estimator, X, self.samples.classes) if scored else None
        return estimator, (test, np.asarray(estimator.predict(X)), scores)

    def held_out_scores(self, estimator: BaseEstimator, part: Part) -> tuple[Indices, Floats]:
        """Fit an estimator on one part of the samples; return the indices of the other part, and its scores."""
        estimator = self.fitted(estimator, part[0])
        return part[1], log_scores(estimator, self._held_out(estimator, part), self.samples.classes)

    def _held_out(self, estimator: BaseEstimator, part: Part) -> object:
        train, test = part
        return self.samples.X if train is None else _safe_split(estimator, self.samples.X, None, test, train)[0]


def out_of_bag(estimator: BaseEstimator, index: Indices, classes: Labels) -> Answers:
    """Return the out-of-bag predictions of a forest or a bagging classifier."""
    votes = getattr(estimator, "oob_decision_function_", None)
    if votes is None:
        raise ValueError(
            'cv="oob" needs an estimator that keeps out-of-bag votes, as RandomForestClassifier(oob_score=True) does; '
            f"{type(estimator).__name__} has no oob_decision_function_."
        )
    asked = np.nan_to_num(votes).sum(1) > 0  # False for samples that are in every bag
    found = votes[asked]
    return index[asked], estimator.classes_[found.argmax(1)], _of_all(np.log(found.clip(TINY)), estimator, classes)


def last_step(estimator: BaseEstimator) -> BaseEstimator:
    """Return the estimator that gets the weights: itself, or the last step of a pipeline."""
    return last_step(estimator.steps[-1][1]) if isinstance(estimator, Pipeline) else estimator


def in_fit(estimator: BaseEstimator, argument: str) -> str:
    """Return the name of an argument of the last step in an estimator's `fit`."""
    if isinstance(estimator, Pipeline) and not get_config()["enable_metadata_routing"]:
        name, step = estimator.steps[-1]
        return f"{name}__{in_fit(step, argument)}"
    return argument


def start_name(estimator: BaseEstimator) -> str:
    """Return the argument of `fit` with the scores that trees start from, or raise TypeError."""
    last = last_step(estimator)
    known = signature(last.fit).parameters if hasattr(last, "fit") else {}
    for name in ("init_score", "base_margin"):
        if name in known:
            return name
    raise TypeError(
        "offset and margins need an estimator whose fit takes init_score (LightGBM) or base_margin (XGBoost), not "
        f"{type(last).__name__}: use OffsetClassifier for it."
    )


def start_scores(offset: Floats, code: Indices) -> Floats:
    """Return the scores that trees start from, for offsets `[C]`: `[N, C]`, or `[N]` for two classes.

    Trees are fitted on these scores plus their own, and predict by their own: the offset is there in training only.
    Classes that do not occur have no column, as trees number only those they are shown.

    >>> start_scores(np.array([1.0, -1.0]), np.array([0, 1]))
    array([-2., -2.])
    >>> start_scores(np.array([1.0, 0.0, -1.0]), np.array([0, 1, 2])).shape
    (3, 3)
    """
    shown = offset[np.unique(code)]
    return np.full(len(code), shown[1] - shown[0]) if len(shown) == 2 else np.tile(shown, (len(code), 1))


def forget_prior(estimator: BaseEstimator) -> None:
    """Let XGBoost start from scores of zero at prediction; its own estimate, the class frequencies, undoes offsets."""
    last = last_step(estimator)
    if "base_score" in last.get_params() and last.get_params()["base_score"] is None:
        last.set_params(base_score=0.5)


def scores_known(estimator: BaseEstimator) -> bool:
    """Return whether an estimator gives more than classes."""
    return hasattr(estimator, "predict_proba") or hasattr(estimator, "decision_function")


def log_scores(estimator: BaseEstimator, X: object, classes: Labels) -> Floats:
    """Return log-probabilities, or decision values without `predict_proba`, `[N, C]`, with a column for every class."""
    if hasattr(estimator, "predict_proba"):
        probability = np.asarray(estimator.predict_proba(X), dtype=np.float64)
        found, least = np.log(probability.clip(TINY)), float(np.log(TINY))
    else:
        found = np.asarray(estimator.decision_function(X), dtype=np.float64)
        found = np.stack((-found / 2, found / 2), axis=1) if found.ndim == 1 else found
        least = float(found.min(initial=0.0))
    return _of_all(found, estimator, classes, least)


def _of_all(found: Floats, estimator: BaseEstimator, classes: Labels, least: float = float(np.log(TINY))) -> Floats:
    """Return scores with a column for every class; one that the estimator does not know has the least.

    A frozen estimator may know more classes, which have no column.
    """
    own = estimator.classes_
    if found.shape[1:] != (len(own),):
        raise ValueError(f"estimator must give one score for each of {len(own)} classes, not {list(found.shape[1:])}.")
    scores = np.full((len(found), len(classes)), least)
    shared = np.isin(own, classes)
    scores[:, np.searchsorted(classes, own[shared])] = found[:, shared]
    return scores


def count_offsets(samples: Samples, tau: float) -> Floats:
    """Return the offsets of logit adjustment, `[C]`; a sample of weight two counts as two.

    >>> y = np.array([0, 0, 1])
    >>> count_offsets(Samples(None, y, np.arange(2), y, np.array([3.0, 3.0, 1.0])), 1.0).round(3)
    array([ 0.896, -0.896])
    """
    mass = np.bincount(samples.code, samples.given, len(samples.classes))
    return logit_offsets(mass, tau).numpy().astype(np.float64)


def check_classifier(estimator: BaseEstimator, method: str) -> None:
    """Raise unless this is a classifier that this method fits."""
    last = last_step(estimator)
    # A stack has no predict before it is fitted: its type says whether it will.
    able = hasattr(estimator, method) and (hasattr(last, "predict") or hasattr(type(last), "predict"))
    if isclass(estimator) or not able or is_regressor(estimator):
        raise TypeError(f"estimator must be a classifier with {method} and predict, not {_check.shown(estimator)}.")


def check_estimator(estimator: BaseEstimator, method: str) -> None:
    """Raise unless this estimator can be fitted in rounds by this method."""
    check_classifier(estimator, method)
    last = last_step(estimator)
    if not takes_weight(last, method):
        raise TypeError(f"estimator must take sample_weight in {method}, which {type(last).__name__} does not.")
    refuse_samplers(estimator)
    for name, value in last.get_params().items():  # also of what it wraps: bags, votes, searches
        if name.split("__")[-1] == "class_weight" and isinstance(value, str):
            # Many count with the weights they are given: their balance undoes the ages of classes without a word.
            raise ValueError(
                f"{type(last).__name__} must not balance classes itself ({name}), which can undo their ages: give "
                'class_weight="balanced" to AgedClassifier in its place.'
            )


def takes_weight(estimator: BaseEstimator, method: str) -> bool:
    """Return whether `fit` has a `sample_weight`, or passes on what it is given to an estimator that has.

    >>> from sklearn.linear_model import LogisticRegression
    >>> from sklearn.model_selection import GridSearchCV
    >>> from sklearn.neighbors import KNeighborsClassifier
    >>> [takes_weight(GridSearchCV(each, {}), "fit") for each in (LogisticRegression(), KNeighborsClassifier())]
    [True, False]
    """
    known = signature(getattr(estimator, method)).parameters
    if "sample_weight" in known:
        return True
    # Any keyword will do for some that make nothing of it.
    inner = (each for each in estimator.get_params().values() if hasattr(each, method) and not isclass(each))
    return _takes_any(known) and any(takes_weight(each, method) for each in inner)


def _takes_any(known: Mapping[str, Parameter]) -> bool:
    return any(each.kind is Parameter.VAR_KEYWORD for each in known.values())


def refuse_samplers(estimator: BaseEstimator) -> None:
    """Raise TypeError if a pipeline changes its samples, to which weights and ages belong."""
    for _, step in estimator.steps if isinstance(estimator, Pipeline) else ():
        if hasattr(step, "fit_resample"):
            name = type(step).__name__
            raise TypeError(
                f"estimator must keep its samples, and {name} resamples them: put it before AgedClassifier, as in "
                f"imblearn.pipeline.make_pipeline({name}(), AgedClassifier(...))."
            )
        refuse_samplers(step)


def check_params(estimator: BaseEstimator, method: str, params: dict[str, object]) -> None:
    """Raise TypeError if `fit` of the estimator does not take these arguments."""
    known = signature(getattr(estimator, method)).parameters
    for name in params:
        if name not in known and not _takes_any(known):
            raise TypeError(
                f"{method} of {type(estimator).__name__} takes no {name}. (A splitter gets its groups with "
                "sklearn.set_config(enable_metadata_routing=True).)"
            )


def check_weight(sample_weight: object, size: int) -> Floats:
    """Return the user's weights, `[N]`, or ones."""
    if sample_weight is None:
        return np.ones(size)
    given: Floats = check_array(sample_weight, ensure_2d=False, dtype=np.float64, input_name="sample_weight")
    if given.shape != (size,):
        raise ValueError(f"sample_weight must hold one number for each of {size} samples, not {list(given.shape)}.")
    if (given < 0).any() or not given.any():
        raise ValueError("sample_weight must hold no number below zero, and at least one that is not zero.")
    return given
