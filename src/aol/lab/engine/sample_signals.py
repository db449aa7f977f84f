"""What is remembered of every training sample beside its age, for weights by sample."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from aol import _check, _distributed
from aol.lab.settings import Settings


class SampleSignals:
    """The largest age, the number of errors, and the last loss of N samples in R runs. No signal forgets but the loss.

    Attributes:
        peak: the largest age so far, `int32 [R, N]`; 0 where never seen.
        wrong: in how many of its `seen` epochs a sample was wrong, `int32 [R, N]`.
        marked: which samples were wrong at the end of epoch `after`, counted from one, `bool [R, N]`.
        loss: the last softmax loss, `float32 [R, N]`, NaN where never observed.
    """

    def __init__(self, runs: Sequence[Settings], num_samples: int, device: torch.device) -> None:
        shape = (len(runs), num_samples)
        self._after = torch.tensor([run.after for run in runs], device=device)[:, None]
        self.peak = torch.zeros(shape, dtype=torch.int32, device=device)
        self.wrong = torch.zeros_like(self.peak)
        self.seen = torch.zeros_like(self.peak)
        self.marked = torch.zeros(shape, dtype=torch.bool, device=device)
        self.loss = torch.full(shape, torch.nan, device=device)

    @property
    def error_rate(self) -> Tensor:
        """The share of epochs in which a sample was wrong, `float32 [R, N]`; NaN where never seen."""
        return self.wrong / self.seen

    def observe(self, position: Tensor, confidence: Tensor) -> None:
        """Keep the losses of samples at `position [R, m]`, from the probabilities of their labels.

        Collective under `torch.distributed`: each process has the `confidence` of `position[:, rank::world]`.
        """
        rank, world = _distributed.world()
        loss = torch.zeros(position.shape, device=self.loss.device)
        loss[:, rank::world] = -confidence.clamp_min(torch.finfo(torch.float32).tiny).log()
        self.loss.scatter_(1, position, _distributed.total(loss))

    def advance(self, position: Tensor, age: Tensor, *, epoch: int) -> None:
        """End the epoch, counted from zero, that observed the samples at `position [R, m]` and led to `age [R, N]`.

        An observed sample was wrong if its age is above one: ages are the same on all processes, and so are signals.
        """
        observed = torch.zeros_like(self.marked).scatter_(1, position, True)
        wrong = observed & (age > 1)
        known = observed | (self.peak > 0)
        self.peak = torch.where(known, torch.maximum(self.peak, age), self.peak)
        self.wrong += wrong
        self.seen += observed
        self.marked = torch.where(self._after == epoch + 1, wrong, self.marked)

    def state_dict(self) -> dict[str, object]:
        """Return all signals as copies."""
        return {name: getattr(self, name).clone() for name in _TENSORS}

    def load_state_dict(self, state: dict[str, object]) -> None:
        """Load signals of the same runs and samples."""
        own = {name: getattr(self, name) for name in _TENSORS}
        for name, mine in own.items():
            own[name] = _check.state_tensor("SampleSignals", state, name, mine.shape, mine.dtype, mine.device, _BOUNDS)
        vars(self).update(own)


_BOUNDS = _check.Bounds(0, 2**31, nan=True)
_TENSORS = ("peak", "wrong", "seen", "marked", "loss")
