"""The offsets of the logits of R runs, each by its own settings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from aol import _check
from aol.engine.margin import MARGINS
from aol.engine.settings import Settings
from aol.margins import Margins
from aol.offsets import logit_offsets


class RunMargins:
    """The offsets `[R, C]` of R runs: zero, from class counts, or from answers.

    Args:
        runs: the settings of each run.
        num_classes: C.
        labels: the class of each sample, where samples come back; None on a stream.
        device: device of the state.
    """

    def __init__(self, runs: Sequence[Settings], num_classes: int, labels: Tensor | None, device: torch.device) -> None:
        def rows(name: str) -> Tensor:
            return torch.tensor([row for row, run in enumerate(runs) if run.margin == name], device=device)

        self._shape, self._device = (len(runs), num_classes), device
        self._by_counts = rows("counts")
        self._tau = torch.tensor([run.tau for run in runs if run.margin == "counts"], dtype=torch.float64)
        self._rows: dict[str, Tensor] = {}
        self.controllers: dict[str, Margins] = {}
        for name, margin in MARGINS.items():
            gains = [run.gain for run in runs if run.margin == name]
            if margin.signal is not None and gains:
                self._rows[name] = rows(name)
                soft = margin.signal == "probability"
                self.controllers[name] = Margins(
                    num_classes,
                    labels=None if soft else labels,
                    signal=margin.signal,
                    gain=torch.tensor(gains),
                    tau=torch.tensor([run.tau for run in runs if run.margin == name]) if soft else 1.0,
                    device=device,
                )
        self._labels = labels

    @property
    def any(self) -> bool:
        """Whether any run has offsets."""
        return bool(self.controllers) or self._by_counts.numel() > 0

    def offsets(self, counts: Tensor) -> Tensor:
        """Return the offsets of every run, `float32 [R, C]`; `counts` is `[C]` or `[R, C]`."""
        found = torch.zeros(self._shape, device=self._device)
        if self._by_counts.numel():
            own = counts.expand(self._shape)[self._by_counts]
            found[self._by_counts] = logit_offsets(own, self._tau)
        for name, margins in self.controllers.items():
            found[self._rows[name]] = margins.offsets
        return found

    @property
    def by_probability(self) -> bool:
        """Whether any run needs the probabilities of all classes."""
        return "probability" in self.controllers

    def observe_logits(self, label: Tensor, logits: Tensor, times: Tensor | None = None) -> None:
        """Count probabilities, from `logits [R, B, C]` for samples of the classes `label [R, B]`."""
        rows = self._rows["probability"]
        often = None if times is None else times[rows].to(torch.int64)
        self.controllers["probability"].observe(label[rows], logits[rows].softmax(-1), times=often)

    def observe(self, position: Tensor, label: Tensor, answer: Tensor, times: Tensor | None = None) -> None:
        """Count answers `[R, B]` to samples at `position` in `labels`, of the classes `label`."""
        for name, margins in self.controllers.items():
            if margins.signal == "probability":
                continue
            rows = self._rows[name]
            key = (label if self._labels is None else position)[rows]
            margins.observe(key, answer[rows], times=None if times is None else times[rows])

    def advance(self, scale: float) -> None:
        """Move the offsets; `scale` multiplies the gain."""
        for margins in self.controllers.values():
            margins.advance(scale=scale)

    def pending(self) -> Iterator[Tensor]:
        """Yield the tensors that `observe` changes in place."""
        for margins in self.controllers.values():
            yield from margins.pending()

    def state_dict(self) -> dict[str, object]:
        """Return the state of all controllers, by name."""
        return {name: margins.state_dict() for name, margins in self.controllers.items()}

    def load_state_dict(self, state: dict[str, object]) -> None:
        """Load a state of margins of the same runs."""
        for name, margins in self.controllers.items():
            margins.load_state_dict(_check.state_part("the loop's margins", state, name))
