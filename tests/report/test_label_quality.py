"""Suspicion: the formula written out naively, its order, and what happens where little is known."""

from __future__ import annotations

import math
import statistics

import numpy as np
import pytest

from aol.report.label_quality import competent_classes, suspicion


def naive(label, wrong, seen, confidence, other) -> list[float]:
    margins, kept = [], []
    for w, s, c, o in zip(wrong, seen, confidence, other, strict=True):
        kept.append(not math.isnan(o - c))
        if s and not kept[-1]:
            o, c = w / s, (s - w) / s
        margins.append(o - math.sqrt(c) if s else None)
    found = []
    for i, m in enumerate(margins):
        if m is None:
            found.append(0.0)
            continue
        usual = statistics.median(n for j, n in enumerate(margins) if n is not None and label[j] == label[i])
        base = usual if usual > 0 and not kept[i] else usual / 2
        score = (1 + 3 * (m - base) / (1 - base)) / 4
        found.append(score if score > 0.5 else 0.5 * math.exp(2 * score - 1))
    return found


def arrays(seed: int, size: int = 60):
    rng = np.random.default_rng(seed)
    seen = rng.integers(0, 9, size).astype(np.int32)
    wrong = (seen * rng.random(size)).astype(np.int32)
    confidence = rng.random(size).astype(np.float32)
    other = ((1 - confidence) * rng.random(size)).astype(np.float32)
    unknown = rng.random(size) < 0.2
    confidence[unknown] = other[unknown] = np.nan
    return rng.integers(0, 7, size), wrong, seen, confidence, other


@pytest.mark.parametrize("seed", range(3))
def test_suspicion_is_the_formula_written_out(seed: int) -> None:
    given = arrays(seed)
    found = suspicion(*given)
    assert found.tolist() == pytest.approx(naive(*(each.tolist() for each in given)), abs=1e-6)
    assert ((found >= 0) & (found <= 1)).all()


def test_a_class_that_is_hard_as_a_whole_is_not_suspected_as_a_whole() -> None:
    label = np.repeat([0, 1], 50)
    confidence = np.where(label == 0, 0.9, 0.3).astype(np.float32)
    other = np.where(label == 0, 0.05, 0.6).astype(np.float32)
    confidence[0], other[0] = 0.3, 0.6  # in the easy class the same answer is odd
    four = np.full(100, 4, np.int32)
    found = suspicion(label, four, four, confidence, other)
    assert found[0] > 0.5
    assert found[50:].max() < 0.5


def test_where_only_right_and_wrong_are_known_the_share_of_wrong_answers_stands_in() -> None:
    nothing = np.full(5, np.nan, np.float32)
    found = suspicion(
        np.zeros(5, np.int64), np.array([0, 0, 0, 2, 8], np.int32), np.full(5, 8, np.int32), nothing, nothing
    )
    assert found[4] == pytest.approx(1.0)
    assert found[0] < found[3] < 0.5


def test_a_network_that_diverged_calls_no_label_wrong() -> None:
    nothing, eight = np.full(6, np.nan, np.float32), np.full(6, 8, np.int32)
    assert suspicion(np.repeat([0, 1], 3), eight, eight, nothing, nothing).max() < 0.5


def test_no_samples_and_samples_never_seen_are_no_surprise() -> None:
    empty = np.zeros(0, np.float32)
    assert suspicion(np.zeros(0, np.int64), np.zeros(0, np.int32), np.zeros(0, np.int32), empty, empty).tolist() == []
    never = np.zeros(3, np.int32)
    unknown = np.full(3, np.nan, np.float32)
    assert suspicion(np.array([0, 0, 5]), never, never, unknown, unknown).tolist() == [0, 0, 0]


def naive_competent(label, prediction, wrong, seen, test) -> list[bool]:
    found = []
    for c in range(max(*label, *prediction) + 1):
        own = [i for i, each in enumerate(label) if each == c]
        often = sum(wrong[i] for i in own) < 0.5 * sum(seen[i] for i in own)
        known = [i for i in own if prediction[i] >= 0]
        right = sum(prediction[i] == c for i in known)
        recall = right and right >= 0.5 * len(known)
        precision = right >= 0.5 * sum(each == c for each in prediction)
        found.append(bool(often and recall and precision and not test[c] < 0.5))
    return found


@pytest.mark.parametrize("seed", range(4))
def test_a_class_is_competent_by_recall_precision_history_and_test(seed: int) -> None:
    rng = np.random.default_rng(seed)
    label = rng.integers(0, 6, 80)
    prediction = np.where(rng.random(80) < 0.6, label, rng.integers(-1, 6, 80)).astype(np.int32)
    seen = rng.integers(1, 9, 80).astype(np.int32)
    wrong = (seen * rng.random(80) ** 1.3).astype(np.int32)
    test = np.where(rng.random(6) < 0.2, np.nan, rng.random(6) + 0.3)
    found = competent_classes(label, prediction, wrong, seen, test).tolist()
    assert found == naive_competent(label.tolist(), prediction.tolist(), wrong.tolist(), seen.tolist(), test.tolist())
