from __future__ import annotations

import re

import pytest
import torch

from aol.lab.nets.registry import NETWORKS, make

SIZE = {"cnn": 8, "resnet32": 32, "resnet34-cifar": 32, "resnet34": 64}


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("channels", [1, 3])
def test_every_network_gives_one_logit_per_class(name: str, channels: int) -> None:
    net = make(name, num_classes=7, in_channels=channels, image_size=SIZE[name], seed=0).eval()
    assert isinstance(net.head, torch.nn.Linear)
    with torch.no_grad():
        assert net(torch.zeros(2, channels, SIZE[name], SIZE[name])).shape == (2, 7)


@pytest.mark.parametrize("name", ["cnn", "resnet32"])
def test_a_seed_gives_one_network_whatever_was_drawn_before(name: str) -> None:
    first = make(name, num_classes=5, seed=3).state_dict()
    torch.rand(17)
    second = make(name, num_classes=5, seed=3).state_dict()
    other = make(name, num_classes=5, seed=4).state_dict()
    assert all(torch.equal(first[key], second[key]) for key in first)
    assert not torch.equal(first["head.weight"], other["head.weight"])


def test_the_global_generator_survives_a_failed_build(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> None:
        torch.rand(3)
        raise RuntimeError("no")

    monkeypatch.setattr("aol.lab.nets.cnn.CNN", fail)
    before = torch.get_rng_state()
    with pytest.raises(RuntimeError):
        make("cnn", num_classes=5, seed=3)
    assert torch.equal(before, torch.get_rng_state())


def test_the_default_device_and_dtype_of_a_seed_are_the_cpu_and_float32() -> None:
    with torch.device("meta"):
        net = make("cnn", num_classes=5, seed=3)
    assert {(p.device.type, p.dtype) for p in net.parameters()} == {("cpu", torch.float32)}


def test_layers_start_as_the_framework_starts_them() -> None:
    net = make("resnet32", num_classes=10, seed=3)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(3)
        stem = torch.nn.Conv2d(3, 16, 3, padding=1, bias=False)
    assert torch.equal(net.get_parameter("stem.0.weight"), stem.weight)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"name": "resnet18"},
            "name must be one of cnn, resnet32, resnet34-cifar, resnet34, timm:NAME or MODULE:FUNCTION; got 'resnet18'",
        ),
        ({"image_size": 30}, "image_size must be a multiple of 4 for resnet32, got 30"),
        ({"image_size": 0}, "image_size must be a multiple of 4 for resnet32, got 0"),
        ({"name": "cnn", "image_size": 3}, "image_size must be at least 4 for cnn, got 3"),
    ],
)
def test_a_bad_argument_is_named_with_what_is_allowed(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        make(**{"name": "resnet32", "num_classes": 10, "seed": 0, **arguments})  # type: ignore[arg-type]
