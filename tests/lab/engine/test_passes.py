"""Passes over samples: batches in order, sums by class, shares of processes."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from aol.class_ages import ClassAges
from aol.lab.engine import passes
from aol.lab.engine.learner import Learner
from aol.lab.engine.passes import CleanPass, TrainPass, restored, share
from aol.lab.engine.run_rules import Observers, RunMargins
from aol.lab.engine.source import OnDevice, source_of
from aol.losses import is_correct
from aol.readings import precision
from tests.support.tiny_runs import CPU, same_network, settings, tiny_pair

RUNS = [settings(), settings(seed=1, loss="sigmoid")]


def made() -> tuple[Learner, OnDevice]:
    learner = Learner(RUNS, num_classes=3, shape=(1, 8, 8), device=CPU)
    pair = tiny_pair()
    train = source_of(pair, pair.train, run=RUNS[0], augment=False, workers=0, device=CPU)
    assert isinstance(train, OnDevice)
    return learner, train


def test_a_training_pass_is_one_step_a_batch_in_the_given_order() -> None:
    learner, source = made()
    other, _ = made()
    heard: list[tuple[Tensor, ...]] = []

    class Heard(Observers):
        def step(self, *batch: Tensor) -> None:
            heard.append(batch)

    margins = RunMargins(RUNS, 3, None, CPU)
    one = TrainPass(learner, source, Heard(ClassAges(3, rho=[0.5] * 2), None, margins, True), size=32)
    assert one.number == 3
    generator = torch.Generator().manual_seed(0)
    for epoch in range(2):
        place = torch.stack([torch.randperm(90, generator=generator)[:32] for _ in RUNS])
        position = place + 1000
        weight = torch.rand((2, 32), generator=generator) + 0.5
        rates = [0.01, 0.02, 0.03]
        heard.clear()
        assert list(one.steps(place, position, weight, rates=rates, epoch=epoch)) == [15, 15, 2]
        trained = one.result()
        losses, rights = [], []
        for rate, part in zip(rates, torch.arange(32).split(15), strict=True):
            label = source.labels[place[:, part]]
            images = source.plain(place[:, part])
            loss, logits = other.step(images, label, weight[:, part], torch.tensor(rate))
            right, named = is_correct(logits, label), logits.argmax(-1)
            losses.append(loss)
            rights.append(right)
            seen, told, correct, answered, own_logits = heard[len(losses) - 1]
            assert torch.equal(seen, position[:, part])
            assert torch.equal(told, label)
            assert torch.equal(correct, right)
            assert torch.equal(answered, named)
            torch.testing.assert_close(own_logits, logits)
        torch.testing.assert_close(trained.loss, torch.stack(losses).double().mean(0))
        for row in range(2):
            labels, right = source.labels[place[row]], torch.cat(rights, 1)[row]
            assert trained.count[row].tolist() == torch.bincount(labels, minlength=3).tolist()
            assert trained.right[row].tolist() == torch.bincount(labels[right], minlength=3).tolist()
            same_network(learner.network(row), other.network(row))
        assert trained.images == 32
        assert len(heard) == 3


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("images", [16, 4096])
def test_a_clean_pass_sums_up_by_class_what_each_sample_says(
    shared: bool, images: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(passes._EVALUATION_BATCH, "cpu", (images * len(RUNS), 1 << 22))
    learner, source = made()
    index = torch.arange(40) if shared else torch.stack((torch.arange(40), torch.arange(40, 80)))
    times = torch.randint(0, 3, (2, 40), generator=torch.Generator().manual_seed(5))
    look = CleanPass(learner, source, size=50, shared=shared, keep=True)
    for given in (times, None):
        assert sum(look.steps(index, given)) == 40
        found = look.result()
        for row in range(2):
            own = index if shared else index[row]
            logits = learner.predict(source.plain(own.expand(2, -1)))[row]
            label = source.labels[own]
            count, right, loss, margin, answered = ([0.0] * 3 for _ in range(5))
            for at, (z, y) in enumerate(zip(logits, label.tolist(), strict=True)):
                often = 1 if given is None else int(given[row, at])
                count[y] += often
                answered[int(z.argmax())] += often
                right[y] += often * (int(z.argmax()) == y)
                loss[y] += often * float(F.cross_entropy(z, torch.tensor(y)))
                margin[y] += often * float(z[y] - max(z[k] for k in range(3) if k != y))
            assert found.correct[row].tolist() == (logits.argmax(1) == label).tolist()
            assert found.sums[0, row].tolist() == count
            assert found.sums[1, row].tolist() == right
            assert found.sums[4, row].tolist() == answered
            share = [r / a if a else math.nan for r, a in zip(right, answered, strict=True)]
            assert precision(found.sums)[row].tolist() == pytest.approx(share, nan_ok=True)
            assert found.sums[2, row].tolist() == pytest.approx(loss, rel=1e-4)
            assert found.sums[3, row].tolist() == pytest.approx(margin, rel=1e-4, abs=1e-4)
            assert float(found.accuracy[row]) == pytest.approx(sum(right) / sum(count))
            by_class = found.by_class("test")["test_accuracy"][row].tolist()
            assert by_class == pytest.approx([r / c if c else math.nan for r, c in zip(right, count, strict=True)])
        assert found.answers is not None
        assert found.answers.shape[1:] == (2, 40)


def test_a_class_without_a_sample_has_no_reading() -> None:
    _, source = made()
    learner = Learner(RUNS, num_classes=4, shape=(1, 8, 8), device=CPU)
    look = CleanPass(learner, source, size=5, shared=True)
    assert list(look.steps((source.labels == 0).nonzero()[:5, 0])) == [5]
    found = look.result()
    assert found.answers is None
    for values in found.by_class("train").values():
        assert values.isnan().tolist() == [[False, True, True, True]] * 2


@pytest.mark.parametrize(("size", "batch", "world"), [(10, 4, 2), (11, 4, 3), (3, 8, 4)])
def test_processes_share_every_batch_and_fill_up_with_what_does_not_count(size: int, batch: int, world: int) -> None:
    shares = [share(size, batch, rank, world, CPU) for rank in range(world)]
    assert len({places.numel() for places, _ in shares}) == 1
    real = [places[counts].tolist() for places, counts in shares]
    assert sorted(place for own in real for place in own) == list(range(size))
    start = 0
    for first in range(0, size, batch):
        each = -(-min(batch, size - first) // world)
        for places, _ in shares:
            assert all(first <= place < first + batch for place in places[start : start + each].tolist())
        start += each


def test_values_come_back_in_the_same_memory_and_new_tensors_become_zero() -> None:
    """As the buffers of an optimiser do, in its first step."""
    weight, marks, empty = torch.nn.Parameter(torch.ones(2)), torch.tensor([True, False]), torch.empty(0)
    optimiser, place = torch.optim.SGD([weight], lr=0.1, momentum=0.9), weight.data_ptr()
    with restored(lambda: [weight, marks, empty, *(v for state in optimiser.state.values() for v in state.values())]):
        weight.grad = torch.tensor([1.0, -3.0])
        optimiser.step()
        marks.logical_not_()
    assert (weight.tolist(), marks.tolist(), weight.data_ptr()) == ([1, 1], [True, False], place)
    assert optimiser.state[weight]["momentum_buffer"].tolist() == [0, 0]
