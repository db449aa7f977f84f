"""Shared by plug-ins for training loops: ages, margins and their record, told one batch at a time.

Uses PyTorch and the library, no framework.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeAlias

import torch
from torch import Tensor, nn

from aol import _check, _distributed
from aol.ages import SampleAges
from aol.class_ages import ClassAges
from aol.losses import is_correct
from aol.margins import Margins
from aol.plugins._records import Recording, Records
from aol.weights import ErrorRates

Ages: TypeAlias = SampleAges | ClassAges | ErrorRates


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put a model into evaluation mode without gradients; afterwards restore the mode of each module.

    >>> model = nn.Sequential(nn.Dropout(), nn.Dropout().eval())
    >>> with evaluating(model):
    ...     print([part.training for part in model])
    [False, False]
    >>> [part.training for part in model]
    [True, False]
    """
    modes = [(part, part.training) for part in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for part, mode in modes:
            part.training = mode


class Balance:
    """What a training loop is balanced by: ages, whose weights multiply losses, and margins, which adjust logits.

    Args:
        ages: of a single run, or None.
        margins: of a single run, or None.
        signal: "pass": a clean pass observes; "training": training batches, which every process then observes.
        every: optimiser steps between two calls of `advance`; None: an epoch.
        recorder: as in `Records`; of `SampleAges` or `ClassAges`.

    >>> balance = Balance(ClassAges(2, rho=1, threshold=0.9), Margins(2))
    >>> for _ in range(2):
    ...     balance.observe(torch.tensor([[2.0, 0.0], [1.0, 0.0]]), torch.tensor([0, 1]))
    ...     balance.advance()
    >>> balance.weight(torch.tensor([0, 1]))
    tensor([0.5000, 1.5000])
    """

    def __init__(
        self,
        ages: Ages | None,
        margins: Margins | None = None,
        *,
        signal: str = "pass",
        every: int | None = None,
        recorder: Recording = None,
    ) -> None:
        if ages is None and margins is None:
            raise TypeError("ages or margins must be given.")
        if ages is not None and not isinstance(ages, Ages):
            raise TypeError(f"ages must be SampleAges, ClassAges or ErrorRates, not {_check.shown(ages)}.")
        if margins is not None and not isinstance(margins, Margins):
            raise TypeError(f"margins must be an aol.Margins, not {_check.shown(margins)}.")
        if (ages is not None and ages.rho.dim()) or (margins is not None and margins.offsets.dim() > 1):
            raise ValueError("ages and margins must be of one run: give them one number as rho and gain.")
        if recorder is not None and not isinstance(ages, SampleAges | ClassAges):
            raise ValueError("recorder needs ages: SampleAges or ClassAges, with rho=0 for weights of one.")
        self.ages, self.margins, self.records = ages, margins, Records(recorder)
        self.signal = _check.choice("signal", signal, ("pass", "training"))
        self.every = None if every is None else _check.whole("every", every, 1)
        self.rate = self.largest_rate = 0.0  # the learning rate of the last optimiser step, and the largest so far

    @property
    def by_index(self) -> bool:
        """Whether samples are known by their index, not by their label."""
        return isinstance(self.ages, SampleAges) or self._by_sample

    @property
    def _by_sample(self) -> bool:
        return self.margins is not None and self.margins.labels is not None

    def check_size(self, size: int) -> None:
        """Raise ValueError unless ages of samples and training set have the same number of samples."""
        if isinstance(self.ages, SampleAges) and self.ages.num_samples != size:
            raise ValueError(f"ages must have the {size} samples of the training set, not {self.ages.num_samples}.")

    # What training asks for

    def weight(self, key: Tensor) -> Tensor:
        """Return the weights of samples by index (with ages of classes by label), `float32 [B]`."""
        return torch.ones(len(key), device=key.device) if self.ages is None else self.ages.weight(key)

    def adjust(self, logits: Tensor) -> Tensor:
        """Return logits plus margins, `[B, C]`, for the training loss."""
        return logits if self.margins is None else self.margins.adjust(logits)

    def note_rate(self, *optimizers: torch.optim.Optimizer) -> None:
        """Note the learning rate, which the gain of margins follows; not from a tensor, for which a GPU would wait."""
        rates = [group["lr"] for optimizer in optimizers for group in optimizer.param_groups]
        self.rate = max((rate for rate in rates if isinstance(rate, float | int)), default=0.0)
        self.largest_rate = max(self.largest_rate, self.rate)

    # Observing

    def observe(self, logits: Tensor, label: Tensor, index: Tensor | None = None) -> None:
        """Observe the answers to a batch: logits `[B, C]` without margins, labels `[B]`, and indices `[B]` if needed.

        With `signal="training"` collective: every process observes the batches of all, in the order of ranks, so that a
        state saved within an epoch is that of all. Batches must then be of one size.
        """
        if self.by_index and index is None:
            raise ValueError("Batches must carry the index of each sample, as aol.Indexed adds it.")
        logits, index = logits.detach().float(), label if index is None else index
        self.records.observe(index if isinstance(self.ages, SampleAges) else label, logits)  # its own share
        batches = [(logits, label, index)]
        if self.signal == "training":
            batches = list(zip(*map(_distributed.gather, (logits, label, index)), strict=True))
        for scores, target, place in batches:
            self._observe(scores, target, place)

    def _observe(self, logits: Tensor, label: Tensor, index: Tensor) -> None:
        if isinstance(self.ages, SampleAges):
            self.ages.observe(index, is_correct(logits, label), label)  # a data set in another order is refused
        elif self.ages is not None:
            self.ages.observe(label, is_correct(logits, label))
        if self.margins is not None:
            self.margins.observe(index if self._by_sample else label, logits.softmax(-1))

    def advance(self) -> None:
        """End an epoch or step; the gain of margins follows the learning rate. Collective."""
        sync = self.signal == "pass"  # what was observed in training is known to all
        if self.ages is not None:
            self.ages.advance(sync=sync)
        if self.margins is not None:
            self.margins.advance(scale=self.rate / self.largest_rate if self.largest_rate else 1.0, sync=sync)

    def record(self) -> None:
        """Write the epoch that `advance` has ended. Collective."""
        figures = {"lr": self.rate} if self.largest_rate else {}
        self.records.advance(**figures, **({} if self.margins is None else {"offset": self.margins.offsets}))

    def figures(self) -> dict[str, float]:
        """Return numbers for a logger: mean and largest smoothed age of classes, smallest and largest margin."""
        values: dict[str, float] = {}
        if isinstance(self.ages, SampleAges | ClassAges):
            age = self.ages.class_age if isinstance(self.ages, SampleAges) else self.ages.ema
            values |= {"age_mean": float(age.nanmean()), "age_oldest_class": float(age.nan_to_num(0.0).max())}
        if self.margins is not None:
            offsets = self.margins.offsets
            values |= {"margin_smallest": float(offsets.min()), "margin_largest": float(offsets.max())}
        return values

    # State

    def _states(self) -> Iterable[tuple[str, Ages | Margins]]:
        return [(name, state) for name, state in (("ages", self.ages), ("margins", self.margins)) if state is not None]

    def to(self, device: torch.device) -> None:
        """Move ages and margins to a device."""
        for _, state in self._states():
            state.to(device)

    def state_dict(self) -> dict[str, object]:
        """Return all states, with what was observed and has not advanced."""
        rates = {"rate": self.rate, "largest_rate": self.largest_rate}
        return {**{name: state.state_dict() for name, state in self._states()}, **rates}

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Load all states; ValueError if this one is of other ages or margins."""
        wanted = {name for name, _ in self._states()}
        if wanted != state.keys() & {"ages", "margins"}:
            raise ValueError(f"This state must hold {' and '.join(sorted(wanted))}, as given here, and nothing else.")
        for name, own in self._states():
            own.load_state_dict(state[name])  # type: ignore[arg-type]
        self.rate, self.largest_rate = float(state["rate"]), float(state["largest_rate"])  # type: ignore[arg-type]
