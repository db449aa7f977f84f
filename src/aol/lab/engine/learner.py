"""R networks and their optimiser as one: training step, forward pass in evaluation mode, and state.

One process, or several that share every batch (data parallel, R = 1).
"""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from aol import _check, _distributed
from aol.lab import nets
from aol.lab.nets import fused
from aol.lab.nets.external import head_name
from aol.lab.settings import Settings
from aol.losses import focal_loss, sigmoid_bias, softmax_loss, weighted_mean, with_offset

# The most pixels, of all runs together, that a CPU evaluates at once: maps of 16 channels have 4 MiB and stay cached.
_PIECE = 1 << 16


class SingleRun(nn.Module):
    """One network with the interface of `nets.Stacked`: images `[1, B, ...]` or `[B, ...]` to logits `[1, B, K]`."""

    def __init__(self, network: nets.Network) -> None:
        super().__init__()
        self.network = network

    @property
    def head(self) -> nn.Module:
        """The last linear layer."""
        return self.network.get_submodule(head_name(self.network))

    def forward(self, images: Tensor) -> Tensor:
        """Return logits `[1, B, K]`."""
        logits: Tensor = self.network(images[0] if images.dim() == 5 else images)
        return logits[None]

    def unstack(self, run: int) -> dict[str, Tensor]:
        """Return a copy of the network's state."""
        return {name: value.detach().clone() for name, value in self.network.state_dict().items()}


Joint: TypeAlias = nets.Stacked | nets.ByRun | SingleRun


def build(
    runs: Sequence[Settings], *, num_classes: int, shape: tuple[int, int, int], alone: bool, stacking: str = "grouped"
) -> Joint:
    """Return the runs' networks as one, each initialised from its own seed, biases of sigmoid heads at -log(C - 1).

    With `alone`, a single network stays as it is; otherwise it becomes a stack of one, where possible, for the kernels.
    `stacking` is how several become one (`nets.STACKINGS`).
    """
    made = []
    for run in runs:
        net = make_network(run, num_classes, shape)
        if run.loss != "softmax":
            bias = net.get_submodule(head_name(net)).get_parameter("bias")
            nn.init.constant_(bias, sigmoid_bias(num_classes))
        made.append(net)
    single = len(made) == 1 and (alone or not nets.can_stack(made[0]))
    return SingleRun(made[0]) if single else nets.join(made, stacking if len(made) > 1 else "grouped")


def make_network(run: Settings, num_classes: int, shape: tuple[int, int, int]) -> nets.Network:
    """Return the network of a run for images of a shape (channels, height, width), initialised from its seed."""
    channels, size, _ = shape
    name = network_name(run.net, shape)
    return nets.make(name, num_classes=num_classes, in_channels=channels, image_size=size, seed=run.seed)


def network_name(name: str, shape: tuple[int, int, int]) -> str:
    """Return the network meant by "auto": the small CNN below 32 pixels, ResNet-32 up to 64, ResNet-34 above.

    >>> network_name("auto", (3, 32, 32))
    'resnet32'
    """
    if name != "auto":
        return name
    return "cnn" if shape[1] < 32 else "resnet32" if shape[1] <= 64 else "resnet34"


def rate_at(settings: Settings, step: int, steps_per_epoch: int) -> float:
    """Return the learning rate of a step, both counted from zero.

    All schedules but "fixed" begin with a linear warm-up over a whole number of steps. "paper": then the base rate; a
    hundredth of it from 80 % of the epochs on, a ten-thousandth from 90 % (of 200: epochs 160 and 180, counted from
    one). "cosine": falls to zero.

    >>> run = Settings(epochs=200, lr=0.1)
    >>> [round(rate_at(run, 10 * epoch, 10), 6) for epoch in (0, 5, 158, 159, 179)]
    [0.002, 0.1, 0.1, 0.001, 1e-05]
    """
    epoch = step // steps_per_epoch + 1
    assert settings.warmup is not None  # Settings replaces None
    warm = round(settings.warmup * steps_per_epoch)
    rate = settings.lr
    if step < warm:
        rate *= (step + 1) / warm
    elif settings.schedule == "cosine":
        total = settings.epochs * steps_per_epoch
        rate *= 0.5 * (1 + math.cos(math.pi * (step - warm) / max(1, total - warm)))
    elif settings.schedule == "paper":
        if 10 * epoch >= 9 * settings.epochs:
            rate *= 1e-4
        elif 10 * epoch >= 8 * settings.epochs:
            rate *= 1e-2
    return rate


