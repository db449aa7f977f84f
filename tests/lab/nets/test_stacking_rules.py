"""Which networks can be stacked, and what is said of those that cannot."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from aol.lab.nets.registry import NETWORKS, make
from aol.lab.nets.stacked import Stacked, obstacle
from tests.support.small_nets import generator, scatter, several


@st.composite
def sequences(draw: st.DrawFn) -> tuple[nn.Sequential, int]:
    """A chain of supported layers on [B, C, 9, 8] images, ending in a linear layer, and its C."""
    start = channels = draw(st.sampled_from([1, 2, 4]))
    layers: list[nn.Module] = []
    for _ in range(draw(st.integers(0, 4))):
        kind = draw(st.sampled_from(["conv", "norm", "act", "pool"]))
        if kind == "conv":
            groups = draw(st.sampled_from([1, channels]))
            out = channels * draw(st.integers(1, 2))
            layers.append(
                nn.Conv2d(
                    channels,
                    out,
                    draw(st.integers(1, 3)),
                    stride=draw(st.integers(1, 2)),
                    padding=draw(st.integers(1, 2)),
                    dilation=draw(st.integers(1, 2)),
                    groups=groups,
                    bias=draw(st.booleans()),
                )
            )
            channels = out
        elif kind == "norm":
            affine, track = draw(st.booleans()), draw(st.booleans())
            layers.append(nn.BatchNorm2d(channels, affine=affine, track_running_stats=track))
        elif kind == "act":
            layers.append(draw(st.sampled_from([nn.ReLU(), nn.LeakyReLU(), nn.GELU(), nn.SiLU(), nn.Tanh()])))
        else:
            pools = [nn.MaxPool2d(3, 2, 1), nn.AvgPool2d(2, 1, 1), nn.ZeroPad2d((1, 0, 2, 0)), nn.Identity()]
            layers.append(draw(st.sampled_from(pools)))
    layers += [nn.AdaptiveAvgPool2d((2, 1)), nn.Flatten(), nn.Linear(2 * channels, 5), nn.BatchNorm1d(5)]
    layers += [nn.Linear(5, 3, bias=draw(st.booleans()))]
    return nn.Sequential(*layers).double(), start


@settings(max_examples=25, deadline=None)
@given(sequences(), st.integers(1, 4), st.booleans(), st.booleans())
def test_any_chain_of_known_layers_stacks(
    chain: tuple[nn.Sequential, int], runs: int, training: bool, shared: bool
) -> None:
    net, channels = chain
    nets = [scatter(copy.deepcopy(net), seed).train(training) for seed in range(runs)]
    x = torch.randn(runs, 3, channels, 9, 8, generator=generator(), dtype=torch.float64)
    x = x[:1].expand_as(x) if shared else x
    stacked = Stacked(nets)
    ours, theirs = stacked(x[0] if shared else x), torch.stack([n(x[r]) for r, n in enumerate(nets)])
    torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-8)
    weight = torch.randn(ours.shape, generator=generator(1), dtype=torch.float64)
    (ours * weight).sum().backward()
    (theirs * weight).sum().backward()
    for key, parameter in stacked.network.named_parameters():
        expected = torch.stack([n.get_parameter(key).grad for n in nets])
        torch.testing.assert_close(stacked.run_view(parameter.grad), expected, rtol=1e-7, atol=1e-7)
    for run, plain in enumerate(nets):
        for key, value in plain.state_dict().items():
            torch.testing.assert_close(stacked.unstack(run)[key], value, rtol=1e-8, atol=1e-8)


def test_all_networks_of_the_package_can_be_stacked() -> None:
    assert [obstacle(make(name, num_classes=2, seed=0)) for name in NETWORKS] == [None] * len(NETWORKS)


class Unmarked(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).flip(1)


class WithParameter(nn.Module):
    channelwise_entry = None

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 2, 1)
        self.scale = nn.Parameter(torch.ones(2))


class WithEntry(nn.Module):
    """A user's network: a name that it has by chance says nothing of its forward pass."""

    entry = None

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 2, 1)


def tied() -> nn.Module:
    net = nn.Sequential(nn.Conv2d(2, 2, 1), nn.Conv2d(2, 2, 1))
    net[1].weight = net[0].weight
    return net


@pytest.mark.parametrize(
    ("net", "reason"),
    [
        (nn.Sequential(nn.Dropout()), "module '0' is a Dropout"),
        (nn.Sequential(nn.Sequential(Unmarked(nn.ReLU()))), "module '0.0' is a Unmarked"),
        (WithParameter(), "the network is a WithParameter"),
        (WithEntry(), "the network is a WithEntry"),
        (nn.Sequential(nn.Conv2d(1, 1, 3, padding=1, padding_mode="circular")), "module '0' is a Conv2d"),
        (nn.Sequential(nn.BatchNorm2d(2, momentum=None)), "module '0' is a BatchNorm2d"),
        (nn.Sequential(nn.Flatten(2)), "module '0' is a Flatten"),
        (tied(), "two modules share a parameter"),
    ],
)
def test_what_cannot_be_stacked_is_named(net: nn.Module, reason: str) -> None:
    assert str(obstacle(net)).startswith(reason)


def test_a_layer_used_twice_stays_one_layer() -> None:
    conv, relu = nn.Conv2d(2, 2, 3, padding=1), nn.ReLU()
    net = nn.Sequential(conv, relu, conv, relu)
    stacked = Stacked([net, net])
    assert stacked.network[0] is stacked.network[2]
    assert len(list(stacked.parameters())) == 2
    apart = nn.Sequential(nn.Sequential(conv, relu), nn.Sequential(conv))
    assert torch.equal(Stacked([apart, apart]).unstack(1)["1.0.weight"], conv.weight)


def test_what_is_not_trained_stays_so() -> None:
    nets = several("cnn", 2)
    for net in nets:
        net.head.weight.requires_grad_(False)
    assert [key for key, p in Stacked(nets).network.named_parameters() if not p.requires_grad] == ["head.weight"]
