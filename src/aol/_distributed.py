"""Communication of processes: sums, and lists of uneven length. Integers stay integers.

Without an initialised `torch.distributed`, or with one process, all functions return their input.
"""

from __future__ import annotations

import hashlib
from typing import TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor

Group: TypeAlias = "dist.ProcessGroup | None"


def world(group: Group = None) -> tuple[int, int]:
    """Return this process's rank and the number of processes."""
    if not (dist.is_available() and dist.is_initialized()):
        return 0, 1
    return dist.get_rank(group), dist.get_world_size(group)


def _device(group: Group, own: torch.device) -> torch.device:
    """Return the device for communication: that of the tensor, if the backend supports it."""
    spoken = [pair.split(":")[0] for pair in str(dist.get_backend_config(group)).split(",")]
    if own.type in spoken:
        return own
    return torch.device("cuda", torch.cuda.current_device()) if "cuda" in spoken else torch.device("cpu")


def total(value: Tensor, group: Group = None) -> Tensor:
    """Return the sum over all processes, on every process."""
    if world(group)[1] == 1:
        return value
    moved = value.detach().to(_device(group, value.device), copy=True)
    dist.all_reduce(moved, group=group)
    return moved.to(value.device)


def largest(value: Tensor, group: Group = None) -> Tensor:
    """Return the largest number of all processes in each place, on every process."""
    if world(group)[1] == 1:
        return value
    moved = value.detach().to(_device(group, value.device), copy=True)
    dist.all_reduce(moved, dist.ReduceOp.MAX, group=group)
    return moved.to(value.device)


def gather(value: Tensor, group: Group = None) -> list[Tensor]:
    """Return the tensors of all processes, in rank order; all must have the same shape."""
    size = world(group)[1]
    if size == 1:
        return [value]
    moved = value.detach().to(_device(group, value.device)).contiguous()
    found = [torch.empty_like(moved) for _ in range(size)]
    dist.all_gather(found, moved, group=group)
    return [each.to(value.device) for each in found]


def agree(what: str, epoch: int, settings: dict[str, object], device: torch.device, group: Group = None) -> None:
    """Raise ValueError on all processes unless all have the same settings and epoch."""
    if world(group)[1] == 1:
        return
    mark = int.from_bytes(hashlib.sha256(repr(settings).encode()).digest()[:7], "big")
    found = torch.stack(gather(torch.tensor([mark, epoch], device=device), group)).cpu()
    if bool((found[:, 0] != found[0, 0]).any()):
        raise ValueError(
            f"Processes disagree: all must have {what} with the same settings and labels. This process: {settings}."
        )
    if bool((found[:, 1] != found[0, 1]).any()):
        raise ValueError(f"Processes disagree: their {what} are in the epochs {found[:, 1].tolist()}.")


def gather_lists(values: tuple[Tensor, ...], lengths: list[int], group: Group = None) -> list[tuple[Tensor, ...]]:
    """Return the tensors `[n, ...]` of all processes, in rank order; those of process r have n = `lengths[r]`."""
    longest = max(lengths)
    columns = []
    for value in values:
        padded = value.new_zeros((longest, *value.shape[1:]))
        padded[: len(value)] = value
        columns.append([each[:size] for each, size in zip(gather(padded, group), lengths, strict=True)])
    return list(zip(*columns, strict=True))
