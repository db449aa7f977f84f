"""The kernels against plain PyTorch in fp64, run by Triton's interpreter: no GPU needed, tiny maps."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from triton.runtime.errors import OutOfResources

from aol.lab.nets.fused import obstacle as fused_nets_obstacle
from aol.lab.nets.stacked import Stacked
from tests.support.fused_nets import cuts, error, errors_of_a_step, images, loss, stacked, stacked_cnns, twins

BY_TILES, BY_ROWS = 10**9, 0
SHARP = 2e-5


@pytest.mark.parametrize("fewest", [BY_TILES, BY_ROWS])
@pytest.mark.parametrize(("batch", "pixels"), [(3, 32), (1, 128)])
def test_a_step_in_fp32_equals_the_plain_one(fewest: int, batch: int, pixels: int) -> None:
    fused, oracle = twins(stacked(2), torch.float32)
    with cuts(pixels, fewest):
        errors = errors_of_a_step(fused, oracle, images(2, batch))
    assert max(errors.values()) < SHARP, errors


@pytest.mark.parametrize("fewest", [BY_TILES, BY_ROWS])
def test_two_blocks_a_stage_and_rows_longer_than_wide(fewest: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aol.lab.nets.fused.tiles.MADE_CHANNELS", ())
    fused, oracle = twins(stacked(1, (2, 2, 1)), torch.float32)
    with cuts(16, fewest):
        errors = errors_of_a_step(fused, oracle, images(1, 2)[..., :4])
    assert max(errors.values()) < SHARP, errors


@pytest.mark.parametrize(
    ("batch", "size", "channels", "pixels"), [(3, 28, 3, 128), (5, 8, 1, 16), (1, 32, 3, 64), (2, 4, 2, 64)]
)
def test_a_step_of_cnns_equals_the_plain_one(batch: int, size: int, channels: int, pixels: int) -> None:
    """Maps of 7×7, 2×2, 8×8 and 1×1 pixels at the end, and tiles that are not full."""
    fused, oracle = twins(stacked_cnns(2, channels=channels), torch.float32)
    with cuts(pixels):
        errors = errors_of_a_step(fused, oracle, images(2, batch, size, channels=channels))
    assert max(errors.values()) < SHARP, errors


@pytest.mark.parametrize(("make", "batch"), [(stacked, 2), (stacked_cnns, 16)])
def test_bf16_maps_stay_close(make: Callable[[int], Stacked], batch: int) -> None:
    fused, oracle = twins(make(2), torch.bfloat16)
    with cuts():
        errors = errors_of_a_step(fused, oracle, images(2, batch))
    assert errors["logits"] < 0.02, errors
    assert max(errors.values()) < 0.2, errors  # few values: one relu that flips shows in a gradient


@pytest.mark.parametrize("fewest", [BY_TILES, BY_ROWS])
def test_evaluation_uses_running_statistics_and_leaves_them(fewest: int) -> None:
    fused, oracle = twins(stacked(2, (1, 2)).eval(), torch.float32)
    before = copy.deepcopy(fused.stacked.state_dict())
    x = images(2, 3)
    with torch.no_grad(), cuts(64, fewest):
        assert error(fused(x), oracle(x.double())) < SHARP
    for name, value in fused.stacked.state_dict().items():
        assert torch.equal(value, before[name]), name


@pytest.mark.parametrize("shared", [False, True])
def test_cnns_evaluate_images_of_their_own_or_of_all(shared: bool) -> None:
    fused, oracle = twins(stacked_cnns(2).eval(), torch.float32)
    x = images(2, 3, 28)[0] if shared else images(2, 3, 28)
    with torch.no_grad(), cuts(64):
        assert error(fused(x), oracle(x.double())) < SHARP


def test_evaluation_with_gradients_takes_the_plain_path() -> None:
    fused, oracle = twins(stacked(1, (1,)).eval(), torch.float32)
    x = images(1, 2)
    loss(fused(x)).backward()
    loss(oracle(x.double())).backward()
    for value, wanted in zip(fused.parameters(), oracle.parameters(), strict=True):
        assert value.grad is not None
        assert wanted.grad is not None
        assert error(value.grad, wanted.grad) < SHARP


def test_all_runs_may_share_images_of_any_layout() -> None:
    fused, oracle = twins(stacked(2, (1,), channels=1), torch.float32)
    x = images(1, 3, channels=1)[0].transpose(2, 3)
    with cuts(32):
        errors = errors_of_a_step(fused, oracle, x)
    assert max(errors.values()) < SHARP, errors


def test_a_mean_far_from_zero_costs_no_digits() -> None:
    net = stacked(1, (1,))
    first = net.network.stages[0][0]  # type: ignore[index,union-attr]
    with torch.no_grad():
        first.conv1.weight.abs_()
        first.conv2.weight.copy_(first.conv2.weight.abs() + 30)
        first.norm1.bias.fill_(300.0)
    fused, oracle = twins(net, torch.float32)
    x = images(1, 3)
    with cuts(32):
        fused(x)
    oracle(x.double())
    found, wanted = first.norm2, oracle.network.stages[0][0].norm2  # type: ignore[index,union-attr]
    assert error(found.running_var, wanted.running_var) < 1e-3


@pytest.mark.parametrize(
    ("make", "fewest", "sick"),
    [
        (stacked, BY_TILES, "stages.0.0.conv1.weight"),
        (stacked, BY_ROWS, "stages.0.0.conv1.weight"),
        (stacked_cnns, BY_TILES, "conv2.weight"),
    ],
)
def test_a_run_that_diverged_stays_alone_and_shows_it(make: Callable[[int], Stacked], fewest: int, sick: str) -> None:
    net = make(2)
    healthy = copy.deepcopy(net)
    with torch.no_grad():
        net.run_view(net.network.get_parameter(sick))[0, 0, 0, 0, 0] = float("nan")
    x = images(2, 2)
    with cuts(32, fewest):
        ill, well = twins(net, torch.float32)[0], twins(healthy, torch.float32)[0]
        found, wanted = ill(x), well(x)
        loss(found).backward()
        loss(wanted).backward()
    assert found[0].isnan().all()
    assert torch.equal(found[1], wanted[1])
    for (name, value), other in zip(net.named_parameters(), healthy.parameters(), strict=True):
        assert value.grad is not None
        assert other.grad is not None
        assert error(net.run_view(value.grad)[1], healthy.run_view(other.grad)[1]) < 1e-6, name
    for name, value in net.named_buffers():
        assert torch.equal(net.run_view(value)[1], healthy.run_view(healthy.get_buffer(name))[1]), name


@pytest.mark.parametrize("kernel", ["launch.conv_forward", "launch_back.halving_backward_input"])
def test_kernels_that_fail_on_a_device_are_found_before_training(kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fused, _ = twins(stacked_cnns(2), torch.float32)
    before = copy.deepcopy(fused.state_dict())
    assert fused.failure((3, 8, 8)) is None

    def fails(*given: object, **more: object) -> None:
        raise OutOfResources(98304, 65536, "shared memory")

    monkeypatch.setattr(f"aol.lab.nets.fused.{kernel}", fails)
    assert "shared memory" in (fused.failure((3, 8, 8)) or "")
    assert all(torch.equal(value, before[name]) for name, value in fused.state_dict().items())
    assert all(value.grad is None for value in fused.parameters())


def test_parameters_are_shared_with_the_stack() -> None:
    net = stacked(2, (1,))
    fused, _ = twins(net, torch.float32)
    assert {id(p) for p in fused.parameters()} == {id(p) for p in net.parameters()}


def test_weights_in_another_order_in_memory_are_refused() -> None:
    net = stacked(2).to(memory_format=torch.channels_last)
    assert "plain order" in str(fused_nets_obstacle(net))
    assert fused_nets_obstacle(net.to(memory_format=torch.contiguous_format)) is None
