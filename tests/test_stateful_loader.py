"""Samplers inside torchdata's StatefulDataLoader: left and taken up at every batch, with and without workers."""

from __future__ import annotations

import pytest
from torchdata.stateful_dataloader import StatefulDataLoader

import aol
from tests.support.checks import through_a_file

BATCH, BATCHES = 3, 4
SIZES = [11, 12]  # with a last batch that is not full, and with one that is


def ages(size: int) -> aol.SampleAges:
    made = aol.SampleAges([i % 3 for i in range(size)], rho=0.5, level="sample")
    made.observe(range(size), [i % 4 == 0 for i in range(size)])
    made.advance()
    return made


def make_loader(kind: str, size: int, workers: int, **more) -> StatefulDataLoader:
    sampler = aol.ShuffledSampler(size, seed=5) if kind == "shuffled" else aol.AgeSampler(ages(size), seed=5)
    data = aol.Indexed([float(i) for i in range(size)])
    return StatefulDataLoader(data, **{"batch_size": BATCH, "sampler": sampler, "num_workers": workers, **more})


def indices(batch) -> list[int]:
    return batch[1].tolist()


def run(loader) -> list[list[int]]:
    return [indices(batch) for batch in loader]


def epochs_of(kind: str, size: int) -> list[list[list[int]]]:
    loader = make_loader(kind, size, 0)
    return [run(loader) for _ in range(3)]


@pytest.mark.parametrize("kind", ["shuffled", "age"])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("workers", "stop"), [(0, 1), (0, BATCHES), (2, 2), (2, BATCHES)])
def test_a_stateful_loader_goes_on_behind_the_last_batch(kind, size, workers, stop):
    epochs = epochs_of(kind, size)
    assert [len(epoch) for epoch in epochs] == [BATCHES] * 3
    assert epochs[0] != epochs[1]
    loader = make_loader(kind, size, workers)
    assert run(loader) == epochs[0]
    batches = iter(loader)
    begun = [indices(next(batches)) for _ in range(stop)]
    state = through_a_file(loader.state_dict())
    del batches
    other = make_loader(kind, size, workers)
    other.load_state_dict(state)
    assert begun + run(other) == epochs[1]  # nothing, if the last batch was the epoch's last
    assert run(other) == epochs[2]


@pytest.mark.parametrize("kind", ["shuffled", "age"])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("workers", [0, 2])
def test_a_stateful_loader_left_at_the_end_of_an_epoch_starts_the_next_one(kind, size, workers):
    epochs = epochs_of(kind, size)
    loader = make_loader(kind, size, workers)
    assert run(loader) == epochs[0]
    other = make_loader(kind, size, workers)
    other.load_state_dict(through_a_file(loader.state_dict()))
    assert run(other) == epochs[1]
    assert run(other) == epochs[2]
