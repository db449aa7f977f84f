"""Every sample over time: right or wrong in each epoch (one bit), and the last and mean prediction.

`Answers` has the bits of one run, from which all ages follow: 200 epochs of a million samples are 25 MB. Bit `i % 8` of
byte `i // 8`, counted from the lowest, belongs to sample i. `SampleHistory` has a leading run axis and stays on the
training device; `aol.records.samples` writes one run to a file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from aol import _check, _distributed

Bytes = npt.NDArray[np.uint8]
Truths = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int32]


def pack(value: Truths) -> Bytes:
    """Return `bool [..., N]` as `uint8 [..., ceil(N / 8)]`.

    >>> pack(np.array([True, False, True]))
    array([5], dtype=uint8)
    """
    return np.packbits(value, axis=-1, bitorder="little")


@dataclass(frozen=True)
class Answers:
    """Which samples were seen in each epoch, and which were right: `uint8 [E, ceil(N / 8)]` each.

    Args:
        right: a bit is set where a sample was seen and right.
        seen: a bit is set where it was seen; None if every epoch saw every sample.
        size: N.
        grows: whether a sample that is not seen grows older, once it has been seen (`absent="grow"`).
        start: the ages before the first epoch, `int32 [N]`; None for those of new samples.

    >>> answers = Answers(pack(np.array([[True, False], [False, False], [True, False]])), None, 2)
    >>> answers.ages(np.array([0, 1]))
    array([[1, 2],
           [2, 3],
           [1, 4]], dtype=int32)
    """

    right: Bytes
    seen: Bytes | None
    size: int
    grows: bool = False
    start: Ints | None = None

    def __len__(self) -> int:
        return len(self.right)

    def epochs(self, rows: npt.NDArray[np.int64] | None = None) -> Iterator[tuple[Truths, Truths, Ints]]:
        """Yield for each epoch what was seen, what was right, and the ages after it, of all or some samples."""
        place = np.arange(self.size) if rows is None else np.asarray(rows, dtype=np.int64)
        if place.size and not 0 <= place.min() <= place.max() < self.size:
            raise IndexError(f"rows must lie in 0 to {self.size - 1}, not {int(place.min())} to {int(place.max())}.")
        age = self._first(place)
        everything = np.ones(place.size, bool)
        for epoch in range(len(self)):
            seen = everything if self.seen is None else self._bits(self.seen[epoch], rows)
            right = self._bits(self.right[epoch], rows)
            older = seen | (age > 0) if self.grows else seen
            age = np.where(right, 1, np.where(older, np.maximum(age, 1) + 1, age)).astype(np.int32)
            yield seen, right, age

    def first(self, epochs: int) -> Answers:
        """Return the answers of the first few epochs."""
        return replace(self, right=self.right[:epochs], seen=None if self.seen is None else self.seen[:epochs])

    def last(self) -> Ints:
        """Return the ages of all samples after the last epoch."""
        age = self._first(np.arange(self.size))
        for _, _, age in self.epochs():  # noqa: B007 (the last one is wanted)
            pass
        return age

    def _first(self, place: npt.NDArray[np.int64]) -> Ints:
        return np.full(place.size, 0 if self.grows else 1, np.int32) if self.start is None else self.start[place]

    def ages(self, rows: npt.NDArray[np.int64]) -> Ints:
        """Return the ages of some samples after every epoch, `int32 [E, len(rows)]`; 0 where never seen."""
        found = [age for _, _, age in self.epochs(rows)]
        return np.stack(found) if found else np.zeros((0, len(rows)), np.int32)

    def _bits(self, row: Bytes, rows: npt.NDArray[np.int64] | None) -> Truths:
        if rows is None:
            return np.unpackbits(row, count=self.size, bitorder="little").astype(bool)
        found: Truths = (row[rows >> 3] >> (rows & 7).astype(np.uint8)) & 1 == 1
        return found


# What is stored of a prediction, in this order: the predicted class, and the probabilities of the label, of the
# prediction, and of the best class other than the label.
ANSWER = ("prediction", "confidence", "top", "other")
_MEANS = ("confidence", "other")


def answer(logits: Tensor, label: Tensor) -> Tensor:
    """Return what is stored of predictions, `float32 [4, ...]`; `logits` is `[..., C]` and `label` `[...]`.

    Probabilities are softmax probabilities, whatever the training loss. NaN for a network that diverged.

    >>> answer(torch.tensor([[0.0, 1.0986123]]), torch.tensor([0])).T
    tensor([[1.0000, 0.2500, 0.7500, 0.7500]])
    """
    probability = logits.to(torch.float32).softmax(-1)
    top, prediction = probability.max(-1)
    confidence = probability.gather(-1, label[..., None]).squeeze(-1)
    other = probability.scatter(-1, label[..., None], 0.0).amax(-1)
    return torch.stack((prediction.to(torch.float32).masked_fill(top.isnan(), -1.0), confidence, top, other))


class SampleHistory:
    """The predictions of R runs for N samples, over time; `absent` as in `SampleAges`.

    Call `observe` with predictions, then `advance` with the ages once per epoch. Collective under
    `torch.distributed`: each process observes its share; if two saw the same sample, the higher rank counts.

    >>> record = SampleHistory(1, 2, absent="keep", device=torch.device("cpu"))
    >>> record.observe(torch.tensor([1]), answer(torch.tensor([[[1.0986123, 0.0]]]), torch.tensor([[1]])))
    >>> record.advance(torch.tensor([[1, 2]]))
    >>> record.tensors(0)["confidence"]
    tensor([   nan, 0.2500])
    """

    def __init__(self, num_runs: int, num_samples: int, *, absent: str, device: torch.device) -> None:
        shape = (num_runs, num_samples)
        self._grows = absent == "grow"
        self._age = torch.full(shape, 0 if self._grows else 1, dtype=torch.int32, device=device)
        self._start: Tensor | None = None
        self._answer = torch.full((len(ANSWER), *shape), torch.nan, device=device)
        self._answer[0] = -1.0
        self._mean = torch.zeros((len(_MEANS), *shape), device=device)
        self._times = torch.zeros(shape, dtype=torch.int32, device=device)
        self._now = torch.zeros(shape, dtype=torch.bool, device=device)
        self._right: list[Bytes] = []
        self._seen: list[Bytes | None] = []  # None: all were

    def __len__(self) -> int:
        return len(self._right)

    def observe(self, position: Tensor, answers: Tensor | None) -> None:
        """Store predictions `[4, R, B]` for the samples at `position [B]` or `[R, B]`; None: seen, but unknown."""
        place = position.to(self._now.device).expand(self._now.shape[0], -1)
        self._now.scatter_(1, place, True)
        if answers is not None:
            self._answer.scatter_(2, place.expand(len(ANSWER), -1, -1), answers.to(self._answer))

    def advance(self, age: Tensor, *, skipped: int = 0, group: _distributed.Group = None) -> None:
        """End the epoch; its ages are `age [R, N]`. `skipped`: number of epochs before it without observation."""
        age = age.to(self._now.device)  # the device may have changed
        self._exchange(group)
        known = self._now & ~self._answer[1].isnan()
        if not bool(self._now.any()):  # no observation: derive what was seen from the ages
            self._now = age > 0 if self._grows else (age == 1) | (age != self._age)
        right = self._now & (age == 1)
        if skipped:
            older = self._now | (age > 1) if self._grows else self._now
            self._skip(skipped, torch.where(right, 1, torch.where(older, age - 1, age)))
        self._times += known
        for mean, name in zip(self._mean, _MEANS, strict=True):
            mean += torch.where(known, (self._answer[ANSWER.index(name)] - mean) / self._times, 0.0)
        self._write(right, self._now)
        self._age = age.to(torch.int32, copy=True)
        self._now.zero_()

    def _write(self, right: Tensor, seen: Tensor) -> None:
        self._right.append(pack(right.cpu().numpy()))
        self._seen.append(None if bool(seen.all()) else pack(seen.cpu().numpy()))

    def _skip(self, epochs: int, age: Tensor) -> None:
        """Add epochs without observation, such that they lead from the last known ages to these.

        Before the first epoch, these ages are the start of the record.
        """
        if not len(self):
            self._start = age.to(torch.int32)
            return
        unseen = (age == self._age) & (age > 1) & (not self._grows)
        resets = (age <= epochs) & (age > 0) & ~unseen
        wrong_for = torch.where(resets, age - 1, age - self._age)
        for left in range(epochs - 1, -1, -1):
            wrong = wrong_for > left
            self._write(resets & ~wrong, wrong | resets)

    def _exchange(self, group: _distributed.Group) -> None:
        rank, world = _distributed.world(group)
        if world == 1:
            return
        seen = torch.stack(_distributed.gather(self._now.to(torch.uint8), group)) > 0  # [W, R, N]
        mine = seen[rank] & ~seen[rank + 1 :].any(0)
        told = _distributed.total(self._answer.masked_fill(~mine, 0.0), group)
        self._now = seen.any(0)
        self._answer = torch.where(self._now, told, self._answer)

    def cut(self, epochs: int) -> None:
        """Drop all but the first epochs. Last predictions and means are kept."""
        if epochs >= len(self):
            return
        del self._right[epochs:], self._seen[epochs:]
        self._times.clamp_(max=epochs)
        for run, row in enumerate(self._age):
            row.copy_(torch.from_numpy(self.answers(run).last()))

    def answers(self, run: int) -> Answers:
        """Return every answer to one run's samples."""
        found = self.tensors(run)
        seen, start = (found[name].numpy() if name in found else None for name in ("seen", "start"))
        return Answers(found["right"].numpy(), seen, self._now.shape[1], self._grows, start)

    def tensors(self, run: int) -> dict[str, Tensor]:
        """Return the tensors of one run, for a file."""
        found = dict(zip(ANSWER, self._answer[:, run].cpu(), strict=True))
        found["prediction"] = found["prediction"].nan_to_num(-1.0).to(torch.int32)
        found["times"] = self._times[run].cpu()
        for mean, name in zip(self._mean[:, run].cpu(), _MEANS, strict=True):
            found[f"mean_{name}"] = mean.masked_fill(found["times"] == 0, torch.nan)
        if self._start is not None:
            found["start"] = self._start[run].cpu()
        found["right"] = _stacked([row[run] for row in self._right], self._now.shape[1])
        if any(row is not None for row in self._seen):
            full = pack(np.ones(self._now.shape[1], bool))
            found["seen"] = _stacked([full if row is None else row[run] for row in self._seen], self._now.shape[1])
        return {name: value.contiguous() for name, value in found.items()}

    def state_dict(self) -> dict[str, object]:
        """Return the state between two epochs, as tensors."""
        runs, size = self._now.shape
        partial = [(epoch, row) for epoch, row in enumerate(self._seen) if row is not None]
        return {
            "age": self._age.clone(),
            "answer": self._answer.clone(),
            "mean": self._mean.clone(),
            "times": self._times.clone(),
            "right": _stacked(self._right, size, runs),
            "seen": _stacked([row for _, row in partial], size, runs),
            "partial": [epoch for epoch, _ in partial],
        }

    def load_state_dict(self, state: dict[str, object]) -> None:
        """Load a state with the same number of runs and samples."""
        what, now = "SampleHistory", self.state_dict()
        new = {
            name: _check.state_value(what, state, name, own, any_size=name in ("right", "seen"))
            for name, own in now.items()
            if isinstance(own, Tensor)
        }
        partial, epochs = state.get("partial"), len(new["right"])
        if not isinstance(partial, list) or len(partial) != len(new["seen"]) or not set(partial) <= set(range(epochs)):
            raise ValueError(f"This state of {what} does not fit: 'partial' must name the epochs of 'seen'.")
        self._age, self._answer, self._mean, self._times = (
            new[name].to(self._now.device, copy=True) for name in ("age", "answer", "mean", "times")
        )
        self._right = list(new["right"].numpy())
        self._seen = [None] * epochs
        for epoch, row in zip(partial, new["seen"].numpy(), strict=True):
            self._seen[epoch] = row

    def restore(self, columns: Mapping[str, np.ndarray], histories: Sequence[Answers]) -> None:
        """Continue from stored runs: columns `[R, N]` by name, and the answers of each run."""

        def column(name: str) -> Tensor:
            return torch.from_numpy(columns[name]).to(self._now.device)

        self._age, self._times = column("age"), column("times")
        self._answer = torch.stack([column(name).to(torch.float32) for name in ANSWER])
        self._mean = torch.stack([column(f"mean_{name}").nan_to_num(0.0) for name in _MEANS])
        starts = [each.start for each in histories if each.start is not None]
        self._start = torch.from_numpy(np.stack(starts)).to(self._now.device) if starts else None
        self._right = list(np.stack([each.right for each in histories], axis=1))
        full = pack(np.ones(self._now.shape[1], bool))
        planes = [np.tile(full, (len(self._right), 1)) if each.seen is None else each.seen for each in histories]
        self._seen = [None if (row == full).all() else row for row in np.stack(planes, axis=1)]


def _stacked(rows: list[Bytes], size: int, *runs: int) -> Tensor:
    if not rows:
        return torch.zeros((0, *runs, -(-size // 8)), dtype=torch.uint8, device="cpu")
    return torch.from_numpy(np.stack(rows))
