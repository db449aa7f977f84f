"""A training step and a forward pass of R networks against one network each, in plain PyTorch."""

from __future__ import annotations

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from aol.lab.engine.learner import Learner, SingleRun, build, network_name
from aol.lab.nets import registry
from aol.lab.nets.cnn import CNN
from aol.lab.nets.registry import NETWORKS, Entry, make
from aol.lab.nets.stacked import Stacked
from aol.lab.settings import Settings
from tests.support.tiny_runs import CPU, same_network, settings

SHAPE = (1, 8, 8)


def learner_of(runs: list[Settings]) -> Learner:
    return Learner(runs, num_classes=3, shape=SHAPE, device=CPU)


def batch(runs: int, seed: int = 0, size: int = 6) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn((runs, size, *SHAPE), generator=generator)
    label = torch.randint(3, (runs, size), generator=generator)
    return images, label, torch.rand((runs, size), generator=generator) + 0.1


def plain_network(run: Settings) -> nn.Module:
    net = make("cnn", num_classes=3, in_channels=1, image_size=8, seed=run.seed)
    if run.loss != "softmax":
        nn.init.constant_(net.get_parameter("head.bias"), -math.log(2))
    return net


def plain_loss(run: Settings, logits: Tensor, label: Tensor, weight: Tensor) -> Tensor:
    if run.loss == "softmax":
        each = F.cross_entropy(logits, label, reduction="none")
    else:
        target = F.one_hot(label, 3).float()
        p = logits.sigmoid()
        gamma = run.gamma if run.loss == "focal" else 0.0
        right, wrong = -((1 - p) ** gamma) * p.log(), -(p**gamma) * (1 - p).log()
        each = (target * right + (1 - target) * wrong).sum(1)
    return (weight * each).sum() / (weight.sum() if run.divide_by == "weight" else len(each))


def plain_optimiser(run: Settings, net: nn.Module) -> torch.optim.Optimizer:
    bias = [net.get_parameter("head.bias")]
    rest = [parameter for parameter in net.parameters() if parameter is not bias[0]]
    decay = run.weight_decay if run.loss == "softmax" else 0.0
    groups = [{"params": rest, "weight_decay": run.weight_decay}, {"params": bias, "weight_decay": decay}]
    return torch.optim.SGD(groups, lr=run.lr, momentum=run.momentum)


def test_steps_of_many_runs_are_those_of_each_alone_in_plain_pytorch() -> None:
    common = {"weight_decay": 0.05, "lr": 0.01}
    kinds = [
        {},
        {"loss": "sigmoid"},
        {"loss": "focal", "gamma": 2.0},
        {"loss": "focal", "gamma": 0.5, "divide_by": "weight"},
        {"divide_by": "count"},
    ]
    runs = [settings(**common, **kind, seed=seed) for seed, kind in enumerate(kinds)]
    learner = learner_of(runs)
    singles = [plain_network(run) for run in runs]
    optimisers = [plain_optimiser(run, net) for run, net in zip(runs, singles, strict=True)]
    for step in range(4):
        images, label, weight = batch(len(runs), step)
        rate = 0.01 / (step + 1)
        losses, answers = learner.step(images, label, weight, torch.tensor(rate))
        for row, (run, net, optimiser_) in enumerate(zip(runs, singles, optimisers, strict=True)):
            net.train()
            logits = net(images[row])
            loss = plain_loss(run, logits, label[row], weight[row])
            assert float(losses[row]) == pytest.approx(loss.item(), rel=1e-4)
            torch.testing.assert_close(answers[row], logits.detach(), rtol=1e-3, atol=1e-4)
            optimiser_.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            for group in optimiser_.param_groups:
                group["lr"] = rate
            optimiser_.step()
    for row, net in enumerate(singles):
        same_network(learner.network(row), net.state_dict())
        images = batch(len(runs), 9)[0]
        torch.testing.assert_close(learner.predict(images)[row], net.eval()(images[row]), rtol=1e-3, atol=1e-4)


def test_a_given_total_divides_the_losses() -> None:
    images, label, weight = batch(1)
    one, other = (learner_of([settings()]) for _ in range(2))
    loss, _ = one.step(images, label, weight, torch.tensor(0.0))
    halved, _ = other.step(images, label, weight, torch.tensor(0.0), total=2 * weight.sum(1))
    torch.testing.assert_close(halved, loss / 2)


def test_a_state_goes_on_to_the_last_bit() -> None:
    runs = [settings(seed=seed) for seed in range(2)]
    learner = learner_of(runs)
    learner.step(*batch(2, 0), torch.tensor(0.01))
    other = learner_of([settings(seed=seed + 7) for seed in range(2)])
    other.load_state_dict(copy.deepcopy(learner.state_dict()))
    for each in (learner, other):
        each.step(*batch(2, 1), torch.tensor(0.01))
    for row in range(2):
        assert all(torch.equal(value, other.network(row)[name]) for name, value in learner.network(row).items())


