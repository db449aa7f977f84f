"""R networks of any kind as one, by `vmap` and by streams, against each network on its own."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from aol.lab.nets import STACKINGS, ByRun, Stacked, join, obstacle_by_run, run_axis
from aol.lab.nets.vit import ViT
from tests.support.small_nets import BATCH, CLASSES, SMALL, generator, labels, losses, scatter, sgd

RUNS = 3


class Residual(nn.Module):
    """Nothing that `stack` knows: no mark, a norm of groups, a parameter and a buffer of its own, an in-place sum."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.deep = nn.Conv2d(4, 4, 3, padding=1, groups=2, bias=False)
        self.wide = nn.Conv2d(4, 4, (2, 3), padding="same", dilation=2)
        self.norm = nn.GroupNorm(2, 4)
        self.batch_norm = nn.BatchNorm2d(4)
        self.scale = nn.Parameter(torch.ones(4, 1, 1))
        self.register_buffer("offset", torch.zeros(4, 1, 1))
        self.last = nn.Sequential(nn.LayerNorm(4), nn.Linear(4, CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        y = self.norm(self.deep(x).relu())
        y += self.wide(x) * self.scale + self.offset
        y = F.max_pool2d(y, 3, stride=2, padding=1) + F.avg_pool2d(y, 2)
        return self.last(F.adaptive_avg_pool2d(self.batch_norm(y), 1).flatten(1))


def small_vit() -> nn.Module:
    return ViT(CLASSES, 3, image_size=8, patch=4, width=12, depth=2, heads=3)


BUILD: dict[str, tuple[Callable[[], nn.Module], int, int]] = {
    **{name: (small.build, small.channels, small.size) for name, small in SMALL.items()},
    "vit": (small_vit, 3, 8),
    "residual": (Residual, 3, 8),
}


def several(name: str, dtype: torch.dtype = torch.float64) -> list[nn.Module]:
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        return [scatter(BUILD[name][0]().to(dtype), seed) for seed in range(RUNS)]


def shown(name: str, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    _, channels, size = BUILD[name]
    return torch.randn((RUNS, BATCH, channels, size, size), generator=generator(seed), dtype=torch.float64).to(dtype)


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("name", BUILD)
def test_steps_of_all_runs_are_those_of_each(name: str, streams: bool, last: bool) -> None:
    nets = several(name)
    joint = ByRun(nets, streams=streams)
    joint = joint.channels_last() if last else joint
    own, common = [sgd(net) for net in nets], sgd(joint)
    for step in range(3):
        x, y = shown(name, step), labels(RUNS, step)
        logits, expected = joint(x), torch.stack([net(x[run]) for run, net in enumerate(nets)])
        torch.testing.assert_close(logits, expected, rtol=1e-8, atol=1e-8)
        for each in (*own, common):
            each.zero_grad()
        losses(logits, y).sum().backward()
        losses(expected, y).sum().backward()
        for each in (*own, common):
            each.step()
    for run, net in enumerate(nets):
        for key, value in net.state_dict().items():
            torch.testing.assert_close(joint.unstack(run)[key], value, rtol=1e-7, atol=1e-7)
    x = shown(name, 9)
    plain = torch.stack([net.eval()(x[0]) for net in nets])
    torch.testing.assert_close(joint.eval()(x[0]), plain, rtol=1e-7, atol=1e-7)  # one batch for all runs
    copied = copy.deepcopy(joint)
    copied.load_state_dict(joint.state_dict())
    assert torch.equal(copied(x), joint(x))


@pytest.mark.parametrize("few", [0, 100])
@pytest.mark.parametrize("name", ["resnet32", "vit", "residual"])
def test_convolutions_of_large_maps_are_those_of_each_run(
    name: str, few: int, asked: list[dict[str, object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_axis, "_COLUMNS", 0)  # as if all maps were large: one by one, or side by side
    monkeypatch.setattr(run_axis, "_FEW_CHANNELS", few)
    test_steps_of_all_runs_are_those_of_each(name, streams=False, last=True)
    test_a_network_is_compiled_once_and_for_full_batches(name, "compiled-vmap", asked)


@pytest.mark.parametrize("name", ["resnet32", "vit"])
def test_autocast_reaches_all_runs(name: str) -> None:
    nets, x = several(name, torch.float32), shown(name, dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        plain = torch.stack([net(x[run]) for run, net in enumerate(nets)])
        for streams in (False, True):
            logits = ByRun(several(name, torch.float32), streams=streams)(x)
            assert logits.dtype == plain.dtype
            torch.testing.assert_close(logits, plain, rtol=0.05, atol=0.1)


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("name", ["resnet32", "vit", "residual"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_diverging_run_does_not_touch_its_neighbours(name: str, streams: bool, value: float) -> None:
    def trained(poisoned: bool) -> list[dict[str, Tensor]]:
        joint = ByRun(several(name), streams=streams)
        optimiser = sgd(joint)
        for step in range(2):
            if poisoned:
                for parameter in joint.parameters():
                    parameter.data[1] = value
            optimiser.zero_grad()
            losses(joint(shown(name, step)), labels(RUNS, step)).sum().backward()
            optimiser.step()
        return [joint.unstack(run) for run in (0, 2)]

    for ours, theirs in zip(trained(poisoned=True), trained(poisoned=False), strict=True):
        assert all(torch.equal(ours[key], theirs[key]) for key in theirs)


class Counts(nn.Module):
    """Replaces its buffer instead of changing it."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 2)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.seen = self.seen + len(x)
        return self.linear(x.flatten(1))


class Decides(nn.Linear):
    """Its path depends on a value, which many runs at once do not have."""

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x.flatten(1))
        return y if y.sum().item() > 0 else 2 * y


class Branches(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x.flatten(1))
        return y if y.sum() > 0 else 2 * y


class Picks(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        return super().forward(x[:, x.sum(0).isfinite()])


@pytest.mark.parametrize(
    ("net", "streams", "words"),
    [
        (nn.Sequential(nn.Flatten(), nn.Linear(4, 2), nn.Dropout()), False, "random numbers"),
        (nn.Sequential(nn.Flatten(), nn.Linear(4, 2), nn.Dropout()), True, "random numbers"),
        (Counts(), False, "buffer 'seen'"),
        (Counts(), True, "buffer 'seen'"),
        (Decides(4, 2), False, "depends on the values of tensors"),
        (Branches(4, 2), False, "depends on the values of tensors"),
        (Picks(4, 2), False, "depends on the values of tensors"),
        (nn.Sequential(nn.Flatten(2), nn.Conv1d(1, 2, 1), nn.Flatten(), nn.Linear(8, 2)), False, "conv1d"),
        (nn.Sequential(nn.BatchNorm2d(1, momentum=None), nn.Flatten(), nn.Linear(4, 2)), False, ""),
    ],
)
def test_what_would_not_be_each_run_is_named(net: nn.Module, streams: bool, words: str) -> None:
    before = torch.get_rng_state()
    reason = obstacle_by_run(net, torch.randn(4, 1, 2, 2, generator=generator()), streams=streams)
    assert reason is not None
    assert words in reason
    assert torch.equal(before, torch.get_rng_state())


class Scaled(nn.Linear):
    """Has a tensor that a compiler is not given."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.flatten(1)) * SCALE


SCALE = torch.ones(2)


def test_what_cannot_be_recorded_is_not_compiled_as_one() -> None:
    images = torch.randn(4, 1, 2, 2, generator=generator())
    assert "neither a parameter nor a buffer" in str(obstacle_by_run(Scaled(4, 2), images, compiled=True))
    assert obstacle_by_run(Scaled(4, 2), images) is None
    assert obstacle_by_run(Scaled(4, 2), images, streams=True, compiled=True) is None
    assert "random numbers" in str(obstacle_by_run(nn.Sequential(nn.Dropout(), Scaled(4, 2)), images, compiled=True))


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("name", BUILD)
def test_networks_of_usual_layers_have_no_obstacle(name: str, streams: bool) -> None:
    net = several(name, torch.float32)[0]
    before = {key: value.clone() for key, value in net.state_dict().items()}
    assert obstacle_by_run(net, shown(name, dtype=torch.float32)[0], streams=streams, compiled=True) is None
    assert all(torch.equal(before[key], value) for key, value in net.state_dict().items())


def test_what_depends_on_values_goes_by_streams() -> None:
    assert obstacle_by_run(Decides(4, 2), torch.randn(4, 1, 2, 2, generator=generator()), streams=True) is None


def test_join_chooses_the_module() -> None:
    nets = several("cnn")
    kinds = [join(nets, each) for each in STACKINGS]
    assert [type(each) for each in kinds] == [Stacked, ByRun, ByRun, ByRun, ByRun]
    flags = [(each.streams, each.compiled) for each in kinds[1:] if isinstance(each, ByRun)]
    assert flags == [(False, False), (True, False), (True, True), (False, True)]
    with pytest.raises(ValueError, match="stacking must be one of 'grouped', 'vmap', 'streams', 'compiled'"):
        join(nets, "both")


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, object]]:
    """What `torch.compile` was asked for; it records operators, and generates no code."""
    asked: list[dict[str, object]] = []

    def compiled(call: Callable[..., Tensor], **given: object) -> Callable[..., Tensor]:
        asked.append(given)
        return plain(call, backend="aot_eager", fullgraph=True, **given)

    plain = torch.compile
    monkeypatch.setattr(torch, "compile", compiled)
    return asked


@pytest.mark.parametrize("stacking", ["compiled", "compiled-vmap"])
@pytest.mark.parametrize("name", ["resnet32", "vit", "residual"])
def test_a_network_is_compiled_once_and_for_full_batches(
    name: str, stacking: str, asked: list[dict[str, object]]
) -> None:
    joint, nets, x = join(several(name), stacking), several(name), shown(name)
    for images in (x, x[:, :2], x):
        logits = joint(images)
        expected = torch.stack([net(images[run]) for run, net in enumerate(nets)])
        torch.testing.assert_close(logits, expected, rtol=1e-7, atol=1e-7)
    losses(logits, labels(RUNS)).sum().backward()
    losses(expected, labels(RUNS)).sum().backward()
    for key, parameter in joint.network.named_parameters():
        wanted = torch.stack([net.get_parameter(key).grad for net in nets])
        torch.testing.assert_close(parameter.grad, wanted, rtol=1e-6, atol=1e-6)
    for run, net in enumerate(nets):
        for key, value in net.state_dict().items():
            torch.testing.assert_close(joint.unstack(run)[key], value, rtol=1e-7, atol=1e-7)
    joint.eval()
    with torch.no_grad():
        for images in (x[0], x[0], x[1, :2]):
            plain = torch.stack([net.eval()(images) for net in nets])
            torch.testing.assert_close(joint(images), plain, rtol=1e-7, atol=1e-7)
    assert asked == [{"dynamic": False}] * (1 if stacking == "compiled" else 2)


def test_more_networks_than_pytorch_compiles_again_are_compiled(asked: list[dict[str, object]]) -> None:
    torch._dynamo.utils.counters.clear()
    for width in range(1, 12):
        nets = [nn.Sequential(nn.Flatten(), nn.Linear(4, width)) for _ in range(2)]
        assert join(nets, "compiled-vmap")(torch.zeros(3, 1, 2, 2)).shape == (2, 3, width)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 11


def test_tied_weights_stay_tied() -> None:
    nets = [nn.Sequential(nn.Flatten(), nn.Linear(4, 4), nn.Linear(4, 4)) for _ in range(2)]
    for net in nets:
        net[2].weight = net[1].weight
    joint, x = ByRun(nets), torch.randn(2, 3, 1, 2, 2, generator=generator())
    assert joint.network[1].weight is joint.network[2].weight
    torch.testing.assert_close(joint(x)[1], nets[1](x[1]))


def test_images_and_runs_are_checked() -> None:
    joint = ByRun(several("cnn"))
    with pytest.raises(ValueError, match=r"images must be \[3, B, C, H, W\] or \[B, C, H, W\]"):
        joint(torch.zeros(2, 4, 1, 8, 8))
    with pytest.raises(IndexError, match=r"run must be in \[0, 3\)"):
        joint.unstack(3)
    with pytest.raises(ValueError, match="alike"):
        ByRun([nn.Linear(1, 2), nn.Linear(1, 3)])
