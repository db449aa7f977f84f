"""R networks of any kind as one module, for what `stacked.py` does not know, or where it is not the quickest.

Every parameter and buffer is the R plain ones along a new first axis. The forward pass is the plain network's own:
called once for all runs by `torch.func.vmap`, or once for each run, side by side on CUDA streams.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import cast

import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode
from torch.func import functional_call, vmap

from aol import _values as _check
from aol.lab.nets.external import head_name
from aol.lab.nets.registry import STACKINGS
from aol.lab.nets.run_axis import RunAxis
from aol.lab.nets.stacked import Stacked, check_alike, stack


def join(networks: Sequence[nn.Module], stacking: str = "grouped") -> Stacked | ByRun:
    """R networks alike but for their values → one that computes them all, in one of `STACKINGS`; results are the same.

    >>> nets = [nn.Sequential(nn.Flatten(), nn.Linear(4, 2)) for _ in range(3)]
    >>> {join(nets, each)(torch.zeros(5, 1, 2, 2)).shape for each in STACKINGS[:3]}
    {torch.Size([3, 5, 2])}
    """
    _check.choice("stacking", stacking, STACKINGS)
    if stacking == "grouped":
        return stack(networks)
    return ByRun(networks, **options_of(stacking))


def options_of(stacking: str) -> dict[str, bool]:
    """Return the arguments of `ByRun` for one of `STACKINGS` but "grouped".

    >>> options_of("compiled-vmap")
    {'streams': False, 'compiled': True}
    """
    return {"streams": not stacking.endswith("vmap"), "compiled": stacking.startswith("compiled")}


class ByRun(nn.Module):
    """R networks as one: images [R, B, C, H, W], or [B, C, H, W] seen by all runs → logits [R, B, K].

    Args:
        networks: alike but for their values; they are not touched.
        streams: call the networks one by one, each on its own stream, instead of all at once by `vmap`.
        compiled: compile the network for batches of the first size that is trained on; without streams, also for the
            first that is evaluated.

    >>> nets = [nn.Sequential(nn.Flatten(), nn.LayerNorm(4), nn.Linear(4, 2)) for _ in range(3)]
    >>> joint, x = ByRun(nets), torch.randn(3, 5, 1, 2, 2)
    >>> torch.allclose(joint(x)[1], nets[1](x[1]), atol=1e-6), [tuple(p.shape) for p in joint.parameters()]
    (True, [(3, 4), (3, 4), (3, 2, 4), (3, 2)])
    """

    def __init__(self, networks: Sequence[nn.Module], *, streams: bool = False, compiled: bool = False) -> None:
        super().__init__()
        check_alike(networks)
        self.num_runs, self.streams, self.compiled = len(networks), streams, compiled
        self.network = _joined(networks)
        self._quick: dict[bool, tuple[torch.Size, Callable[..., Tensor]]] = {}
        self.training = self.network.training
        self._head = head_name(networks[0])

    @property
    def head(self) -> nn.Module:
        """The last linear layer of all runs, `weight` [R, K, I] and `bias` [R, K]."""
        return self.network.get_submodule(self._head)

    def forward(self, images: Tensor) -> Tensor:
        """Images [R, B, C, H, W] or [B, C, H, W] → logits [R, B, K]."""
        shared = images.dim() == 4
        if not shared and (images.dim() != 5 or images.shape[0] != self.num_runs):
            allowed = f"[{self.num_runs}, B, C, H, W] or [B, C, H, W]"
            raise ValueError(f"images must be {allowed}, got {list(images.shape)}")
        if self.streams:
            return torch.stack(self._side_by_side(images, shared))
        return self._quickest(self._all_at_once, images)(self._tensors(), images)

    def _tensors(self) -> dict[str, Tensor]:
        return {**dict(self.network.named_parameters()), **dict(self.network.named_buffers())}

    def _call(self, tensors: dict[str, Tensor], images: Tensor) -> Tensor:
        return cast(Tensor, functional_call(self.network, tensors, (images,)))

    def _all_at_once(self, tensors: dict[str, Tensor], images: Tensor) -> Tensor:
        with RunAxis():
            return vmap(self._call, (0, None if images.dim() == 4 else 0), randomness="error")(tensors, images)

    def _side_by_side(self, images: Tensor, shared: bool) -> list[Tensor]:
        """Call the network with the tensors of each run; kernels of different runs may overlap on a GPU."""
        # `unbind` has one gradient, a stack; R slices would have R of the size of all runs. Nothing else is made for
        # all runs here: memory that several streams read must outlive them all, as parameters do.
        values = {name: value.unbind() for name, value in self.network.named_parameters()}
        values |= {name: tuple(value) for name, value in self.network.named_buffers()}
        call = self._quickest(self._call, images if shared else images[0]) if self.training else self._call
        main = torch.cuda.current_stream(images.device) if images.is_cuda else None
        logits = []
        for run in range(self.num_runs):
            tensors = {name: value[run] for name, value in values.items()}
            own = images if shared else images[run]
            if main is None:
                logits.append(call(tensors, own))
                continue
            side = _stream(images.device, run)
            side.wait_stream(main)
            with torch.cuda.stream(side):
                logits.append(call(tensors, own))
            images.record_stream(side)
        if main is not None:
            for run, each in enumerate(logits):
                main.wait_stream(_stream(images.device, run))
                each.record_stream(main)
        return logits

    def _quickest(self, call: Callable[..., Tensor], images: Tensor) -> Callable[..., Tensor]:
        """Return the call compiled for batches of the first size, to train or to evaluate: each takes a minute."""
        if not self.compiled:
            return call
        if self.training not in self._quick:
            self._quick[self.training] = (images.shape, _compiled(call, whole=not self.streams))
        shape, quick = self._quick[self.training]
        return quick if images.shape == shape else call

    def channels_last(self) -> ByRun:
        """Let the channels of every kernel [R, O, I, H, W] lie last in memory, as convolutions on a GPU want it."""
        for parameter in self.parameters():
            if parameter.dim() == 5:
                last = parameter.data.permute(0, 1, 3, 4, 2).contiguous()
                parameter.data = last.permute(0, 1, 4, 2, 3)
        return self

    def unstack(self, run: int) -> dict[str, Tensor]:
        """Copy run `run` out as the state dict of a plain network.

        >>> nets = [nn.Sequential(nn.Linear(2, 1)) for _ in range(3)]
        >>> torch.equal(ByRun(nets).unstack(2)["0.weight"], nets[2][0].weight)
        True
        """
        if not 0 <= run < self.num_runs:
            raise IndexError(f"run must be in [0, {self.num_runs}), got {run}")
        return {name: value.detach()[run].clone().contiguous() for name, value in self.network.state_dict().items()}


def _compiled(call: Callable[..., Tensor], *, whole: bool) -> Callable[..., Tensor]:
    """Compile a function of tensors by name and images.

    `whole`: record the operators that it calls, and those of its gradient, as `vmap` by our rules needs. Otherwise its
    code is compiled, which may depend on values.
    """

    def inside(tensors: dict[str, Tensor], images: Tensor) -> Tensor:
        return call(dict(tensors), images)  # those of a recorded call cannot be changed

    def outside(tensors: dict[str, Tensor], images: Tensor) -> Tensor:
        return inside(tensors, images)

    if whole:
        torch.compiler.allow_in_graph(inside)  # type: ignore[no-untyped-call]
    # PyTorch gives up on code that it compiled eight times, whatever the network: a copy has its own count.
    outside.__code__ = outside.__code__.replace()
    return torch.compile(outside, dynamic=False)


_STREAMS: dict[tuple[torch.device, int], torch.cuda.Stream] = {}


def _stream(device: torch.device, run: int) -> torch.cuda.Stream:
    if (device, run) not in _STREAMS:
        _STREAMS[device, run] = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    return _STREAMS[device, run]


def _joined(networks: Sequence[nn.Module]) -> nn.Module:
    """Copy the first network with every parameter and buffer replaced by those of all networks, [R, …]."""
    joint: dict[int, object] = {}
    for name, value in [*networks[0].named_parameters(), *networks[0].named_buffers()]:
        parameter = isinstance(value, nn.Parameter)
        each = [net.get_parameter(name) if parameter else net.get_buffer(name) for net in networks]
        stacked = torch.stack([tensor.detach() for tensor in each])
        joint[id(value)] = nn.Parameter(stacked, requires_grad=value.requires_grad) if parameter else stacked
    return copy.deepcopy(networks[0], joint)  # what deepcopy finds in its memo it takes as copied


# Which networks


def obstacle_by_run(net: nn.Module, images: Tensor, *, streams: bool = False, compiled: bool = False) -> str | None:
    """Why several such networks cannot be trained by `ByRun`; None if they can: one step of two of them is tried.

    `images` [B, C, H, W] are of any values. What draws random numbers while it trains is refused: the numbers of a run
    would depend on the other runs. For `compiled`, operators are recorded, but not compiled.

    >>> obstacle_by_run(nn.Sequential(nn.Flatten(), nn.Linear(4, 2), nn.Dropout()), torch.ones(2, 1, 2, 2))
    'the network draws random numbers while it trains'
    """
    pair = [_perturbed(net, seed) for seed in range(2)]
    joint = ByRun(pair, streams=streams)
    shown = torch.stack([images, images.flip(0) + 0.5])
    with torch.random.fork_rng():
        before = _random_state(images)
        plain = torch.stack([each(x) for each, x in zip(pair, shown, strict=True)])
        if not torch.equal(before, _random_state(images)):
            return "the network draws random numbers while it trains"
    try:
        if compiled and not streams:
            _record(joint, shown)
        logits = joint(shown)
        logits.square().sum().backward()
    except (RuntimeError, TypeError, ValueError, NotImplementedError) as error:
        return _reason(error)
    plain.square().sum().backward()  # type: ignore[no-untyped-call]
    return _difference(joint, pair, logits, plain)


# Parts of what `vmap` says of code that depends on values.
_OF_VALUES = ("data-dependent control flow", ".item() on a Tensor", "dynamic shape", "Cannot access data pointer")


def _reason(error: Exception) -> str:
    message = str(error) or type(error).__name__
    if any(words in message for words in _OF_VALUES):
        return "the code of the network depends on the values of tensors, which vmap does not allow"
    return message.splitlines()[0].removeprefix("cannot stack: ").rstrip(". ")


def _record(joint: ByRun, images: Tensor) -> None:
    """Call a network without values, as a compiler does; raise RuntimeError if it has values that it was not given."""
    with FakeTensorMode() as fake:
        tensors: dict[str, Tensor] = {name: fake.from_tensor(value) for name, value in joint._tensors().items()}
        try:
            joint._all_at_once(tensors, fake.from_tensor(images))
        except AssertionError as error:
            raise RuntimeError("the network has a tensor that is neither a parameter nor a buffer") from error


def _random_state(images: Tensor) -> Tensor:
    on_gpu = [torch.cuda.get_rng_state(images.device)] if images.is_cuda else []
    return torch.cat([torch.get_rng_state(), *on_gpu])


def _perturbed(net: nn.Module, seed: int) -> nn.Module:
    """Copy a network, in training mode, with its values changed a little, so that two of them differ."""
    generator = torch.Generator().manual_seed(seed)
    copied = copy.deepcopy(net).train()
    with torch.no_grad():
        for value in copied.parameters():
            value.add_(torch.rand(value.shape, generator=generator).to(value) * 0.02)
    return copied


def _difference(joint: ByRun, pair: Sequence[nn.Module], logits: Tensor, plain: Tensor) -> str | None:
    """Name the first result of a step in which a joint and plain networks differ by more than rounding."""
    if not _close(logits, plain, plain):
        return "its outputs for several runs at once are not those of each run"
    grads = {
        name: torch.stack(
            [torch.zeros_like(p) if (p := net.get_parameter(name)).grad is None else p.grad for net in pair]
        )
        for name, _ in joint.network.named_parameters()
    }
    largest = torch.stack([value.abs().max() for value in grads.values() if value.numel()])
    for name, value in joint.network.named_parameters():
        grad = torch.zeros_like(value) if value.grad is None else value.grad
        if not _close(grad, grads[name], largest):
            return f"the gradient of {name!r} for several runs at once is not that of each run"
    for name, buffer in joint.network.named_buffers():
        theirs = torch.stack([net.get_buffer(name) for net in pair])
        if not _close(buffer, theirs, theirs):
            return f"the buffer {name!r} is not updated as in a single run"
    return None


def _close(ours: Tensor, theirs: Tensor, scale: Tensor) -> bool:
    if ours.shape != theirs.shape or not ours.numel():
        return ours.shape == theirs.shape
    return bool((ours.double() - theirs.double()).abs().max() <= 1e-3 * scale.double().abs().max() + 1e-6)
