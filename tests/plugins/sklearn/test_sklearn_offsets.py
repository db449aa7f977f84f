"""Scores adjusted after training, against the library's functions and cross-validation written out."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import make_classification
from sklearn.ensemble import RandomForestClassifier, VotingClassifier
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LinearRegression, LogisticRegression, RidgeClassifier
from sklearn.metrics import balanced_accuracy_score
from sklearn.model_selection import GridSearchCV, StratifiedKFold, cross_val_predict, train_test_split
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

import aol
from aol.plugins.sklearn import OffsetClassifier


def skewed(classes: int = 3, samples: int = 600, seed: int = 3):
    weights = [0.8, 0.14, 0.06] if classes == 3 else [0.9, 0.1]
    return make_classification(
        samples, 6, n_informative=4, n_classes=classes, weights=weights, class_sep=0.7, random_state=seed
    )


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("tau", [0.0, 1.0, 1.5])
def test_counts_are_the_adjustment_of_the_library(classes, tau):
    X, y = skewed(classes)
    model = OffsetClassifier(LogisticRegression(), tau=tau).fit(X, y)
    plain = LogisticRegression().fit(X, y)
    logits = torch.tensor(plain.predict_log_proba(X))
    wanted = aol.posthoc_logits(logits, aol.logit_offsets(np.bincount(y), tau))
    assert model.predict(X).tolist() == wanted.argmax(1).tolist()
    assert model.predict_proba(X) == pytest.approx(wanted.softmax(1).numpy(), abs=1e-6)
    if tau == 0:
        assert np.array_equal(model.predict(X), plain.predict(X))
    elif classes == 2:  # known in closed form: the threshold moves by the logarithm of the ratio of counts
        ratio = np.log(np.bincount(y)[0] / np.bincount(y)[1])
        assert model.decision_function(X) == pytest.approx(plain.decision_function(X) + tau * ratio, abs=1e-4)


@pytest.mark.parametrize(
    "estimator", [LogisticRegression(), RidgeClassifier(), SVC()], ids=lambda each: type(each).__name__
)
@pytest.mark.parametrize("classes", [2, 3])
def test_errors_come_from_cross_validated_scores(estimator, classes):
    X, y = skewed(classes)
    cv = StratifiedKFold(4, shuffle=True, random_state=0)
    model = OffsetClassifier(estimator, offsets="error", cv=cv).fit(X, y)
    if hasattr(estimator, "predict_proba"):
        scores = cross_val_predict(estimator, X, y, cv=cv, method="predict_log_proba")
    else:
        scores = cross_val_predict(estimator, X, y, cv=cv, method="decision_function")
        scores = np.stack((-scores / 2, scores / 2), 1) if classes == 2 else scores
    wanted = aol.fit_offsets(torch.tensor(scores), y).numpy()
    assert model.offsets_ == pytest.approx(wanted, abs=1e-4)
    assert np.ptp(wanted) > 0.1
    half = OffsetClassifier(estimator, offsets="error", cv=cv, tau=0.5).fit(X, y)
    assert half.offsets_ == pytest.approx(wanted / 2, abs=1e-4)


@pytest.mark.parametrize("offsets", ["counts", "error"])
@pytest.mark.parametrize(
    "estimator", [LogisticRegression(), RandomForestClassifier(random_state=0)], ids=["linear", "forest"]
)
def test_rare_classes_gain_on_samples_that_were_not_trained_on(estimator, offsets):
    gains = []
    for seed in range(3):
        X, y = skewed(samples=1500, seed=seed)
        X, X_test, y, y_test = train_test_split(X, y, stratify=y, random_state=0)
        plain, adjusted = clone(estimator).fit(X, y), OffsetClassifier(estimator, offsets=offsets).fit(X, y)
        before, after = (balanced_accuracy_score(y_test, each.predict(X_test)) for each in (plain, adjusted))
        gains.append(after - before)
    assert min(gains) > 0
    assert max(gains) > 0.05


def test_classes_that_a_fold_lacks_have_the_least_score():
    """Three samples in five folds: two folds are fitted without one of them, none without all."""
    X, y = skewed()
    few = np.r_[np.flatnonzero(y != 2), np.flatnonzero(y == 2)[:2]]
    with pytest.warns(UserWarning, match="least populated class"):
        model = OffsetClassifier(KNeighborsClassifier(), offsets="error").fit(X[few], y[few])
    assert np.isfinite(model.offsets_).all()
    assert model.offsets_.shape == (3,)


@pytest.mark.parametrize("offsets", ["counts", "error"])
def test_text_labels_frames_and_pipelines(offsets):
    X, y = skewed()
    named = np.array(["cat", "dog", "eel"])[y]
    frame = pd.DataFrame(X, columns=list("abcdef"))
    model = OffsetClassifier(make_pipeline(StandardScaler(), LogisticRegression()), offsets=offsets).fit(frame, named)
    number = OffsetClassifier(make_pipeline(StandardScaler(), LogisticRegression()), offsets=offsets).fit(X, y)
    assert model.classes_.tolist() == ["cat", "dog", "eel"]
    assert model.feature_names_in_.tolist() == list("abcdef")
    assert model.predict(frame).tolist() == np.array(["cat", "dog", "eel"])[number.predict(X)].tolist()
    weighted = clone(model).fit(frame, named, sample_weight=np.ones(len(y)))
    assert np.array_equal(weighted.predict(frame), model.predict(frame))
    around = make_pipeline(StandardScaler(), OffsetClassifier(LogisticRegression(), offsets=offsets)).fit(frame, named)
    assert around.predict_proba(frame).shape == (len(y), 3)


@pytest.mark.parametrize("offsets", ["counts", "error"])
def test_weights_count_as_repeats(offsets):
    X, y = skewed()
    weight = np.random.default_rng(0).integers(0, 4, len(y))
    fold = np.arange(len(y)) % 3
    parts = [(np.flatnonzero(fold != f), np.flatnonzero(fold == f)) for f in range(3)]
    again = np.repeat(fold, weight)
    repeated = [(np.flatnonzero(again != f), np.flatnonzero(again == f)) for f in range(3)]
    one = OffsetClassifier(LogisticRegression(), offsets=offsets, cv=parts).fit(X, y, sample_weight=weight)
    two = OffsetClassifier(LogisticRegression(), offsets=offsets, cv=repeated)
    two.fit(np.repeat(X, weight, 0), np.repeat(y, weight))
    assert one.offsets_ == pytest.approx(two.offsets_, abs=1e-3)
    assert one.decision_function(X) == pytest.approx(two.decision_function(X), abs=2e-3)


def test_samples_of_weight_zero_have_no_say_in_errors():
    X, y = skewed()
    cv, weight = StratifiedKFold(4), np.ones(len(y))
    weight[::5] = 0
    model = OffsetClassifier(LogisticRegression(), offsets="error", cv=cv).fit(X, y, sample_weight=weight)
    options = {"params": {"sample_weight": weight}, "method": "predict_log_proba"}
    scores = torch.tensor(cross_val_predict(LogisticRegression(), X, y, cv=cv, **options))[weight > 0]
    assert model.offsets_ == pytest.approx(aol.fit_offsets(scores, y[weight > 0]).numpy(), abs=1e-4)


def test_searches_find_the_strength():
    X, y = skewed()
    grid = {"offsets": ["counts", "error"], "tau": [0.0, 1.0], "estimator__C": [0.1, 1.0]}
    model = OffsetClassifier(LogisticRegression(), cv=3)
    search = GridSearchCV(model, grid, cv=3, scoring="balanced_accuracy", error_score="raise").fit(X, y)
    assert search.best_params_["tau"] == 1.0


@pytest.mark.parametrize("offsets", ["counts", "error"])
@pytest.mark.parametrize("missing", [0, 1, 2])
def test_a_frozen_estimator_may_know_classes_that_the_samples_lack(missing, offsets):
    X, y = skewed()
    plain = LogisticRegression().fit(X, y)
    X, y = X[y != missing], y[y != missing]
    model = OffsetClassifier(FrozenEstimator(plain), offsets=offsets, tau=0.0).fit(X, y)
    share = np.delete(plain.predict_proba(X), missing, axis=1).clip(1e-7)
    assert model.predict_proba(X) == pytest.approx(share / share.sum(1, keepdims=True), abs=1e-5)


@pytest.mark.parametrize("offsets", ["counts", "error"])
def test_a_frozen_estimator_is_not_fitted_again(offsets):
    X, y = skewed(samples=1200)
    plain = LogisticRegression().fit(X[:600], y[:600])
    coefficients = plain.coef_.copy()
    model = OffsetClassifier(FrozenEstimator(plain), offsets=offsets).fit(X[600:], y[600:])
    assert np.array_equal(plain.coef_, coefficients)
    if offsets == "error":
        scores = torch.tensor(plain.predict_log_proba(X[600:]))
        assert model.offsets_ == pytest.approx(aol.fit_offsets(scores, y[600:]).numpy(), abs=1e-4)


def test_offsets_of_ones_own_are_subtracted():
    X, y = skewed()
    model = OffsetClassifier(LogisticRegression(), offsets=[3.0, 0.0, -3.0], tau=2.0).fit(X, y)
    assert model.offsets_.tolist() == [6.0, 0.0, -6.0]
    assert (model.predict(X) == 2).sum() > (y == 2).sum()


def test_an_estimator_without_probabilities_has_none():
    X, y = skewed()
    model = OffsetClassifier(RidgeClassifier()).fit(X, y)
    assert not hasattr(model, "predict_proba")
    assert model.decision_function(X).argmax(1).tolist() == model.predict(X).tolist()


@pytest.mark.parametrize(
    ("options", "error", "named"),
    [
        ({"offsets": "age"}, ValueError, "offsets must be one of"),
        ({"offsets": [1.0]}, ValueError, "offsets must hold one finite number for each of 3 classes"),
        ({"tau": -1.0}, ValueError, "tau must"),
        ({"estimator": SVC(decision_function_shape="ovo"), "offsets": "error"}, ValueError, "one score for each of"),
        ({"estimator": LinearRegression()}, TypeError, "estimator must be a classifier"),
        ({"estimator": None}, TypeError, "estimator must be a classifier"),
        ({"estimator": VotingClassifier([("a", LogisticRegression())])}, TypeError, "must have predict_proba"),
    ],
)
def test_bad_input_gets_one_clear_sentence(options, error, named):
    X, y = make_classification(400, 6, n_informative=4, n_classes=3, random_state=0)
    if "estimator" in options:
        X, y = make_classification(400, 6, n_informative=4, n_classes=4, random_state=0)
    with pytest.raises(error, match=named) as caught:
        OffsetClassifier(**{"estimator": LogisticRegression(), **options}).fit(X, y)
    assert str(caught.value).endswith(".")
