"""Records of what is examined after each experience, which `aol report` reads; static weights."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
import torch
from avalanche.training.plugins import SupervisedPlugin
from avalanche.training.storage_policy import ReservoirSamplingBuffer

import aol
from aol.plugins.avalanche import AgePlugin
from aol.records.record import read_run
from tests.support.digit_streams import CLASSES, contents, naive, network, parameters, shifting_tail


class Watching(SupervisedPlugin):
    """Answers the memory after each experience, beside the plug-in."""

    def __init__(self, age: AgePlugin) -> None:
        super().__init__()
        self.age, self.right = age, []  # type: ignore[var-annotated]

    def after_training_exp(self, strategy, **kwargs) -> None:
        x, y = contents(self.age.memory.buffer)
        with torch.no_grad():
            self.right.append((strategy.model(x).argmax(1) == y).float().mean().item())


def test_examinations_are_epochs_of_the_record(tmp_path: Path) -> None:
    memory = ReservoirSamplingBuffer(60)
    age = AgePlugin(aol.ClassAges(CLASSES), memory=memory, recorder=tmp_path / "run")
    watching = Watching(age)
    strategy = naive([age, watching])
    stream = list(shifting_tail(4).train_stream)
    strategy.train(stream[:2])
    assert read_run(tmp_path / "run").epochs.tolist() == [1, 2]
    age = pickle.loads(pickle.dumps(age))  # as a checkpoint does
    watching.age = age
    again = naive([age, watching])
    again.model = strategy.model
    again.train(stream[2:])
    run = read_run(tmp_path / "run")
    assert run.epochs.tolist() == [1, 2, 3, 4]
    assert run.curves["train_accuracy"] == pytest.approx(watching.right)
    assert run.over_time["smoothed_age"][-1] == pytest.approx(age.ages.ema.numpy(), rel=1e-5)


def test_static_weights_multiply_those_of_ages() -> None:
    weight = torch.linspace(0.5, 1.5, CLASSES)
    stream = list(shifting_tail(2).train_stream)
    alone = naive([AgePlugin(class_weight=weight)])
    alone.train(stream[:1])
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    steps: list[tuple[torch.Tensor, torch.Tensor]] = []

    class Noting(SupervisedPlugin):
        def before_training_iteration(self, strategy, **kwargs) -> None:
            steps.append((strategy.mb_x.clone(), strategy.mb_y.clone()))

    again = naive([AgePlugin(aol.ClassAges(CLASSES, rho=0.0), class_weight=weight), Noting()])
    again.train(stream[:1])
    for x, y in steps:
        optimizer.zero_grad()
        aol.weighted_mean(aol.softmax_loss(model(x), y), weight[y]).backward()
        optimizer.step()
    torch.testing.assert_close(parameters(again.model), parameters(model))
    torch.testing.assert_close(parameters(alone.model), parameters(model))
