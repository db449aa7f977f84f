from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import aol
from aol.memory import KeepLast
from tests.support.oracle import ReservoirOracle


def test_keep_all_takes_any_kind_of_indices():
    memory = aol.KeepAll()
    for part in ([3, 1], [], [3], np.array([7], dtype=np.uint8), torch.tensor([0, 1], dtype=torch.int32), range(2)):
        memory.add(part)
    assert memory.indices.tolist() == [0, 0, 1, 1, 1, 3, 3, 7]
    assert memory.indices.dtype == torch.int64


steps = st.lists(st.lists(st.integers(0, 11), max_size=9), max_size=6)


@given(steps)
def test_every_memory_counts_what_it_remembers(parts):
    for memory in (aol.KeepAll(), KeepLast(), aol.Reservoir(7)):
        for part in parts:
            memory.add(part)
        indices = memory.indices.tolist()
        assert memory.counts(12).tolist() == [indices.count(index) for index in range(12)]
        assert len(memory) == len(indices)


def test_keep_all_counts_a_long_stream_without_its_indices():
    memory = aol.KeepAll()
    memory.load_state_dict({"kind": "KeepAll", "items": torch.tensor([2**50, 0])})
    assert memory.counts(3).tolist() == [2**50, 0, 0]


@given(steps)
def test_keep_all_remembers_all_in_ascending_order_and_keep_last_the_last_step(parts):
    for kind, wanted in ((aol.KeepAll, sorted(itertools.chain(*parts))), (KeepLast, parts[-1] if parts else [])):
        memory, other = kind(), kind()
        for part in parts:
            memory.add(part)
        other.load_state_dict(memory.state_dict())
        assert memory.indices.tolist() == other.indices.tolist() == wanted
        assert len(other) == len(wanted)


@pytest.mark.parametrize("make", [aol.KeepAll, lambda: aol.Reservoir(9)])
def test_counts_need_a_place_for_every_index(make):
    memory = make()
    memory.add([1, 3])
    with pytest.raises(IndexError, match="num_samples"):
        memory.counts(3)


@given(st.lists(st.lists(st.integers(0, 2**62), max_size=12), max_size=8), st.integers(1, 10), st.integers(0, 99))
def test_how_a_stream_is_cut_into_calls_makes_no_difference(parts, capacity, seed):
    once, often = aol.Reservoir(capacity, seed=seed), aol.Reservoir(capacity, seed=seed)
    everything = list(itertools.chain(*parts))
    once.add(everything)
    for part in parts:
        often.add(part)
    assert once.indices.equal(often.indices)
    assert once.seen == often.seen == len(everything)
    assert len(once) == min(capacity, len(everything))
    if len(everything) <= capacity:
        assert once.indices.tolist() == everything
    assert set(once.indices.tolist()) <= set(everything)


class SameDraws:
    """Gives the one-at-a-time rule the library's own random numbers, so that the two must agree item by item.

    The library draws a place among n and calls it the slot if it is below K: that is one draw for both questions of
    the rule, whether the item enters (probability K/n) and which slot it takes (uniform, given that it enters).
    """

    def __init__(self, seed: int, capacity: int) -> None:
        self.generator, self.nth = aol._seeds.generator(seed), capacity

    def random(self) -> float:
        self.nth += 1
        self.point = torch.rand(1, dtype=torch.float64, generator=self.generator).item()
        return self.point

    def integers(self, capacity: int) -> int:
        return int(self.point * self.nth)


@given(st.integers(1, 12), st.integers(0, 120), st.integers(0, 10**6))
def test_a_reservoir_equals_the_one_at_a_time_rule_under_the_same_draws(capacity, size, seed):
    memory, truth = aol.Reservoir(capacity, seed=seed), ReservoirOracle(capacity, SameDraws(seed, capacity))
    memory.add(range(size))
    truth.add(range(size))
    assert memory.indices.tolist() == truth.items


def test_every_position_of_the_stream_is_kept_equally_often():
    capacity, size, trials = 6, 40, 4000
    counts = np.zeros(size)
    for seed in range(trials):
        memory = aol.Reservoir(capacity, seed=seed)
        memory.add(range(25))
        memory.add(range(25, size))
        counts[memory.indices.numpy()] += 1
    expected = trials * capacity / size
    # Counts of one trial exclude each other a little; corrected for that the sum is chi-square with 39 degrees.
    chi_square = ((counts - expected) ** 2 / expected).sum() * (size - 1) / (size - capacity)
    assert 17.3 < chi_square < 72.1  # 99.9 % on both sides: too even would be wrong as well


@pytest.mark.parametrize("stop", [0, 3, 6, 21])
def test_a_reservoir_left_anywhere_goes_on_there(stop):
    whole, begun, other = (aol.Reservoir(5, seed=3) for _ in range(3))
    whole.add(range(30))
    begun.add(range(stop))
    other.add(range(17))  # whatever it held before is gone
    other.load_state_dict(begun.state_dict())
    other.add(range(stop, 30))
    assert other.indices.equal(whole.indices)
    assert other.seen == 30


@pytest.mark.parametrize("memory", [aol.KeepAll(), KeepLast(), aol.Reservoir(3)])
@pytest.mark.parametrize(("given", "error"), [([0.5], TypeError), ([[1]], ValueError), ([-1], IndexError)])
def test_what_is_no_vector_of_indices_is_refused(memory, given, error):
    with pytest.raises(error, match="indices"):
        memory.add(given)
    assert len(memory) == 0


def test_the_capacity_is_a_whole_number_above_zero():
    for capacity, error in ((0, ValueError), (2.5, TypeError)):
        with pytest.raises(error, match="capacity"):
            aol.Reservoir(capacity)
