"""Functions of one round for `aol.plugins.sklearn`: checked data, one fit with its predictions, and checks."""

from __future__ import annotations

from dataclasses import dataclass
from inspect import Parameter, isclass, signature
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from sklearn import get_config
from sklearn.base import BaseEstimator, is_regressor
from sklearn.pipeline import Pipeline
from sklearn.utils.metaestimators import _safe_split
from sklearn.utils.validation import _check_method_params, check_array

from aol import _check
from aol.offsets import logit_offsets

Floats: TypeAlias = npt.NDArray[np.float64]
Indices: TypeAlias = npt.NDArray[np.int64]
Labels: TypeAlias = npt.NDArray[Any]
Part: TypeAlias = tuple[Indices | None, Indices]  # fit on these (None: on all), then answer for those
Answers: TypeAlias = tuple[Indices, Labels, Floats | None]  # for which samples, what, and by which scores
TINY = float(np.finfo(np.float32).eps)  # the least probability whose logarithm is used


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
        """Return how often each sample counts in margins: its weight, if all are whole numbers, else once."""
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


@dataclass(frozen=True)
class Fit:
    """How the estimators of a round are fitted, and what is asked of them.

    Args:
        samples: of which a part is fitted on.
        weight: of each sample, `[N]`; None: none is given to the estimator.
        given: the user's own arguments of `fit`; of those with a value per sample, a part gets its own.
        offset: of the scores, `[C]`, or None.
        oob: predictions are out of bag.
        scored: predictions come with scores, if the estimator has any.
    """

    samples: Samples
    weight: Floats | None
    given: dict[str, object]
    offset: Floats | None = None
    oob: bool = False
    scored: bool = False

    def fitted(self, estimator: BaseEstimator, train: Indices | None = None) -> BaseEstimator:
        """Return an estimator fitted on some samples; None: on all."""
        samples = self.samples
        X, y, part = samples.X, samples.y, slice(None) if train is None else train
        if train is not None:
            X, y = _safe_split(estimator, X, y, train)
        own = {} if self.weight is None else {_in_fit(estimator, "sample_weight"): self.weight[part]}
        if self.offset is not None:
            own[_in_fit(estimator, start_name(estimator))] = _start_scores(self.offset, samples.code[part])
            last = last_step(estimator)
            if last.get_params().get("base_score", 0) is None:  # XGBoost's own, the class frequencies, undoes offsets
                last.set_params(base_score=0.5)
        if clash := own.keys() & self.given.keys():
            raise ValueError(f"fit must not be given {', '.join(sorted(clash))}, which is set here.")
        estimator.fit(X, y, **own, **_check_method_params(samples.X, self.given, train))
        return estimator

    def predicted(self, estimator: BaseEstimator, part: Part) -> tuple[BaseEstimator, Answers]:
        """Fit an estimator on one part of the samples; return it with its predictions for the other part."""
        train, test = part
        estimator, classes = self.fitted(estimator, train), self.samples.classes
        if self.oob:
            return estimator, _out_of_bag(estimator, classes)
        X = self._held_out(estimator, part)
        scores = log_scores(estimator, X, classes) if self.scored and scores_known(estimator) else None
        return estimator, (test, np.asarray(estimator.predict(X)), scores)

    def held_out_scores(self, estimator: BaseEstimator, part: Part) -> Floats:
        """Fit an estimator on one part of the samples; return its scores of the other part."""
        estimator = self.fitted(estimator, part[0])
        return log_scores(estimator, self._held_out(estimator, part), self.samples.classes)

    def _held_out(self, estimator: BaseEstimator, part: Part) -> object:
        train, test = part
        return self.samples.X if train is None else _safe_split(estimator, self.samples.X, None, test, train)[0]


def _out_of_bag(estimator: BaseEstimator, classes: Labels) -> Answers:
    """Return the out-of-bag predictions of a forest or a bagging classifier."""
    votes = getattr(estimator, "oob_decision_function_", None)
    if votes is None:
        raise ValueError(
            'cv="oob" needs an estimator that keeps out-of-bag votes, as RandomForestClassifier(oob_score=True) does; '
            f"{type(estimator).__name__} has no oob_decision_function_."
        )
    (asked,) = np.nonzero(np.nan_to_num(votes).sum(1) > 0)  # not of samples that are in every bag
    scores = _of_all(np.log(votes[asked].clip(TINY)), estimator, classes, float(np.log(TINY)))
    return asked, estimator.classes_[votes[asked].argmax(1)], scores


def last_step(estimator: BaseEstimator) -> BaseEstimator:
    """Return the estimator that gets the weights: itself, or the last step of a pipeline."""
    return last_step(estimator.steps[-1][1]) if isinstance(estimator, Pipeline) else estimator


def _in_fit(estimator: BaseEstimator, argument: str) -> str:
    """Return the name of an argument of the last step in an estimator's `fit`."""
    if isinstance(estimator, Pipeline) and not get_config()["enable_metadata_routing"]:
        name, step = estimator.steps[-1]
        return f"{name}__{_in_fit(step, argument)}"
    return argument


def start_name(estimator: BaseEstimator) -> str:
    """Return the argument of `fit` with the scores that trees start from, or raise TypeError."""
    last = last_step(estimator)
    for name in {"init_score", "base_margin"} & signature(last.fit).parameters.keys():
        return name
    raise TypeError(
        "offset and margins need an estimator whose fit takes init_score (LightGBM) or base_margin (XGBoost), not "
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


def scores_known(estimator: BaseEstimator) -> bool:
    """Return whether an estimator gives more than classes."""
    return hasattr(estimator, "predict_proba") or hasattr(estimator, "decision_function")


def log_scores(estimator: BaseEstimator, X: object, classes: Labels) -> Floats:
    """Return log-probabilities, or decision values without `predict_proba`, `[N, C]`, with a column for every class."""
    if hasattr(estimator, "predict_proba"):
        probability = np.asarray(estimator.predict_proba(X), dtype=np.float64)
        return _of_all(np.log(probability.clip(TINY)), estimator, classes, float(np.log(TINY)))
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


def check_classifier(estimator: BaseEstimator) -> None:
    """Raise unless this is a classifier."""
    last = last_step(estimator)
    # A stack has no predict before it is fitted: its type says whether it will.
    able = hasattr(estimator, "fit") and (hasattr(last, "predict") or hasattr(type(last), "predict"))
    if isclass(estimator) or not able or is_regressor(estimator):
        raise TypeError(f"estimator must be a classifier with fit and predict, not {_check.shown(estimator)}.")


def check_weighted(estimator: BaseEstimator) -> None:
    """Raise unless this is a classifier that takes weights as they are, of samples as they are."""
    check_classifier(estimator)
    last = last_step(estimator)
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


def check_weight(sample_weight: object, size: int) -> Floats:
    """Return the user's weights, `[N]`, or ones."""
    if sample_weight is None:
        return np.ones(size)
    given: Floats = check_array(sample_weight, ensure_2d=False, dtype=np.float64, input_name="sample_weight")
    if given.shape != (size,) or (given < 0).any() or not given.any():
        raise ValueError(f"sample_weight must hold {size} numbers, none below zero and not all of them zero.")
    return given
