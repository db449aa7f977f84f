"""Rounds against rounds written out by hand: ages, weights, scores, and the estimator that is kept."""

from __future__ import annotations

import joblib
import numpy as np
import pytest
from sklearn.datasets import make_classification
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import KFold
from sklearn.naive_bayes import GaussianNB
from sklearn.tree import DecisionTreeClassifier

import aol
from aol.plugins.sklearn import AgedClassifier
from tests.support.naive_rounds import rounds_by_hand, weights_by_hand


@pytest.fixture(scope="module")
def skewed():
    """Three classes of 120, 40 and 20 samples that overlap."""
    return make_classification(
        180, 6, n_informative=4, n_classes=3, weights=[0.67, 0.22, 0.11], class_sep=0.7, flip_y=0.05, random_state=3
    )


# Trees are no part of this: they break ties by the last bit of a weight.
CASES = [
    (estimator, level, cv)
    for estimator in (LogisticRegression(), GaussianNB())
    for level in ("class", "sample")
    for cv in ("train", 3, KFold(4, shuffle=True, random_state=1))
]


@pytest.mark.parametrize(("estimator", "level", "cv"), CASES)
@pytest.mark.parametrize("weighted", [False, True])
def test_rounds_agree_with_rounds_by_hand(skewed, estimator, level, cv, weighted):
    X, y = skewed
    given = np.random.default_rng(0).integers(1, 4, len(y)).astype(float) if weighted else None
    kind = {"rounds": 4, "rho": 0.5, "level": level, "cv": cv}
    story, whole = rounds_by_hand(estimator, X, y, given=given, **kind)
    model = AgedClassifier(estimator, **kind).fit(X, y, sample_weight=given)
    assert any(not all(right) for right in story.right)  # otherwise nothing was tested
    assert model.ages_.tolist() == [ages[-1] for ages in story.history]
    assert model.sample_weight_ == pytest.approx(story.weights[-1], rel=1e-5)
    assert model.scores_ == pytest.approx(story.scores)
    assert np.array_equal(model.predict(X), whole[-1].predict(X))
    assert model.predict_proba(X) == pytest.approx(whole[-1].predict_proba(X), rel=1e-4, abs=1e-9)
    ema, given = story.ema(0.5), [1.0] * len(y) if given is None else given
    for c in range(3):
        mine = np.flatnonzero(y == c)
        wanted = sum(given[i] * ema[i] for i in mine) / sum(given[i] for i in mine)
        assert model.class_age_[c] == pytest.approx(wanted, rel=1e-5)


def test_without_weights_the_class_ages_are_those_of_the_library(skewed):
    X, y = skewed
    story, _ = rounds_by_hand(LogisticRegression(), X, y, rounds=3, rho=0.5, level="class", cv=5)
    ages = aol.SampleAges(y, rho=0.5)
    for right in story.right:
        ages.observe(range(len(y)), right)
        ages.advance()
    model = AgedClassifier(LogisticRegression(), rounds=3).fit(X, y)
    assert model.class_age_ == pytest.approx(ages.class_age.numpy(), rel=1e-6)
    ratio = model.sample_weight_ / np.array(weights_by_hand(story, list(y), [1.0] * len(y), 0.5, "class"))
    assert not np.allclose(ratio, ratio[0])  # the last round's ages come after its weights: they serve nobody yet


@pytest.mark.parametrize("level", ["class", "sample"])
def test_weights_keep_the_sum_of_those_given(skewed, level):
    X, y = skewed
    given = np.random.default_rng(1).uniform(0.5, 2, len(y))
    model = AgedClassifier(LogisticRegression(), level=level).fit(X, y, sample_weight=given)
    assert model.sample_weight_.sum() == pytest.approx(given.sum())
    assert np.ptp(model.sample_weight_ / given) > 0.1


@pytest.mark.parametrize("still", [{"rounds": 1}, {"rho": 0}])
def test_one_round_and_rho_zero_are_the_estimator_alone(skewed, still):
    X, y = skewed
    model = AgedClassifier(LogisticRegression(), **still).fit(X, y)
    assert np.array_equal(model.sample_weight_, np.ones(len(y)))
    assert np.array_equal(model.estimator_.coef_, LogisticRegression().fit(X, y, sample_weight=np.ones(len(y))).coef_)


def test_answers_on_the_training_set_say_nothing_of_an_estimator_that_knows_it_by_heart(skewed):
    X, y = skewed
    tree = DecisionTreeClassifier(random_state=0)
    by_heart = AgedClassifier(tree, cv="train").fit(X, y)
    assert by_heart.ages_.max() == 1
    assert by_heart.scores_.tolist() == [1.0] * 5
    assert np.array_equal(by_heart.sample_weight_, np.ones(len(y)))
    held_out = AgedClassifier(tree, cv=5).fit(X, y)
    assert held_out.ages_.max() > 3
    assert held_out.class_age_[2] > held_out.class_age_[0]


def test_folds_fitted_side_by_side_give_the_same(skewed):
    X, y = skewed
    with joblib.parallel_config("threading"):
        one, two = (AgedClassifier(LogisticRegression(), rounds=2, n_jobs=jobs).fit(X, y) for jobs in (1, 2))
    assert np.array_equal(one.sample_weight_, two.sample_weight_)
    assert np.array_equal(one.predict_proba(X), two.predict_proba(X))


class ReturnsNothing(LogisticRegression):
    def fit(self, X, y, sample_weight=None):
        super().fit(X, y, sample_weight)


def test_an_estimator_whose_fit_returns_nothing_is_still_the_one_that_predicts(skewed):
    X, y = skewed
    odd, usual = (AgedClassifier(kind(), rounds=2, cv=3).fit(X, y) for kind in (ReturnsNothing, LogisticRegression))
    assert np.array_equal(odd.predict(X), usual.predict(X))
