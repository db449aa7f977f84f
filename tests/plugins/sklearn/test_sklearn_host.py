"""The host's conventions: searches, pipelines, routing, clones, pickles, labels of any kind, sparse data, streams."""

from __future__ import annotations

import pickle
from inspect import signature

import numpy as np
import pandas as pd
import pytest
import sklearn
from scipy import sparse
from sklearn.base import clone
from sklearn.datasets import make_classification
from sklearn.ensemble import BaggingClassifier, HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LinearRegression, LogisticRegression, SGDClassifier
from sklearn.metrics.pairwise import rbf_kernel
from sklearn.model_selection import GridSearchCV, StratifiedKFold, cross_val_score
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC
from sklearn.tree import DecisionTreeClassifier
from sklearn.utils.class_weight import compute_class_weight

from aol.plugins.sklearn import AgedClassifier, OffsetClassifier
from tests.support.oracle import mean

X, y = make_classification(150, 6, n_informative=4, n_classes=3, weights=[0.7, 0.2, 0.1], class_sep=0.7, random_state=5)
NAMES = np.array(["often", "seldom", "rarely"])[y]


@pytest.fixture
def routing():
    with sklearn.config_context(enable_metadata_routing=True):
        yield


def test_a_grid_search_reaches_the_wrapper_and_what_it_wraps():
    grid = {"rho": [0.1, 1.0], "level": ["class", "sample"], "estimator__C": [0.1, 1.0]}
    search = GridSearchCV(AgedClassifier(LogisticRegression(), rounds=2, cv=2), grid, cv=3, error_score="raise")
    search.fit(X, y)
    assert len(search.cv_results_["params"]) == 8
    best = search.best_estimator_
    assert best.get_params()["estimator__C"] == best.estimator_.C == search.best_params_["estimator__C"]


def test_it_works_in_a_pipeline_and_around_one():
    inside = make_pipeline(StandardScaler(), AgedClassifier(LogisticRegression())).fit(X, y)
    around = AgedClassifier(make_pipeline(StandardScaler(), LogisticRegression())).fit(X, y)
    deeper = AgedClassifier(make_pipeline(StandardScaler(), make_pipeline(StandardScaler(), GaussianNB()))).fit(X, y)
    assert around.sample_weight_.std() > 0.05
    assert deeper.sample_weight_.std() > 0.05
    by_hand = LogisticRegression().fit(StandardScaler().fit_transform(X), y, sample_weight=around.sample_weight_)
    assert around.estimator_[-1].coef_ == pytest.approx(by_hand.coef_)
    assert np.mean(inside.predict(X) == around.predict(X)) > 0.95
    assert cross_val_score(inside, X, y, cv=3).min() > 0.4


@pytest.mark.usefixtures("routing")
def test_a_pipeline_inside_asks_for_weights_itself_under_routing():
    steps = StandardScaler().set_fit_request(sample_weight=False), LogisticRegression()
    model = AgedClassifier(make_pipeline(*steps))
    with pytest.raises(ValueError, match="not explicitly set as requested"):
        model.fit(X, y)
    steps[1].set_fit_request(sample_weight=True)
    model.fit(X, y)
    with sklearn.config_context(enable_metadata_routing=False):
        plain = AgedClassifier(make_pipeline(StandardScaler(), LogisticRegression())).fit(X, y)
    assert np.array_equal(model.sample_weight_, plain.sample_weight_)


class Noted(LogisticRegression):
    """Notes what its fit was given."""

    def fit(self, X, y, sample_weight=None, *, row=None, note=None):
        self.noted_ = (None if row is None else list(row), note)
        return super().fit(X, y, sample_weight)


@pytest.mark.parametrize("kind", [AgedClassifier, OffsetClassifier])
def test_other_arguments_reach_every_fit_and_those_of_samples_are_split(kind):
    seen = []

    class Seen(Noted):
        def predict(self, X):
            seen.append(self.noted_)
            return super().predict(X)

        def predict_proba(self, X):
            seen.append(self.noted_)
            return super().predict_proba(X)

    options = {"rounds": 1} if kind is AgedClassifier else {"offsets": "error"}
    model = kind(Seen(), cv=StratifiedKFold(3), **options).fit(X, y, row=np.arange(len(y)), note="word")
    assert seen == [(train.tolist(), "word") for train, _ in StratifiedKFold(3).split(X, y)]
    assert model.estimator_.noted_ == (list(range(len(y))), "word")


@pytest.mark.parametrize("nothing", [np.nan, None, pd.NA])
def test_a_label_that_is_missing_is_named(nothing):
    missing = NAMES.astype(object)
    missing[[3, 5]] = nothing
    with pytest.raises(ValueError, match=r"y must hold a class for each sample.*2 of 150"):
        AgedClassifier(LogisticRegression()).fit(X, missing)


