"""scikit-learn's own checks, all of them, none expected to fail."""

from __future__ import annotations

import pytest
from sklearn.linear_model import LogisticRegression, RidgeClassifier
from sklearn.naive_bayes import GaussianNB
from sklearn.utils.estimator_checks import parametrize_with_checks

from aol.plugins.sklearn import AgedClassifier, OffsetClassifier

CHECKED = [
    AgedClassifier(LogisticRegression(), rounds=3),
    AgedClassifier(LogisticRegression(), rounds=3, level="sample", cv=2),
    AgedClassifier(LogisticRegression(), cv="train"),
    AgedClassifier(GaussianNB(), keep="best", cv=3),
    AgedClassifier(GaussianNB(), method="partial_fit", cv=3),
    OffsetClassifier(LogisticRegression()),
    OffsetClassifier(GaussianNB(), tau=2.0),
    OffsetClassifier(RidgeClassifier()),
    OffsetClassifier(LogisticRegression(), offsets="error", cv=3),
]


@pytest.mark.filterwarnings("ignore")
@parametrize_with_checks(CHECKED)
def test_the_hosts_own_checks_pass(estimator, check):
    check(estimator)
