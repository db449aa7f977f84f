"""R networks and their optimiser as one: training step, forward pass in evaluation mode, and state.

One process, or several that share every batch (data parallel, R = 1).
"""

from __future__ import annotations

import gc
import math
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from aol import _distributed
from aol.lab.nets import fused, registry
from aol.lab.nets.layers import Network, head_name
from aol.lab.nets.stacked import Stacked, obstacle
from aol.lab.settings import Settings
from aol.losses import focal_loss, sigmoid_bias, softmax_loss, weighted_mean, with_offset

Shape: TypeAlias = tuple[int, int, int]  # channels, height, width of images
# Of mixed images: their other labels [R, B], and the shares of the first [R, 1].
Mixed: TypeAlias = tuple[Tensor, Tensor]


class SingleRun(nn.Module):
    """One network with the interface of `Stacked`: images `[1, B, ...]` or `[B, ...]` to logits `[1, B, K]`."""

    def __init__(self, network: Network) -> None:
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


Joint: TypeAlias = Stacked | SingleRun


def build(runs: Sequence[Settings], *, num_classes: int, shape: Shape, alone: bool) -> Joint:
    """Return the runs' networks as one, each initialised from its own seed, biases of sigmoid heads at -log(C - 1).

    With `alone`, a single network stays as it is; otherwise it becomes a stack of one, where possible, for the kernels.
    """
    made = []
    for run in runs:
        net = make_network(run, num_classes, shape)
        if run.loss != "softmax":
            bias = net.get_submodule(head_name(net)).get_parameter("bias")
            nn.init.constant_(bias, sigmoid_bias(num_classes))
        made.append(net)
    return SingleRun(made[0]) if len(made) == 1 and (alone or obstacle(made[0])) else Stacked(made)


def make_network(run: Settings, num_classes: int, shape: Shape) -> Network:
    """Return the network of a run for images of a shape (channels, height, width), initialised from its seed."""
    channels, size, _ = shape
    name = network_name(run.net, shape)
    return registry.make(name, num_classes=num_classes, in_channels=channels, image_size=size, seed=run.seed)


