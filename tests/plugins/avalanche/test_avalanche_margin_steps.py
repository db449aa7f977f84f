"""Margins of a strategy that move every few training steps, against the same stream by hand."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from avalanche.benchmarks import split_online_stream
from avalanche.checkpointing import maybe_load_checkpoint, save_checkpoint
from avalanche.models import IncrementalClassifier
from avalanche.training.plugins import LRSchedulerPlugin, SupervisedPlugin
from avalanche.training.storage_policy import ReservoirSamplingBuffer
from torch import Tensor, nn

import aol
from aol.plugins.avalanche import AgePlugin
from tests.support.digit_streams import CLASSES, contents, naive, network, parameters, shifting_tail, split_digits
from tests.support.plugin_checks import same_state


def made(signal: str) -> aol.Margins:
    return aol.Margins(CLASSES, signal=signal, gain=0.3, width=0.0)


class Recorder(SupervisedPlugin):
    """Writes down the batches of each experience with their learning rates, and its samples."""

    def __init__(self) -> None:
        super().__init__()
        self.steps, self.batches = [], []

    def before_training_iteration(self, strategy, **kwargs) -> None:
        rate = strategy.optimizer.param_groups[0]["lr"]
        self.batches.append((strategy.mb_x.clone(), strategy.mb_y.clone(), rate))

    def after_training_exp(self, strategy, **kwargs) -> None:
        self.steps.append((self.batches, contents(strategy.experience.dataset)))
        self.batches = []


def by_hand(steps: list, margins: aol.Margins, every: int, ages: aol.ClassAges | None, experiences: int = 1) -> Tensor:
    """Train on the batches of a stream; margins move every few steps, and after so many experiences."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    largest, done = 0.0, 0
    for experience, (batches, (x, y)) in enumerate(steps, 1):
        for number, (images, labels, rate) in enumerate(batches, 1):
            optimizer.param_groups[0]["lr"], largest = rate, max(largest, rate)
            logits = model(images)
            weight = torch.ones(len(labels)) if ages is None else ages.weight(labels)
            loss = F.cross_entropy(logits + margins.offsets, labels, reduction="none")
            optimizer.zero_grad()
            aol.weighted_mean(loss, weight).backward()
            optimizer.step()
            margins.observe(labels, logits.detach().softmax(1))
            done += 1
            if done == every or (number == len(batches) and experience % experiences == 0):
                margins.advance(scale=rate / largest)
                done = 0
        if ages is not None:
            with torch.no_grad():
                ages.observe(y, model(x).argmax(1) == y)
            ages.advance()
    return parameters(model)


