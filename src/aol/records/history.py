"""Every sample over time: right or wrong in every epoch (one bit, the lowest first), last and mean predictions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from aol import _distributed

Bytes = npt.NDArray[np.uint8]
Truths = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int32]
Number = TypeVar("Number", float, Tensor)


def pack(value: Truths) -> Bytes:
    """Return `bool [..., N]` as `uint8 [..., ceil(N / 8)]`."""
    return np.packbits(value, axis=-1, bitorder="little")


@dataclass(frozen=True)
class Answers:
    """Which samples were seen in every epoch, and which were right.

    >>> answers = Answers(pack(np.array([[True, False], [False, False], [True, False]])), None, 2)
    >>> answers.ages(np.array([0, 1]))
    array([[1, 2],
           [2, 3],
           [1, 4]], dtype=int32)
    """

    right: Bytes  # `uint8 [E, ceil(N / 8)]`, a bit is set where a sample was seen and right
    seen: Bytes | None  # the same where it was seen; None if every epoch saw every sample
    size: int  # N
    grows: bool = False  # whether a sample that is not seen grows older, once it has been seen (`absent="grow"`)
    start: Ints | None = None  # the ages before the first epoch, `int32 [N]`; None for those of new samples

    def __len__(self) -> int:
        return len(self.right)

    def epochs(self, rows: npt.NDArray[np.int64] | None = None) -> Iterator[tuple[Truths, Truths, Ints]]:
        """Yield by epoch what was seen, what was right, and the ages after it, of all or some samples."""
        place = np.arange(self.size) if rows is None else rows
        age = self._begin()[place]
        for epoch, answers in enumerate(self.right):
            right = _unpack(answers, self.size)[place]
            seen = np.ones(place.size, bool) if self.seen is None else _unpack(self.seen[epoch], self.size)[place]
            older = seen | (age > 0) if self.grows else seen
            age = np.where(right, 1, np.where(older, np.maximum(age, 1) + 1, age)).astype(np.int32)
            yield seen, right, age

    def first(self, epochs: int) -> Answers:
        """Return the answers of the first few epochs."""
        return replace(self, right=self.right[:epochs], seen=None if self.seen is None else self.seen[:epochs])

    def last(self) -> Ints:
        """Return the ages of all samples after the last epoch."""
        age = self._begin()
        for _, _, age in self.epochs():  # noqa: B007 (the last one is wanted)
            pass
        return age

    def ages(self, rows: npt.NDArray[np.int64]) -> Ints:
        """Return the ages of some samples after every epoch, `int32 [E, len(rows)]`; 0 where never seen."""
        return np.array([age for _, _, age in self.epochs(rows)], np.int32).reshape(len(self), len(rows))

    def _begin(self) -> Ints:
        return np.full(self.size, int(not self.grows), np.int32) if self.start is None else self.start


def epoch_weight(accuracy: Number) -> Number:
    """Return how much an epoch counts: most where the classes are learnt, and wrong labels are not yet.

    >>> [round(1e3 * epoch_weight(accuracy), 3) for accuracy in (0.5, 0.83, 0.95, 1.0)]
    [0.245, 4.485, 1.498, 0.001]
    """
    return accuracy**10 * (1 - accuracy) ** 2 + 1e-6  # a network that is always right says something, too


def _unpack(row: Bytes, size: int) -> Truths:
    return np.unpackbits(row, count=size, bitorder="little").astype(bool)


# What is stored of a prediction, in this order: the predicted class, and the probabilities of the label, of the
# prediction, and of the best class other than the label.
ANSWER = ("prediction", "confidence", "top", "other")
_MEANS = ("mean_confidence", "mean_other")
# The class that more than half of the wrong answers named, if there is one, and its lead: Boyer and Moore's vote.
VOTES = ("suggested", "lead")
MARGIN = ("mean_margin", "margin_weight")
MEASURED = (*ANSWER, *_MEANS, *MARGIN, "times", *VOTES)


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

    Collective under `torch.distributed`: every process observes its share; of one sample the higher rank counts.

    >>> record = SampleHistory(1, 2, absent="keep", device=torch.device("cpu"))
    >>> record.observe(torch.tensor([1]), answer(torch.tensor([[[1.0986123, 0.0]]]), torch.tensor([[1]])))
    >>> record.advance(torch.tensor([[1, 2]]))
    >>> record.tensors(0)["confidence"]
    tensor([   nan, 0.2500])
    """

    def __init__(self, num_runs: int, num_samples: int, *, absent: str, device: torch.device) -> None:
        shape = (num_runs, num_samples)
        self._grows = absent == "grow"
        whole = {"age": int(not self._grows), "prediction": -1, "times": 0, "suggested": -1, "lead": 0}
        self._values = {name: torch.full(shape, n, dtype=torch.int32, device=device) for name, n in whole.items()}
        self._values |= {name: torch.full(shape, torch.nan, device=device) for name in ANSWER[1:]}
        self._values |= {name: torch.zeros(shape, device=device) for name in (*_MEANS, *MARGIN)}
        self._now = torch.zeros(shape, dtype=torch.bool, device=device)  # seen since the last epoch
        self._bits: dict[str, list[Bytes]] = {"right": [], "seen": []}  # by epoch, [R, ceil(N / 8)]

    def __len__(self) -> int:
        return len(self._bits["right"])

    def observe(self, position: Tensor, answers: Tensor | None) -> None:
        """Store predictions `[4, R, B]` for the samples at `position [B]` or `[R, B]`; None: seen, but unknown."""
        place = position.to(self._now.device).expand(self._now.shape[0], -1)
        self._now.scatter_(1, place, True)
        for name, value in {} if answers is None else dict(zip(ANSWER, answers, strict=True)).items():
            self._values[name].scatter_(1, place, value.to(self._values[name]))

    def advance(self, age: Tensor) -> None:
        """End the epoch; its ages are `age [R, N]`."""
        values, age = self._values, age.to(self._now.device)  # the device may have changed
        self._exchange()
        known = self._now & ~values["confidence"].isnan()
        if not bool(self._now.any()):  # no observation: derive what was seen from the ages
            self._now = age > 0 if self._grows else (age == 1) | (age != values["age"])
        right = self._now & (age == 1)
        if not len(self):  # ages of a record that begins late do not follow from its bits alone
            values.pop("start", None)
            older = self._now | (age > 1) if self._grows else self._now
            before = torch.where(right, 1, torch.where(older, age - 1, age)).to(torch.int32)
            values |= {"start": before} if bool((before > 1).any()) else {}
        values["times"] += known
        for name in _MEANS:
            far = values[name.removeprefix("mean_")] - values[name]
            values[name] += torch.where(known, far / values["times"], 0.0)
        self._weigh(known, right)
        self._vote(known & ~right)
        for name, truths in (("right", right), ("seen", self._now)):
            self._bits[name].append(pack(truths.cpu().numpy()))
        values["age"] = age.to(torch.int32, copy=True)
        self._now = torch.zeros_like(self._now)

    def _weigh(self, known: Tensor, right: Tensor) -> None:
        """Add the margins (other - confidence) / (other + confidence), weighted by `epoch_weight`."""
        mean, total = (self._values[name] for name in MARGIN)
        label, other = self._values["confidence"], self._values["other"]
        accuracy = (known & right).sum(1, keepdim=True) / known.sum(1, keepdim=True).clamp(min=1)
        weight = known * epoch_weight(accuracy)
        total += weight
        mean += torch.where(known, ((other - label) / (other + label) - mean) * weight / total, 0.0)

    def _vote(self, wrong: Tensor) -> None:
        """Let the last answers that were wrong vote for the class that is suggested."""
        prediction, suggested, lead = (self._values[name] for name in ("prediction", *VOTES))
        chosen = wrong & (lead == 0)
        suggested.copy_(torch.where(chosen, prediction, suggested))
        lead += torch.where(wrong, torch.where(chosen | (prediction == suggested), 1, -1), 0)

    def _exchange(self) -> None:
        rank, world = _distributed.world()
        if world == 1:
            return
        last = _distributed.total(self._now * (rank + 1), largest=True)  # the highest rank that saw it, plus one
        mine, self._now = self._now & (last == rank + 1), last > 0
        for name in ANSWER:
            told = _distributed.total(self._values[name].masked_fill(~mine, 0.0))
            self._values[name] = torch.where(self._now, told, self._values[name])

    def can_precede(self, age: Tensor) -> bool:
        """Return whether ages `[R, N]` can be those of the next epoch: young, as they were, or one more."""
        before, age = self._values["age"], age.to(self._now.device)
        return bool(((age <= 1) | (age == before) | (age == before + 1)).all())

    def cut(self, epochs: int) -> None:
        """Drop all but the first epochs. Last predictions and means are kept."""
        if epochs >= len(self):
            return
        self._bits = {name: rows[:epochs] for name, rows in self._bits.items()}
        self._values["times"].clamp_(max=epochs)
        for run, row in enumerate(self._values["age"]):
            row.copy_(torch.from_numpy(self.answers(run).last()))

    def answers(self, run: int) -> Answers:
        """Return every answer to one run's samples."""
        state = {name: value.cpu().numpy() for name, value in self._state(run).items()}
        return Answers(state["right"], state.get("seen"), self._now.shape[1], self._grows, state.get("start"))

    def tensors(self, run: int) -> dict[str, Tensor]:
        """Return the tensors of one run, for a file."""
        tensors = {name: value.cpu() for name, value in self._state(run).items() if name != "age"}
        unknown = tensors["times"] == 0
        return tensors | {name: tensors[name].masked_fill(unknown, torch.nan) for name in (*_MEANS, MARGIN[0])}

    def state_dict(self) -> dict[str, Tensor]:
        """Return the state between two epochs, as tensors."""
        return {name: value.clone() for name, value in self._state(slice(None)).items()}

    def _state(self, run: int | slice) -> dict[str, Tensor]:
        state = {name: value[run] for name, value in self._values.items()}
        full = pack(np.ones(self._now.shape, bool))[run]
        for name, rows in self._bits.items():
            bits = np.array([row[run] for row in rows], np.uint8).reshape(len(rows), *full.shape)
            if name == "right" or bool((bits != full).any()):  # without seen bits, all were
                state[name] = torch.from_numpy(bits)
        return state

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Load a state with the same number of runs and samples."""
        device, full = self._now.device, pack(np.ones(self._now.shape, bool))
        self._bits["right"] = list(state["right"].cpu().numpy())
        self._bits["seen"] = list(state["seen"].cpu().numpy()) if "seen" in state else [full] * len(self)
        self._values = {name: value.to(device, copy=True) for name, value in state.items() if name not in self._bits}
        for name in (*_MEANS, MARGIN[0]):
            self._values[name].nan_to_num_(0.0)
