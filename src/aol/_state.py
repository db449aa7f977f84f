"""What states with a run axis share: saving, loading, moving to a device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

import torch
from torch import Tensor

from aol import _check, _distributed
from aol._seal import check_seal, sealed


class HasRuns:
    """What has a leading run axis, which a single `rho` hides."""

    _single: bool
    _rho: Tensor

    @property
    def rho(self) -> Tensor:
        """The rate of the EMA, `float32 []` or `[R]`."""
        return self._out(self._rho[:, None])[..., 0].to(torch.float32, copy=True)

    @property
    def device(self) -> torch.device:
        """The device of the state."""
        return self._rho.device

    def _out(self, value: Tensor) -> Tensor:
        return value[0] if self._single else value

    def _uniform(self) -> Tensor:
        return (self._rho == 0)[:, None]

    def _of_samples(self, name: str, value: object) -> Tensor:
        """Return indices or labels of samples, `int64 [B]` or `[R, B]`."""
        found, runs = _check.integers(name, value), self._rho.numel()
        if found.dim() != 1 and (self._single or found.dim() != 2 or found.shape[0] != runs):
            wanted = "[B]" if self._single else f"[B] or [{runs}, B]"
            raise ValueError(f"{name} must have the shape {wanted}, not {list(found.shape)}.")
        return found

    def _correct(self, correct: object, size: int, name: str) -> tuple[Tensor, Tensor | None]:
        """Return which of so many samples are right, `bool [R, B]`; `name` is that of their indices or labels.

        Also whether any of them is neither true nor false, `bool []`, if that was not read.
        """
        right, neither = _check.unread_truths("correct", correct, device=self.device)
        shape = (size,) if self._single else (self._rho.numel(), size)
        if right.shape != torch.Size(shape):
            raise ValueError(f"correct must have the shape {list(shape)} to go with {name}, not {list(right.shape)}.")
        return right.reshape(self._rho.numel(), -1), neither

    def to(self, device: torch.device | str) -> Self:
        """Move the state to a device, and return it."""
        home = _check.device(device)
        for name, value in vars(self).items():
            if isinstance(value, Tensor):
                setattr(self, name, value.to(home))
        return self


class State(HasRuns):
    """A state whose tensors are its attributes; those of `_SETTINGS` are settings and are not saved.

    Where `num_classes` is None, classes are added as they are observed. `_BY_CLASS` names the tensors with classes in
    their last dimension, which may hold more after the classes, and what a class has there that was never observed.
    """

    _SETTINGS: tuple[str, ...] = ("_rho",)
    _BY_CLASS: Mapping[str, float] = {}
    _open = False
    num_classes: int
    epoch: int

    def _settings(self) -> dict[str, object]:
        raise NotImplementedError

    def _bounds(self, epoch: int) -> dict[str, _check.Bounds]:
        """Return the values that each tensor can have after so many epochs; a state dict with others is refused."""
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
        classes = {"classes": self.num_classes} if self._open else {}
        return sealed({**self._settings(), "epoch": self.epoch, **classes, **tensors})

    def load_state_dict(self, state: dict[str, object]) -> None:
        """Load a state; one with other settings or sizes is refused, and nothing changes."""
        vars(self).update(self._loaded(state))

    def _loaded(self, state: dict[str, object]) -> dict[str, object]:
        """Return the attributes that a state dict sets, or raise ValueError."""
        what = type(self).__name__
        _check.same_settings(what, self._settings(), state)
        epoch = _check.state_whole(what, state, "epoch")
        found: dict[str, object] = {"epoch": epoch}
        bounds, more = self._bounds(epoch), 0
        if self._open:
            found["num_classes"] = classes = _check.state_whole(what, state, "classes")
            more = classes - self.num_classes
        for name, value in self._tensors().items():
            shape = self._shape_with(name, more)
            key, allowed = name.lstrip("_"), bounds.get(name, _check.ANY)
            found[name] = _check.state_tensor(what, state, key, shape, value.dtype, self.device, allowed)
        check_seal(what, state)
        return found

    # Classes that are not known in advance

    @property
    def grows(self) -> bool:
        """Whether classes are added as they are observed."""
        return self._open

    def grow(self, num_classes: int) -> None:
        """Make room for more classes. A new one is as if it had been there, but never observed."""
        number = _check.whole("num_classes", num_classes, self.num_classes, _check.MOST_CLASSES)
        now = self.num_classes
        for name, fill in self._BY_CLASS.items():
            value: Tensor = getattr(self, name)
            new = value.new_full((*value.shape[:-1], number - now), fill)
            setattr(self, name, torch.cat((value[..., :now], new, value[..., now:]), -1))
        self.num_classes = number

    def _shape_with(self, name: str, more: int) -> list[int]:
        """Return the shape of a tensor of the state for so many classes more."""
        shape = [*getattr(self, name).shape]
        if name in self._BY_CLASS:
            shape[-1] += more
        return shape

    def _make_room(self, name: str, label: Tensor) -> None:
        """Add the classes of labels, where `num_classes` was not given; reads the tensor."""
        if not self._open or label.numel() == 0:
            return
        classes = int(label.max()) + 1
        if classes > _check.MOST_CLASSES:
            raise IndexError(f"{name} must be below {_check.MOST_CLASSES}, not {classes - 1}.")
        if classes > self.num_classes:
            self.grow(classes)

    def _agree(self, group: _distributed.Group) -> None:
        """Raise ValueError unless all processes have the same settings and epoch; give all the same classes."""
        _distributed.agree(type(self).__name__, self.epoch, self._settings(), self.device, group)
        if self._open:
            own = torch.tensor(self.num_classes, device=self.device)
            self.grow(int(torch.stack(_distributed.gather(own, group)).max()))