@pytest.mark.parametrize("aged", [True, False], ids=["ages", "no ages"])
@pytest.mark.parametrize("every", [1, 3, 1000])
@pytest.mark.parametrize("signal", ["age", "error", "probability"])
def test_margins_train_as_by_hand(signal: str, every: int, aged: bool) -> None:
    ages, naively = (aol.ClassAges(CLASSES, rho=0.5), aol.ClassAges(CLASSES, rho=0.5)) if aged else (None, None)
    age = AgePlugin(ages, margins=made(signal), margin_steps=every)
    record, mine = Recorder(), made(signal)
    strategy = naive([age, record], train_epochs=2)
    strategy.train(shifting_tail(5).train_stream)
    expected = by_hand(record.steps, mine, every, naively)
    assert same_state(age.margins, mine) or signal == "probability"  # which rounding changes
    torch.testing.assert_close(age.margins.offsets, mine.offsets, atol=1e-3, rtol=1e-3)
    torch.testing.assert_close(parameters(strategy.model), expected, atol=1e-4, rtol=1e-3)
    lengths = [len(batches) for batches, _ in record.steps]
    assert age.margins.epoch == sum(-(-length // every) for length in lengths)
    assert min(lengths) > 3
    assert age.margins.offsets.abs().max() > 0.1
    assert not aged or same_state(ages, naively)


def test_the_gain_follows_the_learning_rate_of_each_move() -> None:
    age = AgePlugin(margins=made("error"), margin_steps=3)
    record, mine = Recorder(), made("error")
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.95)
    plugins = [age, record, LRSchedulerPlugin(schedule, step_granularity="iteration", reset_scheduler=False)]
    naive(plugins, model=model, optimizer=optimizer).train(shifting_tail(4).train_stream)
    by_hand(record.steps, mine, 3, None)
    assert same_state(age.margins, mine)


def test_evaluation_is_not_observed() -> None:
    age = AgePlugin(margins=made("error"), margin_steps=3)
    record, mine = Recorder(), made("error")
    strategy, benchmark = naive([age, record], eval_every=1), shifting_tail(4)
    strategy.train(benchmark.train_stream)
    strategy.eval(benchmark.test_stream)
    by_hand(record.steps, mine, 3, None)
    assert same_state(age.margins, mine)


def test_margins_alone_need_no_pass_over_the_memory() -> None:
    age = AgePlugin(margins=made("error"), memory=ReservoirSamplingBuffer(60), margin_steps=3)
    strategy, seen = naive([age]), []
    forward = strategy.forward
    strategy.forward = lambda: (seen.append(strategy.model.training), forward())[1]
    strategy.train(shifting_tail(2).train_stream)
    assert all(seen)
    assert len(age.memory.buffer) == 60


def test_small_experiences_share_their_steps() -> None:
    age = AgePlugin(margins=made("error"), every=5, margin_steps=3)
    record, mine = Recorder(), made("error")
    strategy = naive([age, record], train_mb_size=10)
    strategy.train(split_online_stream(split_digits().train_stream[:1], experience_size=20, seed=0))
    by_hand(record.steps, mine, 3, None, experiences=5)
    assert same_state(age.margins, mine)
    assert mine.epoch == 4 * (len(record.steps) // 5) + 2 * (len(record.steps) % 5) // 3


def test_a_head_that_grows_is_observed() -> None:
    class Growing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(7)
            self.body, self.head = nn.Linear(64, 32), IncrementalClassifier(32, initial_out_features=2)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.body(x).relu())

    age = AgePlugin(margins=made("probability"), margin_steps=2)
    naive([age], model=Growing()).train(split_digits().train_stream)
    assert age.margins.offsets.abs().max() > 0.1


def test_half_precision() -> None:
    class Half(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            with torch.autocast("cpu", torch.bfloat16):
                return super().forward(x)

    age = AgePlugin(margins=made("probability"), margin_steps=2)
    naive([age], model=Half(*network())).train(shifting_tail(3).train_stream)
    assert age.margins.offsets.abs().max() > 0.1


def test_outputs_of_nan_do_not_count() -> None:
    class Broken(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) * torch.nan

    age = AgePlugin(margins=made("error"), margin_steps=2)
    with pytest.warns(UserWarning, match="NaN is none"):
        naive([age], model=Broken(*network())).train(shifting_tail(1).train_stream)
    assert not age.margins.offsets.any()


@pytest.mark.parametrize("every", [1, 2])
def test_a_checkpoint_goes_on_to_the_same_end(every: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With `every=2`, answers wait at the checkpoint after three experiences, and it holds them."""
    monkeypatch.setattr(torch.optim, "sgd", sys.modules["torch.optim.sgd"], raising=False)

    def begun():
        ages, memory = aol.ClassAges(CLASSES), ReservoirSamplingBuffer(60)
        return naive([AgePlugin(ages, margins=made("error"), memory=memory, every=every, margin_steps=3)])

    stream = shifting_tail(6).train_stream
    torch.manual_seed(1)
    first = begun()
    for experience in stream[:3]:
        first.train(experience)
    save_checkpoint(first, tmp_path / "checkpoint.pkl")
    state = torch.get_rng_state()
    for experience in stream[3:]:
        first.train(experience)
    second, done = maybe_load_checkpoint(begun(), tmp_path / "checkpoint.pkl")
    torch.set_rng_state(state)
    for experience in stream[done:]:
        second.train(experience)
    whole, again = (strategy.plugins[0] for strategy in (first, second))
    assert same_state(again.margins, whole.margins)
    assert same_state(again.ages, whole.ages)
    assert torch.equal(parameters(first.model), parameters(second.model))


@pytest.mark.parametrize(
    ("options", "error", "named"),
    [
        ({"offset": [0.0, 0.0], "margin_steps": 5}, ValueError, "margin_steps needs margins"),
        ({"margins": aol.Margins(2), "margin_steps": 0}, ValueError, "margin_steps must be a whole number of 1 or"),
        ({"margins": aol.Margins(2), "margin_steps": 2.5}, TypeError, "margin_steps must be a whole number of 1 or"),
        ({"margins": aol.Margins(2), "margin_steps": True}, TypeError, "margin_steps must be a whole number of 1 or"),
    ],
)
def test_bad_input_gets_one_clear_sentence(options, error: type[Exception], named: str) -> None:
    with pytest.raises(error, match=named) as caught:
        AgePlugin(**options)
    assert str(caught.value).endswith(".")


def test_a_head_that_is_wider_than_the_margins_is_named() -> None:
    strategy = naive([AgePlugin(margins=aol.Margins(CLASSES - 1), margin_steps=2)])
    with pytest.raises(ValueError, match=r"logits must have the shape \[B, 9\] of these margins"):
        strategy.train(shifting_tail(2).train_stream)
