"""How work is cut: by the number of multiprocessors of the device at hand."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from aol.lab.nets.fused import stage, tiles


@pytest.fixture
def small_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 7)
    properties = SimpleNamespace(multi_processor_count=20)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: {7: properties}[device])


def test_without_a_device_work_is_cut_for_the_one_it_was_tuned_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert tiles.processors() == 132


@pytest.mark.usefixtures("small_device")
def test_the_number_of_multiprocessors_is_read_from_the_device() -> None:
    assert tiles.processors() == 20
    shape = stage.Shape(16, 32, 1, 8, 3)
    assert shape.chunks(runs=2, batch=128) == (26, 5)  # 60 blocks at once, 30 for each run: 5 images a block
    assert stage.forward_shape(64, maps=79).images == 2  # four images in a block on each of 20 processors need 80
    assert stage.forward_shape(64, maps=80).images == 4
