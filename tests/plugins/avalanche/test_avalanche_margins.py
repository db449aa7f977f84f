"""Margins and static offsets of a strategy against the same stream by hand: losses, evaluation, heads, checkpoints."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from avalanche.checkpointing import maybe_load_checkpoint, save_checkpoint
from avalanche.evaluation.metrics import loss_metrics
from avalanche.models import IncrementalClassifier
from avalanche.training.plugins import EvaluationPlugin, LRSchedulerPlugin, SupervisedPlugin
from avalanche.training.storage_policy import ReservoirSamplingBuffer
from torch import Tensor, nn

import aol
from aol.plugins.avalanche import AgePlugin
from aol.records.record import read_run
from tests.support.digit_streams import CLASSES, contents, naive, network, parameters, shifting_tail, split_digits
from tests.support.plugin_checks import same_state

OFFSET = aol.logit_offsets(range(1, CLASSES + 1))


def made(kind: str) -> aol.Margins:
    return aol.Margins(CLASSES, signal="age" if kind == "pairs" else kind, gain=0.3, width=0.0)


class Recorder(SupervisedPlugin):
    """Writes down batches with their learning rates, and what lay in the memory when it was examined."""

    def __init__(self, age: AgePlugin) -> None:
        super().__init__()
        self.age, self.steps, self.batches = age, [], []

    def before_training_iteration(self, strategy, **kwargs) -> None:
        rate = strategy.optimizer.param_groups[0]["lr"]
        self.batches.append((strategy.mb_x.clone(), strategy.mb_y.clone(), rate))

    def after_training_exp(self, strategy, **kwargs) -> None:
        data = strategy.experience.dataset if self.age.memory is None else self.age.memory.buffer
        self.steps.append((self.batches, contents(data)))
        self.batches = []


def by_hand(steps: list, margins: aol.Margins | None, ages: aol.ClassAges | None, offset: Tensor | None) -> Tensor:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    largest = 0.0
    for batches, (x, y) in steps:
        for images, labels, rate in batches:
            optimizer.param_groups[0]["lr"], largest = rate, max(largest, rate)
            logits = model(images)
            moved = logits + (0 if margins is None else margins.offsets) + (0 if offset is None else offset)
            weight = torch.ones(len(labels)) if ages is None else ages.weight(labels)
            optimizer.zero_grad()
            aol.weighted_mean(F.cross_entropy(moved, labels, reduction="none"), weight).backward()
            optimizer.step()
        with torch.no_grad():
            logits = model(x)
            answer = logits.argmax(1)
        if ages is not None:
            ages.observe(y, answer == y)
            ages.advance()
        if margins is not None:
            margins.observe(y, logits.softmax(1) if margins.signal == "probability" else answer)
            margins.advance(scale=rate / largest)
    return parameters(model)


@pytest.mark.parametrize("memory", [True, False], ids=["memory", "experience"])
@pytest.mark.parametrize(
    ("kind", "aged", "offset"),
    [("age", False, None), ("error", True, None), ("age", True, OFFSET), ("probability", True, None)],
)
def test_margins_train_as_by_hand(kind: str, aged: bool, offset: Tensor | None, memory: bool) -> None:
    ages, naively = (aol.ClassAges(CLASSES, rho=0.5), aol.ClassAges(CLASSES, rho=0.5)) if aged else (None, None)
    buffer = ReservoirSamplingBuffer(100) if memory else None
    age = AgePlugin(ages, margins=made(kind), offset=offset, memory=buffer)
    record, mine = Recorder(age), made(kind)
    strategy = naive([age, record])
    strategy.train(shifting_tail(6).train_stream)
    expected = by_hand(record.steps, mine, naively, offset)
    assert same_state(age.margins, mine) or kind == "probability"  # which rounding changes
    torch.testing.assert_close(age.margins.offsets, mine.offsets, atol=1e-4, rtol=1e-4)
    assert age.margins.offsets.abs().max() > 0.1
    torch.testing.assert_close(parameters(strategy.model), expected, atol=1e-5, rtol=1e-4)


def test_a_static_offset_needs_no_ages_no_pass_and_any_criterion() -> None:
    def criterion(output: Tensor, label: Tensor) -> Tensor:  # says no loss of a sample
        return F.cross_entropy(output, label)

    age = AgePlugin(offset=OFFSET.tolist())
    record = Recorder(age)
    strategy = naive([age, record], criterion=criterion)
    forward, seen = strategy.forward, []
    strategy.forward = lambda: (seen.append(strategy.model.training), forward())[1]
    strategy.train(shifting_tail(3).train_stream)
    assert all(seen)  # never in evaluation mode
    expected = by_hand(record.steps, None, None, OFFSET)
    torch.testing.assert_close(parameters(strategy.model), expected, atol=1e-5, rtol=1e-4)


def test_the_gain_follows_the_learning_rate() -> None:
    age = AgePlugin(margins=made("age"))
    record, mine = Recorder(age), made("age")
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.95)
    plugins = [age, record, LRSchedulerPlugin(schedule, step_granularity="iteration", reset_scheduler=False)]
    strategy = naive(plugins, model=model, optimizer=optimizer)
    strategy.train(shifting_tail(4).train_stream)
    rates = [rate for batches, _ in record.steps for *_, rate in batches]
    assert rates[-1] < 0.5 * rates[0]
    by_hand(record.steps, mine, None, None)
    assert same_state(age.margins, mine)


def test_evaluation_uses_the_logits_alone() -> None:
    evaluator = EvaluationPlugin(loss_metrics(stream=True))
    strategy = naive([AgePlugin(offset=10 * OFFSET)], evaluator=evaluator)
    benchmark = shifting_tail(2)
    strategy.train(benchmark.train_stream)
    (found,) = strategy.eval(benchmark.test_stream).values()
    x, y = contents(benchmark.test_stream[0].dataset)
    with torch.no_grad():
        assert found == pytest.approx(float(F.cross_entropy(strategy.model(x), y)), rel=1e-5)


def test_a_head_that_grows_gets_the_offsets_of_its_classes() -> None:
    class Growing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(7)
            self.body, self.head = nn.Linear(64, 32), IncrementalClassifier(32, initial_out_features=2)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.body(x).relu())

    age = AgePlugin(margins=made("age"), offset=OFFSET)
    strategy = naive([age], model=Growing())
    strategy.train(split_digits().train_stream)
    assert age.margins.epoch == 5


def test_classes_need_not_be_known_in_advance(tmp_path: Path) -> None:
    stream = list(shifting_tail(3, imbalance=2.0).train_stream)
    found = []
    for number in (CLASSES, None):
        ages, margins = aol.ClassAges(number, threshold=0.9), aol.Margins(number, gain=0.3)
        torch.manual_seed(1)
        strategy = naive([AgePlugin(ages, margins=margins, recorder=tmp_path / f"run-{number}")])
        strategy.train(stream)
        found.append((parameters(strategy.model), margins.offsets, ages.ema))
        assert read_run(tmp_path / f"run-{number}").epochs.tolist() == [1, 2, 3]
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)


def test_a_checkpoint_goes_on_to_the_same_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.optim, "sgd", sys.modules["torch.optim.sgd"], raising=False)

    def begun():
        return naive([AgePlugin(aol.ClassAges(CLASSES), margins=made("age"), memory=ReservoirSamplingBuffer(60))])

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
    assert done == 3
    torch.set_rng_state(state)
    for experience in stream[done:]:
        second.train(experience)
    whole, again = (strategy.plugins[0] for strategy in (first, second))
    assert isinstance(again, AgePlugin)
    assert same_state(again.margins, whole.margins)
    assert torch.equal(parameters(first.model), parameters(second.model))


@pytest.mark.parametrize(
    ("call", "error", "named"),
    [
        (lambda: AgePlugin(), TypeError, "ages, margins, class_weight or offset must be given"),
        (lambda: AgePlugin(margins=OFFSET), TypeError, "margins must be an aol.Margins"),
        (lambda: AgePlugin(margins=aol.Margins(2, labels=[0, 1])), ValueError, "margins must be without labels"),
        (lambda: AgePlugin(margins=aol.Margins(2, gain=[0.1, 0.2])), ValueError, "margins must be of one run"),
        (lambda: AgePlugin(offset=[[1.0]]), ValueError, "offset must hold one finite number"),
    ],
)
def test_bad_input_gets_one_clear_sentence(call, error: type[Exception], named: str) -> None:
    with pytest.raises(error, match=named) as caught:
        call()
    assert str(caught.value).endswith(".")
