"""Draws by weight, and an order that is the same on any number of processes and can be left and taken up anywhere."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import DataLoader

import aol
from tests.support.checks import through_a_file


def aged(size: int = 12) -> aol.SampleAges:
    ages = aol.SampleAges([i % 3 for i in range(size)], rho=0.5, level="sample")
    for step in range(3):
        ages.observe(range(size), [(i * 7 + step) % 4 == 0 for i in range(size)])
        ages.advance()
    return ages


def make(kind: str, size: int = 12, **more):
    if kind == "shuffled":
        return aol.ShuffledSampler(size, **more)
    return aol.AgeSampler(aged(size), **more) if kind == "age" else aol.WeightedSampler(aged(size).weights, **more)


every_kind = pytest.mark.parametrize("kind", ["shuffled", "age", "weighted"])


@every_kind
def test_every_epoch_has_an_order_of_its_own_that_depends_on_the_seed_alone(kind):
    first, again, other = make(kind, seed=3), make(kind, seed=3), make(kind, seed=4)
    orders = [list(first) for _ in range(4)]
    assert orders == [list(again) for _ in range(4)]
    assert len({tuple(order) for order in orders}) == 4
    assert list(other) != orders[0]
    again.set_epoch(2)
    assert list(again) == orders[2]
    assert again.epoch == 3
    again.set_epoch(0)
    assert list(again) == orders[0]


@every_kind
@pytest.mark.parametrize("even", [True, False])
@pytest.mark.parametrize(("size", "world"), [(1, 1), (1, 3), (7, 2), (12, 5)])
def test_processes_share_one_global_order(kind, even, size, world):
    whole = list(make(kind, size))
    shares = []
    for rank in range(world):
        sampler = make(kind, size, even=even, rank=rank, world_size=world)
        share = list(sampler)
        assert len(sampler) == len(share)
        shares.append(share)
    if even:
        most = -(-size // world)
        assert [len(share) for share in shares] == [most] * world
        padded = (whole * (world + 1))[: most * world]  # from the front of the order again
    else:
        padded = whole
    assert shares == [padded[rank::world] for rank in range(world)]


@every_kind
@pytest.mark.parametrize("even", [True, False])
@pytest.mark.parametrize(("before", "after"), [(1, 3), (3, 1), (3, 5), (5, 2)])
def test_an_epoch_left_anywhere_goes_on_there_on_any_number_of_processes(kind, even, before, after):
    size = 13
    whole = list(make(kind, size))
    for taken in range(1, -(-size // before) + 1):
        states = []
        for rank in range(before):
            sampler = make(kind, size, even=even, rank=rank, world_size=before)
            share = iter(sampler)
            for _ in range(min(taken, len(sampler))):
                next(share)
            states.append(sampler.state_dict())
        state = through_a_file(states[0])
        position = min(taken * before, size)
        assert state["position"] == position
        rest = []
        for rank in range(after):
            sampler = make(kind, size, even=even, rank=rank, world_size=after)
            sampler.load_state_dict(state)
            sampler.set_epoch(0)  # as a loop does; the epoch is already there and stays where it is
            rest.append(list(sampler))
            assert sampler.epoch == 1
        left = whole[position:]
        if even and len(left) % after:
            left += (whole * after)[: after - len(left) % after]
        assert rest == [left[rank::after] for rank in range(after)]


@every_kind
def test_a_pass_that_is_broken_off_starts_over(kind):
    sampler = make(kind)
    share = iter(sampler)
    first = [next(share) for _ in range(3)]
    assert list(sampler)[:3] == first
    assert sampler.epoch == 1


def test_an_epoch_goes_on_with_the_weights_it_began_with():
    ages = aged()
    sampler, other = (aol.AgeSampler(ages, seed=2) for _ in range(2))
    whole = list(aol.AgeSampler(ages, seed=2))
    share = iter(sampler)
    begun = [next(share) for _ in range(4)]
    for _ in range(30):
        ages.observe(range(12), [i != 3 for i in range(12)])
        ages.advance()
    other.load_state_dict(sampler.state_dict())
    assert begun + list(other) == whole
    assert begun + list(share) == whole
    assert list(other).count(3) > 5  # the next epoch reads the weights anew


def test_a_sampler_of_ages_is_one_of_their_weights():
    ages = aged()
    by_age, by_weight = aol.AgeSampler(ages, seed=5), aol.WeightedSampler(lambda: ages.weights, seed=5)
    fixed = aol.WeightedSampler(ages.weights.tolist(), seed=5)
    assert list(by_age) == list(by_weight) == list(fixed)
    ages.observe(range(12), [i == 3 for i in range(12)])
    ages.advance()
    assert list(by_age) == list(by_weight) != list(fixed)


def test_weights_that_the_caller_changes_later_do_not_change_the_sampler():
    weights = torch.tensor([0.0, 1.0, 1.0])
    sampler = aol.WeightedSampler(weights, num_samples=50)
    weights[0] = 100.0
    assert set(sampler) == {1, 2}


@every_kind
@pytest.mark.parametrize("batches", [1, 3])
def test_a_plain_loader_without_workers_goes_on_after_the_last_batch(kind, batches):
    whole, sampler, other = list(make(kind, 14)), make(kind, 14), make(kind, 14)
    share = iter(DataLoader(range(14), batch_size=4, sampler=sampler))
    seen = [index for _ in range(batches) for index in next(share).tolist()]
    other.load_state_dict(through_a_file(sampler.state_dict()))
    assert seen + list(other) == whole
    assert other.epoch == 1
