"""Networks of one's own by name, in the registry and on the command line."""

from __future__ import annotations

import json
import sys

import pytest
import torch
from torch import nn

from aol.cli import main
from aol.lab.nets.layers import head_name
from aol.lab.nets.registry import make
from aol.lab.settings import Settings, WrongSettingsError

PROGRAM = """
from torch import nn


def convolutional(classes, channels, size):
    return nn.Sequential(nn.Conv2d(channels, 4, 3, padding=1), nn.Flatten(), nn.Linear(4 * size * size, classes))


def normalised(classes, channels, size):
    return nn.Sequential(nn.Flatten(), nn.LayerNorm(channels * size**2), nn.Linear(channels * size**2, classes))


def too_many(classes, channels, size):
    return nn.Sequential(nn.Flatten(), nn.Linear(channels * size**2, classes + 1))


def without_bias_at_its_head(classes, channels, size):
    net = nn.Sequential(nn.Flatten(), nn.Linear(channels * size**2, 4))
    net.add_module("head", nn.Linear(4, classes, bias=False))
    return net


class Gated(nn.Module):
    def __init__(self, classes, pixels):
        super().__init__()
        self.classifier = nn.Linear(pixels, classes)
        self.gate = nn.Linear(pixels, pixels, bias=False)

    def forward(self, x):
        return self.classifier(self.gate(x.flatten(1)))


def with_a_gate(classes, channels, size):
    return Gated(classes, channels * size**2)


def without_bias_at_its_end(classes, channels, size):
    return nn.Sequential(nn.Flatten(), nn.Linear(channels * size**2, 4), nn.Linear(4, classes, bias=False))


def none(classes, channels, size):
    return None


def fails(classes, channels, size):
    return nn.Sequential(nn.Flatten(), nn.Linear(7, classes))


def gives_up(classes, channels, size):
    return {}["depth"]
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(PROGRAM)
    (tmp_path / "unfinished.py").write_text("def make(:")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield tmp_path
    sys.modules.pop("mine", None)


def test_a_seed_gives_the_same_network_and_leaves_the_generator_alone(folder):
    before = torch.get_rng_state()
    one, same, other = (
        make("mine:convolutional", num_classes=3, in_channels=1, image_size=8, seed=seed) for seed in (1, 1, 2)
    )
    assert torch.get_rng_state().equal(before)
    assert one[0].weight.equal(same[0].weight)
    assert not one[0].weight.equal(other[0].weight)
    assert one(torch.zeros(5, 1, 8, 8)).shape == (5, 3)
    assert one.training


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("mine:nothing", "no function 'nothing'"),
        ("nobodys:make", "no module 'nobodys'"),
        ("mine:too_many", r"logits \[B, 3\], not \[1, 4\]"),
        ("mine:without_bias_at_its_head", "Linear with a bias"),
        ("mine:without_bias_at_its_end", "Linear with a bias"),
        ("mine:none", "must return a torch.nn.Module"),
        ("mine:fails", "fails on images"),
        ("mine:gives_up", "mine:gives_up fails for 3 classes, 1 channels, size 8: KeyError: 'depth'"),
        ("unfinished:make", "'unfinished' cannot be imported: SyntaxError"),
    ],
)
def test_what_is_wrong_with_a_network_is_said(folder, name, words):
    with pytest.raises(ValueError, match=words):
        make(name, num_classes=3, in_channels=1, image_size=8, seed=0)


def test_the_head_need_not_be_made_last_if_no_other_layer_has_a_bias(folder):
    net = make("mine:with_a_gate", num_classes=3, in_channels=1, image_size=8, seed=0)
    assert head_name(net) == "classifier"


def test_errors_inside_a_module_are_its_own(folder):
    (folder / "broken.py").write_text("import nobody_has_this\n")
    with pytest.raises(ModuleNotFoundError, match="nobody_has_this"):
        make("broken:make", num_classes=3, seed=0)


def test_the_head_is_the_last_linear_layer_or_what_is_called_so():
    net = nn.Sequential()
    net.head, net.other = nn.Linear(2, 2), nn.Linear(2, 2)
    assert head_name(net) == "head"
    net.head = nn.Sequential(nn.Linear(2, 2))
    assert head_name(net) == "other"
    assert head_name(nn.Flatten()) == ""


@pytest.mark.parametrize("name", ["convolutional", "normalised"])  # one that can be stacked, and one that cannot
def test_runs_train_with_a_network_of_ones_own(folder, capsys, name):
    words = ["--net", f"mine:{name}", "--samples", "200", "--epochs", "1", "--seed", "0,1", "--loss", "softmax,sigmoid"]
    assert main(["train", *words, "--out", "runs", "--json"]) == 0
    runs = json.loads(capsys.readouterr().out)["runs"]
    assert len(runs) == 4
    assert {run["config"]["net"] for run in runs} == {f"mine:{name}"}


def test_the_name_of_a_network_is_a_setting():
    assert Settings(net="mine:convolutional").net == "mine:convolutional"
    assert Settings(net="timm:resnet18").run_id != Settings(net="timm:resnet34").run_id
    for name in ("mine", ":make", "mine:", "a b:c", "../mine:make"):
        with pytest.raises(WrongSettingsError, match="net"):
            Settings(net=name)
