"""Ages and margins for scikit-learn: a classifier fitted in rounds, and one whose scores are adjusted afterwards.

Follows the conventions of scikit-learn: parameters are checked in `fit`, fitted attributes end in an underscore, and
`clone`, pipelines and searches work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Self

import numpy as np
import torch
from scipy.special import log_softmax, softmax
from sklearn.base import BaseEstimator, ClassifierMixin, MetaEstimatorMixin, clone
from sklearn.model_selection import check_cv
from sklearn.utils import Tags, column_or_1d, get_tags, indexable
from sklearn.utils.class_weight import compute_class_weight
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.parallel import Parallel, delayed
from sklearn.utils.validation import check_is_fitted, validate_data

from aol import _check
from aol.ages import SampleAges
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
    check_weight,
    check_weighted,
    log_scores,
    scores_known,
    start_name,
)


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
    cv: int | str | object | Iterable[tuple[Indices, Indices]]

    coef_ = _of_estimator("coef_")
    intercept_ = _of_estimator("intercept_")
    feature_importances_ = _of_estimator("feature_importances_")

    def _check_samples(self, X: object, y: object, sample_weight: object) -> Samples:
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
        given = check_weight(sample_weight, len(label))
        weighty = np.count_nonzero(np.bincount(code, given))
        if weighty < 2:
            some, name = "1 class" if weighty else "no class", type(self).__name__
            raise ValueError(f"{name} needs samples of two classes or more that have a weight, not of {some}.")
        return Samples(X, label, self.classes_, code, given)

    def _folds(self, samples: Samples) -> list[Part]:
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
        margins: for LightGBM and XGBoost: offsets of the scores that are found from the predictions of each round, by
            "age" or "error" as in `aol.Margins`; or None.
        offset: for LightGBM and XGBoost: a static offset of the scores: "counts" (logit adjustment), `[C]`, or None.
            Trees are fitted on offset plus scores (`init_score`, `base_margin`), and predict by the scores alone.
        gain: speed of the margins per round.
        tau: strength of the offset "counts".
        n_jobs: number of folds fitted in parallel.
        recorder: records rounds as epochs for `aol report`: a folder, or a function from the ages to an
            `aol.Recorder`. Costs a second prediction of every sample.

    Attributes:
        estimator_: the fitted estimator of the last round.
        ages_: rounds since each sample was last predicted right, counted from one, after the last round.
        class_age_: the smoothed age of each class of `classes_`.
        sample_weight_: the weights of `estimator_`.
        offset_: the offset of `estimator_`, for each class of `classes_`; only with `margins` or `offset`.
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
        cv: int | str | object | Iterable[tuple[Indices, Indices]] = 5,
        class_weight: dict[object, float] | str | None = None,
        margins: str | None = None,
        offset: str | _check.Numbers | None = None,
        gain: float = 0.2,
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
        self.margins = margins
        self.offset = offset
        self.gain = gain
        self.tau = tau
        self.n_jobs = n_jobs
        self.recorder = recorder

    def fit(self, X: object, y: object, sample_weight: object = None, **params: Any) -> Self:
        """Fit in rounds. `sample_weight` multiplies.

        `params` go to every fit of the estimator: `eval_set=[(X_val, y_val)]` stops LightGBM and XGBoost early. Of
        those with a value per sample, a fold gets its own.
        """
        self._check_settings()
        samples = self._check_samples(X, y, sample_weight)
        base, size = self._base(samples), len(self.classes_)
        parts = [(None, np.arange(len(samples.y)))] if isinstance(self.cv, str) else self._folds(samples)
        ages = SampleAges(samples.code, num_classes=size, rho=self.rho, level=self.level)
        kind: dict[str, Any] = {"labels": samples.code, "signal": self.margins, "gain": self.gain}
        margins = None if self.margins is None else Margins(size, **kind)
        records, finished, self.scores_ = Records(self.recorder), False, np.empty(0)
        try:
            records.begin(ages, classes=[str(label) for label in self.classes_.tolist()])
            for _ in range(_check.whole("rounds", self.rounds, 1)):
                weight, offset = _keep_sum(base, _age_factor(samples, ages)), self._offset(samples, margins)
                fit = Fit(samples, weight, params, offset, self.cv == "oob", self.recorder is not None)
                trained = Parallel(n_jobs=self.n_jobs)(
                    delayed(fit.predicted)(clone(self.estimator), part) for part in parts
                )
                self._end_round(ages, margins, samples, [answers for _, answers in trained], records)
            finished = True
        finally:
            records.end(finished=finished)
        whole = parts[-1][0] is None
        self.estimator_ = trained[-1][0] if whole else fit.fitted(clone(self.estimator))
        self.sample_weight_, self.ages_ = weight, ages.age.numpy()
        self.class_age_ = samples.class_mean(ages.ema.numpy().astype(np.float64))
        self.__dict__.pop("offset_", None)
        if offset is not None:
            self.offset_ = offset
        return self

    def _check_settings(self) -> None:
        _check.whole("rounds", self.rounds, 1)
        _check.number("rho", self.rho, 0.0, 1.0)
        _check.choice("level", self.level, ("class", "sample"))
        _check.number("gain", self.gain, 0.0, 1e3)
        _check.number("tau", self.tau, 0.0, 1e6)
        choices = {"cv": ("train", "oob"), "class_weight": ("balanced",), "margins": ("age", "error")}
        for name, allowed in {**choices, "offset": ("counts",)}.items():
            if isinstance(getattr(self, name), str):
                _check.choice(name, getattr(self, name), allowed)
        check_weighted(self.estimator)
        if self.margins is not None or self.offset is not None:
            start_name(self.estimator)

    def _base(self, samples: Samples) -> Floats:
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

    def _offset(self, samples: Samples, margins: Margins | None) -> Floats | None:
        """Return the offset of the next round, `[C]`."""
        if margins is None and self.offset is None:
            return None
        fixed = np.zeros(len(samples.classes)) if self.offset is None else samples.offsets(self.offset, self.tau)
        return fixed if margins is None else fixed + margins.offsets.numpy()

    def _end_round(
        self, ages: SampleAges, margins: Margins | None, samples: Samples, answers: list[Answers], records: Records
    ) -> None:
        """Update ages and margins, and record the round."""
        right, named = np.full(len(samples.y), np.nan), np.zeros(len(samples.y), dtype=np.int64)
        for index, answer, scores in answers:
            if scores is not None:
                records.observe(index, torch.from_numpy(scores).float())
            right[index] = answer == samples.y[index]
            named[index] = np.searchsorted(samples.classes, answer)
        (seen,) = np.nonzero(~np.isnan(right))
        ages.observe(seen, right[seen] > 0)
        ages.advance(sync=False)  # a matter of this process alone
        figures: dict[str, Any] = {"balanced_accuracy": float(np.nanmean(samples.class_mean(right)))}
        if margins is not None:
            margins.observe(seen, named[seen], times=samples.times()[seen])
            margins.advance(sync=False)
            figures["offset"] = margins.offsets
        self.scores_ = np.append(self.scores_, figures["balanced_accuracy"])
        records.advance(**figures)

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


def _age_factor(samples: Samples, ages: SampleAges) -> Floats:
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

    def fit(self, X: object, y: object, sample_weight: object = None, **params: Any) -> Self:
        """Fit the estimator and find the offsets.

        A sample of weight two counts as two; in "error" only if all weights are whole numbers, otherwise once.
        `params` go to every fit of the estimator, such as `eval_set`.
        """
        check_classifier(self.estimator)
        tau = _check.number("tau", self.tau, 0.0, 1e6)
        if isinstance(self.offsets, str):
            _check.choice("offsets", self.offsets, ("counts", "error"))
        samples = self._check_samples(X, y, sample_weight)
        fit = Fit(samples, None if sample_weight is None else samples.given, params)
        estimator = fit.fitted(clone(self.estimator))
        if not scores_known(estimator):
            wanted = "predict_proba or decision_function"
            raise TypeError(f"estimator must have {wanted}, which {type(estimator).__name__} has not.")
        if isinstance(self.offsets, str) and self.offsets == "error":
            offsets = tau * self._from_errors(fit, self._folds(samples))
        else:
            offsets = samples.offsets(self.offsets, tau) * (1.0 if isinstance(self.offsets, str) else tau)
        self.estimator_, self.offsets_ = estimator, offsets
        return self

    def _from_errors(self, fit: Fit, parts: list[Part]) -> Floats:
        """Return the offsets that balance the errors of cross-validated predictions, `[C]`."""
        scored = Parallel(n_jobs=self.n_jobs)(
            delayed(fit.held_out_scores)(clone(self.estimator), part) for part in parts
        )
        index = np.concatenate([test for _, test in parts])
        scores = torch.from_numpy(np.concatenate(scored))
        times = fit.samples.times()[index]
        return fit_offsets(scores, fit.samples.code[index], times=times).numpy().astype(np.float64)

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
        return np.asarray(softmax(self._scores(X), axis=1))

    @available_if(_has("predict_log_proba"))
    def predict_log_proba(self, X: object) -> Floats:
        """Return the logarithm of `predict_proba`."""
        return np.asarray(log_softmax(self._scores(X), axis=1))
