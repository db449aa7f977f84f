"""What a sample weighs on a stream, against the paper's rule written out by hand."""

from __future__ import annotations

import copy
import math
import pickle
import random
from collections import Counter

import pytest
from river import compose, ensemble, forest, imblearn, linear_model, multiclass, naive_bayes, preprocessing, tree

from aol.plugins.river import AgedClassifier
from tests.support.oracle import StreamOracle
from tests.support.river_models import Scripted, Swallowing, Unweighted

LABELS = ["often", "seldom", "rarely"]


def stream(samples, seed=0, labels=LABELS):
    """Yield features that hold the answer the scripted classifier will give, and the truth."""
    rng = random.Random(seed)
    for number in range(samples):
        y = rng.choices(labels, weights=[0.6, 0.3, 0.1][: len(labels)])[0]
        right = rng.random() < {"often": 0.9, "seldom": 0.6, "rarely": 0.4}[y]
        yield {"number": number, "answer": y if right else "something else"}, y


def scripted(x):
    return x["answer"]


def weights_by_hand(samples, step, rho, threshold):
    """Weigh each sample by the paper's rule: the classes known so far, steps of `step` samples."""
    known: list[str] = []
    oracles: dict[str, list[int]] = {}
    weight: dict[str, float] = {}
    found, pending, ema = [], [], {}
    for x, y in samples:
        found.append(weight.get(y, 1.0))
        if y not in known:
            known.append(y)
        pending.append((y, x["answer"] == y))
        if len(pending) < step:
            continue
        first = not ema
        one = StreamOracle(len(known), rho=rho, threshold=threshold)
        one.history = [[oracles[label]] if label in oracles else [] for label in known]
        one.step([known.index(label) for label, _ in pending], [right for _, right in pending])
        for label, age in zip(known, one.age, strict=True):
            oracles[label] = age
            ema[label] = float(age) if first else (1 - rho) * ema.get(label, 1.0) + rho * age
        mean = math.fsum(ema.values()) / len(ema)
        weight = {label: each / mean if rho else 1.0 for label, each in ema.items()}
        pending = []
    return found, ema


