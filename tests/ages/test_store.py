"""The words that hold an age: packing, repeats, the path that CUDA takes, the compact store's rounding."""

from __future__ import annotations

import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

import aol
from aol._seal import sealed
from aol.ages import _store
from tests.support.histories import random_answers, same, stories, tell_epoch
from tests.support.oracle import SampleOracle

LAYOUTS = [_store.FULL, _store.FULL_MEAN, _store.COMPACT]


@pytest.mark.parametrize("layout", LAYOUTS)
@given(data=st.data())
def test_a_word_gives_back_what_was_put_in(layout, data):
    age = data.draw(st.integers(0, layout.largest_age))
    count = data.draw(st.integers(0, layout.largest_count))
    right = data.draw(st.booleans())
    word = layout.pack(torch.tensor([age], dtype=torch.int32), torch.tensor([count], dtype=torch.int32))
    assert word.dtype == layout.word
    assert int(word) >= 0
    assert not layout.observed(word)
    marked = layout.mark(layout.mark(word, torch.tensor([not right])), torch.tensor([right]))
    for w in (word, marked):
        assert (int(layout.age(w)), int(layout.count(w))) == (age, count)
    assert layout.observed(marked)
    assert bool(layout.right(marked)) == right
    assert int(marked) >= 0


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_word_that_is_full_stays_full(layout):
    word = layout.pack(torch.tensor([layout.largest_age]), torch.tensor([layout.largest_count + 5]))
    assert int(layout.count(word)) == layout.largest_count
    layout.older_(layout.mark_(word, torch.tensor([False])), grows=False)
    assert int(layout.age(word)) == layout.largest_age


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("grows", [False, True])
@given(st.lists(st.tuples(st.integers(0, 9), st.booleans(), st.booleans()), min_size=1))
def test_words_grow_older_like_ages(layout, grows, samples):
    samples = [(age if grows else age + 1, seen, right) for age, seen, right in samples]
    word = layout.pack(torch.tensor([[age for age, _, _ in samples]]))
    for place, (_, seen, right) in enumerate(samples):
        if seen:
            layout.mark_(word[:, place], torch.tensor([right]))
    changed = layout.older_(word, grows)
    assert word.dtype == layout.word
    for place, (age, seen, right) in enumerate(samples):
        older = seen or (grows and age > 0)
        assert int(word[0, place]) == (int(aol.age_step(torch.tensor(max(age, 1)), seen and right)) if older else age)
        assert bool(changed[0, place]) == older if changed is not None else older


@given(st.integers(1, 3), st.lists(st.tuples(st.integers(0, 6), st.booleans()), max_size=30), st.booleans())
def test_the_scatter_that_cuda_uses_equals_the_assignment_that_the_cpu_uses(runs, answers, own):
    index = torch.tensor([i for i, _ in answers], dtype=torch.int64)
    right = torch.tensor([[c ^ bool(r) for _, c in answers] for r in range(runs)], dtype=torch.bool).reshape(runs, -1)
    if own:
        index = torch.stack([(index + r) % 7 for r in range(runs)])
    for layout in LAYOUTS:
        assigned = torch.arange(1, 8, dtype=layout.word).repeat(runs, 1)
        scattered = assigned.clone()
        _store.assign(assigned, index, right, layout)
        _store.scatter(scattered, index, right, layout)
        assert assigned.equal(scattered)


@pytest.mark.parametrize("first", [0, 2])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_samples_in_order_are_marked_like_any_others(layout, first):
    right = torch.tensor([[True, False, True], [False, False, True]])
    for index in (torch.arange(first, first + 3), torch.tensor([first, first, first + 2])):
        assigned = layout.mark(torch.arange(1, 7, dtype=layout.word).repeat(2, 1), torch.ones(2, 6, dtype=torch.bool))
        scattered = assigned.clone()
        _store.assign(assigned, index, right, layout)
        _store.scatter(scattered, index, right, layout)
        assert assigned.equal(scattered)


