"""skorch on a device: tests that ask for `device`, run on the CPU and on CUDA."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from skorch import NeuralNetClassifier
from torch import nn

from aol.plugins.skorch import AgeOfLearning, IndexedLoader, _weighted
from tests.support.wide_margins import (
    EPOCHS,
    IMAGES,
    LABELS,
    RATE,
    SAMPLES,
    SIZE,
    check_ages,
    check_moved,
    network,
    no_waiting,
)

LEVELS = ("sample", "class")
IN_ORDER = [index.tolist() for index in torch.arange(SAMPLES).split(SIZE)]  # skorch does not shuffle unless told to


def net(level: str, device: str, **words) -> NeuralNetClassifier:
    settings = {
        "criterion": nn.CrossEntropyLoss,
        "iterator_train": IndexedLoader,
        "max_epochs": EPOCHS,
        "lr": RATE,
        "batch_size": SIZE,
        "train_split": None,
        "verbose": 0,
        "device": device,
        "callbacks": [AgeOfLearning(rho=0.5, level=level)],
        "iterator_train__pin_memory": device == "cuda",
    }
    return NeuralNetClassifier(network, **{**settings, **words})


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("where", ["host", "device"])
def test_a_fit_keeps_the_ages_and_moves_the_model_as_by_hand(level: str, where: str, device: str) -> None:
    at, pinned = ("cpu", device == "cuda") if where == "host" else (device, False)
    found = net(level, device, iterator_train__pin_memory=pinned).fit(IMAGES.to(at), LABELS.to(at))
    check_ages(found.ages_.ages_, level, EPOCHS)
    check_moved(found.module_, level, [IN_ORDER] * EPOCHS)


def test_margins_that_move_by_steps_are_the_same_on_any_device(device: str) -> None:
    found, plain = (
        net("class", at, callbacks=[AgeOfLearning(rho=0.0, margins="error", margin_steps=1)]).fit(IMAGES, LABELS)
        for at in (device, "cpu")
    )
    assert found.ages_.margins_.epoch == EPOCHS * len(IN_ORDER)
    torch.testing.assert_close(found.ages_.margins_.offsets, plain.ages_.margins_.offsets)


def test_a_compiled_net_trains_alike(device: str) -> None:
    backend = {"cpu": "aot_eager", "cuda": "inductor"}[device]
    found = net("sample", device, compile=True, compile__backend=backend).fit(IMAGES, LABELS)
    check_ages(found.ages_.ages_, "sample", EPOCHS)
    check_moved(found.module_, "sample", [IN_ORDER] * EPOCHS)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("turned", [False, True])
def test_a_fit_goes_on_from_files_that_the_other_device_wrote(
    level: str, turned: bool, device: str, tmp_path: Path
) -> None:
    first, second = ("cpu", device) if turned else (device, "cpu")
    files = {"f_params": tmp_path / "params.pt", "f_ages": tmp_path / "ages.pt"}
    net(level, first, max_epochs=2).fit(IMAGES, LABELS).save_params(**files)
    found = net(level, second, max_epochs=2).initialize()
    found.ages_ = dict(found.callbacks_)["AgeOfLearning"]
    found.load_params(**files)
    found.partial_fit(IMAGES, LABELS)
    check_ages(found.ages_.ages_, level, 4)
    check_moved(found.module_, level, [IN_ORDER] * 4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_losses_on_the_device_do_not_wait_for_weights_nor_round_them(
    dtype: torch.dtype, reduction: str, device: str
) -> None:
    loss, weight = torch.tensor([1.0, 3.0], dtype=dtype, device=device), torch.tensor([1.0002, 0.9998])
    with no_waiting(device):
        found = _weighted(loss, weight, reduction)
    if reduction == "none":
        torch.testing.assert_close(found.cpu(), (loss.cpu().double() * weight / weight.mean()).to(dtype))
        return
    expected = (1.0002 + 3 * 0.9998) / (2.0 if reduction == "mean" else 1.0)
    assert found.item() == pytest.approx(expected, abs=1e-6)