class Learner:
    """R networks trained side by side, each by its own settings; `stacking`: how they become one (`nets.STACKINGS`)."""

    def __init__(
        self,
        runs: Sequence[Settings],
        *,
        num_classes: int,
        shape: tuple[int, int, int],
        device: torch.device,
        stacking: str = "grouped",
    ) -> None:
        self.runs = runs
        self.settings = runs[0]
        self.stacking = "alone" if len(runs) == 1 else stacking
        self.device = device
        self._shape = shape
        alone = device.type != "cuda" or _distributed.world()[1] > 1
        self.net = build(runs, num_classes=num_classes, shape=shape, alone=alone, stacking=stacking).to(device)
        self._averaged = copy.deepcopy(self.net).requires_grad_(False) if self.settings.average else None
        # PyTorch convolutions are fastest with channels last; our kernels expect the default memory format.
        self._forwards = {False: self._quickest(self.net)}
        if self._averaged is not None:
            self._forwards[True] = self._quickest(self._averaged)
        for net in self._forwards.values():
            net.train()  # all layers, also of a network that comes in evaluation mode
        self._learning = self._forwards[False]
        if _distributed.world()[1] > 1:
            self._learning = nn.parallel.DistributedDataParallel(self.net)
        self._parameters = list(self.net.parameters())
        self._optimiser = self._make_optimiser()
        self._by_loss = _rows_by_loss(runs, device)
        self._loss_order = torch.cat([rows for _, rows in self._by_loss]).argsort()
        self.offset: Tensor | None = None  # [R, C]: added to the logits in the loss; keeps its memory, as graphs need
        self.by_count = torch.tensor([run.divide_by == "count" for run in runs], device=device)

    def _quickest(self, net: Joint) -> nn.Module:
        """Return the fastest module for these networks here: our kernels where they apply, else the network itself."""
        if isinstance(net, nets.ByRun):
            return net.channels_last()
        wanted = self.settings.precision == "bf16"
        if isinstance(net, nets.Stacked) and wanted and fused.can_fuse(net, self._shape[1:]):
            quick = fused.fuse(net)
            reason = quick.failure(self._shape)
            if reason is None:
                return quick
            warnings.warn(f"Using PyTorch instead of aol's kernels, which fail here: {reason}", stacklevel=2)
        return net.to(memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]

    def _make_optimiser(self) -> torch.optim.Optimizer:
        s = self.settings
        bias = self.net.head.get_parameter("bias")
        rest = [parameter for parameter in self._parameters if parameter is not bias]
        # Biases of sigmoid heads do not decay. Runs with and without such heads share the tensor: `_update` decays it.
        groups = [{"params": rest, "weight_decay": s.weight_decay}, {"params": [bias], "weight_decay": 0.0}]
        decays = torch.tensor([s.weight_decay * (run.loss == "softmax") for run in self.runs], device=self.device)
        self._bias_decay = decays.repeat_interleave(bias.numel() // len(self.runs)).view_as(bias)
        # The rate is a tensor of each parameter group, so that a captured step reads its current value.
        for group in groups:
            group["lr"] = torch.tensor(s.lr, device=self.device)
        if s.optimiser == "adamw":
            return torch.optim.AdamW(groups, betas=(s.momentum, 0.999), fused=True)
        return torch.optim.SGD(groups, momentum=s.momentum, fused=True)

    def step(
        self, images: Tensor, label: Tensor, weight: Tensor, rate: Tensor, total: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Take one optimiser step on `images [R, B, C, H, W]`; return losses `[R]` and logits `[R, B, K]`.

        `total [R]`: the divisor of the weighted losses, where this process holds only a part of the batch.
        """
        if not self._forwards[False].training:  # setting the mode of each layer takes a while
            self._learning.train()
        logits = self._forward(self._learning, images)
        loss = self._losses(logits if self.offset is None else with_offset(logits, self.offset), label)
        if total is None:
            total = torch.where(self.by_count, float(loss.shape[1]), weight.sum(1))
        mean = weighted_mean(loss, weight, total=total)
        for parameter in self._parameters:
            parameter.grad = None
        mean.sum().backward()  # type: ignore[no-untyped-call]
        self._update(rate)
        return mean.detach(), logits.detach()

    def _update(self, rate: Tensor) -> None:
        bias = self.net.head.get_parameter("bias")
        with torch.no_grad():
            if self.settings.optimiser == "adamw":
                bias.mul_(1 - rate * self._bias_decay)
            elif bias.grad is not None:
                bias.grad.add_(self._bias_decay * bias)
        for group in self._optimiser.param_groups:
            group["lr"].copy_(rate)
        self._optimiser.step()
        if self._averaged is not None:
            pairs = list(zip(self._averaged.state_dict().values(), self.net.state_dict().values(), strict=True))
            smooth = [pair for pair in pairs if pair[0].is_floating_point()]
            torch._foreach_lerp_([old for old, _ in smooth], [new for _, new in smooth], 1 - self.settings.average)
            for old, new in pairs:
                if not old.is_floating_point():
                    old.copy_(new)

    def _losses(self, logits: Tensor, label: Tensor) -> Tensor:
        def of(gamma: float | None, logits: Tensor, label: Tensor) -> Tensor:
            return softmax_loss(logits, label) if gamma is None else focal_loss(logits, label, gamma)

        if len(self._by_loss) == 1:  # no rows to gather, whose gradients a GPU would sort to add
            return of(self._by_loss[0][0], logits, label)
        parts = [of(gamma, logits[rows], label[rows]) for gamma, rows in self._by_loss]
        return torch.cat(parts)[self._loss_order]

    def _forward(self, net: nn.Module, images: Tensor) -> Tensor:
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.settings.precision == "bf16"):
            logits: Tensor = net(images)
        return logits

    @torch.no_grad()
    def predict(self, images: Tensor, *, averaged: bool = False) -> Tensor:
        """Return logits `[R, B, K]` in evaluation mode, of the networks or of their averages."""
        net = self._forwards[averaged]
        net = net.eval() if net.training else net
        if self.device.type != "cpu":
            return self._forward(net, images).float()
        piece = max(16, _PIECE // (images.shape[-2] * images.shape[-1] * len(self.runs)))
        parts = torch.split(images, piece, images.dim() - 4)
        return torch.cat([self._forward(net, part) for part in parts], 1).float()

    @property
    def has_average(self) -> bool:
        """Whether an average of the weights over time is kept."""
        return self._averaged is not None

    def networks(self, run: int) -> dict[str, dict[str, Tensor]]:
        """Return the state of one run's network, and of its average if there is one, by name, on the CPU."""
        states = {"network": self.net.unstack(run)}
        if self._averaged is not None:
            states["network-averaged"] = self._averaged.unstack(run)
        return {name: {key: value.cpu().contiguous() for key, value in state.items()} for name, state in states.items()}

    def broadcast_buffers(self) -> None:
        """Broadcast the running statistics of the first process: each has seen only its part of the batches."""
        if _distributed.world()[1] > 1:
            for net in filter(None, (self.net, self._averaged)):
                for buffer in net.buffers():
                    torch.distributed.broadcast(buffer, 0)

    def tensors(self) -> Iterator[Tensor]:
        """Yield every tensor that a step changes."""
        for net in filter(None, (self.net, self._averaged)):
            yield from net.state_dict().values()
        for state in self._optimiser.state.values():
            yield from (value for value in state.values() if isinstance(value, Tensor))
        yield from (group["lr"] for group in self._optimiser.param_groups)

    def state_dict(self) -> dict[str, object]:
        """Return networks, averages and optimiser as tensors and primitives."""
        averaged = None if self._averaged is None else self._averaged.state_dict()
        moments = {}
        for place, (parameter, like) in enumerate(self._moments()):
            moments[place] = self._optimiser.state.get(parameter)
            if not moments[place]:  # frozen and unused parameters, and all of them before the first step
                moments[place] = {name: torch.zeros_like(tensor) for name, tensor in like.items()}
        return {"net": self.net.state_dict(), "averaged": averaged, "optimiser": {"state": moments}}

    def load_state_dict(self, state: dict[str, object]) -> None:
        """Take over another learner's state; a damaged one is refused, and nothing changes."""
        nets = {name: net for name, net in (("net", self.net), ("averaged", self._averaged)) if net is not None}
        loaded = {name: _network_state(net, state.get(name)) for name, net in nets.items()}
        # Fused optimisers trust their state: one number too few, and they read and write memory of others. Rates and
        # decays are not loaded: they follow from the settings.
        what = "the optimiser"
        saved: Mapping[Any, object] = _check.state_part(what, _check.state_part(what, state, "optimiser"), "state")
        bounds = {"step": _check.Bounds(0), "exp_avg_sq": _check.Bounds(0, torch.inf, nan=True)}
        moments = {
            parameter: _check.state_tensors(what, saved.get(place), like, bounds)
            for place, (parameter, like) in enumerate(self._moments())
        }
        for name, net in nets.items():
            net.load_state_dict(loaded[name])
        self._optimiser.state.update(moments)

    def _moments(self) -> Iterator[tuple[Tensor, dict[str, Tensor]]]:
        """Yield every parameter, in the optimiser's order, with tensors shaped as those that the optimiser keeps."""
        adam = self.settings.optimiser == "adamw"
        names = ("exp_avg", "exp_avg_sq") if adam else ("momentum_buffer",) if self.settings.momentum else ()
        steps = {"step": torch.zeros((), device=self.device)} if adam else {}
        for group in self._optimiser.param_groups if names else ():
            for parameter in group["params"]:
                yield parameter, {**steps, **dict.fromkeys(names, parameter.detach())}


def _network_state(net: nn.Module, given: object) -> dict[str, Tensor]:
    """Return a state dict for a network; numbers that are not finite are of runs that diverged."""
    own = net.state_dict()
    bounds = {name: _check.Bounds(0, torch.inf, nan=True) for name in own if name.endswith(("_var", "_tracked"))}
    return _check.state_tensors("the network", given, own, bounds)


def _rows_by_loss(runs: Sequence[Settings], device: torch.device) -> list[tuple[float | None, Tensor]]:
    """Return the rows of each loss: γ of the focal loss (0 for sigmoid), or None for softmax."""
    kinds: dict[float | None, list[int]] = {}
    for row, run in enumerate(runs):
        gamma = None if run.loss == "softmax" else 0.0 if run.loss == "sigmoid" else run.gamma
        kinds.setdefault(gamma, []).append(row)
    return [(gamma, torch.tensor(rows, device=device)) for gamma, rows in kinds.items()]