def test_parameters_without_gradients_have_a_state_that_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def partly_used(classes: int, channels: int, size: int) -> nn.Module:
        net = CNN(classes, channels, width=4)
        net.conv1.weight.requires_grad_(False)
        net.unused = nn.Parameter(torch.ones(2))
        return net

    monkeypatch.setitem(NETWORKS, "cnn", Entry(partly_used, 8))
    runs = [settings()]
    learner, other = learner_of(runs), learner_of(runs)
    other.load_state_dict(copy.deepcopy(learner.state_dict()))
    for each in (learner, other):
        each.step(*batch(1, 0), torch.tensor(0.01))
    third = learner_of(runs)
    third.load_state_dict(copy.deepcopy(other.state_dict()))
    for each in (learner, third):
        each.step(*batch(1, 1), torch.tensor(0.01))
    same_network(learner.network(0), third.network(0))


def test_every_tensor_that_a_step_changes_is_told() -> None:
    learner = learner_of([settings()])
    learner.step(*batch(1, 0), torch.tensor(0.01))
    told = {tensor.data_ptr() for tensor in learner.tensors()}
    momenta = [state["momentum_buffer"] for state in learner._optimiser.state.values()]
    assert {tensor.data_ptr() for tensor in (*learner.net.state_dict().values(), *momenta)} <= told


def test_a_momentum_in_another_memory_format_is_rearranged() -> None:
    learner = learner_of([settings()])
    learner.step(*batch(1, 0), torch.tensor(0.01))
    state = copy.deepcopy(learner.state_dict())
    state["momentum"] = [momentum.contiguous() for momentum in state["momentum"]]
    other = learner_of([settings()])
    other.load_state_dict(state)
    for each in (learner, other):
        each.step(*batch(1, 1), torch.tensor(0.01))
    assert all(torch.equal(value, other.network(0)[name]) for name, value in learner.network(0).items())


def test_one_network_alone_stays_itself_and_many_become_one() -> None:
    single = build([settings()], num_classes=3, shape=SHAPE, alone=True)
    assert isinstance(single, SingleRun)
    stack = build([settings(), settings(seed=1)], num_classes=3, shape=SHAPE, alone=True)
    assert isinstance(stack, Stacked)
    alone, among = single.unstack(0), stack.unstack(0)
    assert all(torch.equal(alone[name], among[name]) for name in alone)
    images = batch(2)[0]
    assert single(images[:1]).shape == single(images[0]).shape == (1, 6, 3)
    assert stack(images).shape == (2, 6, 3)


@pytest.mark.parametrize("count", [1, 2])
def test_a_network_that_comes_in_evaluation_mode_is_trained(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    make = registry.make
    monkeypatch.setattr(registry, "make", lambda *args, **kwargs: make(*args, **kwargs).eval())
    learner = learner_of([settings(seed=seed) for seed in range(count)])
    images, label, weight = batch(count)
    for _ in range(2):
        before = {name: value.clone() for name, value in learner.net.named_buffers()}
        learner.step(images, label, weight, torch.tensor(0.1))
        assert not any(torch.equal(value, before[name]) for name, value in learner.net.named_buffers())
        after = {name: value.clone() for name, value in learner.net.named_buffers()}
        learner.predict(images)
        assert all(torch.equal(value, after[name]) for name, value in learner.net.named_buffers())


def test_the_network_that_is_chosen_grows_with_the_images() -> None:
    sizes = {8: "cnn", 31: "cnn", 32: "resnet32", 64: "resnet32", 65: "resnet34", 224: "resnet34"}
    assert {size: network_name("auto", (3, size, size)) for size in sizes} == sizes
    assert network_name("resnet34", (3, 8, 8)) == "resnet34"


@pytest.mark.parametrize("count", [1, 3])
def test_bfloat16_does_not_round_logits_so_that_near_ties_go_to_the_better_class(count: int) -> None:
    learner = learner_of([settings(precision="bf16", seed=seed) for seed in range(count)])
    head = learner.net.head
    with torch.no_grad():  # the same logits but for the biases, which bfloat16 cannot tell apart
        head.get_parameter("weight").zero_()
        head.get_parameter("bias").copy_(torch.tensor([1.0, 1.001, 1.002]).repeat(count))
    logits = learner.predict(batch(count)[0])
    assert logits.dtype == torch.float32
    assert (logits.argmax(-1) == 2).all()
    torch.testing.assert_close(logits[0, 0], torch.tensor([1.0, 1.001, 1.002]))
