"""The offsets of the logits of R runs, each by its own settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from aol.lab.methods import MARGINS
from aol.lab.settings import Settings
from aol.margins import Margins
from aol.offsets import logit_offsets


class RunMargins:
    """The offsets `[R, C]` of R runs: zero, from class counts, or from answers.

    Args:
        runs: the settings of each run.
        num_classes: C.
        labels: the class of each sample, where samples come back; None on a stream.
        device: device of the state.

    Attributes:
        in_training: by name, the controllers that observe training steps.
        in_clean_pass: those that observe clean passes.
    """

    def __init__(self, runs: Sequence[Settings], num_classes: int, labels: Tensor | None, device: torch.device) -> None:
        self._shape, self._device = (len(runs), num_classes), device
        self._by_counts = torch.tensor([row for row, run in enumerate(runs) if run.margin == "counts"], device=device)
        self._tau = torch.tensor([run.tau for run in runs if run.margin == "counts"], dtype=torch.float64)
        self._rows: dict[str, Tensor] = {}
        self._steps: dict[str, int | None] = {}
        self._controllers: dict[str, Margins] = {}
        self._labels = labels
        for margin, steps in dict.fromkeys((run.margin, run.margin_steps) for run in runs):
            signal = MARGINS[margin].signal
            if signal is None:
                continue
            own = [row for row, run in enumerate(runs) if (run.margin, run.margin_steps) == (margin, steps)]
            soft = signal == "probability"
            name = margin if steps is None else f"{margin}, {steps} steps"
            self._rows[name], self._steps[name] = torch.tensor(own, device=device), steps
            self._controllers[name] = Margins(
                num_classes,
                labels=None if soft else labels,
                signal=signal,
                gain=torch.tensor([runs[row].gain for row in own]),
                tau=torch.tensor([runs[row].tau for row in own]) if soft else 1.0,
                device=device,
            )
        by_epoch = {name: margins for name, margins in self._controllers.items() if self._steps[name] is None}
        by_training = runs[0].signal == "train"
        self.in_clean_pass = {} if by_training else by_epoch
        self.in_training = {name: m for name, m in self._controllers.items() if name not in self.in_clean_pass}

    @property
    def any(self) -> bool:
        """Whether any run has offsets."""
        return bool(self._controllers) or self._by_counts.numel() > 0

    def offsets(self, counts: Tensor) -> Tensor:
        """Return the offsets of every run, `float32 [R, C]`; `counts` is `[C]` or `[R, C]`."""
        offsets = torch.zeros(self._shape, device=self._device)
        if self._by_counts.numel():
            own = counts.expand(self._shape)[self._by_counts]
            offsets[self._by_counts] = logit_offsets(own, self._tau)
        for name, margins in self._controllers.items():
            offsets[self._rows[name]] = margins.offsets
        return offsets

    def observe_logits(
        self, of: Mapping[str, Margins], label: Tensor, logits: Tensor, times: Tensor | None = None
    ) -> None:
        """Count probabilities in some controllers, from `logits [R, B, C]` for classes `label [R, B]`."""
        for name, margins in of.items():
            if margins.signal == "probability":
                rows = self._rows[name]
                own_times = None if times is None else times[rows].to(torch.int64)
                margins.observe(label[rows], logits[rows].softmax(-1), times=own_times)

    def observe(
        self, of: Mapping[str, Margins], position: Tensor, label: Tensor, answer: Tensor, times: Tensor | None = None
    ) -> None:
        """Count answers `[R, B]` in some controllers, to samples at `position` in `labels`, of the classes `label`."""
        for name, margins in of.items():
            if margins.signal != "probability":
                rows = self._rows[name]
                key = (label if self._labels is None else position)[rows]
                margins.observe(key, answer[rows], times=None if times is None else times[rows])

    def advance(self, scale: float) -> None:
        """Move the offsets that move once an epoch; `scale` multiplies the gain."""
        for name, margins in self._controllers.items():
            if self._steps[name] is None:
                margins.advance(scale=scale)

    def step(self, done: int, scale: float, *, last: bool) -> bool:
        """Move the offsets whose turn it is after so many training steps of an epoch; return whether there are any."""
        turn = [m for name, m in self._controllers.items() if (n := self._steps[name]) and (last or done % n == 0)]
        for margins in turn:
            margins.advance(scale=scale)
        return bool(turn)

    def pending(self) -> Iterator[Tensor]:
        """Yield the tensors that `observe` changes in place."""
        for margins in self._controllers.values():
            yield from margins.pending()

    def state_dict(self) -> dict[str, Any]:
        """Return the state of all controllers, by name."""
        return {name: margins.state_dict() for name, margins in self._controllers.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a state of margins of the same runs."""
        for name, margins in self._controllers.items():
            margins.load_state_dict(state[name])