def test_an_estimator_that_would_ignore_weights_is_refused():
    class Deaf(KNeighborsClassifier):
        def fit(self, X, y, **kwargs):
            return super().fit(X, y)

    for deaf in (Deaf(), GridSearchCV(Deaf(), {}), make_pipeline(StandardScaler(), Deaf())):
        with pytest.raises(TypeError, match="must take sample_weight in fit"):
            AgedClassifier(deaf).fit(X, y)


def test_labels_may_be_words_truths_or_odd_numbers():
    by_number = AgedClassifier(GaussianNB()).fit(X, y)
    for labels in (NAMES, NAMES.astype(object), y * 10.0 - 7, y.tolist()):
        model = AgedClassifier(GaussianNB()).fit(X, labels)
        assert set(model.predict(X)) <= set(labels)
        order = np.unique(np.asarray(labels), return_inverse=True)[1]
        for c in range(3):
            assert model.class_age_[order[y == c][0]] == pytest.approx(by_number.class_age_[c])
    assert AgedClassifier(GaussianNB()).fit(X, y > 0).predict(X).dtype == bool


@pytest.mark.parametrize("form", [sparse.csr_array, sparse.csc_array, sparse.coo_array, sparse.csr_matrix])
def test_sparse_data_give_the_same(form):
    dense = AgedClassifier(LogisticRegression()).fit(X, y)
    model = AgedClassifier(LogisticRegression()).fit(form(X), y)
    assert np.array_equal(model.ages_, dense.ages_)
    assert model.predict_proba(form(X)) == pytest.approx(dense.predict_proba(X), abs=1e-3)


def test_a_precomputed_kernel_is_cut_in_both_directions():
    kernel = rbf_kernel(X, gamma=0.1)
    given = AgedClassifier(SVC(kernel="precomputed"), cv=3).fit(kernel, y)
    computed = AgedClassifier(SVC(gamma=0.1), cv=3).fit(X, y)
    assert np.array_equal(given.ages_, computed.ages_)
    assert np.array_equal(given.predict(kernel), computed.predict(X))


def test_missing_values_pass_if_the_estimator_takes_them():
    holes = X.copy()
    holes[::7, 0] = np.nan
    model = AgedClassifier(HistGradientBoostingClassifier(max_iter=5), rounds=2, cv=2).fit(holes, y)
    assert model.__sklearn_tags__().input_tags.allow_nan
    with pytest.raises(ValueError, match="Input X contains NaN"):
        AgedClassifier(LogisticRegression()).fit(holes, y)


def test_a_pickle_answers_and_goes_on_alike():
    model = AgedClassifier(SGDClassifier(loss="log_loss", random_state=0))
    twin = pickle.loads(pickle.dumps(model.fit(X, y)))
    assert np.array_equal(twin.predict_proba(X), model.predict_proba(X))
    assert np.array_equal(twin.fit(X, y).predict_proba(X), model.fit(X, y).predict_proba(X))
    assert np.array_equal(twin.ages_, model.ages_)


def test_a_clone_has_the_settings_and_nothing_learned():
    model = AgedClassifier(LogisticRegression(C=3), rounds=2, rho=0.25).fit(X, y)
    copied = clone(model).set_params(estimator__C=7)
    assert (copied.estimator.C, model.estimator.C, copied.rho) == (7, 3, 0.25)
    with pytest.raises(NotFittedError):
        copied.predict(X)
    assert not hasattr(model.estimator, "coef_")  # what was given is never fitted itself


def test_it_offers_what_its_estimator_offers():
    assert not hasattr(AgedClassifier(SVC()), "predict_proba")
    assert hasattr(AgedClassifier(SVC()), "decision_function")


def test_a_balance_of_classes_multiplies_with_their_ages():
    plain = AgedClassifier(GaussianNB(), rounds=1).fit(X, y)
    assert np.array_equal(plain.sample_weight_, np.ones(len(y)))
    counts = np.bincount(y)
    for given in ("balanced", {c: len(y) / 3 / counts[c] for c in range(3)}):
        model = AgedClassifier(GaussianNB(), rounds=1, class_weight=given).fit(X, y)
        assert model.sample_weight_ == pytest.approx((len(y) / 3 / counts)[y])
    both = AgedClassifier(GaussianNB(), rounds=2, rho=1.0, class_weight="balanced").fit(X, y)
    first = AgedClassifier(GaussianNB(), rounds=1, class_weight="balanced").fit(X, y)
    age = np.array([mean(first.ages_[y == c].tolist()) for c in range(3)])
    wanted = (age / counts)[y]
    assert both.sample_weight_ == pytest.approx(wanted * len(y) / wanted.sum(), rel=1e-5)


