"""Suspicion: the formula written out naively, its order, and what happens where little is known."""

from __future__ import annotations

import math
import statistics
from dataclasses import replace

import numpy as np
import pytest

from aol.records.history import Answers, pack
from aol.report.label_quality import competent_classes, suspicion
from tests.support.made_runs import make_samples


def naive(label, wrong, seen, margin, accuracy) -> list[float]:
    margins = [
        m if not math.isnan(m) else (2 * w / s - 1 if s else None) for m, w, s in zip(margin, wrong, seen, strict=True)
    ]
    margins = [m if s else None for m, s in zip(margins, seen, strict=True)]
    scores = []
    for i, m in enumerate(margins):
        if m is None:
            scores.append(0.0)
            continue
        usual = statistics.median(n for j, n in enumerate(margins) if n is not None and label[j] == label[i])
        base = usual if usual > 0 else usual / 4
        over = (m - base) / (1 - base) - (1 - accuracy)
        scores.append((1 + over / accuracy) / 2 if over > 0 else 0.5 * math.exp(over))
    return scores


def arrays(seed: int, size: int = 60):
    rng = np.random.default_rng(seed)
    seen = rng.integers(0, 9, size).astype(np.int32)
    wrong = (seen * rng.random(size)).astype(np.int32)
    margin = rng.uniform(-1, 0.9, size).astype(np.float32)
    margin[rng.random(size) < 0.2] = np.nan
    return rng.integers(0, 7, size), wrong, seen, margin


@pytest.mark.parametrize("seed", range(3))
def test_suspicion_is_the_formula_written_out(seed: int) -> None:
    given = arrays(seed)
    score = suspicion(*given, 0.7)
    assert score.tolist() == pytest.approx(naive(*(values.tolist() for values in given), 0.7), abs=1e-5)
    assert ((score >= 0) & (score <= 1)).all()


def test_a_class_that_is_hard_as_a_whole_is_not_suspected_as_a_whole() -> None:
    label, four = np.repeat([0, 1], 50), np.full(100, 4, np.int32)
    margin = np.where(label == 0, -0.9, 0.4).astype(np.float32)
    margin[0] = 0.4  # in the easy class the same answer is odd
    score = suspicion(label, four, four, margin, 0.7)
    assert score[0] > 0.5
    assert score[50:].max() < 0.5


def test_the_weaker_the_network_the_surer_it_must_be() -> None:
    label, four, margin = np.zeros(50, np.int64), np.full(50, 4, np.int32), np.full(50, -0.9, np.float32)
    margin[0] = 0.3
    strong, weak = (suspicion(label, four, four, margin, accuracy)[0] for accuracy in (0.9, 0.4))
    assert strong > 0.5 > weak


def test_where_only_right_and_wrong_are_known_the_share_of_wrong_answers_stands_in() -> None:
    nothing, eight = np.full(5, np.nan, np.float32), np.full(5, 8, np.int32)
    score = suspicion(np.zeros(5, np.int64), np.array([0, 0, 0, 2, 8], np.int32), eight, nothing, 0.8)
    assert score[4] == pytest.approx(1.0)
    assert score[0] < score[3] < 0.5


def test_a_network_that_diverged_calls_no_label_wrong() -> None:
    nothing, eight = np.full(6, np.nan, np.float32), np.full(6, 8, np.int32)
    assert suspicion(np.repeat([0, 1], 3), eight, eight, nothing, 0.0).max() <= 0.5


def test_no_samples_and_samples_never_seen_are_no_surprise() -> None:
    empty = np.zeros(0, np.float32)
    assert suspicion(np.zeros(0, np.int64), np.zeros(0, np.int32), np.zeros(0, np.int32), empty, 0.0).tolist() == []
    never, unknown = np.zeros(3, np.int32), np.full(3, np.nan, np.float32)
    assert suspicion(np.array([0, 0, 5]), never, never, unknown, 0.5).tolist() == [0, 0, 0]


def naive_competent(label, prediction, wrong, seen, test) -> list[bool]:
    found = []
    for c in range(max(*label, *prediction) + 1):
        own = [i for i, each in enumerate(label) if each == c]
        often = sum(wrong[i] for i in own) < 0.75 * sum(seen[i] for i in own)
        known = [i for i in own if prediction[i] >= 0]
        right = sum(prediction[i] == c for i in known)
        recall = right and right >= 0.25 * len(known)
        precision = right >= 0.25 * sum(each == c for each in prediction)
        found.append(bool(often and recall and precision and not test[c] < 0.25))
    return found


@pytest.mark.parametrize("seed", range(4))
def test_a_class_is_competent_by_recall_precision_history_and_test(seed: int) -> None:
    rng = np.random.default_rng(seed)
    label = rng.integers(0, 6, 80)
    prediction = np.where(rng.random(80) < 0.3, label, rng.integers(-1, 6, 80)).astype(np.int32)
    seen = rng.integers(1, 9, 80).astype(np.int32)
    wrong = (seen * rng.random(80) ** 0.4).astype(np.int32)
    test = np.where(rng.random(6) < 0.2, np.nan, rng.random(6) + 0.1)
    found = competent_classes(label, prediction, wrong, seen, test).tolist()
    assert found == naive_competent(label.tolist(), prediction.tolist(), wrong.tolist(), seen.tolist(), test.tolist())


def test_epochs_that_saw_nothing_do_not_count_in_the_bound() -> None:
    right, seen = np.array([[True, True, False], [True, True, True]]), np.ones((2, 3), bool)
    made = make_samples(np.array([2, 1]), 2, np.random.default_rng(0))
    for own in (right, right[1:]):  # that of a network that is always right weighs 1e-6 only
        gaps = (pack(np.insert(values[: len(own)], 1, False, axis=0)) for values in (own, seen))
        whole, gap = (replace(made, answers=Answers(*bits, 3)) for bits in ((pack(own), None), gaps))
        assert gap._accuracy == whole._accuracy
