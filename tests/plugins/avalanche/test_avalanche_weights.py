"""The loss of a strategy is weighed as by hand, in training alone, by any criterion that can say each sample's loss."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from avalanche.benchmarks import CLStream, split_online_stream
from avalanche.evaluation.metrics import loss_metrics
from avalanche.training.losses import MaskedCrossEntropy
from avalanche.training.plugins import EvaluationPlugin, SupervisedPlugin
from avalanche.training.storage_policy import ReservoirSamplingBuffer
from avalanche.training.supervised import ER_ACE
from torch import Tensor, nn

import aol
from aol.plugins.avalanche import AgePlugin
from tests.support.digit_streams import CLASSES, contents, naive, network, parameters, shifting_tail, split_digits

Batches = list[tuple[Tensor, Tensor]]


class Recorder(SupervisedPlugin):
    """Writes down what the strategy was trained on, and what lay in the memory when it was examined."""

    def __init__(self, age: AgePlugin) -> None:
        super().__init__()
        self.age, self.steps, self.batches = age, [], []  # type: ignore[var-annotated]

    def before_training_iteration(self, strategy: object, **kwargs: object) -> None:
        self.batches.append((strategy.mb_x.clone(), strategy.mb_y.clone()))  # type: ignore[attr-defined]

    def after_training_exp(self, strategy: object, **kwargs: object) -> None:
        self.steps.append((self.batches, contents(self.age.memory.buffer), self.age.ages.class_weight))
        self.batches = []


def by_hand(
    steps: list[tuple[Batches, tuple[Tensor, Tensor], Tensor]], ages: aol.ClassAges
) -> tuple[Tensor, list[Tensor]]:
    """The README's loop over the same batches, examined on the same memories."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    weights = []
    for batches, (x, y), _ in steps:
        for images, labels in batches:
            loss = aol.weighted_mean(aol.softmax_loss(model(images), labels), ages.weight(labels))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            ages.observe(y, aol.is_correct(model(x), y))
        ages.advance()
        weights.append(ages.class_weight)
    return parameters(model), weights


@pytest.mark.parametrize("online", [False, True], ids=["experiences", "online"])
def test_a_stream_trains_as_it_does_by_hand(online: bool) -> None:
    def ages() -> aol.ClassAges:
        return aol.ClassAges(CLASSES, rho=0.5, threshold=0.5 if online else "median")

    age = AgePlugin(ages(), memory=ReservoirSamplingBuffer(100))
    record = Recorder(age)
    strategy = naive([age, record])
    if online:
        strategy.train(split_online_stream(split_digits().train_stream, experience_size=64, seed=5))
    else:
        strategy.train(shifting_tail(8).train_stream)
    assert len(record.steps) == (15 if online else 8)
    expected, weights = by_hand(record.steps, ages())
    assert float(weights[-1].max() - weights[-1].min()) > 0.5  # else nothing was shown
    for (_, _, found), wanted in zip(record.steps, weights, strict=True):
        assert torch.equal(found, wanted)
    assert torch.equal(parameters(strategy.model), expected)


def test_without_ages_training_is_as_without_the_plug_in_in_the_same_order_of_samples() -> None:
    plain, aged = naive(), naive([AgePlugin(aol.ClassAges(CLASSES, rho=0.0), memory=ReservoirSamplingBuffer(50))])
    for strategy in (plain, aged):
        torch.manual_seed(11)
        strategy.train(shifting_tail(4).train_stream)
    torch.testing.assert_close(parameters(aged.model), parameters(plain.model), rtol=1e-5, atol=1e-6)


def test_evaluation_is_not_weighed() -> None:
    evaluator = EvaluationPlugin(loss_metrics(stream=True))
    strategy = naive([AgePlugin(aol.ClassAges(CLASSES, rho=1.0, threshold=0.9))], evaluator=evaluator)
    benchmark = shifting_tail(4)
    strategy.train(benchmark.train_stream)
    (found,) = strategy.eval(benchmark.test_stream).values()
    x, y = contents(benchmark.test_stream[0].dataset)
    with torch.no_grad():
        assert found == pytest.approx(float(F.cross_entropy(strategy.model(x), y)), rel=1e-5)


def test_other_plug_ins_find_the_strategys_own_criterion() -> None:
    criterion, met = nn.CrossEntropyLoss(), []

    class Other(SupervisedPlugin):
        def before_backward(self, strategy: object, **kwargs: object) -> None:
            met.append(strategy._criterion)  # type: ignore[attr-defined]

    strategy = naive([AgePlugin(aol.ClassAges(CLASSES)), Other()], criterion=criterion)
    strategy.train(shifting_tail(1).train_stream)
    assert met
    assert all(each is criterion for each in met)
    assert strategy._criterion is criterion
    assert criterion.reduction == "mean"


