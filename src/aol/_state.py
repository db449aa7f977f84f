"""What states with a run axis share: saving, loading, moving to a device."""

from __future__ import annotations

from typing import Self

import torch
from torch import Tensor

from aol import _check


class State:
    """A state whose tensors are its attributes; those of `_SETTINGS` are settings and are not saved."""

    _SETTINGS: tuple[str, ...] = ("_rho",)
    _single: bool
    epoch: int

    @property
    def device(self) -> torch.device:
        """The device of the state."""
        return next(iter(self._tensors().values())).device

    def _out(self, value: Tensor) -> Tensor:
        return value[0] if self._single else value

    def _settings(self) -> dict[str, object]:
        raise NotImplementedError

    def _tensors(self) -> dict[str, Tensor]:
        return {
            name: value
            for name, value in vars(self).items()
            if isinstance(value, Tensor) and name not in self._SETTINGS
        }

    def state_dict(self) -> dict[str, object]:
        """Return the complete state, with pending observations, as copies of tensors and primitives."""
        tensors = {name.lstrip("_"): value.clone() for name, value in self._tensors().items()}
        return {**self._settings(), "epoch": self.epoch, **tensors}

    def load_state_dict(self, state: dict[str, object]) -> None:
        """Load a state; one with other settings or sizes is refused, and nothing changes."""
        vars(self).update(self._loaded(state))

    def _loaded(self, state: dict[str, object]) -> dict[str, object]:
        """Return the attributes that a state dict sets, or raise ValueError."""
        what = type(self).__name__
        _check.same_settings(what, self._settings(), state)
        epoch = _check.state_whole(what, state, "epoch")
        found = {
            name: _check.state_tensor(what, state, name.lstrip("_"), value.shape, value.dtype, self.device)
            for name, value in self._tensors().items()
        }
        return {"epoch": epoch, **found}

    def to(self, device: torch.device | str) -> Self:
        """Move the state to a device, and return it."""
        home = _check.device(device)
        for name, value in vars(self).items():
            if isinstance(value, Tensor):
                setattr(self, name, value.to(home))
        return self
