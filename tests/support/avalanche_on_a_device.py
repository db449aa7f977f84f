"""Avalanche on a device: tests that ask for `device`, run on the CPU and on CUDA."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from avalanche.benchmarks import benchmark_from_datasets
from avalanche.benchmarks.utils import as_classification_dataset
from avalanche.checkpointing import maybe_load_checkpoint, save_checkpoint
from avalanche.training import Naive
from avalanche.training.storage_policy import ReservoirSamplingBuffer
from torch import nn

from aol.margins import Margins
from aol.plugins.avalanche import AgePlugin
from tests.support.digit_streams import Labelled
from tests.support.wide_margins import (
    EPOCHS,
    IMAGES,
    LABELS,
    RATE,
    SAMPLES,
    ages,
    check_ages,
    check_moved,
    network,
    no_waiting,
)

KIND = "ages of classes"
WHOLE = [list(range(SAMPLES))]  # one batch an experience: its order makes no difference


class Watched(AgePlugin):
    """Weighs without waiting for the device."""

    def _weigh(self, criterion, output, label):
        with no_waiting(output.device.type):
            return super()._weigh(criterion, output, label)


def strategy(device: str, **options) -> Naive:
    model = network()
    return Naive(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=RATE),
        criterion=options.pop("criterion", nn.CrossEntropyLoss()),
        plugins=[Watched(ages(KIND), **options)],
        train_mb_size=SAMPLES,
        evaluator=None,
        device=torch.device(device),
    )


def stream(experiences: int) -> list:
    data = as_classification_dataset(Labelled(IMAGES, LABELS))
    return list(benchmark_from_datasets(train=[data] * experiences).train_stream)


@pytest.mark.parametrize("memory", [False, True])
@pytest.mark.parametrize("weights", [None, torch.ones(3)])
def test_a_stream_keeps_the_ages_and_moves_the_model_as_by_hand(
    memory: bool, weights: torch.Tensor | None, device: str
) -> None:
    options = {"memory": ReservoirSamplingBuffer(SAMPLES * EPOCHS)} if memory else {}
    criterion = nn.CrossEntropyLoss(weight=None if weights is None else weights.to(device))
    found = strategy(device, criterion=criterion, **options)
    found.train(stream(EPOCHS))
    check_ages(found.plugins[0].ages, KIND, EPOCHS)
    check_moved(found.model, KIND, [WHOLE] * EPOCHS)


def test_margins_that_move_by_steps_are_the_same_on_any_device(device: str) -> None:
    found, plain = (strategy(at, margins=Margins(3, signal="error"), margin_steps=1) for at in (device, "cpu"))
    for each in (found, plain):
        each.train(stream(EPOCHS))
    assert found.plugins[0].margins.device.type == device
    assert found.plugins[0].margins.epoch == EPOCHS
    torch.testing.assert_close(found.plugins[0].margins.offsets.cpu(), plain.plugins[0].margins.offsets)


@pytest.mark.parametrize("turned", [False, True])
def test_a_stream_goes_on_from_a_checkpoint_that_the_other_device_wrote(
    turned: bool, device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.optim, "sgd", sys.modules["torch.optim.sgd"], raising=False)  # dill looks there for SGD
    first, second = ("cpu", device) if turned else (device, "cpu")
    before, shown = strategy(first), stream(4)
    before.train(shown[:2])
    save_checkpoint(before, tmp_path / "two.pt")
    after, _ = maybe_load_checkpoint(strategy(second), tmp_path / "two.pt", map_location=torch.device(second))
    after.train(shown[2:])
    assert after.plugins[0].ages.device.type == second
    check_ages(after.plugins[0].ages, KIND, 4)
    check_moved(after.model, KIND, [WHOLE] * 4)
