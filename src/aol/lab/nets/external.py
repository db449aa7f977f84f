"""Networks from elsewhere by name: `timm:resnet18` of timm, and `my_module:make_net` of your own."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from typing import cast

import torch
from torch import nn

from aol._need import need
from aol.lab.nets.layers import Network, head_name

Build = Callable[[int, int, int], nn.Module]


def build_external(name: str, classes: int, channels: int, size: int) -> Network:
    """Return the network called `timm:NAME` or `MODULE:FUNCTION`: images `[B, channels, size, size]` to logits.

    A function of your own is called with the number of classes, of channels, and the side of the images in pixels. Its
    module is looked for in the current folder too. The last linear layer is the head.
    """
    source, _, inside = name.partition(":")
    build = _timm(inside) if source == "timm" else _function(source, inside)
    try:
        net = build(classes, channels, size)
    except Exception as error:
        given = f"{classes} classes, {channels} channels, size {size}"
        raise ValueError(f"{name} fails for {given}: {_summary(error)}") from error
    if not isinstance(net, nn.Module):
        raise ValueError(f"{name} must return a torch.nn.Module, not a {type(net).__name__}")
    was, images = net.training, torch.zeros(1, channels, size, size)
    try:
        with torch.no_grad():
            logits = net.eval()(images)
    except Exception as error:
        raise ValueError(f"{name} fails on images {list(images.shape)}: {_summary(error)}") from error
    net.train(was)
    shape = list(logits.shape) if isinstance(logits, torch.Tensor) else type(logits).__name__
    if shape != [1, classes]:
        raise ValueError(f"{name} must return logits [B, {classes}], not {shape} for one image")
    head = head_name(net)
    if not head or net.get_submodule(head).out_features != classes:
        raise ValueError(f"{name} must end in a torch.nn.Linear with a bias, called head or made after all others")
    return cast(Network, net)


def _summary(error: Exception) -> str:
    """Return the kind of an error, and the first line of its message, without a full stop."""
    return f"{type(error).__name__}: {error}".splitlines()[0].rstrip(".")


def _timm(name: str) -> Build:
    timm = need("timm", f"the network timm:{name}")
    if not timm.is_model(name):
        raise ValueError(f"timm has no model {name!r}")

    def build(classes: int, channels: int, size: int) -> nn.Module:
        common = {"pretrained": False, "num_classes": classes, "in_chans": channels}
        try:
            net: nn.Module = timm.create_model(name, **common, img_size=size)
        except TypeError:  # most convolutional networks take images of any size
            net = timm.create_model(name, **common)
        return net

    return build


def _function(module: str, name: str) -> Build:
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        function = getattr(importlib.import_module(module), name, None)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # of the module's own imports
        raise ValueError(f"there is no module {module!r} in this folder or on Python's path") from None
    except Exception as error:
        raise ValueError(f"the module {module!r} cannot be imported: {_summary(error)}") from error
    if not callable(function):
        raise ValueError(f"the module {module!r} has no function {name!r}")
    return cast(Build, function)
