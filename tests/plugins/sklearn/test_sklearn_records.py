"""Records of rounds and of steps, which `aol report` reads."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_wine
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression, Perceptron
from sklearn.metrics import log_loss
from sklearn.model_selection import GridSearchCV, cross_val_predict
from sklearn.naive_bayes import GaussianNB
from sklearn.svm import LinearSVC

import aol
from aol.plugins.sklearn import AgedClassifier
from aol.records.record import read_run
from tests.support.recorded_loop import ages_over_time, samples_of

X, y = load_wine(return_X_y=True)
X = X[:, :2]
NAMES = np.array(["red", "white", "rosé"])[y]


def test_rounds_are_epochs_of_the_record(tmp_path: Path) -> None:
    model = AgedClassifier(GaussianNB(), rounds=3, cv=3, recorder=tmp_path / "run").fit(X, NAMES)
    run = read_run(tmp_path / "run")
    assert run.finished
    assert run.classes == model.classes_.tolist()
    assert run.curves["balanced_accuracy"] == pytest.approx(model.scores_)
    ages = np.array(ages_over_time(samples_of(tmp_path / "run")))
    assert ages[-1].tolist() == model.ages_.tolist()
    assert run.curves["train_accuracy"] == pytest.approx((ages == 1).mean(1))
    assert run.over_time["smoothed_age"][-1] == pytest.approx(model.class_age_, rel=1e-5)
    first = cross_val_predict(GaussianNB(), X, NAMES, cv=3, method="predict_proba")
    own = run.classes[0] == NAMES
    expected = log_loss(NAMES[own], first[own], labels=run.classes)
    assert run.over_time["train_loss"][0, 0] == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize(
    ("estimator", "options"),
    [
        (RandomForestClassifier(60, oob_score=True, random_state=0), {"cv": "oob"}),
        (LinearSVC(random_state=0), {"cv": 2}),
        (Perceptron(), {"cv": 2}),
        (LogisticRegression(), {"cv": "train"}),
    ],
    ids=lambda each: type(each).__name__,
)
def test_whatever_estimators_answer_with_is_recorded(estimator, options: dict, tmp_path: Path) -> None:
    model = AgedClassifier(estimator, rounds=2, recorder=tmp_path / "run", **options).fit(X, y)
    ages = np.array(ages_over_time(samples_of(tmp_path / "run")))
    assert ages[-1].tolist() == model.ages_.tolist()
    assert read_run(tmp_path / "run").curves["train_accuracy"] == pytest.approx((ages == 1).mean(1), abs=0.02)


def test_a_fit_that_fails_releases_the_folder(tmp_path: Path) -> None:
    class Failing(GaussianNB):
        def predict_proba(self, X):
            raise RuntimeError("out of luck")

    with pytest.raises(RuntimeError, match="out of luck"):
        AgedClassifier(Failing(), cv=2, recorder=tmp_path / "run").fit(X, y)
    AgedClassifier(GaussianNB(), cv=2, recorder=tmp_path / "run").fit(X, y)


def test_a_function_may_name_the_folder_of_each_fit_of_a_search(tmp_path: Path) -> None:
    made: list[aol.Recorder] = []

    def record(ages: aol.SampleAges) -> aol.Recorder:
        made.append(aol.Recorder(tmp_path / str(len(made)), ages, settings={"rho": float(ages.rho)}))
        return made[-1]

    model = AgedClassifier(GaussianNB(), rounds=2, cv=2, recorder=record)
    GridSearchCV(model, {"rho": [0.2, 0.8]}, cv=2, refit=False).fit(X, y)
    assert [each.folder.name for each in made] == ["0", "1", "2", "3"]
    assert sorted(aol.load_runs(tmp_path)["rho"]) == pytest.approx([0.2, 0.2, 0.8, 0.8])
