"""What states with a run axis share: buffers that keep their type, checks of what is observed, and settings."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from aol import _check, _distributed
from aol.criteria import KeepsTypes


class State(KeepsTypes):
    """A module without parameters whose tensors are buffers `[R, ...]`; a single `rho` hides the run axis."""

    _pending: ClassVar[tuple[str, ...]]  # the buffers that `observe` changes

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Tensor: ...  # buffers

    def __init__(
        self, rho: Tensor, device: torch.device | str | None, dtype: torch.dtype = torch.float32, *, single: bool
    ) -> None:
        super().__init__()
        self.epoch, self._single = 0, single
        home = device or torch.get_default_device()
        self.register_buffer("_rho", rho.reshape(-1, 1).to(device=home, dtype=dtype), persistent=False)
        self._add("_refused", (), 0, torch.bool)  # whether anything was, since the last advance

    def _add(self, name: str, shape: tuple[int, ...], value: float, dtype: torch.dtype) -> None:
        self.register_buffer(name, torch.full(shape, value, dtype=dtype, device=self.device))

    @property
    def rho(self) -> Tensor:
        """The smoothing rate, `float32 []` or `[R]`."""
        return self._out(self._rho[:, 0].to(torch.float32, copy=True))

    @property
    def device(self) -> torch.device:
        """The device of the state."""
        return self._rho.device

    def _out(self, value: Tensor) -> Tensor:
        return value[0] if self._single else value

    def pending(self) -> list[Tensor]:
        """Return the tensors that `observe` changes in place, for CUDA graph capture."""
        return [getattr(self, name) for name in (*self._pending, "_refused") if name in self._buffers]

    # What `observe` is given. Checks never wait for a GPU: what is wrong there is left out, and `_begin` says so

    def _places(self, name: str, value: object, size: int, what: str) -> tuple[Tensor, Tensor]:
        """Return `[B]` or `[R, B]` numbers from 0 to size - 1 as `int64 [R, B]`, and which of them are."""
        index, runs = _check.integers(name, value), len(self._rho)
        if index.dim() != 1 and (self._single or index.dim() != 2 or len(index) != runs):
            wanted = "[B]" if self._single else f"[B] or [{runs}, B]"
            raise ValueError(f"{name} must have the shape {wanted}, not {list(index.shape)}.")
        if _check.readable(index):
            _check.within(name, index, size, what)
        index = _check.moved(index, self.device)
        inside = (index >= 0) & (index < size)
        return index.clamp(0, size - 1).expand(runs, -1), inside.expand(runs, -1)

    def _truths(self, correct: object, inside: Tensor, name: str) -> tuple[Tensor, Tensor]:
        """Return `correct` as `bool [R, B]`, and what is left inside: nothing of a call with other numbers."""
        right, neither = _check.truths("correct", correct, device=self.device)
        self._fits("correct", right, inside, name)
        return right.reshape(inside.shape), inside if neither is None else inside & ~neither

    def _often(self, times: object, inside: Tensor) -> tuple[Tensor, Tensor]:
        """Return how often what is inside counts, `int64 [R, B]`, and what is left inside."""
        if times is None:
            return inside.to(torch.int64), inside
        often, known = self._places("times", times, 1 << 31, "a count")
        if often.shape != inside.shape:
            raise ValueError(f"times must have the shape of label, not {list(often.shape)}.")
        return often * (inside & known), inside & known

    def _fits(self, name: str, value: Tensor, inside: Tensor, other: str, *more: int) -> None:
        shape = [*(inside.shape[1:] if self._single else inside.shape), *more]
        if [*value.shape] != shape:
            raise ValueError(f"{name} must have the shape {shape} to go with {other}, not {list(value.shape)}.")

    def _begin(self, sync: bool, allowed: str) -> bool:
        """Begin `advance`: return whether to add what others observed; an error on all of them if any was refused."""
        together, refused = sync and _distributed.world()[1] > 1, self._refused
        if together:
            _distributed.agree(type(self).__name__, self.epoch, self._settings(), self.device)
            refused = _distributed.total(refused.to(torch.int32))
        if bool(refused):
            self._refused.zero_()
            raise IndexError(
                f"{allowed}, but observe() was given others since the last advance(). They were ignored. Call "
                "advance() again to continue without them."
            )
        return together

    def _end(self) -> None:
        """End `advance`: forget what was observed."""
        for value in self.pending():
            value.zero_()
        self.epoch += 1

    def _warn_of_nothing(self, observed: Tensor) -> None:
        if not bool(observed.any()) and _distributed.world()[0] == 0:
            warnings.warn(
                "advance() changes nothing: observe() was given no answer (NaN is none) since the last one.",
                stacklevel=3,
            )

    def _settings(self) -> dict[str, object]:
        """Return what a saved state must agree in, as primitives."""
        return {"kind": type(self).__name__, "rho": [round(rate, 7) for rate in self._rho[:, 0].tolist()]}

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        for key in [prefix + name for name in self._buffers if prefix + name in destination]:
            destination[key] = destination[key].clone()  # what is observed later is not in it

    def get_extra_state(self) -> dict[str, object]:
        """Return the settings and the epoch: what a state dict has beside the buffers."""
        return {**self._settings(), "epoch": self.epoch}

    def set_extra_state(self, state: Any) -> None:
        """Set the epoch."""
        self.epoch = _check.state_value(state, "epoch", 0)

    def _load_from_state_dict(self, state_dict: Any, prefix: str, metadata: Any, strict: bool, *rest: Any) -> None:
        """Load a state; one with other settings or sizes is a ValueError, and nothing changes."""
        if any(key.startswith(prefix) for key in state_dict):  # else PyTorch says that all is missing, if strict
            extra = state_dict.get(f"{prefix}_extra_state", {})
            _check.same_settings(self._settings(), extra)
            for name in self._buffers.keys() - self._non_persistent_buffers_set:
                _check.state_value(state_dict, prefix + name, getattr(self, name))
            self.set_extra_state(extra)
        super()._load_from_state_dict(state_dict, prefix, metadata, strict, *rest)
