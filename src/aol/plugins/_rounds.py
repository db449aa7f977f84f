"""Functions of one round for `aol.plugins.sklearn`: weights from ages, and one fit with its predictions.

They assume data checked as in `Samples`.
"""

from __future__ import annotations

from dataclasses import dataclass
from inspect import Parameter, isclass, signature
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from sklearn import get_config
from sklearn.base import BaseEstimator, is_regressor
from sklearn.pipeline import Pipeline
from sklearn.utils.metaestimators import _safe_split
from sklearn.utils.validation import check_array

from aol import _check
from aol.ages import SampleAges

Floats: TypeAlias = npt.NDArray[np.float64]
Indices: TypeAlias = npt.NDArray[np.int64]
Labels: TypeAlias = npt.NDArray[np.generic]
Part: TypeAlias = tuple[Indices | None, Indices]  # fit on these (None: on all), then answer for those
Answers: TypeAlias = tuple[Indices, Labels]  # for which samples, and what


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


def train_part(
    estimator: BaseEstimator, method: str, oob: bool, samples: Samples, weight: Floats, part: Part
) -> tuple[BaseEstimator, Answers]:
    """Fit an estimator on one part of the samples; return it with its predictions for the other part."""
    train, test = part
    X, y = samples.X, samples.y
    if train is not None:
        X, y = _safe_split(estimator, X, y, train)
        weight = weight[train]
    named = {weight_name(estimator): weight}
    if method == "fit":
        estimator.fit(X, y, **named)
    else:
        estimator.partial_fit(X, y, classes=samples.classes, **named)
    if oob:
        return estimator, out_of_bag(estimator, test)
    if len(test) == 0:
        return estimator, (test, samples.y[:0])
    if train is not None:
        X, _ = _safe_split(estimator, samples.X, None, test, train)
    return estimator, (test, np.asarray(estimator.predict(X)))


def out_of_bag(estimator: BaseEstimator, index: Indices) -> Answers:
    """Return the out-of-bag predictions of a forest or a bagging classifier."""
    votes = getattr(estimator, "oob_decision_function_", None)
    if votes is None:
        raise ValueError(
            'cv="oob" needs an estimator that keeps out-of-bag votes, as RandomForestClassifier(oob_score=True) does; '
            f"{type(estimator).__name__} has no oob_decision_function_."
        )
    asked = np.nan_to_num(votes).sum(1) > 0  # in every bag: nobody to ask
    return index[asked], estimator.classes_[votes[asked].argmax(1)]


def last_step(estimator: BaseEstimator) -> BaseEstimator:
    """Return the estimator that gets the weights: itself, or the last step of a pipeline."""
    return last_step(estimator.steps[-1][1]) if isinstance(estimator, Pipeline) else estimator


def weight_name(estimator: BaseEstimator) -> str:
    """Return the name of the weights in an estimator's `fit`."""
    if isinstance(estimator, Pipeline) and not get_config()["enable_metadata_routing"]:
        name, step = estimator.steps[-1]
        return f"{name}__{weight_name(step)}"
    return "sample_weight"


def check_estimator(estimator: BaseEstimator, method: str) -> None:
    """Raise unless this estimator can be fitted in rounds by this method."""
    last = last_step(estimator)
    # A stack has no predict before it is fitted: its type says whether it will.
    able = hasattr(estimator, method) and (hasattr(last, "predict") or hasattr(type(last), "predict"))
    if isclass(estimator) or not able or is_regressor(estimator):
        raise TypeError(f"estimator must be a classifier with {method} and predict, not {_check.shown(estimator)}.")
    known = signature(getattr(last, method)).parameters
    if "sample_weight" not in known and all(each.kind is not Parameter.VAR_KEYWORD for each in known.values()):
        raise TypeError(f"estimator must take sample_weight in {method}, which {type(last).__name__} does not.")
    for name, value in last.get_params().items():  # also of what it wraps: bags, votes, searches
        if name.split("__")[-1] == "class_weight" and isinstance(value, str):
            # Many count with the weights they are given: their balance undoes the ages of classes without a word.
            raise ValueError(
                f"{type(last).__name__} must not balance classes itself ({name}), which can undo their ages: give "
                'class_weight="balanced" to AgedClassifier in its place.'
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
