"""Boosted trees of three makes and pandas, through the scikit-learn plug-in; the example and the benchmarks run."""

from __future__ import annotations

import functools
import importlib
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from lightgbm import LGBMClassifier
from sklearn.base import clone
from sklearn.datasets import load_wine, make_classification
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.metrics import recall_score
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from xgboost import XGBClassifier, XGBRFClassifier

import aol
from aol.plugins.sklearn import AgedClassifier, OffsetClassifier
from tests.support.naive_rounds import rounds_by_hand
from tests.support.running import PATIENCE

ROOT = Path(__file__).parents[3]
whole = load_wine(return_X_y=True)
tail = aol.long_tail(whole[1], 8, seed=0).numpy()
X, y = whole[0][tail], whole[1][tail]

TREES = {
    "lightgbm": LGBMClassifier(n_estimators=5, min_child_samples=3, n_jobs=1, verbose=-1),
    "xgboost": XGBClassifier(n_estimators=5, n_jobs=1),
    "xgboost forest": XGBRFClassifier(n_estimators=5, n_jobs=1, random_state=0),
    "hist": HistGradientBoostingClassifier(max_iter=5, min_samples_leaf=3),
}


@pytest.mark.parametrize("name", TREES)
@pytest.mark.parametrize("level", ["class", "sample"])
def test_trees_agree_with_rounds_by_hand(name, level):
    kind = {"rounds": 3, "rho": 0.5, "level": level, "cv": 3}
    story, kept = rounds_by_hand(TREES[name], X, y, **kind)
    model = AgedClassifier(TREES[name], **kind).fit(X, y)
    assert any(not all(right) for right in story.right)  # otherwise nothing was tested
    assert model.ages_.tolist() == [ages[-1] for ages in story.history]
    assert model.sample_weight_ == pytest.approx(story.weights[-1], rel=1e-5)
    assert np.mean(model.predict(X) == kept[-1].predict(X)) > 0.98


@pytest.mark.parametrize("name", TREES)
def test_a_search_and_a_pipeline_work(name):
    grid = {"rho": [0.2, 0.8], "estimator__n_estimators" if name != "hist" else "estimator__max_iter": [2, 4]}
    search = GridSearchCV(AgedClassifier(TREES[name], rounds=2, cv=2), grid, cv=2, error_score="raise").fit(X, y)
    assert len(search.cv_results_["params"]) == 4
    around = AgedClassifier(make_pipeline(StandardScaler(), TREES[name]), rounds=2, cv=2).fit(X, y)
    assert around.predict_proba(X).shape == (len(y), 3)


STOPPING = {
    "lightgbm": LGBMClassifier(n_estimators=200, min_child_samples=3, n_jobs=1, verbose=-1, early_stopping_round=3),
    "xgboost": XGBClassifier(n_estimators=200, n_jobs=1, early_stopping_rounds=3),
}


@pytest.mark.parametrize("name", STOPPING)
def test_trees_stop_early_in_every_round_as_by_hand(name):
    kind, more = {"rounds": 3, "rho": 0.5, "level": "sample", "cv": 3}, {"eval_set": [(X[::3], y[::3])]}
    more |= {"verbose": False} if name == "xgboost" else {}
    story, kept = rounds_by_hand(STOPPING[name], X, y, **kind, more=more)
    model = AgedClassifier(STOPPING[name], **kind).fit(X, y, **more)
    best = "best_iteration" if name == "xgboost" else "best_iteration_"
    assert getattr(model.estimator_, best) == getattr(kept[-1], best) < 150
    assert model.ages_.tolist() == [ages[-1] for ages in story.history]


@pytest.mark.parametrize("name", STOPPING)
def test_early_stopping_goes_with_offsets_and_searches(name):
    search = GridSearchCV(OffsetClassifier(STOPPING[name]), {"tau": [0.5, 1.0]}, cv=2, error_score="raise")
    search.fit(X, y, eval_set=[(X[::3], y[::3])])
    assert search.best_estimator_.predict(X).shape == y.shape


