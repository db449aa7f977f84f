"""Metrics for imbalanced problems: those of scikit-learn where it has them, else of naive loops."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import balanced_accuracy_score, cohen_kappa_score, f1_score, precision_score, recall_score

from aol import metrics

pairs = st.integers(1, 12).flatmap(
    lambda classes: st.tuples(
        st.just(classes),
        st.lists(st.tuples(st.integers(0, classes - 1), st.integers(-1, classes - 1)), min_size=1, max_size=40),
    )
)  # answers of -1: none


@given(pairs)
def test_from_labels_and_answers_they_are_those_of_scikit_learn(case: tuple[int, list[tuple[int, int]]]) -> None:
    classes, drawn = case
    label, answer = (list(column) for column in zip(*drawn, strict=True))
    common = {"labels": list(range(classes)), "average": None, "zero_division": np.nan}
    accuracy, precision = recall_score(label, answer, **common), precision_score(label, answer, **common)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about answers without a label, which it leaves out as well
        assert float(metrics.balanced_accuracy(accuracy)) == pytest.approx(balanced_accuracy_score(label, answer))
        kappa = cohen_kappa_score(label, answer)
    named = sorted({*label, *answer} - {-1})
    score = f1_score(label, answer, labels=named, average="macro", zero_division=0)
    assert float(metrics.macro_f1(accuracy, precision)) == pytest.approx(score)
    counts = ([y for y, a in drawn if y == a], label, [a for a in answer if a >= 0])
    sums = [torch.bincount(torch.tensor(own, dtype=torch.int64), minlength=classes).double() for own in counts]
    assert float(metrics.kappa_of_counts(*sums)) == pytest.approx(kappa, nan_ok=True)
    recalls = [value for value in accuracy.tolist() if value == value]
    assert float(metrics.g_mean(accuracy)) == pytest.approx(math.prod(recalls) ** (1 / len(recalls)))
    assert float(metrics.worst_class(accuracy)) == min(recalls)


def test_a_run_axis_gives_each_run_its_own() -> None:
    generator = torch.Generator().manual_seed(0)
    label = torch.randint(0, 5, (60,), generator=generator)
    answer = torch.randint(0, 6, (3, 60), generator=generator)  # the class 5 has no sample
    common = {"labels": range(6), "average": None, "zero_division": np.nan}
    accuracy, precision = (
        np.stack([score(label, own, **common) for own in answer]) for score in (recall_score, precision_score)
    )
    together = metrics.class_metrics(accuracy, precision=precision, counts=[50, 40, 30, 20, 10, 5])
    for run in range(3):
        alone = metrics.class_metrics(accuracy[run], precision=precision[run], counts=[50, 40, 30, 20, 10, 5])
        assert {name: float(value[run]) for name, value in together.items()} == {
            name: pytest.approx(float(value), nan_ok=True) for name, value in alone.items()
        }
        assert float(together["balanced_accuracy"][run]) == pytest.approx(
            recall_score(label, answer[run], average=None, labels=range(5)).mean()
        )
    assert tuple(together) == metrics.NAMES


@given(st.lists(st.one_of(st.just(math.nan), st.floats(0, 1)), min_size=1, max_size=45))
def test_the_worst_tenth_is_the_mean_of_the_lowest_and_at_least_one(accuracy: list[float]) -> None:
    known = sorted(value for value in accuracy if value == value)
    lowest = float(metrics.worst_tenth(accuracy))
    if not known:
        assert math.isnan(lowest)
        return
    often = max(1, math.floor(len(known) / 10 + 0.5))
    assert lowest == pytest.approx(sum(known[:often]) / often)
    assert float(metrics.worst_class(accuracy)) == known[0]
    assert float(metrics.worst_class(accuracy)) <= lowest + 1e-12


def naive_thirds(counts: Sequence[int]) -> list[int]:
    largest, smallest = max(counts), min(counts)
    if largest == smallest or largest < 1.5 * smallest:
        return [-1] * len(counts)
    parts = []
    for own in counts:
        ranks = [rank for rank, other in enumerate(sorted(counts, reverse=True)) if other == own]
        middle = (ranks[0] + ranks[-1] + 1) / 2  # of the places that classes of this size take
        parts.append(0 if middle < len(counts) / 3 else 1 if middle < 2 * len(counts) / 3 else 2)
    kinds = sorted(set(parts))
    return [0 if part == kinds[0] else 2 for part in parts] if len(kinds) == 2 else parts


@settings(max_examples=200)
@given(st.lists(st.integers(0, 30), min_size=1, max_size=20), st.randoms(use_true_random=False))
def test_thirds_are_those_of_a_naive_loop_in_any_order_of_the_classes(counts: list[int], random: object) -> None:
    parts = metrics.thirds(counts).tolist()
    assert parts == naive_thirds(counts)
    by_size = {size: {parts[place] for place, own in enumerate(counts) if own == size} for size in counts}
    assert all(len(own) == 1 for own in by_size.values())  # equals stay together
    places = list(range(len(counts)))
    random.shuffle(places)  # type: ignore[attr-defined]
    assert metrics.thirds([counts[place] for place in places]).tolist() == [parts[place] for place in places]
    if parts[0] >= 0:
        assert {0, 2} <= set(parts)
        assert parts[counts.index(max(counts))] == 0
        assert parts[counts.index(min(counts))] == 2


@given(
    st.lists(st.tuples(st.one_of(st.just(math.nan), st.floats(0, 1)), st.sampled_from([1, 5, 20, 21, 100])), min_size=1)
)
def test_head_middle_and_tail_are_means_over_their_classes(drawn: list[tuple[float, int]]) -> None:
    accuracy, counts = (list(column) for column in zip(*drawn, strict=True))
    part = naive_thirds(counts)
    for third, mean in enumerate(metrics.head_middle_tail(accuracy, counts).tolist()):
        own = [value for value, place in zip(accuracy, part, strict=True) if place == third and value == value]
        assert mean == pytest.approx(sum(own) / len(own) if own else math.nan, nan_ok=True)


def test_without_a_tail_there_is_no_head() -> None:
    for counts in ([7], [100, 100, 100], [100, 90, 80]):
        assert metrics.head_middle_tail([0.5] * len(counts), counts).isnan().all()
        assert not metrics.has_tail(counts)
    step = metrics.head_middle_tail([0.9, 0.7, 0.2, 0.4], [500, 500, 5, 5]).tolist()
    assert step == pytest.approx([0.8, math.nan, 0.3], nan_ok=True)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: metrics.balanced_accuracy([50.0, 0.5]), "accuracy.* 0 to 1.* 50"),
        (lambda: metrics.worst_class(0.5), "accuracy.*each class"),  # type: ignore[arg-type]
        (lambda: metrics.macro_f1([0.5, 0.5], [0.5]), r"precision.*\[2\].*\[1\]"),
        (lambda: metrics.head_middle_tail([0.5, 0.5], [9, 3, 1]), "counts.*2.*3"),
        (lambda: metrics.thirds([[9, 3]]), "counts.*vector"),  # type: ignore[list-item]
    ],
)
def test_wrong_arguments_are_named(call: object, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        call()  # type: ignore[operator]
