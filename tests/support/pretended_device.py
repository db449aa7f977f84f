"""A CUDA device that is not there: its tensors are computed on the CPU, but keep the manners of a real device.

Tensors of two places do not go together, a copy to the host that nobody waited for holds nothing yet, and everything
that makes the host wait is noted. Streams, memory and rounding are not pretended.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

aten = torch.ops.aten
PLACE = torch.device("cuda", 0)
# What reads a value, or makes a shape of values: the host has to wait for it.
READS = {
    aten._local_scalar_dense.default,
    aten._unique2.default,
    aten.bincount.default,
    aten.equal.default,
    aten.masked_select.default,
    aten.nonzero.default,
}
INDEXES = {aten.index.Tensor, aten.index_put.default, aten.index_put_.default}
waits: list[str] = []  # what made the host wait, since it was last cleared


class OnDevice(Tensor):
    """A tensor that says it lies on the device. PyTorch itself takes it for one on the CPU, and asks for no driver."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> OnDevice:
        found = Tensor._make_wrapper_subclass(
            cls, inner.shape, inner.stride(), inner.storage_offset(), dtype=inner.dtype, device="cpu"
        )
        found.inner = inner
        return found

    @property
    def device(self) -> torch.device:
        return PLACE

    @property
    def is_cuda(self) -> bool:
        return True

    def __repr__(self) -> str:
        return f"OnDevice({self.inner!r})"

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        _look(func, args, kwargs)
        inner_args, inner_kwargs = pytree.tree_map_only(OnDevice, lambda each: each.inner, (args, kwargs))
        found = func(*inner_args, **inner_kwargs)
        if func._schema.is_mutable:  # in place: what was given
            return kwargs.get("out", args[0]) if isinstance(found, Tensor) else found
        return pytree.tree_map_only(Tensor, OnDevice, found)


def _look(func, args, kwargs) -> None:
    """Note what waits, and refuse what mixes places: only single numbers, indices and copies may come from the host."""
    if func in READS:
        waits.append(str(func))
    tensors = [each for each in pytree.tree_leaves((args, kwargs)) if isinstance(each, Tensor)]
    if func is aten.copy_.default:
        if len({isinstance(each, OnDevice) for each in tensors}) > 1 and not (args[2:3] or (False,))[0]:
            waits.append(str(func))
        return
    if func in INDEXES:
        indices = [each for each in args[1] if each is not None]
        if any(each.dtype == torch.bool or not isinstance(each, OnDevice) for each in indices):
            waits.append(str(func))  # by way of nonzero, or of a copy
        tensors = [args[0], *args[2:3]]
    if any(not isinstance(each, OnDevice) and (each.dim() > 0 or each is args[0]) for each in tensors):
        raise RuntimeError(f"{func}: expected all tensors to be on the same device, but found cuda:0 and cpu.")


class _Pretending(TorchFunctionMode):
    """Sends to the device what asks for it: factories, `to`, `cuda`, `cpu` and `numpy`."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if func in (F.one_hot, Tensor.nanquantile) and isinstance(args[0], OnDevice):  # makes tensors inside of PyTorch
            return OnDevice(func(args[0].inner, *args[1:], **kwargs))
        if func is Tensor.to:
            return _to(*args, **kwargs)
        if func is Tensor.cuda:
            return _to(args[0], PLACE, *args[2:], **kwargs)
        if func is Tensor.cpu:
            return _to(args[0], "cpu")
        if func in (Tensor.tolist, Tensor.numpy) and isinstance(args[0], OnDevice):
            if func is Tensor.numpy:
                raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() first.")
            waits.append("tolist")
            return args[0].inner.tolist()
        if func is torch.as_tensor and isinstance(args[0], Tensor):
            return _to(args[0], **{name: each for name, each in kwargs.items() if each is not None})
        if kwargs.get("device") is None or torch.device(kwargs["device"]).type != PLACE.type:
            return func(*args, **kwargs)
        if func in (torch.as_tensor, torch.tensor):
            waits.append(f"{func.__name__} from the host")
        found = func(*args, **{**kwargs, "device": "cpu"})
        return found if isinstance(found, OnDevice) else OnDevice(found)


def _to(value: Tensor, *args: object, non_blocking: bool = False, copy: bool = False, **kwargs: object) -> Tensor:
    """Do what `Tensor.to` does, between the places and within one."""
    dtype, device = kwargs.get("dtype"), kwargs.get("device")
    for each in args:
        if isinstance(each, Tensor):
            dtype, device = each.dtype, each.device
        elif isinstance(each, torch.dtype):
            dtype = each
        elif isinstance(each, bool):
            non_blocking = each
        elif each is not None:
            device = each
    here = isinstance(value, OnDevice)
    there = here if device is None else torch.device(device).type == PLACE.type
    if here == there:
        return value.to(dtype or value.dtype, copy=copy)
    if not non_blocking:
        waits.append(f"a copy from {'device to host' if here else 'host to device'}")
    found = (value.detach().inner if here else value.detach()).to(dtype or value.dtype, copy=True)
    if there:
        return OnDevice(found)
    if non_blocking:  # pinned memory that nothing was written to yet
        return ~found if found.dtype == torch.bool else torch.full_like(found, 99)
    return found


@contextmanager
def pretended_device() -> Iterator[None]:
    """Let there be a device `"cuda"`, and nothing that has waited for it."""
    waits.clear()
    with _Pretending():
        yield


@contextmanager
def no_waiting() -> Iterator[None]:
    """Fail if anything within makes the host wait for the device."""
    waits.clear()
    yield
    assert not waits, waits
