"""scikit-learn's own checks, all of them, none expected to fail."""

from __future__ import annotations

import pytest
from sklearn.linear_model import LogisticRegression, RidgeClassifier
from sklearn.naive_bayes import GaussianNB
from sklearn.utils.estimator_checks import parametrize_with_checks

from aol.plugins.sklearn import AgedClassifier, OffsetClassifier

CHECKED = [
    AgedClassifier(LogisticRegression(), rounds=2, level="sample", cv=2),
    AgedClassifier(GaussianNB(), cv="train", class_weight="balanced"),
    OffsetClassifier(RidgeClassifier(), tau=2.0),
    OffsetClassifier(LogisticRegression(), offsets="error", cv=3),
]


@pytest.mark.filterwarnings("ignore")
@parametrize_with_checks(CHECKED)
def test_the_hosts_own_checks_pass(estimator, check):
    check(estimator)
