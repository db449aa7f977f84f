"""Offsets of boosted trees: sign, layout and prior of both libraries, in training and afterwards."""

from __future__ import annotations

import functools
import warnings

import numpy as np
import pandas as pd
import pytest
from lightgbm import LGBMClassifier
from sklearn.base import clone
from sklearn.datasets import make_classification
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.metrics import recall_score
from sklearn.model_selection import GridSearchCV, StratifiedKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from xgboost import XGBClassifier

import aol
from aol.plugins.sklearn import AgedClassifier, OffsetClassifier

TREES = {
    "lightgbm": LGBMClassifier(n_estimators=20, learning_rate=0.3, min_child_samples=5, n_jobs=1, verbose=-1),
    "xgboost": XGBClassifier(n_estimators=20, n_jobs=1),
}
ARGUMENT = {"lightgbm": "init_score", "xgboost": "base_margin"}
NO_WEIGHTS = {"rounds": 1, "rho": 0.0, "cv": "train"}


def skewed(classes: int, seed: int = 0):
    weights = [0.9, 0.1] if classes == 2 else [0.8, 0.14, 0.06]
    return make_classification(900, 6, n_informative=4, n_classes=classes, weights=weights, random_state=seed)


def by_hand(name: str, X, y, offset):
    """Fit with the library's own argument, from a prior of zero; `offset` is one number for each class."""
    rows = np.full(len(y), offset[1] - offset[0]) if len(offset) == 2 else np.tile(offset, (len(y), 1))
    trees = clone(TREES[name])
    if name == "xgboost":
        trees.set_params(base_score=0.5)
    return trees.fit(X, y, **{ARGUMENT[name]: rows})


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("name", TREES)
def test_trees_that_can_learn_nothing_predict_balanced_classes(name, classes):
    """The sign and the prior: with balanced softmax the scores of trees without features are equal, not frequencies."""
    _, y = skewed(classes)
    X = np.zeros((len(y), 1))
    model = AgedClassifier(TREES[name], offset="counts", **NO_WEIGHTS).fit(X, y)
    assert model.predict_proba(X)[0] == pytest.approx(np.full(classes, 1 / classes), abs=0.02)
    plain = AgedClassifier(TREES[name], **NO_WEIGHTS).fit(X, y)
    assert plain.predict_proba(X)[0] == pytest.approx(np.bincount(y) / len(y), abs=0.02)


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("name", TREES)
def test_a_static_offset_is_that_of_the_library(name, classes):
    X, y = skewed(classes)
    offset = aol.logit_offsets(np.bincount(y), 1.5).numpy().astype(float)
    model = AgedClassifier(TREES[name], offset="counts", tau=1.5, **NO_WEIGHTS).fit(X, y)
    given = AgedClassifier(TREES[name], offset=offset, **NO_WEIGHTS).fit(X, y)
    wanted = by_hand(name, X, y, offset)
    assert model.offset_ == pytest.approx(offset)
    assert model.predict_proba(X) == pytest.approx(wanted.predict_proba(X), abs=1e-6)
    assert np.array_equal(given.predict(X), model.predict(X))
    plain = TREES[name].fit(X, y)
    rare = classes - 1
    assert model.predict_proba(X)[:, rare].mean() > plain.predict_proba(X)[:, rare].mean()
    assert TREES[name].get_params().get("base_score") is None  # the user's own is left alone


@pytest.mark.parametrize("name", TREES)
def test_trees_of_folds_have_the_offset_too(name):
    X, y = skewed(3)
    cv, offset = StratifiedKFold(3, shuffle=True, random_state=0), np.array([1.5, 0.0, -1.5])
    model = AgedClassifier(TREES[name], rounds=2, rho=0.0, cv=cv, offset=offset).fit(X, y)
    right = np.zeros(len(y), dtype=bool)
    for train, test in cv.split(X, y):
        right[test] = by_hand(name, X[train], y[train], offset).predict(X[test]) == y[test]
    assert model.ages_.tolist() == np.where(right, 1, 3).tolist()
    assert model.offset_ == pytest.approx(offset)
    assert model.predict_proba(X) == pytest.approx(by_hand(name, X, y, offset).predict_proba(X), abs=1e-5)


def test_a_class_that_a_fold_lacks_has_no_column():
    X, y = skewed(3)
    kept = np.r_[np.flatnonzero(y != 2), np.flatnonzero(y == 2)[:2]]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The least populated class")
        model = AgedClassifier(TREES["lightgbm"], rounds=2, cv=3, offset="counts").fit(X[kept], y[kept])
    assert model.predict_proba(X).shape == (900, 3)


def test_text_labels_frames_pipelines_and_searches():
    X, y = skewed(3)
    frame, named = pd.DataFrame(X, columns=list("abcdef")), np.array(["cat", "dog", "eel"])[y]
    pipeline = make_pipeline(StandardScaler().set_output(transform="pandas"), TREES["lightgbm"])
    model = AgedClassifier(pipeline, rounds=2, cv=2, offset="counts").fit(frame, named)
    assert set(model.predict(frame)) == {"cat", "dog", "eel"}
    grid = {"offset": ["counts", None], "tau": [0.5, 1.0]}
    search = GridSearchCV(AgedClassifier(TREES["xgboost"], rounds=2, cv=2), grid, cv=2, error_score="raise").fit(X, y)
    assert len(search.cv_results_["params"]) == 4


@pytest.mark.parametrize("name", TREES)
@pytest.mark.parametrize("offsets", ["counts", "error"])
def test_scores_of_trees_can_be_adjusted_afterwards(name, offsets):
    X, y = skewed(3)
    half = np.arange(len(y)) % 2 == 0
    plain = clone(TREES[name]).fit(X[half], y[half])
    model = OffsetClassifier(TREES[name], offsets=offsets, cv=3).fit(X[half], y[half])
    before, after = (recall_score(y[~half], each.predict(X[~half]), average="macro") for each in (plain, model))
    assert after > before


@pytest.mark.parametrize(
    ("options", "error", "named"),
    [
        ({"estimator": HistGradientBoostingClassifier(), "offset": "counts"}, TypeError, "use OffsetClassifier"),
        ({"offset": "age"}, ValueError, "offset must be one of"),
        ({"offset": [1.0]}, ValueError, "offset must hold one finite number for each of 3 classes"),
    ],
)
def test_bad_input_gets_one_clear_sentence(options, error, named):
    X, y = skewed(3)
    with pytest.raises(error, match=named) as caught:
        AgedClassifier(**{"estimator": TREES["lightgbm"], **options}).fit(X, y)
    assert str(caught.value).endswith(".")


@pytest.mark.parametrize(
    ("wrapper", "options"), [(OffsetClassifier, {}), (AgedClassifier, {"offset": "counts", **NO_WEIGHTS})]
)
def test_what_the_page_calls_one_fit_is_one(wrapper, options, monkeypatch):
    X, y = skewed(3)
    fits, whole = [], LGBMClassifier.fit
    monkeypatch.setattr(LGBMClassifier, "fit", functools.wraps(whole)(lambda *a, **k: fits.append(1) or whole(*a, **k)))
    wrapper(TREES["lightgbm"], **options).fit(X, y)
    assert len(fits) == 1
