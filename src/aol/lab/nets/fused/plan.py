"""Reads a stacked ResNet or CNN as a list of convolutions with their norms, or says why the kernels cannot run it."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from aol.lab.nets.cnn import CNN
from aol.lab.nets.layers import HalvingShortcut
from aol.lab.nets.resnet import BasicBlock, ResNet
from aol.lab.nets.stacked import Stacked
from aol.lab.nets.stacked_layers import StackedBatchNorm, StackedConv2d

CHANNELS = (16, 32, 64)  # powers of two that the tensor cores take and registers hold
STEM_CHANNELS = 7  # 9·7 values of a patch still fit in one product of 64


@dataclass(frozen=True)
class Unit:
    """A 3×3 convolution and the batch norm behind it, of R runs."""

    conv: StackedConv2d
    norm: StackedBatchNorm

    @property
    def stride(self) -> int:
        """How much smaller its output is than its input."""
        return int(self.conv.stride[0])


@dataclass(frozen=True)
class Stage:
    """Units between two halvings: `lead` is the one that halves, or the stem; `units` are those of stride 1 behind it.

    Two units are a block; behind a lead that halves, the first unit ends the block that the lead began.
    """

    lead: Unit
    units: tuple[Unit, ...]


@dataclass(frozen=True)
class Plan:
    """Stem, then blocks: two units closed by a shortcut, which follows from the stride of the first, or one without."""

    runs: int
    stem: Unit
    blocks: tuple[tuple[Unit, ...], ...]

    @property
    def units(self) -> list[Unit]:
        """All units in the order the data meets them."""
        return [self.stem, *(unit for block in self.blocks for unit in block)]

    @property
    def stages(self) -> list[Stage]:
        """The blocks, parted where the map is halved."""
        found = [Stage(self.stem, ())]
        for first, *rest in self.blocks:
            if first.stride == 2:
                found.append(Stage(first, tuple(rest)))
            else:
                found[-1] = Stage(found[-1].lead, (*found[-1].units, first, *rest))
        return found

    def alike(self, channels: int) -> list[Unit]:
        """All units of stride 1 from so many channels to as many, in order."""
        return [u for u in self.units if u.stride == 1 and u.conv.in_channels == u.conv.out_channels == channels]

    @property
    def halvings(self) -> int:
        """How often height and width must be divisible by two."""
        return sum(first.stride == 2 for first, *_ in self.blocks)

    def refuses(self, height: int, width: int) -> str | None:
        """Why images of this size cannot be halved so often, in words; None if they can."""
        multiple = 2**self.halvings
        if height % multiple or width % multiple:
            return f"height and width must be multiples of {multiple}, got {height}×{width}"
        return None

    @property
    def residual(self) -> bool:
        """Whether every block has a shortcut."""
        return all(len(block) == 2 for block in self.blocks)

    def parameters(self) -> list[Tensor]:
        """Three tensors a unit: convolution's weight, norm's weight, norm's bias."""
        found: list[Tensor] = []
        for unit in self.units:
            assert unit.norm.weight is not None
            assert unit.norm.bias is not None
            found += [unit.conv.weight, unit.norm.weight, unit.norm.bias]
        return found


class CannotFuse(TypeError):  # noqa: N818 (a sentence, not a noun)
    """The kernels cannot run this network; the message says why."""


def _unit(conv: nn.Module, norm: nn.Module, where: str) -> Unit:
    if not isinstance(conv, StackedConv2d) or not isinstance(norm, StackedBatchNorm):
        raise CannotFuse(f"{where} is not a stacked convolution with a batch norm")
    square = (tuple(conv.weight.shape[2:]), conv.padding, conv.dilation) == ((3, 3), (1, 1), (1, 1))
    if not square or conv.stride not in ((1, 1), (2, 2)) or conv.groups != 1 or conv.bias is not None:
        raise CannotFuse(f"{where} is not a plain 3×3 convolution, padded by one, without bias")
    if norm.weight is None or norm.running_mean is None:
        raise CannotFuse(f"{where} has a batch norm without scale or without running statistics")
    if conv.out_channels not in CHANNELS:
        raise CannotFuse(f"{where} has {conv.out_channels} channels, the kernels know {CHANNELS}")
    return Unit(conv, norm)


def _block(block: nn.Module, where: str) -> tuple[Unit, Unit]:
    if not isinstance(block, BasicBlock):
        raise CannotFuse(f"{where} is a {type(block).__name__}, not a BasicBlock")
    first = _unit(block.conv1, block.norm1, f"{where}.conv1")
    second = _unit(block.conv2, block.norm2, f"{where}.conv2")
    extra = first.conv.out_channels - first.conv.in_channels
    shortcut = block.shortcut
    if first.stride == 1 and extra == 0 and isinstance(shortcut, nn.Identity):
        return first, second
    if first.stride == 2 and extra > 0 and isinstance(shortcut, HalvingShortcut) and shortcut.extra == extra:
        return first, second
    raise CannotFuse(f"{where} has a shortcut with parameters, or none that fits its stride")


def _stem(conv: nn.Module, norm: nn.Module) -> Unit:
    stem = _unit(conv, norm, "stem")
    if stem.stride != 1 or stem.conv.in_channels > STEM_CHANNELS:
        raise CannotFuse(f"the stem is strided or takes more than {STEM_CHANNELS} channels")
    return stem


def plan(net: nn.Module) -> Plan:
    """Read a `Stacked` ResNet-32 (any depth) or CNN, of 16 to 64 channels, as a plan, or raise CannotFuse."""
    network = net.network if isinstance(net, Stacked) else None
    if isinstance(net, Stacked) and type(network) is CNN:
        rest = ((network.conv2, network.norm2, "conv2"), (network.conv3, network.norm3, "conv3"))
        return Plan(net.num_runs, _stem(network.conv1, network.norm1), tuple((_unit(*each),) for each in rest))
    if not isinstance(net, Stacked) or not isinstance(network, ResNet):
        raise CannotFuse("not a stack of residual networks, nor of small CNNs")
    stem = network.stem
    if not isinstance(stem, nn.Sequential) or len(stem) != 3 or not isinstance(stem[2], nn.ReLU):
        raise CannotFuse("the stem is not a convolution, a norm and a relu")
    blocks = [
        _block(block, f"stages.{s}.{b}")
        for s, stage in enumerate(network.stages.children())
        for b, block in enumerate(stage.children())
    ]
    return Plan(net.num_runs, _stem(stem[0], stem[1]), tuple(blocks))