@pytest.mark.parametrize("step", [1, 7, 50])
@pytest.mark.parametrize("rho", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("threshold", ["median", 0.7])
def test_a_stream_is_weighed_by_the_papers_rule(step, rho, threshold):
    samples = list(stream(300))
    model = AgedClassifier(Scripted(scripted), step=step, rho=rho, threshold=threshold)
    for x, y in samples:
        model.learn_one(x, y)
    wanted, ema = weights_by_hand(samples, step, rho, threshold)
    assert [w for _, _, w in model.classifier.learned] == pytest.approx(wanted, rel=1e-5)
    assert model.class_age == pytest.approx(ema, rel=1e-5)
    assert [x for x, _, _ in model.classifier.learned] == [x for x, _ in samples]
    if rho and (step, threshold) != (1, "median"):  # a class alone in its step is its own median, and never ages
        assert max(wanted) > 1.05


def test_a_class_that_appears_late_starts_at_one_and_leaves_the_others_alone():
    model = AgedClassifier(Scripted(lambda x: "often"), step=4, rho=1.0)
    for y in ["often", "seldom"] * 6:
        model.learn_one({}, y)
    assert model.class_age == {"often": 1.0, "seldom": 4.0}
    model.learn_one({}, "rarely")
    assert model.classifier.learned[-1][2] == 1.0
    assert model.class_age == {"often": 1.0, "seldom": 4.0, "rarely": 1.0}
    for y in ["often"] * 3:
        model.learn_one({}, y)
    assert model.class_age == {"often": 1.0, "seldom": 4.0, "rarely": 2.0}  # not seen: as it was
    assert model.class_weight == pytest.approx({"often": 3 / 7, "seldom": 12 / 7, "rarely": 6 / 7})


def test_the_users_own_weight_multiplies():
    model = AgedClassifier(Scripted(lambda x: 1), step=2, rho=1.0)
    for y in (0, 1):
        model.learn_one({}, y, w=3.0)
    model.learn_one({}, 0, w=3.0)
    assert [w for *_, w in model.classifier.learned] == pytest.approx([3.0, 3.0, 3.0 * 2 / 1.5])


def test_a_classifier_without_weights_learns_as_often_as_they_say_on_average():
    model = AgedClassifier(Unweighted(lambda x: "often"), step=10, rho=1.0, seed=4)
    for y in ["often", "seldom"] * 5:
        model.learn_one({}, y)
    assert model.class_weight == pytest.approx({"often": 2 / 3, "seldom": 4 / 3})
    model.step = 10**9  # the weights stay
    model.classifier.learned.clear()
    for y in ["often", "seldom"] * 4000:
        model.learn_one({}, y)
    learned = Counter(y for _, y, _ in model.classifier.learned)
    assert learned["often"] == pytest.approx(4000 * 2 / 3, rel=0.05)
    assert learned["seldom"] == pytest.approx(4000 * 4 / 3, rel=0.05)


def test_the_first_sample_of_a_class_is_always_learned():
    for seed in range(50):
        model = AgedClassifier(Unweighted(), seed=seed)
        model.learn_one({}, "rarely")
        assert model.classifier.learned
    model.learn_one({}, "never", w=0.0)
    assert "never" not in {y for _, y, _ in model.classifier.learned}


def test_large_weights_do_not_stall_the_draws():
    model = AgedClassifier(Unweighted(), seed=0)
    model.learn_one({}, 1, w=900.0)
    assert len(model.classifier.learned) == 900


@pytest.mark.parametrize(
    ("model", "weighs"),
    [
        (linear_model.LogisticRegression(), True),
        (preprocessing.StandardScaler() | linear_model.LogisticRegression(), True),
        (multiclass.OneVsRestClassifier(linear_model.LogisticRegression()), True),
        (multiclass.OneVsOneClassifier(naive_bayes.GaussianNB()), False),
        (tree.HoeffdingTreeClassifier(), True),
        (naive_bayes.GaussianNB(), False),
        (compose.Pipeline(preprocessing.MinMaxScaler(), naive_bayes.GaussianNB()), False),
        (forest.ARFClassifier(), False),  # takes any word, and ignores w
        (ensemble.SRPClassifier(), False),
        (imblearn.HardSamplingClassifier(linear_model.LogisticRegression(), size=5, p=0.5), False),
        (Swallowing(), False),
    ],
    ids=lambda value: str(value)[:40],
)
def test_weights_go_only_to_classifiers_that_name_them(model, weighs):
    assert AgedClassifier(model)._reweigh is weighs


def test_a_sample_that_cannot_be_learned_leaves_no_trace():
    model = AgedClassifier(Scripted(), step=5)
    model.learn_one({}, "a")
    before = pickle.dumps((model._place, model._total, model._right))
    for wrong in (-1.0, math.nan, math.inf, "much", None):
        with pytest.raises((TypeError, ValueError), match="w must be a number"):
            model.learn_one({}, "b", w=wrong)
    with pytest.raises(TypeError, match="unexpected keyword"):
        model.learn_one({}, "b", t=3)
    assert pickle.dumps((model._place, model._total, model._right)) == before


def test_a_pickle_and_a_copy_go_on_alike():
    model = AgedClassifier(naive_bayes.GaussianNB(), step=20, seed=9)
    samples = [({"a": random.Random(i).random(), "b": i % 7}, i % 3) for i in range(130)]
    for x, y in samples[:70]:
        model.learn_one(x, y)
    assert pickle.dumps(model) == pickle.dumps(model)
    for twin in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
        other = copy.deepcopy(model)
        for x, y in samples[70:]:
            twin.learn_one(x, y)
            other.learn_one(x, y)
        assert twin.class_age == other.class_age
        assert [twin.predict_proba_one(x) for x, _ in samples] == [other.predict_proba_one(x) for x, _ in samples]


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ({"classifier": linear_model.LinearRegression()}, "classifier must be a classifier of River"),
        ({"classifier": None}, "classifier must be a classifier of River, not None"),
        ({"step": 0}, "step must be a whole number of 1 or more, not 0"),
        ({"rho": 1.5}, r"rho must be a number in \[0, 1\], not 1.5"),
        ({"rho": [0.1, 0.5]}, r"rho must be a number in \[0, 1\]"),
        ({"threshold": "mode"}, "threshold must be one of .*'median'.*, not 'mode'"),
        ({"threshold": 7}, "threshold must be a number"),
    ],
)
def test_wrong_words_get_one_clear_sentence(words, reason):
    with pytest.raises((TypeError, ValueError), match=reason):
        AgedClassifier(**{"classifier": naive_bayes.GaussianNB(), **words})
