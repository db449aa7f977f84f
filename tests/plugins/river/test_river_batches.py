"""Batches: the classifier's own where it has them, rows one by one where not, in any kind of data frame."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow
import pytest
from river import datasets, linear_model, multiclass, naive_bayes, neighbors, preprocessing, tree

import aol
from aol.plugins.river import AgedClassifier
from tests.support.river_models import Scripted

ROWS = list(datasets.ImageSegments().take(300))
X = pd.DataFrame([x for x, _ in ROWS])
Y = pd.Series([y for _, y in ROWS], name="category")


def batches(size=60):
    return [(X[i : i + size], Y[i : i + size]) for i in range(0, len(X), size)]


def test_a_classifier_without_batches_gets_rows_one_by_one():
    many, one = (AgedClassifier(tree.HoeffdingTreeClassifier(grace_period=20), step=50) for _ in range(2))
    for x, y in batches():
        many.learn_many(x, y)
    for x, y in ROWS:
        one.learn_one(x, y)
    assert many.class_age == one.class_age
    assert many.predict_many(X).tolist() == [one.predict_one(x) for x, _ in ROWS]
    probabilities = many.predict_proba_many(X)
    assert probabilities.iloc[7].to_dict() == pytest.approx(one.predict_proba_one(ROWS[7][0]))
    assert list(probabilities.index) == list(X.index)


def test_a_batch_is_answered_learned_by_weight_and_then_the_step_ends():
    scaler = preprocessing.StandardScaler()
    scaler.learn_many(X)
    model = AgedClassifier(multiclass.OneVsRestClassifier(linear_model.LogisticRegression()), step=100, rho=0.5)
    twin = multiclass.OneVsRestClassifier(linear_model.LogisticRegression())
    known, pending, ages, weight = [], [], None, {}
    for part, y in batches():
        x = scaler.transform_many(part)
        rows = x.to_dict("records")
        answers = twin.predict_many(x).tolist() if known else [twin.predict_one(row) for row in rows]
        twin.learn_many(x, y, w=pd.Series([weight.get(label, 1.0) for label in y], index=y.index))
        model.learn_many(x, y)
        known += [label for label in dict.fromkeys(y) if label not in known]
        pending += zip(y, answers, strict=True)
        if len(pending) >= 100:  # 120, 240: a batch is never torn apart
            ages = ages or aol.ClassAges(7, rho=0.5)
            assert len(known) == 7
            ages.observe([known.index(label) for label, _ in pending], [label == a for label, a in pending])
            ages.advance()
            weight, pending = dict(zip(known, ages.class_weight.tolist(), strict=True)), []
        assert model.class_weight == pytest.approx({label: weight.get(label, 1.0) for label in known})
    assert len(set(weight.values())) > 1
    assert model.predict_many(scaler.transform_many(X)).tolist() == twin.predict_many(scaler.transform_many(X)).tolist()


def test_without_weights_rows_of_a_batch_are_drawn():
    model = AgedClassifier(naive_bayes.GaussianNB(), step=60, seed=0, rho=1.0)
    for x, y in batches():
        model.learn_many(x, y)
    again = AgedClassifier(naive_bayes.GaussianNB(), step=60, seed=0, rho=1.0)
    for x, y in batches():
        again.learn_many(x, y)
    assert model.predict_proba_many(X).equals(again.predict_proba_many(X))
    assert sum(model.classifier.class_counts.values()) != len(X)


def test_only_the_first_row_of_a_new_class_is_sure_to_be_drawn():
    model = AgedClassifier(naive_bayes.GaussianNB(), step=1000, seed=0)
    model.learn_many(X, Y)  # at least once each would be 410 on average
    assert sum(model.classifier.class_counts.values()) == pytest.approx(len(X), abs=50)
    model = AgedClassifier(naive_bayes.GaussianNB(), step=1000, seed=0)
    for i in range(7):
        model.learn_many(X[:1], pd.Series([f"class {i}"]))
    assert min(model.classifier.class_counts.values()) >= 1
    assert len(model.classifier.class_counts) == 7


@pytest.mark.parametrize("number", [5, 5.0, np.int64(5), np.float32(5.0)])
def test_one_weight_for_a_whole_batch(number):
    model = AgedClassifier(Scripted())
    model.learn_many(X[:2], Y[:2], w=number)
    assert [w for *_, w in model.classifier.learned] == [5.0, 5.0]


def test_the_users_own_weights_multiply_in_a_batch():
    model = AgedClassifier(Scripted())
    model.learn_many(X[:3], Y[:3], w=pd.Series([1.0, 2.0, 3.0]))
    model.learn_many(X[:1], Y[:1], w=5)
    assert [w for *_, w in model.classifier.learned] == [1.0, 2.0, 3.0, 5.0]


def arrow(frame):
    if isinstance(frame, pd.Series):
        return pyarrow.chunked_array([frame.to_list()])
    return pyarrow.Table.from_pandas(frame, preserve_index=False)


def test_batches_of_another_kind_of_data_frame_give_the_same():
    scaled = (X - X.mean()) / X.std().replace(0, 1)
    models = []
    for make, name in ((lambda frame: frame, "pandas"), (arrow, "pyarrow")):
        model = AgedClassifier(neighbors.KNNClassifier(), step=50, seed=1)
        for start in range(0, 180, 60):
            model.learn_many(make(scaled[start : start + 60]), make(Y[start : start + 60]))
        assert type(model.predict_many(make(scaled[:5]))).__module__.startswith(name)
        models.append(model)
    assert models[0].class_age == models[1].class_age


def test_a_pipeline_whose_scaler_knows_no_batches_gets_rows():
    model = AgedClassifier(preprocessing.AdaptiveStandardScaler() | linear_model.LogisticRegression(), step=10)
    model.learn_many(X[:20], Y[:20] == "path")
    assert set(model.class_age) == {True, False}


def test_an_empty_batch_changes_nothing():
    model = AgedClassifier(naive_bayes.GaussianNB(), step=10)
    model.learn_many(X[:0], Y[:0])
    assert model.class_age == {}


def test_lengths_that_differ_get_one_clear_sentence():
    with pytest.raises(ValueError, match="X, y and w must be equally long, not 3, 2 and 3"):
        AgedClassifier(naive_bayes.GaussianNB()).learn_many(X[:3], Y[:2])
