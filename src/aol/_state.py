"""What states with a run axis share: buffers that keep their type, and settings that a saved state must have."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Self

import torch
from torch import Tensor, nn

from aol import _check, _distributed


class State(nn.Module):
    """A module without parameters whose tensors are buffers `[R, ...]`; a single `rho` hides the run axis."""

    _rho: Tensor  # [R, 1]
    _single: bool
    epoch: int

    def _start(self, rho: Tensor, device: torch.device | None, dtype: torch.dtype = torch.float32) -> None:
        self.epoch, self._single = 0, rho.dim() == 0
        home = device or torch.get_default_device()
        self.register_buffer("_rho", rho.reshape(-1, 1).to(device=home, dtype=dtype), persistent=False)

    def _add(self, **buffers: Tensor) -> None:
        """Register buffers."""
        for name, value in buffers.items():
            self.register_buffer(name, value)

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

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        def keep_type(value: Tensor) -> Tensor:  # half() and to(bfloat16) must not round what is counted
            moved = fn(value)
            return moved if moved.dtype == value.dtype else value.to(moved.device)

        return super()._apply(keep_type, recurse)  # type: ignore[no-untyped-call, no-any-return]

    def _of_samples(self, name: str, value: object, size: int, what: str) -> tuple[Tensor, Tensor | None]:
        """Return indices or labels, `int64 [B]` or `[R, B]`; on a CUDA device, not read, also which are not in range.

        IndexError on the CPU unless all are in [0, size).
        """
        index, runs = _check.integers(name, value), len(self._rho)
        if index.dim() != 1 and (self._single or index.dim() != 2 or index.shape[0] != runs):
            wanted = "[B]" if self._single else f"[B] or [{runs}, B]"
            raise ValueError(f"{name} must have the shape {wanted}, not {list(index.shape)}.")
        if _check.readable(index):
            _check.within(name, index, size, what)
            return _check.moved(index, self.device), None
        index = _check.moved(index, self.device)
        return index, (index < 0) | (index >= size)

    def _correct(self, correct: object, size: int, name: str) -> tuple[Tensor, Tensor | None]:
        """Return which of so many samples are right, `bool [R, B]`; `name` is that of their indices or labels.

        Also whether any of them is neither true nor false, `bool []`, if that was not read.
        """
        right, neither = _check.truths("correct", correct, device=self.device)
        shape = [size] if self._single else [len(self._rho), size]
        if [*right.shape] != shape:
            raise ValueError(f"correct must have the shape {shape} to go with {name}, not {list(right.shape)}.")
        return right.reshape(len(self._rho), -1), neither

    def _settings(self) -> dict[str, object]:
        """Return what a saved state must agree in, as primitives."""
        return {"kind": type(self).__name__, "rho": [round(rate, 7) for rate in self._rho[:, 0].tolist()]}

    def _agree(self, group: _distributed.Group) -> None:
        """Raise ValueError unless all processes have the same settings and epoch."""
        _distributed.agree(type(self).__name__, self.epoch, self._settings(), self.device, group)

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        for key in [prefix + name for name in self._buffers if prefix + name in destination]:
            destination[key] = destination[key].clone()  # what is observed later is not in it

    def get_extra_state(self) -> dict[str, object]:
        """Return the settings and the epoch: what a state dict has beside the buffers."""
        return {**self._settings(), "epoch": self.epoch}

    def set_extra_state(self, state: object) -> None:
        """Set the epoch; ValueError if the settings are others."""
        self.epoch = self._checked(state)

    def _checked(self, extra: Any) -> int:
        what = type(self).__name__
        _check.same_settings(what, self._settings(), extra)
        return int(_check.state_value(what, extra, "epoch", 0))

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """Load a state; one with other settings or sizes is a ValueError, and nothing changes."""
        what = type(self).__name__
        if not isinstance(state_dict, Mapping):
            raise TypeError(f"A state of {what} must be a dict from its state_dict(), not {_check.shown(state_dict)}.")
        if "_extra_state" not in state_dict:
            raise ValueError(f"This is not a state of {what}: it has no '_extra_state'.")
        self._checked(state_dict["_extra_state"])
        for name, own in self._buffers.items():
            if own is not None and name not in self._non_persistent_buffers_set:
                _check.state_value(what, state_dict, name, own)
        return super().load_state_dict(state_dict, strict, assign)
