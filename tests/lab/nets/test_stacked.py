"""R stacked networks against the R separate ones, which are the oracle."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from aol.lab.nets.stacked import Stacked
from tests.support.small_nets import BATCH, CLASSES, SMALL, generator, images, labels, losses, several, sgd

pytestmark = pytest.mark.parametrize("name", SMALL)
RUNS = pytest.mark.parametrize("runs", [1, 3])
# Float32 sums in another order: a few units in the last place, times the depth of the network.
KINDS = pytest.mark.parametrize(
    ("runs", "dtype", "tolerance"), [(1, torch.float32, 1e-5), (2, torch.float64, 1e-10), (5, torch.float32, 1e-5)]
)


def assert_near(ours: Tensor, theirs: Tensor, tolerance: float) -> None:
    """Compare on the scale of the largest value: a gradient that is all rounding has no scale of its own."""
    scale = max(1.0, float(theirs.detach().abs().max()))
    torch.testing.assert_close(ours, theirs, rtol=0, atol=tolerance * scale)


def assert_same_states(stacked: Stacked, nets: list[nn.Module], tolerance: float) -> None:
    for run, net in enumerate(nets):
        state = stacked.unstack(run)
        assert state.keys() == net.state_dict().keys()
        for key, value in net.state_dict().items():
            assert (state[key].shape, state[key].dtype) == (value.shape, value.dtype)
            assert_near(state[key], value, tolerance)


@KINDS
@pytest.mark.parametrize("training", [True, False])
def test_outputs_equal(name: str, runs: int, dtype: torch.dtype, tolerance: float, training: bool) -> None:
    nets = [net.train(training) for net in several(name, runs, dtype)]
    x = images(name, runs, dtype)
    logits = Stacked(nets)(x)
    assert logits.shape == (runs, BATCH, CLASSES)
    assert_near(logits, torch.stack([net(x[run]) for run, net in enumerate(nets)]), tolerance)


@KINDS
def test_gradients_and_running_statistics_equal(name: str, runs: int, dtype: torch.dtype, tolerance: float) -> None:
    nets = several(name, runs, dtype)
    stacked = Stacked(nets)
    x, y = images(name, runs, dtype), labels(runs)
    mine, plain = x.clone().requires_grad_(), x.clone().requires_grad_()
    losses(stacked(mine), y).sum().backward()
    for run, net in enumerate(nets):
        losses(net(plain[run])[None], y[run : run + 1]).sum().backward()
    assert_near(mine.grad, plain.grad, tolerance)
    for key, parameter in stacked.network.named_parameters():
        for run, net in enumerate(nets):
            assert_near(stacked.run_view(parameter.grad)[run], net.get_parameter(key).grad, tolerance)
    assert_same_states(stacked, nets, tolerance)


@KINDS
def test_ten_steps_of_one_optimiser_equal_those_of_many(
    name: str, runs: int, dtype: torch.dtype, tolerance: float
) -> None:
    nets = several(name, runs, dtype)
    stacked = Stacked(nets)
    together, alone = sgd(stacked), [sgd(net) for net in nets]
    for step in range(10):
        x, y = images(name, runs, dtype, seed=step), labels(runs, seed=step)
        together.zero_grad()
        losses(stacked(x), y).sum().backward()
        together.step()
        for run, (net, optimiser) in enumerate(zip(nets, alone, strict=True)):
            optimiser.zero_grad()
            losses(net(x[run])[None], y[run : run + 1]).sum().backward()
            optimiser.step()
    # Ten steps let rounding grow, the more so through ReLUs that open or close.
    assert_same_states(stacked, nets, 10 * tolerance if dtype == torch.float32 else tolerance)


@RUNS
def test_a_shared_batch_is_the_same_as_a_copy_for_each_run(name: str, runs: int) -> None:
    stacked = Stacked(several(name, runs, torch.float64))
    shared = images(name, 1, torch.float64)[0]
    outs = [stacked(shared), stacked(shared.expand(runs, -1, -1, -1, -1))]
    assert_near(outs[0], outs[1], 1e-12)
    grads = [torch.autograd.grad(losses(out, labels(runs)).sum(), list(stacked.parameters())) for out in outs]
    for ours, theirs in zip(*grads, strict=True):
        assert_near(ours, theirs, 1e-12)


def test_stacking_leaves_the_networks_alone(name: str) -> None:
    nets = several(name, 2)
    before = copy.deepcopy([net.state_dict() for net in nets])
    stacked = Stacked(nets)
    losses(stacked(images(name, 2)), labels(2)).sum().backward()
    sgd(stacked).step()
    for net, state in zip(nets, before, strict=True):
        assert all(torch.equal(value, state[key]) for key, value in net.state_dict().items())
        assert all(parameter.grad is None for parameter in net.parameters())


def test_a_run_is_copied_out_bit_for_bit(name: str) -> None:
    nets = several(name, 3)
    stacked = Stacked(nets)
    plain = SMALL[name].build()
    plain.load_state_dict(stacked.unstack(1))  # strict: the very names of a plain network
    assert all(torch.equal(value, nets[1].state_dict()[key]) for key, value in plain.state_dict().items())


def test_evaluation_moves_no_statistics_and_training_moves_all(name: str) -> None:
    stacked = Stacked(several(name, 2))
    before = copy.deepcopy(dict(stacked.named_buffers()))
    stacked.eval()(images(name, 2))
    assert all(torch.equal(value, before[key]) for key, value in stacked.named_buffers())
    stacked.train()(images(name, 2))
    assert not any(torch.equal(value, before[key]) for key, value in stacked.named_buffers())


def test_the_head_of_all_runs_is_at_hand(name: str) -> None:
    nets = several(name, 3)
    head = Stacked(nets).head
    assert torch.equal(head.bias, torch.cat([net.head.bias for net in nets]))
    assert (head.out_features, head.in_features) == (CLASSES, nets[0].head.in_features)


@pytest.mark.parametrize("runs", [1, 3])
def test_channels_last_gives_the_same(name: str, runs: int) -> None:
    nets = several(name, runs, torch.float64)
    plain, last = Stacked(nets), Stacked(nets).to(memory_format=torch.channels_last)
    x = images(name, runs, torch.float64)
    outs = [plain(x), last(x)]
    assert_near(outs[1], outs[0], 1e-12)
    for out in outs:
        losses(out, labels(runs)).sum().backward()
    for ours, theirs in zip(last.parameters(), plain.parameters(), strict=True):
        assert_near(ours.grad, theirs.grad, 1e-12)


def test_images_in_the_right_order_are_not_copied(name: str) -> None:
    small, seen = SMALL[name], []
    stacked = Stacked(several(name, 3)).to(memory_format=torch.channels_last)
    stacked.network.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    memory = torch.randn(BATCH, small.size, small.size, 3, small.channels, generator=generator())
    stacked(memory.permute(3, 0, 4, 1, 2))
    assert seen[0].data_ptr() == memory.data_ptr()
    assert seen[0].is_contiguous(memory_format=torch.channels_last)


def test_half_precision_stays_near_the_separate_networks(name: str) -> None:
    nets = several(name, 3)
    x = images(name, 3)
    with torch.autocast("cpu", torch.bfloat16):
        logits = Stacked(nets)(x)
        theirs = torch.stack([net(x[run]) for run, net in enumerate(nets)])
    losses(logits.float(), labels(3)).sum().backward()
    assert logits.dtype == theirs.dtype == torch.float32  # of the last layer; the others are rounded
    assert_near(logits, theirs, 0.05)
