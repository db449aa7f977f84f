"""The loss modules of `aol.criteria` for R runs: what they learn in every training step, by the same functions."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from aol import _distributed
from aol.criteria import class_age_step, count_offsets, counts_step, margin_step, margin_sums
from aol.lab.engine.learner import Mixed
from aol.lab.settings import Settings

_LABELS = 20  # for each class, between two updates of ages: the default of `AgeWeightedLoss`


class StepLosses(nn.Module):
    """What runs learn from their batches as the loss modules do.

    These are `LogitAdjustedLoss` for the margin "counts-seen", `MarginLoss` for "probability-seen", and
    `AgeWeightedLoss` for the weighting "aol-seen". It is part of the training step, and fit for a CUDA graph: buffers
    keep their memory, and nothing waits for the device.
    """

    counts: Tensor  # labels that have come, [a, C] for the a runs that count them
    offset: Tensor  # of τ = 1, [b, C]
    state: Tensor  # of `margin_step`, [3, b, C]
    sums: Tensor  # of the steps since the last move, [3, b, C]
    steps: Tensor
    answered: Tensor  # samples, and right answers, since ages were updated, [2, c, C]
    age: Tensor  # [c, C]
    ema: Tensor

    def __init__(self, runs: Sequence[Settings], num_classes: int, device: torch.device) -> None:
        super().__init__()

        def column(values: Sequence[float]) -> Tensor:
            return torch.tensor(values, dtype=torch.float32, device=device)[:, None]

        self._size = (len(runs), num_classes)
        self._counting, self._moving, self._ageing = (
            [row for row, run in enumerate(runs) if word in (run.margin, run.weighting)]
            for word in ("counts-seen", "probability-seen", "aol-seen")
        )
        chosen = (self._counting, self._moving, self._ageing)
        self._rows = [torch.tensor(rows, dtype=torch.int64, device=device) for rows in chosen]
        self._count_tau, self._move_tau = (column([runs[row].tau for row in rows]) for rows in chosen[:2])
        self._memory = column([runs[row].margin_memory or torch.inf for row in self._counting])
        self._every = torch.tensor([runs[row].margin_steps or 1 for row in self._moving], device=device)[:, None]
        self._rho = column([runs[row].rho for row in self._ageing])
        number, moving, ageing = (torch.zeros(len(rows), num_classes, device=device) for rows in chosen)
        buffers = {"counts": number, "offset": moving, "answered": torch.stack((ageing, ageing))}
        buffers |= {name: torch.stack((moving, moving, moving)) for name in ("state", "sums")}
        buffers |= {"age": torch.ones_like(ageing, dtype=torch.int32), "ema": torch.full_like(ageing, torch.nan)}
        buffers["steps"] = torch.zeros((), dtype=torch.int64, device=device)
        for name, value in buffers.items():
            self.register_buffer(name, value)

    @property
    def offsets_any(self) -> bool:
        """Whether any run has offsets from here."""
        return bool(self._counting or self._moving)

    def class_weight(self) -> Tensor:
        """Return the weights of the classes, `float32 [R, C]`; ones for runs without such weights."""
        ema = self.ema.nan_to_num(1.0)
        own = torch.where(self._rho > 0, ema / ema.mean(1, keepdim=True), 1.0)
        return torch.ones(self._size, device=own.device).index_copy(0, self._rows[2], own)

    def weighted(self, weight: Tensor, label: Tensor, mixed: Mixed | None) -> Tensor:
        """Return weights of samples, `[R, B]`, times those of their classes; of mixed ones, the mean of both."""
        if not self._ageing:
            return weight
        of_class = self.class_weight()
        own = of_class.gather(1, label)
        return weight * (own if mixed is None else torch.lerp(of_class.gather(1, mixed[0]), own, mixed[1]))

    def before(self, label: Tensor, offset: Tensor | None) -> None:
        """Count the labels `[R, B]` of a batch before it is trained on; set the rows of `offset [R, C]` from here."""
        if offset is None:  # no run has one
            return
        if self._counting:
            own = label[self._rows[0]]
            new = torch.zeros_like(self.counts).scatter_add_(1, own, torch.ones_like(own, dtype=torch.float32))
            new = _distributed.total(new)
            limited = counts_step(self.counts, new, self._memory.clamp(max=1e9))
            self.counts.copy_(torch.where(self._memory.isinf(), self.counts + new, limited))
            offset.index_copy_(0, self._rows[0], count_offsets(self.counts, self._count_tau))
        if self._moving:
            offset.index_copy_(0, self._rows[1], self._move_tau * self.offset)

    def after(self, label: Tensor, right: Tensor, logits: Tensor, mixed: Mixed | None) -> None:
        """Learn from the answers of a step: `logits [R, B, C]` for labels `[R, B]`, which were `right [R, B]`."""
        if self._moving:
            rows = self._rows[1]
            target = label[rows]
            if mixed is not None:
                soft, rest = (F.one_hot(part[rows], self._size[1]).float() for part in (label, mixed[0]))
                target = torch.lerp(rest, soft, mixed[1][rows][..., None])
            # Strengthened offsets make classes even in the logits plus the part of them that training alone has.
            answers = logits[rows] + ((self._move_tau - 1) * self.offset)[:, None]
            new = torch.func.vmap(margin_sums, out_dims=1)(answers, target, self.state[0] + self.sums[0])
            sums = self.sums + _distributed.total(new)
            moved, state = margin_step(self.offset, self.state, sums)
            due = self.steps.add_(1) % self._every == 0
            self.offset.copy_(torch.where(due, moved, self.offset))
            self.state.copy_(torch.where(due, state, self.state))
            self.sums.copy_(torch.where(due, 0.0, sums))
        if self._ageing:
            own, correct = label[self._rows[2]], right[self._rows[2]]
            values = torch.stack((torch.ones_like(correct), correct)).float()
            new = torch.zeros_like(self.answered).scatter_add_(2, own.expand(2, -1, -1), values)
            answered = self.answered + _distributed.total(new)
            seen, known = answered
            age, ema = class_age_step(self.age, self.ema, known / seen, self._rho)
            due = seen.sum(1, keepdim=True) >= _LABELS * self._size[1]
            self.age.copy_(torch.where(due, age, self.age))
            self.ema.copy_(torch.where(due, ema, self.ema))
            self.answered.copy_(torch.where(due, 0.0, answered))