def losses(weight: Tensor) -> dict[str, tuple[object, Callable[[Tensor, Tensor, Tensor], Tensor]]]:
    """Criteria, and what the weighted loss of each must be."""

    def mean(logits: Tensor, y: Tensor, w: Tensor) -> Tensor:
        return (w * F.cross_entropy(logits, y, reduction="none")).sum() / w.sum()

    def smooth(logits: Tensor, y: Tensor, w: Tensor) -> Tensor:
        return (w * F.cross_entropy(logits, y, reduction="none", label_smoothing=0.1)).sum() / w.sum()

    def doubly(logits: Tensor, y: Tensor, w: Tensor) -> Tensor:
        return mean(logits, y, w * weight[y])

    def total(logits: Tensor, y: Tensor, w: Tensor) -> Tensor:
        return (w * F.cross_entropy(logits, y, reduction="none")).sum()

    return {
        "module": (nn.CrossEntropyLoss(), mean),
        "function": (F.cross_entropy, mean),
        "partial function": (partial(F.cross_entropy, label_smoothing=0.1), smooth),
        "class weights": (nn.CrossEntropyLoss(weight=weight), doubly),
        "sum": (nn.CrossEntropyLoss(reduction="sum"), total),
        "Avalanche's": (MaskedCrossEntropy(mask="all"), mean),
    }


@pytest.mark.parametrize("kind", losses(torch.ones(CLASSES)))
def test_any_criterion_that_says_each_samples_loss_is_weighed(kind: str) -> None:
    criterion, expected = losses(torch.linspace(0.5, 1.5, CLASSES))[kind]
    ages = aol.ClassAges(CLASSES, rho=1.0, threshold=0.5)
    ages.observe(list(range(CLASSES)), [label > 5 for label in range(CLASSES)])
    ages.advance()
    weight, seen = ages.class_weight, []

    class Loss(SupervisedPlugin):
        def before_backward(self, strategy: object, **kwargs: object) -> None:
            y = strategy.mb_y  # type: ignore[attr-defined]
            with torch.no_grad():
                seen.append((strategy.loss.item(), expected(strategy.mb_output, y, weight[y]).item()))  # type: ignore[attr-defined]

    strategy = naive([AgePlugin(ages, every=100), Loss()], criterion=criterion)
    strategy.train(shifting_tail(1).train_stream)
    assert len(seen) > 3
    assert [found for found, _ in seen] == pytest.approx([wanted for _, wanted in seen], rel=1e-5)


def test_the_loss_can_be_divided_by_the_number_of_samples() -> None:
    ages = aol.ClassAges(CLASSES, rho=1.0, threshold=0.5)
    ages.observe([0, 1], [True, False])
    ages.advance()
    age = AgePlugin(ages, divide_by="count")
    logits, y = torch.zeros(3, CLASSES), torch.tensor([0, 1, 1])
    weight = ages.class_weight
    found = age._weigh(nn.CrossEntropyLoss(), logits, y)
    assert found.item() == pytest.approx(float((weight[0] + 2 * weight[1]) * torch.tensor(10.0).log() / 3))


@pytest.mark.parametrize("criterion", [lambda logits, y: logits.sum(), nn.CrossEntropyLoss(reduction="none"), None])
def test_a_criterion_that_cannot_say_each_samples_loss_is_refused_before_training(criterion: object) -> None:
    strategy = naive([AgePlugin(aol.ClassAges(CLASSES))], criterion=criterion)
    before = parameters(strategy.model)
    with pytest.raises(TypeError, match="criterion must be able to give the loss of each sample"):
        strategy.train(shifting_tail(1).train_stream)
    assert torch.equal(parameters(strategy.model), before)


def test_a_criterion_with_other_than_one_loss_a_sample_is_refused() -> None:
    class Each(nn.Module):
        reduction = "mean"

        def forward(self, logits: Tensor, y: Tensor) -> Tensor:
            return logits.square()

    strategy = naive([AgePlugin(aol.ClassAges(CLASSES))], criterion=Each())
    with pytest.raises(ValueError, match=r"one loss a sample, \[32\], when its reduction is 'none', not \[32, 10\]"):
        strategy.train(shifting_tail(1).train_stream)


def test_a_label_that_was_not_announced_is_named_and_the_strategy_goes_on_without_it() -> None:
    criterion = nn.CrossEntropyLoss()
    strategy = naive([AgePlugin(aol.ClassAges(4))], criterion=criterion)
    benchmark = shifting_tail(2)
    with pytest.raises(IndexError, match="label must be one of the 4 classes given by num_classes"):
        strategy.train(benchmark.train_stream)
    strategy.eval(benchmark.test_stream)
    assert strategy._criterion is criterion


def test_a_strategy_with_a_loss_of_its_own_is_told_that_nothing_is_weighed() -> None:
    model = network()
    strategy = ER_ACE(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        plugins=[AgePlugin(aol.ClassAges(CLASSES))],
        evaluator=EvaluationPlugin(),
        mem_size=50,
        batch_size_mem=10,
        train_mb_size=32,
    )
    stream: CLStream = split_digits().train_stream
    strategy.train(stream[0])  # by its criterion as long as there is nothing to replay
    with pytest.warns(UserWarning, match="ER_ACE asked its criterion for no loss"):
        strategy.train(stream[1])
