"""Counts of right and of all predictions by class since the last `advance`: the base of class states."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import torch
from torch import Tensor

from aol import _check, _distributed
from aol._state import State


class ClassCounts(State):
    """Counts of right and of all predictions by run and class: the base of `ClassAges` and `ErrorRates`."""

    _BY_CLASS: Mapping[str, float] = {"_right": 0, "_total": 0}

    def __init__(self, num_classes: int | None, *, rho: _check.Rate, device: torch.device | str | None) -> None:
        rate = _check.rates("rho", rho, 0.0, 1.0)
        device = _check.device(device)
        self._open = num_classes is None
        self.num_classes = 0 if num_classes is None else _check.classes(num_classes)
        self.epoch = 0
        self._single = rate.dim() == 0
        # An extra column takes what is refused, so that no check has to synchronise: `_total` labels outside the
        # classes and bad `times`, and both all labels of a call whose `correct` is neither true nor false.
        self._right = torch.zeros((rate.numel(), self.num_classes + 1), dtype=torch.int64, device=device)
        self._total = torch.zeros_like(self._right)
        self._rho = rate.reshape(-1).to(self._right.device, torch.float32)  # may be the user's default device

    def observe(self, label: _check.Integers, correct: _check.Truths, *, times: _check.Integers | None = None) -> None:
        """Count predictions until `advance`.

        `label` is `[B]` or `[R, B]`, `correct` is `[B]`, or `[R, B]` with a run axis. Repeats count repeatedly;
        `times`, of the shape of `label`, gives a count for each prediction. A label outside the classes raises
        IndexError; numbers in `correct` other than 0 and 1, and `times` below 0, raise ValueError. On the state's CUDA
        device, which is not synchronised, `advance` raises an error. Where `num_classes` is not given, a label that is
        new adds its class, and CUDA devices are synchronised.

        A state is for one thread: calls from several threads at once lose counts.
        """
        where = self._label(label)
        right, neither = self._correct(correct, where.shape[-1], "label")
        often = None if times is None else _check.times(times, where.shape, self.device)
        self._make_room("label", where)
        where = where.expand(self._rho.numel(), -1)
        inside = (where >= 0) & (where < self.num_classes)
        if often is not None:
            inside = inside & _check.is_count(often)
        right = right & inside
        if neither is not None:
            inside, right = inside & ~neither, right | neither
        where = where.where(inside, self.num_classes)
        once = torch.ones_like(where) if often is None else torch.where(inside, often, 1)
        self._right.scatter_add_(1, where, once * right)
        self._total.scatter_add_(1, where, once)

    def pending(self) -> tuple[Tensor, ...]:
        """Return the tensors that `observe` changes in place, for CUDA graph capture."""
        return self._right, self._total

    def _accuracy(self, group: _distributed.Group, sync: bool) -> Tensor:
        """Return the accuracies over all processes, `float64 [R, C]`, NaN where unseen."""
        if sync:
            self._agree(group)
        counts = torch.stack((self._right, self._total))
        if sync:
            counts = _distributed.total(counts, group)
        neither, stray = counts[:, :, -1].any(1).tolist()
        if stray:
            self._right[:, -1] = 0
            self._total[:, -1] = 0
            if neither:
                raise _check.neither_true_nor_false()
            raise IndexError(
                f"{self._unknown()}, and times 0 or more, but observe() was given others since the last advance(). "
                "They were ignored. Call advance() again to continue without them."
            )
        return counts[0, :, :-1].to(torch.float64) / counts[1, :, :-1]

    def _bounds(self, epoch: int) -> dict[str, _check.Bounds]:
        return {"_right": _check.COUNTS, "_total": _check.COUNTS}

    def _loaded(self, state: dict[str, object]) -> dict[str, object]:
        found = super()._loaded(state)
        right, total = cast(Tensor, found["_right"]), cast(Tensor, found["_total"])
        if bool((right > total).any()):
            raise _check.damaged(type(self).__name__, "right", "must be at most 'total'")
        return found

    def _count_anew(self) -> None:
        self._right.zero_()
        self._total.zero_()

    def _unknown(self) -> str:
        if self._open:
            return "label must be 0 or more"
        last = self.num_classes - 1
        return f"label must be one of the {self.num_classes} classes given by num_classes, 0 to {last}"

    def _label(self, label: object) -> Tensor:
        found = self._of_samples("label", label)
        if _check.readable(found) and found.numel():
            low, high = found.aminmax()
            if bool((low < 0) | ((high >= self.num_classes) & (not self._open))):
                raise IndexError(f"{self._unknown()}, not {int(low if low < 0 else high)}.")
        return _check.moved(found, self.device)

    @property
    def class_weight(self) -> Tensor:
        """Ages or error rates of the classes divided by their mean, `float32 [C]`; one for a class never observed."""
        return self._out(self._class_weight())

    def weight(self, label: _check.Integers) -> Tensor:
        """Return the class weight of each label, `float32 [B]` or `[R, B]`; `label` is `[B]` or `[R, B]`.

        NaN for a label outside the classes on a CUDA device. Where `num_classes` was not given, a class that was never
        observed has weight one.
        """
        where, class_weight = self._label(label).expand(self._rho.numel(), -1), self._class_weight()
        more = 1.0 if self._open else torch.nan
        table = torch.cat((class_weight, class_weight.new_full((len(class_weight), 1), more)), 1)
        found = table.gather(1, where.clamp(0, self.num_classes))
        return self._out(found.masked_fill(where < 0, torch.nan))

    def _class_weight(self) -> Tensor:
        """Return the weights of classes, `float32 [R, C]`."""
        raise NotImplementedError

    def _settings(self) -> dict[str, object]:
        rho = [round(rate, 7) for rate in self._rho.tolist()]
        return {"kind": type(self).__name__, "num_classes": None if self._open else self.num_classes, "rho": rho}

    def __repr__(self) -> str:
        runs = "" if self._single else f", runs={self._rho.numel()}"
        return f"{type(self).__name__}(num_classes={self.num_classes}{runs}, epoch={self.epoch})"
