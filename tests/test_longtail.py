from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import aol
from tests.support import oracle


@given(st.integers(1, 10**6), st.integers(1, 200), st.floats(1, 1000) | st.integers(1, 1000))
def test_counts_agree_with_the_protocols_formula_to_the_last_sample(largest, num_classes, imbalance):
    counts = aol.long_tail_counts(largest, num_classes, imbalance)
    assert counts.dtype == torch.int64
    assert counts.tolist() == oracle.long_tail_counts(largest, num_classes, imbalance)
    assert int(counts.min()) >= 1
    assert int(counts[0]) == largest


@pytest.mark.parametrize(
    ("largest", "num_classes", "imbalance", "total"),
    [(5000, 10, 1, 50_000), (5000, 10, 100, 12_406), (500, 100, 100, 10_847)],
)
def test_the_usual_long_tailed_cifar_sets_have_their_usual_sizes(largest, num_classes, imbalance, total):
    assert int(aol.long_tail_counts(largest, num_classes, imbalance).sum()) == total


@given(st.lists(st.integers(1, 40), min_size=1, max_size=6), st.floats(1, 100), st.integers(0, 1000))
def test_a_long_tail_holds_as_many_of_each_class_as_it_should(available, imbalance, seed):
    labels = torch.tensor([c for c, n in enumerate(available) for _ in range(n)])
    labels = labels[torch.randperm(labels.numel(), generator=torch.Generator().manual_seed(seed))]
    kept = aol.long_tail(labels, imbalance, seed=seed)
    counts = torch.bincount(labels[kept], minlength=len(available)).tolist()
    assert kept.dtype == torch.int64
    assert kept.tolist() == sorted(set(kept.tolist()))
    assert counts == oracle.long_tail_counts(counts[0], len(available), imbalance)
    more = oracle.long_tail_counts(counts[0] + 1, len(available), imbalance)
    assert any(m > n for m, n in zip(more, available, strict=True))  # no larger head would have fitted


def test_what_is_kept_depends_on_the_seed_alone_and_is_a_uniform_choice():
    labels = [0] * 10 + [1] * 10
    assert aol.long_tail(labels, 5, seed=1).equal(aol.long_tail(labels, 5, seed=1))
    kept = [aol.long_tail(labels, 5, seed=seed)[-2:].tolist() for seed in range(2000)]  # two of class 1's ten
    counts = np.bincount(np.ravel(kept), minlength=20)[10:]
    assert ((counts - 400) ** 2 / 400).sum() < 27.9  # 99.9 % of chi-square with 9 degrees of freedom


def test_a_stronger_imbalance_keeps_a_part_of_what_a_weaker_one_keeps():
    labels = torch.arange(500) % 5
    sets = [set(aol.long_tail(labels, imbalance, seed=3).tolist()) for imbalance in (1, 10, 50, 100)]
    for weaker, stronger in itertools.pairwise(sets):
        assert stronger < weaker
    assert len(sets[0]) == 500


@pytest.mark.parametrize(
    ("call", "error", "named"),
    [
        (lambda: aol.long_tail_counts(0, 3, 10), ValueError, "largest"),
        (lambda: aol.long_tail_counts(10, 0, 10), ValueError, "num_classes"),
        (lambda: aol.long_tail_counts(10, 3, 0.5), ValueError, "imbalance"),
        (lambda: aol.long_tail([0, 2], 10), ValueError, "labels"),
        (lambda: aol.long_tail([0.0, 1.0], 10), TypeError, "labels"),
        (lambda: aol.long_tail([0, 1], 2, seed=-1), ValueError, "seed"),
    ],
)
def test_bad_input_names_the_argument(call, error, named):
    with pytest.raises(error, match=named):
        call()
