"""Iterable data sets whose items come as often as their weights say."""

from __future__ import annotations

import collections

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info
from torchdata.stateful_dataloader import StatefulDataLoader

import aol

WEIGHT = torch.tensor([0.0, 0.25, 1.0, 2.0, 3.7])


class Stream(IterableDataset):
    """Numbers, of which each worker reads its share; it notes the epoch."""

    def __init__(self, size: int) -> None:
        self.size, self.epoch = size, 0

    def __iter__(self):
        worker = get_worker_info()
        first, step = (0, 1) if worker is None else (worker.id, worker.num_workers)
        return iter(range(first, self.size, step))

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


def weight(item: int) -> torch.Tensor:
    return WEIGHT[item % 5]


def test_every_item_comes_as_often_as_its_weight_says_and_at_once():
    size = 20_000
    found = list(aol.Resampled(range(size), weight, seed=3))
    assert found == sorted(found)
    times = collections.Counter(found)
    assert all(times[item] in (int(weight(item)), int(weight(item)) + 1) for item in range(size))
    assert {times[item] for item in range(0, size, 5)} == {0}
    assert {times[item] for item in range(3, size, 5)} == {2}
    share = size // 5
    for kind, (spread, wanted) in {1: (0.43, 0.25), 4: (0.46, 3.7)}.items():
        mean = sum(times[item] for item in range(kind, size, 5)) / share
        assert mean == pytest.approx(wanted, abs=4 * spread / share**0.5)


def test_draws_depend_on_the_seed_and_the_epoch_alone():
    first, again, other = (aol.Resampled(Stream(50), weight, seed=seed) for seed in (1, 1, 2))
    assert list(first) == list(again) == list(first) != list(other)
    before = list(first)
    first.set_epoch(1)
    assert list(first) != before
    assert first.data.epoch == 1
    again.set_epoch(1)
    assert list(again) == list(first)
    first.set_epoch(0)
    assert list(first) == before


@pytest.mark.parametrize("stays", [True, False])
def test_workers_draw_for_their_own_items_and_hear_of_a_new_epoch(stays):
    data = aol.Resampled(Stream(400), weight)
    loader = DataLoader(data, batch_size=None, num_workers=2, persistent_workers=stays)
    passes = []
    for epoch in range(2):
        data.set_epoch(epoch)
        passes.append(sorted(map(int, loader)))
    assert passes[0] != passes[1]
    once = [collections.Counter(each) for each in passes]
    fractional = [item for item in range(400) if item % 5 == 1]
    assert {times[item] for times in once for item in fractional} == {0, 1}
    pairs = [(once[0][item], once[0][item + 5]) for item in fractional[::2]]  # of the two workers, at the same place
    assert len(set(pairs)) > 2  # not the same draws


class Level:
    """A weight in shared memory, as a function that can be sent to a worker."""

    def __init__(self, level: torch.Tensor) -> None:
        self.level = level

    def __call__(self, item: int) -> torch.Tensor:
        return self.level


def test_a_weight_that_changes_between_epochs_reaches_workers_that_stay():
    level = torch.tensor(0.0).share_memory_()
    loader = DataLoader(
        aol.Resampled(Stream(10), Level(level)), batch_size=None, num_workers=1, persistent_workers=True
    )
    assert list(loader) == []
    level.fill_(2.0)
    assert len(list(loader)) == 20


@pytest.mark.parametrize("workers", [0, 2])
def test_a_stateful_loader_goes_on_where_it_was(workers):
    def make():
        return StatefulDataLoader(aol.Resampled(Stream(60), weight, seed=4), batch_size=3, num_workers=workers)

    whole = [batch.tolist() for batch in make()]
    loader = make()
    batches = iter(loader)
    begun = [next(batches).tolist() for _ in range(5)]
    other = make()
    other.load_state_dict(loader.state_dict())
    assert begun + [batch.tolist() for batch in other] == whole


@pytest.mark.parametrize(
    ("call", "error", "named"),
    [
        (lambda: aol.Resampled(5, weight), TypeError, "data"),
        (lambda: aol.Resampled([1], 0.5), TypeError, "weight"),
        (lambda: aol.Resampled([1], weight, seed=-1), ValueError, "seed"),
        (lambda: aol.Resampled([1], weight).set_epoch(-1), ValueError, "epoch"),
        (lambda: list(aol.Resampled([1], lambda item: -1.0)), ValueError, "weight"),
        (lambda: list(aol.Resampled([1], lambda item: float("inf"))), ValueError, "weight"),
        (lambda: list(aol.Resampled([1], lambda item: float("nan"))), ValueError, "weight"),
        (lambda: list(aol.Resampled([1], lambda item: torch.ones(2))), TypeError, "weight"),
        (lambda: list(aol.Resampled([1], lambda item: "1")), TypeError, "weight"),
    ],
)
def test_bad_input_names_the_argument(call, error, named):
    with pytest.raises(error, match=named):
        call()