@given(stories(full=False), st.sampled_from(["keep", "grow"]))
def test_ages_agree_with_the_oracle_on_the_path_that_cuda_takes(story, absent):
    ages, truth = (kind(story.labels, rho=0.5, absent=absent) for kind in (aol.SampleAges, SampleOracle))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_store, "assign", _store.scatter)
        for epoch in range(len(story.epochs)):
            tell_epoch(ages, story, epoch)
            truth.epoch(story.observed(epoch))
    assert ages.age.tolist() == truth.age


def on_device(ages):
    """Take indices as a CUDA device does: unread, with a mask of those that lie outside."""

    def index(given):
        found = torch.as_tensor(given)
        return found, (found < 0) | (found >= ages.num_samples)

    ages._index = index


def test_a_stray_index_on_the_device_is_left_out_and_reported_by_advance():
    ages = aol.SampleAges([0, 0, 1], rho=1.0, level="sample")
    on_device(ages)
    ages.observe([0, 3], [False, False])
    ages.observe([-1, 2], [False, False])
    assert ages.weight([0, 3, -1]).isnan().tolist() == [False, True, True]
    with pytest.raises(IndexError, match="index must lie in 0 to 2"):
        ages.advance()
    assert ages.epoch == 0
    assert ages.age.tolist() == [1, 1, 1]
    ages.advance()
    assert ages.epoch == 1
    assert ages.age.tolist() == [2, 1, 2]
    ages.observe([1], [True])
    ages.advance()
    assert ages.age.tolist() == [2, 1, 2]


def test_a_stray_index_that_was_not_yet_reported_survives_a_checkpoint():
    ages, other = aol.SampleAges([0, 1]), aol.SampleAges([0, 1])
    on_device(ages)
    ages.observe([9, 0], [True, False])
    other.load_state_dict(ages.state_dict())
    with pytest.raises(IndexError, match="index"):
        other.advance()
    other.advance()
    assert other.age.tolist() == [2, 1]


@pytest.mark.parametrize("rho", [0.05, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0])
@pytest.mark.parametrize("right", [0.0, 0.03, 0.3])
def test_the_compact_ema_is_off_by_less_than_it_says(rho, right):
    size, labels = 200, [0] * 200
    compact, truth = aol.SampleAges(labels, rho=rho, store="compact"), torch.ones(size, dtype=torch.float64)
    rate, age, largest = torch.tensor(rho).double(), torch.ones(size, dtype=torch.int32), torch.ones(size).double()
    answers = random_answers(size, 400, right=right, seed=4)
    answers[-30:] = True  # a long fall from the largest EMA, where rounding errors fade no faster than the EMA does
    for epoch, correct in enumerate(answers):
        compact.observe(range(size), correct)
        compact.advance()
        age = aol.age_step(age, correct)
        truth = age.double() if epoch == 0 else truth + rate * (age - truth)
        largest = torch.maximum(largest, truth)
        off = (compact.ema.double() - truth).abs()
        assert (off <= 2**-11 / rho * largest * 1.001).all()
        assert compact.age.equal(age)


def test_compact_ages_stop_at_8191_and_full_ones_go_on():
    compact, full = (aol.SampleAges([0, 1], rho=1.0, store=store) for store in ("compact", "full"))
    for ages in (compact, full):
        state = ages.state_dict()
        old = {"word": torch.full_like(state["word"], 8185), "ema": torch.full_like(state["ema"], 8184.0)}
        ages.load_state_dict(sealed({**state, **old, "epoch": 8184}))
        for _ in range(16):
            ages.observe([0, 1], [False, True])
            ages.advance()
    assert compact.age.tolist() == [8191, 1]
    assert compact.ema.tolist() == [8192.0, 1.0]  # the nearest float16
    assert full.age.tolist() == [8201, 1]
    assert full.ema.tolist() == [8201.0, 1.0]
    compact.observe([0, 1], [True, False])
    compact.advance()
    assert compact.age.tolist() == [1, 2]


