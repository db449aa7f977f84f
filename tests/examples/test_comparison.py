from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
import comparison


def test_a_split_shares_no_sample_and_its_test_part_is_balanced() -> None:
    found = comparison.digits(seed=3)
    assert torch.bincount(found.test_labels).tolist() == [60] * 10
    assert len(found.labels) + len(found.test_labels) == 1797


def test_the_first_weights_depend_on_the_seed_alone() -> None:
    torch.manual_seed(5)
    first = comparison.network(1)[0].weight
    torch.manual_seed(6)
    assert torch.equal(first, comparison.network(1)[0].weight)


def test_an_interval_holds_the_mean_and_narrows_with_more_seeds() -> None:
    draws = np.random.default_rng(1).normal(2.0, 1.0, 400)
    low, high = comparison.interval(draws)
    assert low < draws.mean() < high
    few_low, few_high = comparison.interval(draws[:10])
    assert few_high - few_low > high - low


def test_the_tail_is_the_last_twentieth_and_at_least_one() -> None:
    assert comparison.tail_mean([0.0] * 38 + [1.0, 2.0]) == pytest.approx(1.5)
    assert comparison.tail_mean([3.0]) == 3.0


def test_a_table_shows_differences_paired_by_seed() -> None:
    results = {"none": [{"last": 1.0}, {"last": 5.0}], "more": [{"last": 2.0}, {"last": 6.0}]}
    assert "+1.00  (+1.00 to +1.00)  *" in comparison.table(results, "none")
