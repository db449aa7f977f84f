"""How long errors live: episodes by walking along each sample, survival by the product-limit formula by hand."""

from __future__ import annotations

import numpy as np
import pytest

from aol.records.history import Answers, pack
from aol.report.samples import episodes, kaplan_meier


def walked(right: np.ndarray, seen: np.ndarray, grows: bool) -> list[tuple[int, bool]]:
    """Length and whether it ended, of every error episode, sample by sample."""
    found = []
    for i in range(right.shape[1]):
        length, known = 0, False
        for e in range(right.shape[0]):
            if seen[e, i]:
                known = True
                if right[e, i]:
                    if length:
                        found.append((length, True))
                    length = 0
                else:
                    length += 1
            elif grows and known:  # an epoch of absence is one without a right answer
                length += 1
        if length:
            found.append((length, False))
    return found


def naive_kaplan_meier(told: list[tuple[int, bool]]) -> list[float]:
    """Survival after each length, by the formula: censored ones are at risk until they go."""
    share = [1.0]
    for d in range(1, max(length for length, _ in told) + 1):
        at_risk = sum(length >= d for length, _ in told)
        ended = sum(length == d and over for length, over in told)
        share.append(share[-1] * (1 - ended / at_risk))
    return share


@pytest.mark.parametrize(("grows", "part"), [(False, 0.6), (True, 0.6), (False, 1.0)])
def test_episodes_and_their_survival_are_those_of_a_walk_along_every_sample(grows: bool, part: float) -> None:
    rng = np.random.default_rng(5)
    seen = rng.random((25, 60)) < part
    right = seen & (rng.random((25, 60)) < np.linspace(0.05, 0.9, 60))
    told = walked(right, seen, grows)
    ((ended, still_open),) = episodes(Answers(pack(right), pack(seen), 60, grows), np.zeros(60, int))
    for d in range(1, 26):
        assert ended[d] == sum(length == d and over for length, over in told)
        assert still_open[d] == sum(length == d and not over for length, over in told)
    assert (ended + still_open).sum() == len(told)
    assert kaplan_meier(ended, still_open) == pytest.approx(naive_kaplan_meier(told))


def test_the_textbook_example_of_remission_times() -> None:
    """Freireich's 6-MP arm (1963), whose estimate every textbook prints: 21 patients, 12 of them censored."""
    ended = {6: 3, 7: 1, 10: 1, 13: 1, 16: 1, 22: 1, 23: 1}
    censored = {6: 1, 9: 1, 10: 1, 11: 1, 17: 1, 19: 1, 20: 1, 25: 1, 32: 2, 34: 1, 35: 1}
    share = kaplan_meier(*(np.array([each.get(t, 0) for t in range(36)]) for each in (ended, censored)))
    printed = {6: 0.857, 7: 0.807, 10: 0.753, 13: 0.690, 16: 0.627, 22: 0.538, 23: 0.448, 35: 0.448}
    assert {t: share[t] for t in printed} == pytest.approx(printed, abs=6e-4)
    assert np.flatnonzero(share <= 0.5)[0] == 23


def test_groups_are_told_apart() -> None:
    right = np.array([[0, 0, 0], [1, 0, 0], [1, 1, 0]], bool)
    first, second = episodes(Answers(pack(right), None, 3), np.array([0, 1, 1]))
    assert (first[0].tolist(), first[1].tolist()) == ([0, 1, 0, 0], [0, 0, 0, 0])
    assert (second[0].tolist(), second[1].tolist()) == ([0, 0, 1, 0], [0, 0, 0, 1])


def test_an_error_under_way_when_the_record_begins_is_left_out_and_the_next_one_counts() -> None:
    right = np.array([[0], [1], [0], [1]], bool)
    ((ended, still_open),) = episodes(Answers(pack(right), None, 1, start=np.array([5], np.int32)), np.zeros(1, int))
    assert (ended.tolist(), still_open.sum()) == ([0, 1, 0, 0, 0], 0)


def test_no_error_at_all_survives_nothing() -> None:
    ((ended, still_open),) = episodes(Answers(pack(np.ones((3, 2), bool)), None, 2), np.zeros(2, int))
    assert (ended + still_open).sum() == 0
    assert kaplan_meier(ended, still_open).tolist() == [1.0]
    assert kaplan_meier(np.zeros(4, int), np.array([0, 0, 3, 0])).tolist() == [1.0] * 3
