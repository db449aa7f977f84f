"""River's own checks, over classifiers with and without weights, and batches."""

from __future__ import annotations

import pytest
from river import checks, dummy, forest, linear_model, multiclass, naive_bayes, preprocessing, tree

from aol.plugins.river import AgedClassifier

SCALED = preprocessing.StandardScaler() | linear_model.LogisticRegression()
CHECKED = {
    "reweighed": AgedClassifier(linear_model.LogisticRegression(), step=20),
    "around a pipeline": AgedClassifier(SCALED, step=20),
    "in a pipeline": preprocessing.StandardScaler()
    | AgedClassifier(multiclass.OneVsRestClassifier(linear_model.LogisticRegression()), step=20),
    "a tree": AgedClassifier(tree.HoeffdingTreeClassifier(), step=20),
    "an adaptive tree": AgedClassifier(tree.HoeffdingAdaptiveTreeClassifier(seed=1), step=20),
    "batches": AgedClassifier(naive_bayes.GaussianNB(), step=20),
    "no probabilities": AgedClassifier(linear_model.PAClassifier(), step=20, seed=1),
    "softmax": AgedClassifier(linear_model.SoftmaxRegression(), step=20),
    "a forest": AgedClassifier(forest.ARFClassifier(n_models=3, seed=1), step=20),
    "hardly a classifier": AgedClassifier(dummy.PriorClassifier(), step=20, rho=1.0, threshold=0.8),
}


@pytest.mark.parametrize("name", CHECKED)
def test_the_hosts_own_checks_pass(name):
    model, done = CHECKED[name], 0
    skipped = model._unit_test_skips()
    for check in checks.yield_checks(model):
        if check.__name__ not in skipped:
            check(model.clone())
            done += 1
    assert done > 40
    # Nothing is left out but what the classifier itself leaves out, and batches that are answered before learned.
    wrapper = model["AgedClassifier"] if name == "in a pipeline" else model
    assert skipped <= wrapper.classifier._unit_test_skips() | {"check_learn_many_matches_learn_one"}
