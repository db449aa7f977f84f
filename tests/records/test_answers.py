"""Ages from bits: the paper's rule written out naively, sample by sample."""

from __future__ import annotations

import numpy as np
import pytest

from aol.records.history import Answers, pack


def naive_ages(seen: np.ndarray, right: np.ndarray, grows: bool, start: list[int] | None) -> list[list[int]]:
    """Ages `[E][N]` by the rules of docs/method.md, one sample at a time."""
    columns = []
    for i in range(seen.shape[1]):
        age = start[i] if start else 0 if grows else 1
        column = []
        for e in range(seen.shape[0]):
            if seen[e, i]:
                age = 1 if right[e, i] else max(age, 1) + 1
            elif grows and age > 0:
                age += 1
            column.append(age)
        columns.append(column)
    return np.array(columns).T.tolist()


@pytest.mark.parametrize("size", [1, 8, 53])
@pytest.mark.parametrize("grows", [False, True])
@pytest.mark.parametrize("begins", ["new", "old"])
def test_bits_give_every_age_there_has_been(size: int, grows: bool, begins: str) -> None:
    rng = np.random.default_rng(size)
    seen = rng.random((12, size)) < 0.6
    right = seen & (rng.random((12, size)) < 0.4)
    start = rng.integers(1, 9, size).astype(np.int32) if begins == "old" else None
    answers = Answers(pack(right), pack(seen), size, grows, start)
    wanted = naive_ages(seen, right, grows, None if start is None else start.tolist())
    rows = rng.permutation(size)[: max(1, size // 2)]
    assert answers.ages(np.arange(size)).tolist() == wanted
    assert answers.ages(rows).tolist() == [[line[row] for row in rows] for line in wanted]
    assert answers.last().tolist() == wanted[-1]
    for epoch, (was_seen, was_right, age) in enumerate(answers.epochs()):
        assert (was_seen == seen[epoch]).all()
        assert (was_right == right[epoch]).all()
        assert age.tolist() == wanted[epoch]


def test_without_an_epoch_ages_are_those_of_the_beginning() -> None:
    none = Answers(np.zeros((0, 1), np.uint8), None, 3)
    assert none.ages(np.array([0, 2])).shape == (0, 2)
    assert none.last().tolist() == [1, 1, 1]
