"""Checks of arguments. A message names the argument, the allowed values and the given value.

Nothing here changes state; callers check all arguments first and then change their state.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from aol._values import choice as choice
from aol._values import number as number
from aol._values import shown as shown
from aol._values import whole as whole

Integers: TypeAlias = Tensor | npt.NDArray[np.integer] | Sequence[int] | range
Truths: TypeAlias = Tensor | npt.NDArray[np.bool_] | Sequence[bool]
Numbers: TypeAlias = Tensor | npt.NDArray[np.number] | Sequence[float]
Rate: TypeAlias = float | Tensor | npt.NDArray[np.floating] | Sequence[float]

MOST_CLASSES = 1 << 24
_MOST_INFERRED = 1 << 16  # classes counted from labels, unless there are more samples; more must be asked for
_MOST_TIMES = 1 << 40
_KINDS = {
    "whole numbers": lambda value: not (value.is_floating_point() or value.is_complex() or value.dtype == torch.bool),
    "numbers": lambda value: not (value.is_complex() or value.dtype == torch.bool),
    "true or false for each item": lambda value: not (value.is_floating_point() or value.is_complex()),
}


def moved(value: Tensor, device: torch.device | None) -> Tensor:
    """Return a tensor on a device, without synchronisation where that is safe.

    A non-blocking copy to the CPU could be read too early; one from the CPU cannot.
    """
    return value if device is None else value.to(device, non_blocking=device.type != "cpu")


def readable(value: Tensor) -> bool:
    """Return whether values can be read: without synchronising a GPU, and without breaking a compiled graph."""
    return value.device.type == "cpu" and not torch.compiler.is_compiling()


def _tensor(name: str, value: object, kind: str, device: torch.device | None = None) -> Tensor:
    """Return values of one of `_KINDS` as a tensor of their own type without gradient, or raise TypeError."""
    wanted = f"{kind} (a tensor, an array or a list)"
    if isinstance(value, Tensor) and (value.layout != torch.strided or value.device.type == "meta"):
        raise TypeError(f"{name} must be a dense tensor with values, not {value.layout} on {value.device}.")
    empty = False
    try:
        if not isinstance(value, Tensor):
            # Through NumPy, because torch would round Python floats to float32, and use the user's default device.
            array = np.asarray(value, order="C")
            empty = array.size == 0 and not isinstance(value, np.ndarray)  # [] has the type of floats
            value = torch.from_numpy(array if array.flags.writeable else array.copy())
        tensor = moved(value, device).detach()
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise TypeError(f"{name} must be {wanted}, not {shown(value)}.") from error
    if empty and kind != "numbers":
        return tensor.to(torch.int64)
    if not _KINDS[kind](tensor):
        raise TypeError(f"{name} must be {wanted}, not {shown(tensor)}.")
    return tensor


def integers(name: str, value: object, *, device: torch.device | None = None) -> Tensor:
    """Return `value` as an int64 tensor, or raise TypeError if it holds anything but whole numbers."""
    return _tensor(name, value, "whole numbers", device).to(torch.int64)


def real(name: str, value: object, *, device: torch.device | None = None) -> Tensor:
    """Return `value` as a tensor of its own type, or raise TypeError if it holds anything but numbers."""
    return _tensor(name, value, "numbers", device)


def truths(name: str, value: object, *, device: torch.device | None = None) -> tuple[Tensor, Tensor | None]:
    """Return `value` as a bool tensor and, of integers on a GPU, whether any is not 0 or 1, `bool []`."""
    given = _tensor(name, value, "true or false for each item")
    if given.dtype == torch.bool:
        return moved(given, device), None
    neither = ((given.to(torch.int64) < 0) | (given.to(torch.int64) > 1)).any()
    if readable(given):
        if bool(neither):
            raise ValueError(f"{name} must be true or false for each item; a number must be 0 or 1.")
        return moved(given, device).to(torch.bool), None
    return moved(given, device).to(torch.bool), moved(neither, device)


def neither_true_nor_false() -> ValueError:
    """Return the error of `advance` for numbers other than 0 and 1 that `observe` was given as `correct`."""
    return ValueError(
        "correct must be true or false for each item, but observe() was given other numbers since the last advance(): "
        "was it given predicted classes? All answers of those calls were ignored. Call advance() again to continue "
        "without them."
    )


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
    """Return class counts as `finite` does; a pandas Series must be in the order of the classes."""
    return finite("counts", in_class_order(value))


def in_class_order(value: object) -> object:
    """Return class counts; ValueError for a pandas Series of another order, as `value_counts()` returns."""
    index = getattr(value, "index", None) if getattr(value, "ndim", 1) == 1 else None
    if getattr(getattr(index, "dtype", None), "kind", "") in ("i", "u"):
        known = np.asarray(index).tolist()
        if known != list(range(len(known))):
            raise ValueError(
                f"counts must be in the order of the classes, but this Series has the index {shown(known)}: use "
                "counts.reindex(range(num_classes), fill_value=0)."
            )
    return value


def rates(name: str, value: object, low: float, high: float, *, open_above: bool = False) -> Tensor:
    """Return a number, or a vector with one number per run, as a float64 tensor of 0 or 1 dimensions."""
    wanted = f"a number in [{low:g}, {high:g}{')' if open_above else ']'}, or a vector with one per run"
    if isinstance(value, bool):
        raise TypeError(f"{name} must be {wanted}, not {shown(value)}.")
    numbers = real(name, value).to("cpu", torch.float64, copy=True)
    if numbers.dim() > 1 or numbers.numel() == 0:
        raise ValueError(f"{name} must be {wanted}, not {shown(value)}.")
    wrong = ~((numbers >= low) & ((numbers < high) if open_above else (numbers <= high)))
    if bool(wrong.any()):
        raise ValueError(f"{name} must be {wanted}, not {numbers[wrong][0].item():g}.")
    return numbers


def device(value: torch.device | str | None) -> torch.device | None:
    """Return a device of this machine, or raise ValueError."""
    try:
        return None if value is None else torch.empty(0, device=value).device
    except (RuntimeError, TypeError, AssertionError, NotImplementedError) as error:
        raise ValueError(f"device must be one that this machine has, not {shown(value)}.") from error


def labels(value: object, num_classes: int | None) -> tuple[Tensor, int]:
    """Return labels as a vector of their own type, not copied, with the number of classes, given or counted."""
    label = _tensor("labels", value, "whole numbers")
    if label.dim() != 1 or label.numel() == 0:
        raise ValueError(f"labels must be a vector with one label per sample, not {shown(label)}.")
    low, high = (int(end) for end in label.to(torch.int64).aminmax())
    bound = max(_MOST_INFERRED, label.numel()) if num_classes is None else whole("num_classes", num_classes, 1)
    if low < 0 or high >= bound:
        why = "unless num_classes is given" if num_classes is None else "as num_classes says"
        wrong = low if low < 0 else high
        place = int((label.to(torch.int64) == wrong).nonzero()[0])
        raise ValueError(f"labels must lie in 0 to {bound - 1}, {why}, not {wrong} (sample {place}).")
    return label, high + 1 if num_classes is None else whole("num_classes", num_classes, 1, MOST_CLASSES)


def times(value: object, shape: Sequence[int], device: torch.device) -> Tensor:
    """Return how often each prediction counts, int64, of the shape of the labels; sums of it must not wrap."""
    often = integers("times", value, device=device)
    if often.shape != torch.Size(shape):
        raise ValueError(f"times must have the shape of label, {list(shape)}, not {list(often.shape)}.")
    if readable(often) and not bool(is_count(often).all()):
        raise ValueError(f"times must lie in 0 to {_MOST_TIMES}, not {int(often[~is_count(often)][0])}.")
    return often


def is_count(value: Tensor) -> Tensor:
    """Return which numbers are counts as `times` takes them; for those that it could not read."""
    return (value >= 0) & (value <= _MOST_TIMES)


def within(name: str, index: Tensor, size: int, what: str) -> None:
    """Raise IndexError unless all numbers are in [0, size). Reads the tensor: for the CPU."""
    low, high = (int(end) for end in index.aminmax()) if index.numel() else (0, 0)
    if low < 0 or high >= max(size, 1):
        raise IndexError(f"{name} must lie in 0 to {size - 1} ({what}), not {low if low < 0 else high}.")


def same_labels(where: Tensor, own: Tensor, label: object) -> None:
    """Raise ValueError where labels differ from `own [N]`, of the samples `where`; samples outside may."""
    given = integers("label", label, device=own.device)
    if given.shape != where.shape:
        raise ValueError(f"label must have the shape {list(where.shape)} of index, not {list(given.shape)}.")
    mine = own[where.clamp(0, own.numel() - 1)].to(torch.int64)
    wrong = (mine != given) & (where >= 0) & (where < own.numel())
    if bool(wrong.any()):
        sample, here, there = (int(value[wrong][0]) for value in (where, mine, given))
        raise ValueError(
            f"label must be the class of each sample, but differs for {int(wrong.sum()):,} of {wrong.numel():,}: "
            f"sample {sample} has class {here} in these ages, and label {there} was given. Are the data in another "
            "order, or is index not the number of a sample?"
        )


# State dicts


def fingerprint(value: Tensor) -> str:
    """Return a hash of the values of an integer tensor, whatever its type."""
    return hashlib.sha256(value.to("cpu", torch.int64).contiguous().numpy().data).hexdigest()


def same_settings(what: str, mine: Mapping[str, object], given: Any) -> None:
    """Raise ValueError unless a state dict was written by an object with the same settings."""
    if not isinstance(given, Mapping):
        raise TypeError(f"A state of {what} must be a dict from its state_dict(), not {shown(given)}.")
    for key, value in mine.items():
        if key not in given:
            raise ValueError(f"This is not a state of {what}: it has no {key!r}.")
        if isinstance(given[key], Tensor | np.ndarray) or given[key] != value:
            if key == "labels":  # a hash, which means nothing to a reader
                raise ValueError(f"This state does not fit: it was made with other labels than those of this {what}.")
            theirs = f"its {key} is {shown(given[key])}, that of this {what} {shown(value)}"
            raise ValueError(f"This state does not fit: {theirs}.")


def state_value(what: str, state: Mapping[str, Any], key: str, like: int | Tensor, *, any_size: bool = False) -> Any:
    """Return a whole number of zero or more, or a tensor like `like`, of a state dict; or raise ValueError."""
    value: Any = state.get(key)
    if isinstance(like, Tensor):
        fits = isinstance(value, Tensor) and value.dtype == like.dtype
        fits = fits and (value.dim() == like.dim() if any_size else value.shape == like.shape)
    else:
        fits = type(value) is int and value >= 0
    if not fits:
        wanted = shown(like) if isinstance(like, Tensor) else "a whole number of 0 or more"
        raise ValueError(f"This state of {what} does not fit: {key!r} must be {wanted}, not {shown(value)}.")
    return value
