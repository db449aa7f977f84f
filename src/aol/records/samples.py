"""What is kept of every sample: right or wrong at each epoch, in a bit, and what was answered last and on average.

`SampleRecord` has a leading run axis and lives on the training device; `samples.safetensors` holds one run of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from aol import _check, _distributed
from aol.records import bits
from aol.records.files import write_atomically
from aol.records.tables import DamagedRecordsError

FILE = "samples.safetensors"
# What is known of an answer, in this order: the class answered, the probability of the label, that of the answer.
ANSWER = ("prediction", "confidence", "top")


def answer(logits: Tensor, label: Tensor) -> Tensor:
    """Return what is kept of answers, `float32 [3, ...]`: prediction, its label's probability, its own.

    `logits` is `[..., C]` and `label` `[...]`; a run that diverged answers NaN.

    >>> answer(torch.tensor([[0.0, 1.0986123]]), torch.tensor([0]))
    tensor([[1.0000],
            [0.2500],
            [0.7500]])
    """
    probability = logits.to(torch.float32).softmax(-1)
    top, prediction = probability.max(-1)
    confidence = probability.gather(-1, label[..., None]).squeeze(-1)
    return torch.stack((prediction.to(torch.float32), confidence, top))


class SampleRecord:
    """The answers of R runs to N samples, over time.

    Call `observe` with what was answered, then `advance` with the ages once an epoch. Collective under
    `torch.distributed`, as ages are: each process observes its share, and where two saw one sample the higher rank
    counts.

    >>> record = SampleRecord(1, 2, device=torch.device("cpu"))
    >>> record.observe(torch.tensor([1]), answer(torch.tensor([[[1.0986123, 0.0]]]), torch.tensor([[1]])))
    >>> record.advance(torch.tensor([[1, 2]]))
    >>> record.tensors(0)["confidence"]
    tensor([   nan, 0.2500])
    """

    def __init__(self, num_runs: int, num_samples: int, *, device: torch.device) -> None:
        shape = (num_runs, num_samples)
        self._answer = torch.full((len(ANSWER), *shape), torch.nan, device=device)
        self._answer[0] = -1.0
        self._mean = torch.zeros(shape, device=device)
        self._times = torch.zeros(shape, dtype=torch.int32, device=device)
        self._now = torch.zeros(shape, dtype=torch.bool, device=device)
        self._right: list[bits.Bytes] = []
        self._seen: list[bits.Bytes | None] = []  # None: all were

    def __len__(self) -> int:
        return len(self._right)

    def observe(self, position: Tensor, answers: Tensor | None) -> None:
        """Note the answers `[3, R, B]` to the samples at `position [B]` or `[R, B]`; None: seen, answer unknown."""
        place = position.expand(self._now.shape[0], -1)
        self._now.scatter_(1, place, True)
        if answers is not None:
            self._answer.scatter_(2, place.expand(len(ANSWER), -1, -1), answers.to(self._answer.dtype))

    def advance(self, age: Tensor, group: _distributed.Group = None) -> None:
        """End the epoch, after which the ages are `age [R, N]`."""
        self._exchange(group)
        confidence = self._answer[1]
        known = self._now & ~confidence.isnan()
        self._times += known
        self._mean += torch.where(known, (confidence - self._mean) / self._times, 0.0)
        self._right.append(bits.pack((self._now & (age == 1)).cpu().numpy()))
        self._seen.append(None if bool(self._now.all()) else bits.pack(self._now.cpu().numpy()))
        self._now.zero_()

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
        """Forget the epochs after the first few. Last answers stay, and means stay as they are, over fewer epochs."""
        del self._right[epochs:], self._seen[epochs:]
        self._times.clamp_(max=epochs)

    def tensors(self, run: int) -> dict[str, Tensor]:
        """Return one run as it is written to a file."""
        found = dict(zip(ANSWER, self._answer[:, run].cpu(), strict=True))
        found["prediction"] = found["prediction"].nan_to_num(-1.0).to(torch.int32)
        found["mean_confidence"] = self._mean[run].cpu().masked_fill(self._times[run].cpu() == 0, torch.nan)
        found["times"] = self._times[run].cpu()
        found["right"] = _stacked([row[run] for row in self._right], self._now.shape[1])
        if any(row is not None for row in self._seen):
            full = bits.pack(np.ones(self._now.shape[1], bool))
            found["seen"] = _stacked([full if row is None else row[run] for row in self._seen], self._now.shape[1])
        return {name: value.contiguous() for name, value in found.items()}

    def state_dict(self) -> dict[str, object]:
        """Return everything between two epochs, as tensors."""
        runs, size = self._now.shape
        partial = [(epoch, row) for epoch, row in enumerate(self._seen) if row is not None]
        return {
            "answer": self._answer.clone(),
            "mean": self._mean.clone(),
            "times": self._times.clone(),
            "right": _stacked(self._right, size, runs),
            "seen": _stacked([row for _, row in partial], size, runs),
            "partial": [epoch for epoch, _ in partial],
        }

    def load_state_dict(self, state: dict[str, object]) -> None:
        """Take over a state of as many runs and samples."""
        what, shape, device = "SampleRecord", self._now.shape, self._now.device
        answers = _check.state_tensor(what, state, "answer", self._answer.shape, torch.float32, device)
        mean = _check.state_tensor(what, state, "mean", shape, torch.float32, device)
        times = _check.state_tensor(what, state, "times", shape, torch.int32, device)
        right, seen, partial = state["right"], state["seen"], state["partial"]
        if not isinstance(right, Tensor) or not isinstance(seen, Tensor) or not isinstance(partial, list):
            raise ValueError(f"This state of {what} is damaged: 'right', 'seen' and 'partial' do not fit.")
        self._answer, self._mean, self._times = answers, mean, times
        self._right = list(right.cpu().numpy())
        self._seen = [None] * len(self._right)
        for epoch, row in zip(partial, seen.cpu().numpy(), strict=True):
            self._seen[epoch] = row


def _stacked(rows: list[bits.Bytes], size: int, *runs: int) -> Tensor:
    if not rows:
        return torch.zeros((0, *runs, -(-size // 8)), dtype=torch.uint8)
    return torch.from_numpy(np.stack(rows))


def write_samples(
    path: Path, tensors: dict[str, Tensor], *, index: Tensor, label: Tensor, age: Tensor, ema: Tensor, absent: str
) -> None:
    """Write what is known of the samples of one run; `index` and `label` say which they are."""
    from safetensors.torch import save

    more = {"index": index, "label": label, "age": age, "ema": ema}
    found = tensors | {name: value.cpu().contiguous() for name, value in more.items()}
    write_atomically(path, save(found, metadata={"absent": absent}))


@dataclass(frozen=True)
class SampleTable:
    """One run's samples as read from a file: arrays `[N]` by name, and every answer as a bit."""

    columns: dict[str, npt.NDArray[np.generic]]
    answers: bits.Answers

    def __len__(self) -> int:
        return self.answers.size


