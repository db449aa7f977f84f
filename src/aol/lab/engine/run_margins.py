"""The offsets of the logits of R runs, each by its own settings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from aol.lab.methods import MARGINS
from aol.lab.settings import Settings
from aol.margins import Margins
from aol.offsets import logit_offsets


@dataclass(frozen=True, eq=False)
class Part:
    """Margins of the runs in `rows`, which move after every so many `steps` of training; None: once an epoch."""

    rows: Tensor
    steps: int | None
    margins: Margins


class RunMargins:
    """The offsets `[R, C]` of R runs: zero, from class counts, or from answers.

    Args:
        runs: the settings of each run.
        num_classes: C.
        labels: the class of each sample, where samples come back; None on a stream.
        device: device of the state.

    Attributes:
        in_training: the margins that observe training steps.
        in_clean_pass: those that observe clean passes.
    """

    def __init__(self, runs: Sequence[Settings], num_classes: int, labels: Tensor | None, device: torch.device) -> None:
        self._shape, self._device, self._labels = (len(runs), num_classes), device, labels
        self._by_counts = torch.tensor([row for row, run in enumerate(runs) if run.margin == "counts"], device=device)
        self._tau = torch.tensor([run.tau for run in runs if run.margin == "counts"], dtype=torch.float64)
        self._parts: dict[str, Part] = {}
        for margin, steps in dict.fromkeys((run.margin, run.margin_steps) for run in runs):
            signal = MARGINS[margin].signal
            if signal is None:
                continue
            rows = [row for row, run in enumerate(runs) if (run.margin, run.margin_steps) == (margin, steps)]
            soft = signal == "probability"
            margins = Margins(
                num_classes,
                labels=None if soft else labels,
                signal=signal,
                gain=torch.tensor([runs[row].gain for row in rows]),
                tau=torch.tensor([runs[row].tau for row in rows]) if soft else 1.0,
                device=device,
            )
            name = margin if steps is None else f"{margin}, {steps} steps"
            self._parts[name] = Part(torch.tensor(rows, device=device), steps, margins)
        trains = runs[0].signal == "train"
        self.in_training = [part for part in self._parts.values() if trains or part.steps is not None]
        self.in_clean_pass = [part for part in self._parts.values() if not trains and part.steps is None]

    @property
    def any(self) -> bool:
        """Whether any run has offsets."""
        return bool(self._parts) or self._by_counts.numel() > 0

    def offsets(self, counts: Tensor) -> Tensor:
        """Return the offsets of every run, `float32 [R, C]`; `counts` is `[C]` or `[R, C]`."""
        offsets = torch.zeros(self._shape, device=self._device)
        if self._by_counts.numel():
            offsets[self._by_counts] = logit_offsets(counts.expand(self._shape)[self._by_counts], self._tau)
        for part in self._parts.values():
            offsets[part.rows] = part.margins.offsets
        return offsets

    def observe_logits(self, parts: Iterable[Part], label: Tensor, logits: Tensor, times: Tensor | None = None) -> None:
        """Count probabilities, from `logits [R, B, C]` for classes `label [R, B]`."""
        for part in parts:
            if part.margins.signal == "probability":
                rows = part.rows
                own_times = None if times is None else times[rows].to(torch.int64)
                part.margins.observe(label[rows], logits[rows].softmax(-1), times=own_times)

    def observe(
        self, parts: Iterable[Part], position: Tensor, label: Tensor, answer: Tensor, times: Tensor | None = None
    ) -> None:
        """Count answers `[R, B]` to samples at `position` in `labels`, of the classes `label`."""
        key = label if self._labels is None else position
        for part in parts:
            if part.margins.signal != "probability":
                rows = part.rows
                part.margins.observe(key[rows], answer[rows], times=None if times is None else times[rows])

    def advance(self, scale: float) -> None:
        """Move the offsets that move once an epoch; `scale` multiplies the gain."""
        for part in self._parts.values():
            if part.steps is None:
                part.margins.advance(scale=scale)

    def step(self, done: int, scale: float, *, last: bool) -> bool:
        """Move the offsets whose turn it is after so many training steps of an epoch; return whether there are any."""
        turn = [part for part in self._parts.values() if part.steps and (last or done % part.steps == 0)]
        for part in turn:
            part.margins.advance(scale=scale)
        return bool(turn)

    def pending(self) -> Iterator[Tensor]:
        """Yield the tensors that `observe` changes in place."""
        for part in self._parts.values():
            yield from part.margins.pending()

    def state_dict(self) -> dict[str, Any]:
        """Return the state of all margins, by name."""
        return {name: part.margins.state_dict() for name, part in self._parts.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a state of margins of the same runs."""
        for name, part in self._parts.items():
            part.margins.load_state_dict(state[name])