@pytest.mark.parametrize("name", STOPPING)
@pytest.mark.parametrize("offsets", ["counts", "error"])
def test_scores_of_trees_can_be_adjusted_afterwards(name, offsets):
    X, y = make_classification(900, 6, n_informative=4, n_classes=3, weights=[0.8, 0.14, 0.06], random_state=0)
    half = np.arange(len(y)) % 2 == 0
    plain = clone(TREES[name]).set_params(n_estimators=20).fit(X[half], y[half])
    model = OffsetClassifier(clone(plain), offsets=offsets, cv=3).fit(X[half], y[half])
    before, after = (recall_score(y[~half], kind.predict(X[~half]), average="macro") for kind in (plain, model))
    assert after > before


def test_what_the_page_calls_one_fit_is_one(monkeypatch):
    fits, whole = [], LGBMClassifier.fit
    monkeypatch.setattr(LGBMClassifier, "fit", functools.wraps(whole)(lambda *a, **k: fits.append(1) or whole(*a, **k)))
    OffsetClassifier(TREES["lightgbm"]).fit(X, y)
    assert len(fits) == 1


def test_words_as_labels_go_to_trees_that_take_them():
    names = np.array(["red", "white", "rosé"])[y]
    for name in ("lightgbm", "hist"):
        model = AgedClassifier(TREES[name], rounds=2, cv=2).fit(X, names)
        assert set(model.predict(X)) <= {"red", "white", "rosé"}


def table():
    frame = pd.DataFrame(X[:, :4], columns=["alcohol", "acid", "ash", "alkaline"])
    return frame.assign(kind=pd.Categorical(np.where(X[:, 4] > 100, "strong", "mild")))


@pytest.mark.parametrize(
    "estimator",
    [
        LGBMClassifier(n_estimators=5, n_jobs=1, verbose=-1),
        XGBClassifier(n_estimators=5, n_jobs=1, enable_categorical=True),
        HistGradientBoostingClassifier(max_iter=5, categorical_features="from_dtype"),
    ],
    ids=lambda each: type(each).__name__,
)
def test_a_data_frame_reaches_the_trees_as_it_is(estimator):
    frame, labels = table(), pd.Series(y, index=range(1000, 1000 + len(y)))  # an index of its own
    model = AgedClassifier(estimator, rounds=2, cv=2).fit(frame, labels, sample_weight=pd.Series(np.ones(len(y))))
    assert model.feature_names_in_.tolist() == ["alcohol", "acid", "ash", "alkaline", "kind"]
    assert model.n_features_in_ == 5
    assert model.predict(frame).shape == (len(y),)
    plain = AgedClassifier(RandomForestClassifier(n_estimators=5, random_state=0), rounds=2, cv=2)
    numbers = frame.drop(columns="kind")
    with pytest.raises(ValueError, match="feature names should match"):
        plain.fit(numbers, labels).predict(numbers[["acid", "alcohol", "ash", "alkaline"]])


def test_the_example_prints_its_table():
    command = [sys.executable, str(ROOT / "examples" / "boosted_trees.py"), "--data", "wine", "--model", "xgboost"]
    done = subprocess.run([*command, "--seeds", "2", "--rounds", "2"], capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    assert any(
        line.startswith("balanced accuracy") and "difference to none" in line for line in done.stdout.splitlines()
    )
    wrong = subprocess.run([*command, "--rounds", "0"], capture_output=True, text=True, timeout=PATIENCE)
    assert wrong.returncode == 2
    (line,) = wrong.stderr.splitlines()
    assert "--rounds: must be a whole number of 1 or more, not '0'" in line


def test_the_benchmark_writes_a_record_that_says_what_it_belongs_to(tmp_path, monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    tabular = importlib.import_module("tabular")
    words = ["--tables", "wine", "--models", "hist", "xgboost", "--rounds", "2", "--seeds", "2"]
    assert tabular.main([*words, "--out", str(tmp_path / "new" / "tabular.json")]) == 0
    record = json.loads((tmp_path / "new" / "tabular.json").read_text())
    assert record["machine"]["packages"].keys() == {"scikit-learn", "lightgbm", "xgboost"}
    kinds = [(case["model"], case["method"]) for case in record["cases"]]
    assert kinds == [(model, method) for model in ("hist", "xgboost") for method in tabular.METHODS]
    assert all(len(case["worst_class"]) == len(case["seconds"]) == 2 for case in record["cases"])
    assert "| wine  | xgboost " in capsys.readouterr().out