def test_an_estimator_that_balances_by_itself_would_undo_ages_and_is_refused():
    if "sample_weight" in signature(compute_class_weight).parameters:  # scikit-learn 1.7 and newer
        # Why it must be refused: weighted counts are balanced away, whatever the ages were.
        weight = np.array([1.0, 4.0, 9.0])[y]
        one = LogisticRegression(class_weight="balanced").fit(X, y)
        two = LogisticRegression(class_weight="balanced").fit(X, y, sample_weight=weight * len(y) / weight.sum())
        assert one.coef_ == pytest.approx(two.coef_, abs=1e-2)
    for estimator in (
        LogisticRegression(class_weight="balanced"),
        RandomForestClassifier(class_weight="balanced_subsample"),
        make_pipeline(StandardScaler(), LogisticRegression(class_weight="balanced")),
        BaggingClassifier(LogisticRegression(class_weight="balanced")),
        GridSearchCV(LogisticRegression(class_weight="balanced"), {"C": [0.1, 1.0]}),
        AgedClassifier(LogisticRegression(), class_weight="balanced"),
    ):
        with pytest.raises(ValueError, match=r'must not balance classes itself.*give class_weight="balanced" to Aged'):
            AgedClassifier(estimator).fit(X, y)


BAD = {
    "rounds must be a whole number of 1 or more, not 0.": {"rounds": 0},
    "rounds must be a whole number of 1 or more, not 2.5.": {"rounds": 2.5},
    r"rho must be a number in \[0, 1\], not 2.": {"rho": 2},
    "level must be one of 'class', 'sample', not 'batch'.": {"level": "batch"},
    "cv must be one of 'train', not 'oob'.": {"cv": "oob"},
    "class_weight must be one of 'balanced', not 'even'.": {"class_weight": "even"},
    "class_weight must leave at least one sample with a weight": {"class_weight": {0: 0, 1: 0, 2: 0}},
    "k-fold cross-validation requires at least one train/test split": {"cv": 1},
    "estimator must take sample_weight in fit, which KNeighborsClassifier does not.": {
        "estimator": KNeighborsClassifier()
    },
    "estimator must be a classifier of scikit-learn, not <class": {"estimator": GaussianNB},
    "estimator must be a classifier of scikit-learn, not LinearRegression": {"estimator": LinearRegression()},
    "estimator must be a classifier of scikit-learn, not Pipeline": {
        "estimator": make_pipeline(StandardScaler(), LinearRegression())
    },
}


@pytest.mark.parametrize("reason", BAD)
def test_wrong_settings_get_one_clear_sentence_at_fit(reason):
    model = AgedClassifier(**{"estimator": GaussianNB(), **BAD[reason]})
    with pytest.raises((ValueError, TypeError), match=reason):
        model.fit(X, y)


def test_weights_by_the_name_that_the_wrapper_gives_them_are_not_dropped_in_silence():
    piped = AgedClassifier(make_pipeline(StandardScaler(), LogisticRegression()), cv=2)
    with pytest.raises(ValueError, match="logisticregression__sample_weight, which is set here: give sample_weight"):
        piped.fit(X, y, logisticregression__sample_weight=np.ones(len(y)))


@pytest.mark.parametrize(
    ("labels", "weight", "reason"),
    [
        (np.zeros(len(y)), None, "needs two classes or more with a weight, not 1 class"),
        (y, (y == 1).astype(float), "needs two classes or more with a weight, not 1 class"),
        (y, np.zeros(len(y)), "eight"),
        (y, -np.ones(len(y)), "[Nn]egative values in data passed to `sample_weight`"),
        (y, np.full(len(y), np.nan), "Input sample_weight contains NaN"),
        (y, np.ones(3), "sample_weight.shape"),
        (np.stack([y, y], 1), None, "y should be a 1d array"),
    ],
)
def test_wrong_data_get_one_clear_sentence(labels, weight, reason):
    with pytest.raises(ValueError, match=reason):
        AgedClassifier(GaussianNB()).fit(X, labels, sample_weight=weight)


def test_a_class_of_one_sample_is_never_answered_rightly_by_folds_and_only_grows_older():
    lone = np.append(y, 3)
    more = np.vstack([X, [[9.0] * 6]])
    with pytest.warns(UserWarning, match="least populated class"):
        model = AgedClassifier(DecisionTreeClassifier(random_state=0), rounds=4).fit(more, lone)
    assert model.ages_[-1] == 5
    assert model.predict([[9.0] * 6]) == [3]


def test_an_ensemble_that_has_a_length_is_no_false_value():
    assert AgedClassifier(BaggingClassifier(n_estimators=3), rounds=2, cv=2).fit(X, y).scores_.shape == (2,)