def network_name(name: str, shape: Shape) -> str:
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
    one). "cosine": falls to zero. The last `retrain` epochs begin again with the base rate, which then falls to zero.

    >>> run = Settings(epochs=200, lr=0.1)
    >>> [round(rate_at(run, 10 * epoch, 10), 6) for epoch in (0, 5, 158, 159, 179)]
    [0.002, 0.1, 0.1, 0.001, 1e-05]
    """
    epoch, epochs = step // steps_per_epoch + 1, settings.epochs - settings.retrain
    assert settings.warmup is not None  # Settings replaces None
    warm, total, rate = round(settings.warmup * steps_per_epoch), epochs * steps_per_epoch, settings.lr
    if epoch > epochs:
        rate *= 0.5 * (1 + math.cos(math.pi * (step - total) / (settings.retrain * steps_per_epoch)))
    elif step < warm:
        rate *= (step + 1) / warm
    elif settings.schedule == "cosine":
        rate *= 0.5 * (1 + math.cos(math.pi * (step - warm) / max(1, total - warm)))
    elif settings.schedule == "paper":
        if 10 * epoch >= 9 * epochs:
            rate *= 1e-4
        elif 10 * epoch >= 8 * epochs:
            rate *= 1e-2
    return rate


class Learner:
    """R networks trained side by side as one, each by its own settings."""

    def __init__(self, runs: Sequence[Settings], *, num_classes: int, shape: Shape, device: torch.device) -> None:
        self.runs, self.settings, self.device = runs, runs[0], device
        self.stacking = "alone" if len(runs) == 1 else "grouped"
        self.num_classes, self._shape = num_classes, shape
        together = _distributed.world()[1] > 1
        self.net = build(runs, num_classes=num_classes, shape=shape, alone=device.type != "cuda" or together).to(device)
        # PyTorch convolutions are fastest with channels last; our kernels expect the default memory format.
        self._quick = self._quickest(self.net)
        self._quick.train()  # all layers, also of a network that comes in evaluation mode
        self._learning = nn.parallel.DistributedDataParallel(self.net) if together else self._quick
        self.retrains = False  # only the head is trained, on smoothed labels
        self._parameters = list(self.net.parameters())
        self._optimiser = self._make_optimiser()
        kinds: dict[tuple[str, float], list[int]] = {}  # loss and γ of the focal one: rows
        for row, run in enumerate(runs):
            kinds.setdefault((run.loss, run.gamma if run.loss == "focal" else 0.0), []).append(row)
        self._by_loss = [(kind, torch.tensor(rows, device=device)) for kind, rows in kinds.items()]
        self._loss_order = torch.cat([rows for _, rows in self._by_loss]).argsort()
        self.offset: Tensor | None = None  # [R, C]: added to the logits in the loss; keeps its memory, as graphs need
        self.by_count = torch.tensor([run.divide_by == "count" for run in runs], device=device)

    def _quickest(self, net: Joint) -> nn.Module:
        """Return the fastest module for these networks here: our kernels where they apply, else the network itself."""
        wanted = self.settings.precision == "bf16"
        if isinstance(net, Stacked) and wanted and fused.obstacle(net, self._shape[1:]) is None:
            quick = fused.FusedStack(net)
            reason = quick.failure(self._shape)
            if reason is None:
                return quick
            warnings.warn(f"Using PyTorch instead of aol's kernels, which fail here: {reason}", stacklevel=2)
        return cast(nn.Module, net.to(memory_format=torch.channels_last))  # type: ignore[call-overload]

    def _make_optimiser(self) -> torch.optim.Optimizer:
        s, bias = self.settings, self.net.head.get_parameter("bias")
        rest = [parameter for parameter in self._parameters if parameter is not bias]
        # Biases of sigmoid heads do not decay. Runs with and without such heads share the tensor: `_update` decays it.
        groups = [{"params": rest, "weight_decay": s.weight_decay}, {"params": [bias], "weight_decay": 0.0}]
        decays = torch.tensor([s.weight_decay * (run.loss == "softmax") for run in self.runs], device=self.device)
        self._bias_decay = decays.repeat_interleave(bias.numel() // len(self.runs)).view_as(bias)
        # The rate is a tensor of each parameter group, so that a captured step reads its current value.
        for group in groups:
            group["lr"] = torch.tensor(s.lr, device=self.device)
        return torch.optim.SGD(groups, momentum=s.momentum, fused=True)

    def retrain(self, *, begins: bool) -> None:
        """Train the head alone from now on, as in evaluation mode, on smoothed labels; it `begins` without momentum."""
        self.retrains, head = True, set(self.net.head.parameters())
        for parameter in self._parameters:
            parameter.requires_grad_(parameter in head)
        for parameter in head if begins else ():
            self._optimiser.state.pop(parameter, None)
        if self._learning is not self._quick:  # which must know what has gradients
            self._learning = nn.parallel.DistributedDataParallel(self.net)

    def step(
        self,
        images: Tensor,
        label: Tensor,
        weight: Tensor,
        rate: Tensor,
        total: Tensor | None = None,
        mixed: Mixed | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Take one optimiser step on `images [R, B, C, H, W]`; return losses `[R]` and logits `[R, B, K]`.

        `total [R]`: the divisor of the weighted losses, where this process holds only a part of the batch.
        """
        if self._quick.training is self.retrains:  # setting the mode of each layer takes a while
            self._learning.train(not self.retrains)
        logits = self._forward(self._learning, images)
        shown = logits if self.offset is None else with_offset(logits, self.offset)
        loss = self._losses(shown, label)
        if mixed is not None:  # all losses are linear in the label
            loss = torch.lerp(self._losses(shown, mixed[0]), loss, mixed[1])
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
        if bias.grad is not None:
            with torch.no_grad():
                bias.grad.add_(self._bias_decay * bias)
        for group in self._optimiser.param_groups:
            group["lr"].copy_(rate)
        self._optimiser.step()

    def _losses(self, logits: Tensor, label: Tensor) -> Tensor:
        if self.retrains:
            smoothing, classes = self.settings.smoothing, logits.shape[-1]
            return softmax_loss(logits, F.one_hot(label, classes) * (1 - smoothing) + smoothing / classes)
        if len(self._by_loss) == 1:  # no rows to gather, whose gradients a GPU would sort to add
            return _loss(*self._by_loss[0][0], logits, label)
        parts = [_loss(*kind, logits[rows], label[rows]) for kind, rows in self._by_loss]
        return torch.cat(parts)[self._loss_order]

    def _forward(self, net: nn.Module, images: Tensor) -> Tensor:
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.settings.precision == "bf16"):
            logits: Tensor = net(images)
        return logits

    @torch.no_grad()
    def predict(self, images: Tensor) -> Tensor:
        """Return logits `[R, B, K]` in evaluation mode."""
        return self._forward(self._quick.eval() if self._quick.training else self._quick, images).float()

    def network(self, run: int) -> dict[str, Tensor]:
        """Return the state of one run's network, on the CPU."""
        return {key: value.cpu().contiguous() for key, value in self.net.unstack(run).items()}

    def broadcast_buffers(self) -> None:
        """Broadcast the running statistics of the first process: each has seen only its part of the batches."""
        for buffer in self.net.buffers() if _distributed.world()[1] > 1 else ():
            torch.distributed.broadcast(buffer, 0)

    def tensors(self) -> Iterator[Tensor]:
        """Yield every tensor that a step changes."""
        yield from self.net.state_dict().values()
        yield from () if self.offset is None else (self.offset,)
        for state in self._optimiser.state.values():
            yield from (value for value in state.values() if isinstance(value, Tensor))
        yield from (group["lr"] for group in self._optimiser.param_groups)

    def state_dict(self) -> dict[str, Any]:
        """Return networks and momentum as tensors; frozen and unused parameters have no momentum."""
        momentum = [self._optimiser.state.get(parameter, {}).get("momentum_buffer") for parameter in self._parameters]
        return {"net": self.net.state_dict(), "momentum": momentum}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over another learner's state. Rates and decays are not in it: they follow from the settings."""
        self.net.load_state_dict(state["net"])
        for parameter, momentum in zip(self._parameters, state["momentum"], strict=True):
            if momentum is not None:  # in the parameter's memory format: fused optimisers use one pointer for both
                own = torch.empty_like(parameter, requires_grad=False).copy_(momentum)
                self._optimiser.state[parameter] = {"momentum_buffer": own}


def _loss(name: str, gamma: float, logits: Tensor, label: Tensor) -> Tensor:
    if name == "softmax":
        return softmax_loss(logits, label)
    assert name in ("sigmoid", "focal")  # sigmoid: γ = 0
    return focal_loss(logits, label, gamma)


def step_bytes(run: Settings, shape: Shape, num_classes: int, device: torch.device) -> int:
    """Return the peak memory of one run in a training step on a GPU, in bytes: two steps are measured."""
    gc.collect()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    learner = Learner([run], num_classes=num_classes, shape=shape, device=device)
    images = torch.zeros((1, run.batch_size, *shape), device=device)
    label = torch.zeros((1, run.batch_size), dtype=torch.int64, device=device)
    weight = torch.ones((1, run.batch_size), device=device)
    for _ in range(2):  # the second step includes the optimiser's buffers
        learner.step(images, label, weight, torch.zeros((), device=device))
    peak = torch.cuda.max_memory_allocated(device) - before
    del learner, images, label, weight
    gc.collect()
    torch.cuda.empty_cache()
    return peak