@pytest.mark.parametrize("fuse", ["ema", "peak"])
@pytest.mark.parametrize("absent", ["keep", "grow"])
def test_the_compact_store_obeys_the_same_rules(absent, fuse):
    labels = [i % 3 for i in range(30)]
    compact, truth = (
        kind(labels, rho=0.5, absent=absent, fuse=fuse, **more)
        for kind, more in ((aol.SampleAges, {"store": "compact"}), (SampleOracle, {}))
    )
    for step, answers in enumerate(random_answers(30, 12, right=0.4, seed=6)):
        index = torch.randperm(30, generator=torch.Generator().manual_seed(step))[:11]
        compact.observe(index, answers[:11])
        compact.advance()
        truth.epoch(dict(zip(index.tolist(), answers[:11].tolist(), strict=True)))
    assert compact.age.tolist() == truth.age
    assert compact.ema.tolist() == pytest.approx(truth.ema, rel=2**-9, nan_ok=True)
    assert compact.class_weight.tolist() == pytest.approx(truth.class_weight, rel=2**-9)


def test_mean_fusion_is_refused_by_the_compact_store():
    with pytest.raises(ValueError, match=r"fuse.*store"):
        aol.SampleAges([0], fuse="mean", store="compact")


@pytest.mark.parametrize(("fuse", "store", "limit"), [("ema", "full", 8), ("mean", "full", 8), ("peak", "compact", 4)])
def test_a_sample_takes_no_more_bytes_than_promised(fuse, store, limit):
    ages = aol.SampleAges(torch.zeros(100_000, dtype=torch.int64), fuse=fuse, store=store)
    held = ages._words.nbytes + ages._ema.nbytes
    assert held / 100_000 <= limit + 1e-3
    ages.observe([1], [False])
    ages.advance()
    assert ages._words.nbytes + ages._ema.nbytes == held


def python_calls(function) -> int:
    """Count calls into Python and C functions."""
    calls = 0

    def count(frame, event, argument):
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        function()
    finally:
        sys.setprofile(None)
    return calls


class LargestResult(TorchDispatchMode):
    """Notes the number of elements of the largest tensor that any operation makes."""

    def __init__(self) -> None:
        super().__init__()
        self.numel = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and not function.is_view:
            self.numel = max(self.numel, result.numel())
        return result


@pytest.mark.parametrize("path", ["assign", "scatter"])
@pytest.mark.parametrize("own", [True, False])
def test_observing_does_no_python_work_per_sample(monkeypatch, path, own):
    monkeypatch.setattr(_store, "assign", getattr(_store, path))
    ages = aol.SampleAges(torch.zeros(50_000, dtype=torch.int64), rho=[0.1, 0.2])
    counts = []
    for batch in (10, 20_000):
        index = torch.arange(batch) * 2
        index = index.repeat(2, 1) if own else index
        right = torch.ones(2, batch, dtype=torch.bool)
        ages.observe(index, right)  # whatever is done only once
        counts.append(python_calls(lambda index=index, right=right: ages.observe(index, right)))
        counts.append(python_calls(ages.advance))
    assert counts[:2] == counts[2:]


def test_observing_costs_what_the_batch_is_and_not_what_the_set_is():
    ages = aol.SampleAges(torch.zeros(1_000_000, dtype=torch.int64))
    ages.advance()
    with LargestResult() as seen:
        ages.observe(torch.arange(64), torch.ones(64, dtype=torch.bool))
        ages.weight(torch.arange(64))
    assert 64 <= seen.numel <= 2 * 64


def test_state_kept_on_the_scatter_path_equals_the_cpu_path(monkeypatch):
    one, two = aol.SampleAges([0, 1, 2] * 50, rho=0.3), aol.SampleAges([0, 1, 2] * 50, rho=0.3)
    for step, answers in enumerate(random_answers(300, 5, right=0.5, seed=3)):
        index = torch.randint(0, 150, (300,), generator=torch.Generator().manual_seed(step))
        one.observe(index, answers)
        with monkeypatch.context() as patch:
            patch.setattr(_store, "assign", _store.scatter)
            two.observe(index, answers)
        one.advance()
        two.advance()
    assert same(one.ema, two.ema)
    assert same(one.class_weight, two.class_weight)
