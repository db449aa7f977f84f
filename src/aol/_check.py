"""Checks of arguments, in one voice: a message names the argument, what is allowed and what was given."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from aol._values import choice as choice
from aol._values import did_you_mean as did_you_mean
from aol._values import number as number
from aol._values import shown as shown
from aol._values import whole as whole

Integers: TypeAlias = Tensor | npt.NDArray[np.integer] | Sequence[int] | range
Truths: TypeAlias = Tensor | npt.NDArray[np.bool_] | Sequence[bool]
Numbers: TypeAlias = Tensor | npt.NDArray[np.number] | Sequence[float]
Rate: TypeAlias = float | Tensor | npt.NDArray[np.floating] | Sequence[float]

MOST_CLASSES = 1 << 24
HASH = "hash of labels"


def moved(value: Tensor, device: torch.device | None) -> Tensor:
    """Return a tensor on a device. A non-blocking copy to the CPU could be read too early; one from the CPU cannot."""
    return value if device is None else value.to(device, non_blocking=device.type != "cpu")


def readable(value: Tensor) -> bool:
    """Return whether values can be read: without synchronising a GPU, and without breaking a compiled graph."""
    return value.device.type == "cpu" and not torch.compiler.is_compiling()


def _tensor(name: str, value: object, kind: str, device: torch.device | None = None) -> Tensor:
    """Return "numbers", "whole numbers" or "true or false" as a tensor of their own type without gradient."""
    given, wanted = value, f"{name} must be {kind} (a tensor, an array or a list), not"
    try:
        if not isinstance(value, Tensor):
            # Through NumPy, because torch would round Python floats to float32, and use the user's default device.
            array = np.asarray(value, order="C")
            if array.size == 0 and kind != "numbers" and not isinstance(value, np.ndarray):
                array = array.astype(np.int64)  # [] has the type of floats
            value = torch.from_numpy(array if array.flags.writeable else array.copy())
        tensor = moved(value, device).detach()
    except (TypeError, ValueError, OverflowError) as error:
        raise TypeError(f"{wanted} {shown(given)}.") from error
    is_bool, is_float = tensor.dtype == torch.bool, tensor.is_floating_point()
    if tensor.is_complex() or (is_float and kind != "numbers") or (is_bool and kind != "true or false"):
        raise TypeError(f"{wanted} {shown(given)}.")
    return tensor


def integers(name: str, value: object, *, device: torch.device | None = None) -> Tensor:
    """Return `value` as an int64 tensor, or raise TypeError if it holds anything but whole numbers."""
    return _tensor(name, value, "whole numbers", device).to(torch.int64)


def real(name: str, value: object, *, device: torch.device | None = None) -> Tensor:
    """Return `value` as a tensor of its own type, or raise TypeError if it holds anything but numbers."""
    return _tensor(name, value, "numbers", device)


def truths(name: str, value: object, *, device: torch.device | None = None) -> tuple[Tensor, Tensor | None]:
    """Return `value` as a bool tensor and, of integers on a GPU, whether any is not 0 or 1, `bool []`."""
    given = _tensor(name, value, "true or false")
    if given.dtype == torch.bool:
        return moved(given, device), None
    neither = ((given.to(torch.int64) < 0) | (given.to(torch.int64) > 1)).any()
    if readable(given) and bool(neither):
        raise ValueError(f"{name} must be true or false for each item; a number must be 0 or 1.")
    return moved(given, device).to(torch.bool), None if readable(given) else moved(neither, device)


def listed(name: str, value: Any) -> Sequence[Any]:
    """Return names, or raise TypeError for what has no order, or one text, whose letters would be the names."""
    if isinstance(value, str | set | frozenset) or not (hasattr(value, "__len__") and hasattr(value, "__iter__")):
        raise TypeError(f"{name} must be a list of names, not {shown(value)}.")
    return list(value)


def within(name: str, index: Tensor, size: int, what: str) -> None:
    """Raise IndexError unless all numbers are in [0, size). Reads the tensor: for the CPU."""
    low, high = (int(end) for end in index.aminmax()) if index.numel() else (0, 0)
    if low < 0 or high >= max(size, 1):
        raise IndexError(f"{name} must lie in 0 to {size - 1} ({what}), not {low if low < 0 else high}.")


def broadcasts(name: str, value: Tensor, other: str, shape: torch.Size) -> None:
    """Raise ValueError unless `value` broadcasts with that shape."""
    try:
        np.broadcast_shapes(value.shape, shape)
    except ValueError as error:
        allowed = f"that broadcasts with {other} {list(shape)}"
        raise ValueError(f"{name} must have a shape {allowed}, not {list(value.shape)}.") from error


def finite(name: str, value: object, *, device: torch.device | None = None) -> Tensor:
    """Return `value` as a float64 tensor of finite numbers that are zero or more."""
    numbers = real(name, value, device=device).to(torch.float64)
    if numbers.dim() == 0 or numbers.shape[-1] == 0:
        raise ValueError(f"{name} must hold at least one number in its last dimension, not {shown(numbers)}.")
    wrong = ~(torch.isfinite(numbers) & (numbers >= 0))
    if bool(wrong.any()):
        raise ValueError(f"{name} must be finite numbers of zero or more, not {numbers[wrong][0].item():g}.")
    return numbers


def counts(value: object) -> Tensor:
    """Return class counts as `finite` does; ValueError for a pandas Series of another order than the classes."""
    index: Any = getattr(value, "index", None) if getattr(value, "ndim", 1) == 1 else None
    if hasattr(index, "dtype") and index.dtype.kind in "iu" and list(index) != list(range(len(index))):
        raise ValueError(
            f"counts must be in the order of the classes, but this Series has the index {shown(list(index))}: use "
            "counts.reindex(range(num_classes), fill_value=0)."
        )
    return finite("counts", value)


def rates(name: str, value: object, low: float, high: float, *, open_above: bool = False) -> Tensor:
    """Return a number, or a vector with one number per run, as a float64 tensor of 0 or 1 dimensions."""
    wanted = f"{name} must be a number in [{low:g}, {high:g}{')' if open_above else ']'}, or a vector with one per run"
    if isinstance(value, bool):
        raise TypeError(f"{wanted}, not {value}.")
    numbers = real(name, value).to("cpu", torch.float64, copy=True)
    if numbers.dim() > 1 or numbers.numel() == 0:
        raise ValueError(f"{wanted}, not {shown(value)}.")
    wrong = ~((numbers >= low) & ((numbers < high) if open_above else (numbers <= high)))
    if bool(wrong.any()):
        raise ValueError(f"{wanted}, not {numbers[wrong][0].item():g}.")
    return numbers


def labels(value: object, num_classes: int | None) -> tuple[Tensor, int]:
    """Return labels as a vector of their own type, not copied, with the number of classes, given or counted."""
    label = _tensor("labels", value, "whole numbers")
    if label.dim() != 1 or label.numel() == 0:
        raise ValueError(f"labels must be a vector with one label per sample, not {shown(label)}.")
    low, high = (int(end) for end in label.to(torch.int64).aminmax())
    size = MOST_CLASSES if num_classes is None else whole("num_classes", num_classes, 1, MOST_CLASSES)
    if low < 0 or high >= size:
        wrong = low if low < 0 else high
        place = int((label.to(torch.int64) == wrong).nonzero()[0])
        raise ValueError(f"labels must lie in 0 to num_classes - 1 ({size - 1}), not {wrong} (sample {place}).")
    return label, high + 1 if num_classes is None else size


def fingerprint(value: Tensor) -> str:
    """Return a hash of the values of an integer tensor, whatever its type."""
    return hashlib.sha256(value.to("cpu", torch.int64).contiguous().numpy().data).hexdigest()


def same_settings(mine: Mapping[str, object], given: Any) -> None:
    """Raise ValueError unless a state dict was written by an object with the same settings."""
    what = mine["kind"]
    if not isinstance(given, Mapping):
        raise TypeError(f"A state of {what} must be a dict from its state_dict(), not {shown(given)}.")
    for key, value in mine.items():
        if key not in given or isinstance(given[key], Tensor | np.ndarray) or given[key] != value:
            theirs = f"its {key} is {shown(given.get(key))}, that of this {what} {shown(value)}"
            raise ValueError(f"This state does not fit: {'it has other labels' if key == HASH else theirs}.")


def state_value(state: Mapping[str, Any], key: str, like: int | Tensor, *, any_size: bool = False) -> Any:
    """Return a whole number of zero or more, or a tensor like `like`, of a state dict; or raise ValueError."""
    value: Any = state.get(key)
    if isinstance(like, Tensor):
        fits = isinstance(value, Tensor) and (value.dtype, value.layout) == (like.dtype, torch.strided)
        fits = fits and not value.is_meta and (value.dim() == like.dim() if any_size else value.shape == like.shape)
    else:
        fits = type(value) is int and value >= 0
    if not fits:
        wanted = shown(like) if isinstance(like, Tensor) else "a whole number of 0 or more"
        raise ValueError(f"This state does not fit: {key!r} must be {wanted}, not {shown(value)}.")
    return value
