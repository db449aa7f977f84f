"""Checks of arguments. A message names the argument, the allowed values and the given value.

Nothing here changes state; callers check all arguments first and then change their state.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

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


MOST_INFERRED = 1 << 16  # classes counted from labels, unless there are more samples; more must be asked for
MOST_CLASSES = 1 << 24
_MOST_TIMES = 1 << 40
_BLOCK = 1 << 20  # numbers converted at once: labels may be more than fits in memory as int64


def dense(name: str, value: Tensor) -> Tensor:
    """Return a tensor, or raise TypeError if it is sparse or has no values."""
    if value.layout != torch.strided or value.device.type == "meta":
        kind = "one on the meta device" if value.device.type == "meta" else f"a sparse one ({value.layout})"
        raise TypeError(f"{name} must be a dense tensor with values, not {kind}.")
    return value


def _tensor(name: str, value: object, wanted: str, device: torch.device | None) -> Tensor:
    if isinstance(value, Tensor):
        dense(name, value)
    try:
        if not isinstance(value, Tensor):
            # Through NumPy, because torch would round Python floats to float32.
            value = np.asarray(value, order="C")
            # Not with as_tensor, which would use the user's default device.
            value = torch.from_numpy(value if value.flags.writeable else value.copy())
        return moved(value, device).detach()  # ages and weights get no gradient
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise TypeError(f"{name} must be {wanted}, not {shown(value)}.") from error


def moved(value: Tensor, device: torch.device | None) -> Tensor:
    """Return a tensor on a device, without synchronisation where that is safe.

    A non-blocking copy to the CPU could be read too early; one from the CPU cannot.
    """
    return value if device is None else value.to(device, non_blocking=device.type != "cpu")


def integers(name: str, value: object, *, device: torch.device | None = None) -> Tensor:
    """Return `value` as an int64 tensor, or raise TypeError if it holds anything but whole numbers."""
    return _integers(name, value, device).to(torch.int64)


def _integers(name: str, value: object, device: torch.device | None = None) -> Tensor:
    """Return whole numbers as a tensor of their own type."""
    wanted = "whole numbers (a tensor, an array or a list)"
    found = _tensor(name, value, wanted, device)
    if found.numel() == 0 and not isinstance(value, Tensor | np.ndarray):
        return found.to(torch.int64)
    if found.is_floating_point() or found.is_complex() or found.dtype == torch.bool:
        raise TypeError(f"{name} must be {wanted}, not {shown(found)}.")
    return found


def truths(name: str, value: object, *, device: torch.device | None = None, wait: bool = False) -> Tensor:
    """Return `value` as a bool tensor. Integers must be 0 or 1: on a GPU this is checked with `wait` only."""
    return unread_truths(name, value, device=device, wait=wait)[0]


def unread_truths(
    name: str, value: object, *, device: torch.device | None = None, wait: bool = False
) -> tuple[Tensor, Tensor | None]:
    """Return `value` as `truths` does and, of integers that were not read, whether any is not 0 or 1, `bool []`."""
    wanted = "true or false for each item (a bool tensor, array or list)"
    given = _tensor(name, value, wanted, None)
    found = moved(given, device)
    if found.dtype == torch.bool or (found.numel() == 0 and not isinstance(value, Tensor | np.ndarray)):
        return found.to(torch.bool), None
    if found.is_floating_point() or found.is_complex():
        raise TypeError(f"{name} must be {wanted}, not {shown(found)}.")
    # As int64: other unsigned types than uint8 cannot be compared.
    whole = (given if readable(given) else found).to(torch.int64)
    if not (wait or readable(whole)):
        return found.to(torch.bool), ((whole < 0) | (whole > 1)).any()
    if why := Bounds(0, 1).refuse(whole):
        raise ValueError(f"{name} must be {wanted}; a number {why}.")
    return found.to(torch.bool), None


def neither_true_nor_false() -> ValueError:
    """Return the error of `advance` for numbers other than 0 and 1 that `observe` was given as `correct`."""
    return ValueError(
        "correct must be true or false for each item, but observe() was given other numbers since the last advance(): "
        "was it given predicted classes? All answers of those calls were ignored. Call advance() again to continue "
        "without them."
    )


def real(name: str, value: object, *, device: torch.device | None = None) -> Tensor:
    """Return `value` as a tensor of its own type, or raise TypeError if it holds anything but numbers."""
    wanted = "numbers (a tensor, an array or a list)"
    found = _tensor(name, value, wanted, device)
    if found.is_complex() or found.dtype == torch.bool:
        raise TypeError(f"{name} must be {wanted}, not {shown(value)}.")
    return found


def broadcasts(name: str, value: Tensor, other: str, shape: torch.Size) -> None:
    """Raise ValueError unless `value` broadcasts with that shape."""
    try:
        np.broadcast_shapes(value.shape, shape)
    except ValueError as error:
        raise ValueError(
            f"{name} must have a shape that broadcasts with {other} {list(shape)}, not {list(value.shape)}."
        ) from error


def finite(name: str, value: object, *, device: torch.device | None = None) -> Tensor:
    """Return `value` as a float64 tensor of finite numbers that are zero or more."""
    wanted = "finite numbers of zero or more (a tensor, an array or a list)"
    found = _tensor(name, value, wanted, device)
    if found.is_complex() or found.dtype == torch.bool:
        raise TypeError(f"{name} must be {wanted}, not {shown(found)}.")
    if found.dim() == 0 or found.shape[-1] == 0:
        raise ValueError(f"{name} must hold at least one number in its last dimension, not {shown(found)}.")
    found = found.to(torch.float64)
    wrong = ~(torch.isfinite(found) & (found >= 0))
    if bool(wrong.any()):
        raise ValueError(f"{name} must be {wanted}, not {found[wrong][0].item():g}.")
    return found


def counts(value: object) -> Tensor:
    """Return class counts as `finite` does; see `in_class_order`."""
    return finite("counts", in_class_order(value))


def in_class_order(value: object) -> object:
    """Return class counts, or raise ValueError if they are a pandas Series by class in another order than the classes.

    `value_counts()` has the most frequent class first, and none without samples. The index of a DataFrame, which has a
    row per run, does not name classes.
    """
    index = getattr(value, "index", None) if getattr(value, "ndim", 1) == 1 else None
    if getattr(getattr(index, "dtype", None), "kind", "") in ("i", "u"):
        known = np.asarray(index).tolist()
        if known != list(range(len(known))):
            first = f"{known[:5]}"[:-1] + (", ...]" if len(known) > 5 else "]")
            raise ValueError(
                f"counts must be in the order of the classes 0, 1, 2 ..., but this Series has the index {first}: use "
                "counts.reindex(range(num_classes), fill_value=0)."
            )
    return value


def rates(name: str, value: object, low: float, high: float, *, open_above: bool = False) -> Tensor:
    """Return a number, or a vector with one number per run, as a float64 tensor of 0 or 1 dimensions."""
    bracket = ")" if open_above else "]"
    wanted = f"a number in [{low:g}, {high:g}{bracket}, or a vector with one per run"
    if isinstance(value, bool):
        raise TypeError(f"{name} must be {wanted}, not {shown(value)}.")
    found = _tensor(name, value, wanted, None)
    if found.is_complex() or found.dtype == torch.bool:
        raise TypeError(f"{name} must be {wanted}, not {shown(value)}.")
    if found.dim() > 1 or found.numel() == 0:
        raise ValueError(f"{name} must be {wanted}, not {shown(value)}.")
    found = found.to(dtype=torch.float64, device="cpu")
    above = found >= high if open_above else found > high
    wrong = torch.isnan(found) | (found < low) | above
    if bool(wrong.any()):
        raise ValueError(f"{name} must be {wanted}, not {found[wrong][0].item():g}.")
    return found.clone()


def device(value: torch.device | str | None) -> torch.device | None:
    """Return a device of this machine, or raise ValueError."""
    if value is None:
        return None
    try:
        return torch.empty(0, device=value).device
    except (RuntimeError, TypeError, AssertionError, NotImplementedError) as error:
        raise ValueError(f"device must be one that this machine has, not {shown(value)}.") from error


def classes(value: object) -> int:
    """Return a number of classes; states hold several numbers of each, so that it is bounded."""
    return whole("num_classes", value, 1, MOST_CLASSES)


def labels(value: object, num_classes: int | None) -> tuple[Tensor, int]:
    """Return labels as a vector of their own type, not copied, with the number of classes, given or found."""
    found = _integers("labels", value)
    if found.dim() != 1 or found.numel() == 0:
        raise ValueError(f"labels must be a vector with one label per sample, not {shown(found)}.")
    # Numbers, not tensors: small ones between blocks in memory kept malloc from using the room of a block again.
    ends = [[int(end) for end in block.to(torch.int64).aminmax()] for block in torch.split(found, _BLOCK)]
    low, high = min(low for low, _ in ends), max(high for _, high in ends)
    if low < 0:
        raise ValueError(f"labels must be 0 or more, not {low}.")
    if num_classes is None and high >= max(MOST_INFERRED, found.numel()):
        bound, at = max(MOST_INFERRED, found.numel()), _place(found, high)
        raise ValueError(f"labels must be below {bound}, unless num_classes is given, not {high} (sample {at}).")
    number = high + 1 if num_classes is None else classes(num_classes)
    if high >= number:
        raise ValueError(f"labels must be below num_classes={number}, not {high} (sample {_place(found, high)}).")
    return found, number


def _place(found: Tensor, value: int) -> int:
    return int((found.to(torch.int64) == value).nonzero()[0])


def readable(value: Tensor) -> bool:
    """Return whether values can be read: without synchronising a GPU, and without breaking a compiled graph."""
    return value.device.type == "cpu" and not torch.compiler.is_compiling()


def times(value: object, shape: Sequence[int], device: torch.device) -> Tensor:
    """Return how often each prediction counts, int64, of the shape of the labels; sums of it must not wrap."""
    found = integers("times", value, device=device)
    if found.shape != torch.Size(shape):
        raise ValueError(f"times must have the shape of label, {list(shape)}, not {list(found.shape)}.")
    if readable(found) and (why := Bounds(0, _MOST_TIMES).refuse(found)):
        raise ValueError(f"times {why}.")
    return found


def is_count(value: Tensor) -> Tensor:
    """Return which numbers are counts as `times` takes them; for those that it could not read."""
    return (value >= 0) & (value <= _MOST_TIMES)


def within(name: str, index: Tensor, size: int, what: str) -> None:
    """Raise IndexError unless all numbers are in [0, size). Reads the tensor: for the CPU."""
    if index.numel() == 0:
        return
    values = index.numpy() if index.device.type == "cpu" else index  # NumPy takes a third of torch's time
    low, high = int(values.min()), int(values.max())
    if low < 0 or high >= size:
        raise IndexError(f"{name} must lie in 0 to {size - 1} ({what}), not {low if low < 0 else high}.")


def same_labels(where: Tensor, own: Tensor, label: object, first: int = 0) -> None:
    """Raise ValueError where labels differ from `own [N]`, of the samples from `first` on; samples outside may."""
    given = integers("label", label, device=own.device)
    if given.shape != where.shape:
        raise ValueError(f"label must have the shape {list(where.shape)} of index, not {list(given.shape)}.")
    place = where - first
    inside = (place >= 0) & (place < own.numel())
    mine = own[place.clamp(0, own.numel() - 1)].to(torch.int64) if own.numel() else given
    wrong = (mine != given) & inside
    if bool(wrong.any()):
        sample, here, there = (int(each[wrong][0]) for each in (where, mine, given))
        raise ValueError(
            f"label must be the class of each sample, but differs for {int(wrong.sum()):,} of {wrong.numel():,}: "
            f"sample {sample} has class {here} in these ages, and label {there} was given. Are the data in another "
            "order, or is index not the number of a sample?"
        )


def fingerprint(value: Tensor) -> str:
    """Return a hash of the values of an integer tensor, whatever its type."""
    digest = hashlib.sha256()
    for block in torch.split(value.flatten(), _BLOCK):
        digest.update(block.to(torch.int64).cpu().numpy().tobytes())
    return digest.hexdigest()


def same_settings(what: str, mine: dict[str, object], given: object) -> None:
    """Raise ValueError unless a state dict was written by an object with the same settings."""
    if not isinstance(given, dict):
        raise TypeError(f"A state for {what} must be a dict from its state_dict(), not {shown(given)}.")
    for key, value in mine.items():
        if key not in given:
            raise ValueError(f"This is not a state of {what}: it has no {key!r}.")
        if isinstance(given[key], Tensor | np.ndarray) or given[key] != value:
            if key in ("labels", "ids"):  # stored as hashes, which mean nothing to a reader
                raise ValueError(f"This state does not fit: it was made with other {key} than those of this {what}.")
            theirs = f"its {key} is {shown(given[key])}, that of this {what} {shown(value)}"
            raise ValueError(f"This state does not fit: {theirs}.")


class Bounds(NamedTuple):
    """The values that a tensor of a state may have: finite numbers from `low` to `high`; NaN where `nan`."""

    low: float = -1e300
    high: float = 1e300
    nan: bool = False

    def refuse(self, value: Tensor) -> str | None:
        """Return what values must be, and the first that is not; None if all are."""
        if value.dtype == torch.bool:
            return None
        # A bound outside the type would wrap around.
        kind = torch.finfo(value.dtype) if value.is_floating_point() else torch.iinfo(value.dtype)
        low = self.low if self.low == -torch.inf else max(self.low, kind.min)
        high = self.high if self.high == torch.inf else min(self.high, kind.max)
        wrong = ~((value >= low) & (value <= high))
        if self.nan:
            wrong &= ~value.isnan()
        if not bool(wrong.any()):
            return None
        return f"must lie in {self.low:g} to {self.high:g}, not {value[wrong][0].item():g}"


ANY = Bounds(-torch.inf, torch.inf, nan=True)
COUNTS = Bounds(0, 2**62)
SHARES = Bounds(0, 1, nan=True)


def damaged(what: str, key: str, why: str) -> ValueError:
    """Return the error for a state dict with a value that its object never had."""
    return ValueError(f"This state of {what} is damaged: {key!r} {why}.")


def state_tensor(
    what: str,
    state: Mapping[str, object],
    key: str,
    shape: Sequence[int | None],
    dtype: torch.dtype,
    device: torch.device | None = None,
    bounds: Bounds = ANY,
) -> Tensor:
    """Return a copy of a tensor in a state dict, or raise ValueError; None in `shape` stands for any size."""
    value = state.get(key)
    if not isinstance(value, Tensor) or value.dtype != dtype or not _has_shape(value, shape):
        form = str(["any" if size is None else size for size in shape]).replace("'", "")
        raise damaged(what, key, f"must be {dtype} {form}, not {shown(value)}")
    return value.to(device=device, copy=True)


def _has_shape(value: Tensor, shape: Sequence[int | None]) -> bool:
    fits = value.dim() == len(shape) and all(b in (None, a) for a, b in zip(value.shape, shape, strict=True))
    return fits and owns_memory(value)


def owns_memory(value: Tensor) -> bool:
    """Return whether a tensor has its own memory for every number."""
    stored = value.layout == torch.strided and value.device.type != "meta"
    return stored and value.untyped_storage().nbytes() >= value.nbytes


def state_tensors(
    what: str, given: object, like: Mapping[str, Tensor], bounds: Mapping[str, Bounds] | None = None
) -> dict[str, Tensor]:
    """Return copies of the tensors in a dict, which must be named and shaped as in `like`, or raise ValueError.

    They get its memory formats, too: fused optimisers go through a parameter and its state with the same pointer.
    """
    if not isinstance(given, dict) or given.keys() != like.keys():
        names = sorted(map(str, given.keys() ^ like.keys())) if isinstance(given, dict) else []
        more = f"; see {', '.join(names[:3])}" if names else ""
        raise ValueError(f"This state of {what} is damaged: it must hold {len(like)} tensors by name{more}.")
    allowed = bounds or {}
    return {
        key: torch.empty_like(mine).copy_(
            state_tensor(what, given, key, mine.shape, mine.dtype, mine.device, allowed.get(key, ANY))
        )
        for key, mine in like.items()
    }


def state_whole(what: str, state: Mapping[str, object], key: str, high: int = 2**62) -> int:
    """Return a whole number from zero to `high` of a state dict, or raise ValueError."""
    found = state.get(key)
    if isinstance(found, bool) or not isinstance(found, int) or not 0 <= found <= high:
        raise damaged(what, key, f"must be a whole number from 0 to {high}, not {shown(found)}")
    return found


def state_part(what: str, state: Mapping[str, object], key: str) -> dict[str, object]:
    """Return the state dict within a state dict, or raise ValueError."""
    found = state.get(key)
    if not isinstance(found, dict):
        raise damaged(what, key, f"must be a dict, not {shown(found)}")
    return found