_COLUMNS = {
    "index": "i8", "label": "i8", "age": "i4", "ema": "f4", "prediction": "i4", "confidence": "f4", "top": "f4",
    "mean_confidence": "f4", "times": "i4",
}  # fmt: skip


def read_samples(path: Path) -> SampleTable | None:
    """Read what `write_samples` wrote; None where there is no such file."""
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        return None
    try:
        with safe_open(path, framework="np") as file:
            found = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
            about = file.metadata() or {}
    except SafetensorError as error:
        raise DamagedRecordsError(f"{path}: not a whole file of samples.") from error
    size = len(found.get("label", ()))
    wrong = [name for name, kind in _COLUMNS.items() if name not in found or found[name].shape != (size,)]
    wrong += [name for name in ("right", "seen") if name in found and found[name].shape[1:] != (-(-size // 8),)]
    if wrong or "right" not in found:
        raise DamagedRecordsError(
            f"{path}: not a file of samples of this version: see {', '.join(wrong or ['right'])}."
        )
    columns = {name: found[name].astype(kind, copy=False) for name, kind in _COLUMNS.items()}
    answers = bits.Answers(
        found["right"], found.get("seen"), size, grows=about.get("absent") == "grow", start=found.get("start")
    )
    return SampleTable(columns, answers)
