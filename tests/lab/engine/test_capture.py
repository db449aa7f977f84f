"""Captured work: a plain call without CUDA; tensors are put back after a trial call."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from aol.lab.engine.capture import Captured, restored
from tests.support.tiny_runs import CPU


def test_without_cuda_each_call_does_the_work_once_and_puts_nothing_back() -> None:
    value = torch.zeros(3)
    asked = []

    def touched() -> list[Tensor]:
        asked.append(1)
        return [value]

    def work() -> None:
        value.add_(1)

    captured = Captured(work, device=CPU, touched=touched)
    for calls in range(1, 4):
        captured()
        assert value.tolist() == [calls] * 3
    assert not asked


def test_values_come_back_in_the_same_memory() -> None:
    one, two = torch.arange(4.0), torch.tensor([True, False])
    place = one.data_ptr()
    with restored(lambda: [one, two]):
        one.mul_(7)
        two.logical_not_()
    assert one.tolist() == [0, 1, 2, 3]
    assert two.tolist() == [True, False]
    assert one.data_ptr() == place


def test_tensors_that_come_into_being_become_zero() -> None:
    """As the buffers of an optimiser do, in its first step."""
    weight = torch.nn.Parameter(torch.ones(2))
    optimiser = torch.optim.SGD([weight], lr=0.1, momentum=0.9)

    def touched() -> list[Tensor]:
        return [weight, *(value for state in optimiser.state.values() for value in state.values())]

    with restored(touched):
        weight.grad = torch.tensor([1.0, -3.0])
        optimiser.step()
    assert weight.tolist() == [1, 1]
    assert optimiser.state[weight]["momentum_buffer"].tolist() == [0, 0]


def test_empty_tensors_do_no_harm() -> None:
    empty = torch.empty(0)
    with restored(lambda: [empty]):
        pass
    assert empty.numel() == 0


def test_an_error_of_the_work_is_not_swallowed() -> None:
    def fail() -> None:
        raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        Captured(fail, device=CPU, touched=list)()
