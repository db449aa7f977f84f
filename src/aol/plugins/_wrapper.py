"""A classifier around another one, by the conventions of scikit-learn: checked data, folds, routing and tags."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
from sklearn import get_config
from sklearn.base import BaseEstimator, ClassifierMixin, MetaEstimatorMixin
from sklearn.model_selection import check_cv
from sklearn.utils import column_or_1d, indexable
from sklearn.utils.metadata_routing import MetadataRouter, MethodMapping, process_routing
from sklearn.utils.multiclass import check_classification_targets

from aol import _check
from aol.plugins._rounds import Indices, Labels, Part, Samples, check_params, check_weight

try:
    from sklearn.utils import Tags, get_tags
    from sklearn.utils.validation import validate_data
except ImportError as error:
    raise ImportError("aol.plugins.sklearn needs scikit-learn 1.6 or newer: pip install -U scikit-learn") from error


def has(method: str) -> Callable[[Wrapper], bool]:
    """Return a check for `available_if`: whether the estimator has this method."""

    def check(self: Wrapper) -> bool:
        getattr(getattr(self, "estimator_", self.estimator), method)  # its AttributeError says who lacks what
        return True

    return check


def _of_estimator(name: str) -> property:
    def read(self: Wrapper) -> object:
        return getattr(self.estimator_, name)

    return property(read, doc=f"The `{name}` of `estimator_`, if it has one.")


class Wrapper(MetaEstimatorMixin, ClassifierMixin, BaseEstimator):
    """A classifier around another one, with folds."""

    estimator: BaseEstimator
    cv: int | str | object | Iterable[tuple[Indices, Indices]]
    method: str = "fit"

    coef_ = _of_estimator("coef_")
    intercept_ = _of_estimator("intercept_")
    feature_importances_ = _of_estimator("feature_importances_")

    def _check_samples(
        self, X: object, y: object, sample_weight: object, *, stream: bool = False, classes: object = None
    ) -> Samples:
        """Return checked data; set `classes_` and the feature names."""
        if y is None:
            raise ValueError(f"{type(self).__name__} requires y to be passed, but the target y is None.")
        anew = not (stream and hasattr(self, "estimator_"))
        X, y = indexable(X, y)
        validate_data(self, X, reset=anew, skip_check_array=True)
        label: Labels = column_or_1d(y, warn=True)
        missing = _missing(label)
        if missing:
            raise ValueError(f"y must hold a class for each sample, not NaN or None ({missing} of {len(label)}).")
        check_classification_targets(label)
        known: Labels = np.unique(label if classes is None else column_or_1d(classes)) if anew else self.classes_
        code = np.searchsorted(known, label).clip(0, len(known) - 1)
        if not np.array_equal(known[code], label):
            raise ValueError(f"y must hold only classes announced on the first call, {_check.shown(known.tolist())}.")
        given = check_weight(sample_weight, len(label))
        weighty = np.count_nonzero(np.bincount(code, given))
        if not stream and weighty < 2:
            some = "1 class" if weighty else "no class"
            name = type(self).__name__
            raise ValueError(f"{name} needs samples of two classes or more that have a weight, not of {some}.")
        self.classes_: Labels = known
        return Samples(X, label, known, code, given)

    def _folds(self, samples: Samples, params: dict[str, object]) -> list[Part]:
        """Return the parts of cross-validation; `params` are for the splitter."""
        found = check_cv(self.cv, samples.y, classifier=True).split(samples.X, samples.y, **params)
        parts: list[Part] = [(np.asarray(train), np.asarray(test)) for train, test in found]
        if not parts:
            raise ValueError("cv must give at least one fold, and gave none.")
        return parts

    def _routed(self, params: dict[str, object]) -> tuple[dict[str, object], dict[str, object]]:
        """Return which of `params` are for the estimator, and which for the splitter."""
        if get_config()["enable_metadata_routing"]:
            routed = process_routing(self, "fit", **params)
            return dict(routed["estimator"][self.method]), dict(routed["splitter"]["split"])
        check_params(self.estimator, self.method, params)
        return params, {}

    # The host's conventions

    def get_metadata_routing(self) -> MetadataRouter:
        """Return the routing: `sample_weight` to this object, `groups` to the splitter, the rest to the estimator."""
        router = MetadataRouter(owner=self).add_self_request(self)
        splitter = None if isinstance(self.cv, str) else check_cv(self.cv, classifier=True)
        router.add(splitter=splitter, method_mapping=MethodMapping().add(caller="fit", callee="split"))
        return router.add(
            estimator=self.estimator, method_mapping=MethodMapping().add(caller="fit", callee=self.method)
        )

    def __sklearn_tags__(self) -> Tags:
        tags, inner = super().__sklearn_tags__(), get_tags(self.estimator)
        tags.input_tags = inner.input_tags
        tags.non_deterministic = inner.non_deterministic
        if inner.classifier_tags is not None:
            tags.classifier_tags.multi_class = inner.classifier_tags.multi_class
            tags.classifier_tags.poor_score = inner.classifier_tags.poor_score
        return tags


def _missing(label: Labels) -> int:
    """Return how many labels are none: NaN, None or NA among words."""
    if label.dtype != object:
        return 0
    import pandas as pd

    return int(pd.isna(label).sum())
