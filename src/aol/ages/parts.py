"""Ages of the parts of samples: tokens of a text, labels of a multi-label sample, pixels of an image."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import torch
from torch import Tensor

from aol import _check, _distributed
from aol.ages.sample import SampleAges

if TYPE_CHECKING:
    import pandas as pd

Rows: TypeAlias = _check.Integers | Sequence[_check.Integers]


def pair_classes(target: _check.Numbers, *, ignore_index: int = -100) -> Tensor:
    r"""Return the class of each pair of a sample and a label, `int64 [..., L]`, for ages of multi-label samples.

    .. math:: c_{il} = 2 l + y_{il}

    So each label has two classes, absent and present, whose ages are counted apart. `target` is `[..., L]`: 0, 1, or
    `ignore_index` where it is not known.

    >>> pair_classes([[1, 0, 0], [0, -100, 1]])
    tensor([[   1,    2,    4],
            [   0, -100,    5]])
    """
    given = _check.real("target", target)
    known = given != ignore_index
    if given.dim() == 0 or bool(((given != 0) & (given != 1) & known).any()):
        raise ValueError(f"target must hold 0 or 1 for each label, or {ignore_index}, not {_check.shown(target)}.")
    first = 2 * torch.arange(given.shape[-1], device=given.device)
    return torch.where(known, given.to(torch.int64) + first, ignore_index)


class PartAges:
    """For how many epochs each part of a sample has been wrong: a token, a label of a multi-label sample, a pixel.

    The k-th part of a sample is the k-th of its labels that is not `ignore_index`. So padding, on either side and to
    any length, does not matter, and a text that is cut at its end has fewer parts.

    Args:
        labels: the class of each part: `[N, ...]`, or N sequences of any lengths; `ignore_index` where there is none.
            For multi-label samples, `pair_classes(targets)`.
        ignore_index: what stands for no part.
        level: what `weight` returns: the weight of the part's "class" or of the "part".
        num_classes, rho, fuse, absent, store, device: see `SampleAges`.

    `parts` holds the ages: a `SampleAges` with one sample per part, in the order of samples. Memory is that of
    `SampleAges`: 8 bytes per part.

    >>> ages = PartAges([[0, 0, 1], [-100, 1]])  # a text of three tokens, and one whose first token has no label
    >>> label = torch.tensor([[-100, 1], [0, 0]])  # a batch: the second text, and two tokens of the first
    >>> ages.observe([1, 0], torch.tensor([[False, True], [True, False]]), label)
    >>> ages.advance()
    >>> ages.split(ages.parts.age)
    (tensor([1, 2, 1], dtype=torch.int32), tensor([1], dtype=torch.int32))
    >>> ages.weight([1, 0], label)
    tensor([[0.0000, 0.8000],
            [1.2000, 1.2000]])
    """

    def __init__(
        self,
        labels: Rows,
        *,
        ignore_index: int = -100,
        num_classes: int | None = None,
        rho: _check.Rate = 0.5,
        level: str = "class",
        fuse: str = "ema",
        absent: str = "keep",
        store: str = "full",
        device: torch.device | str | None = None,
    ) -> None:
        self.ignore_index = ignore_index
        self.level = _check.choice("level", level, ("class", "part"))
        flat, sizes = _flattened(labels, ignore_index)
        self.parts = SampleAges(
            flat,
            num_classes=num_classes,
            rho=rho,
            level="sample" if level == "part" else "class",
            fuse=fuse,
            absent=absent,
            store=store,
            device=device,
        )
        self._ends = sizes.cumsum(0).to(self.device)  # of each sample's parts among all

    # Reading

    @property
    def num_samples(self) -> int:
        """The number of samples, N."""
        return self._ends.numel()

    @property
    def num_classes(self) -> int:
        """The number of classes, C."""
        return self.parts.num_classes

    @property
    def epoch(self) -> int:
        """How often `advance` was called."""
        return self.parts.epoch

    @property
    def rho(self) -> Tensor:
        """The rate of the EMA, `float32 []` or `[R]`."""
        return self.parts.rho

    @property
    def device(self) -> torch.device:
        """The device of the state."""
        return self.parts.device

    @property
    def class_age(self) -> Tensor:
        """The mean smoothed age of each class's seen parts, `float32 [C]`; NaN for a class without one."""
        return self.parts.class_age

    @property
    def class_weight(self) -> Tensor:
        """Class ages divided by their mean, `float32 [C]`; one for a class without a seen part."""
        return self.parts.class_weight

    @property
    def weights(self) -> Tensor:
        """The mean weight of each sample's parts, for a sampler, `float32 [N]`; one for a sample without parts."""
        total = self.parts.weights.to(torch.float64).cumsum(-1)
        total = torch.cat((total.new_zeros(*total.shape[:-1], 1), total), -1)
        begins, sizes = self._begins(), self._ends - self._begins()
        mean = (total[..., self._ends] - total[..., begins]) / sizes
        return mean.masked_fill(sizes == 0, 1.0).to(torch.float32)

    def split(self, value: Tensor) -> tuple[Tensor, ...]:
        """Return values of all parts, `[..., P]`, as N tensors, one per sample."""
        return torch.tensor_split(value, self._ends[:-1].cpu(), -1)

    def weight(self, index: _check.Integers, label: _check.Integers) -> Tensor:
        """Return the weights of parts, `float32`, of the shape of `label [B, ...]`; zero where there is no part.

        With a run axis, `[R, B, ...]`.
        """
        place, kept = self._find(index, label)
        found = self.parts.weight(place)
        weight = found.new_zeros(*self.rho.shape, *kept.shape)
        weight[..., kept] = found
        return weight

    def to_frame(self) -> pd.DataFrame:
        """Return the state as a pandas DataFrame, a row per part, named by sample and part; see `SampleAges`."""
        return self._named(self.parts.to_frame())

    def oldest(self, k: int) -> pd.DataFrame:
        """Return the k parts that are wrong for longest, oldest first, as rows of `to_frame`."""
        return self._named(self.parts.oldest(k))

    # Updating

    def observe(self, index: _check.Integers, correct: _check.Truths, label: _check.Integers) -> None:
        """Record which parts were predicted right.

        `index` is `[B]`; `label` and `correct` are `[B, ...]`, with a run axis `correct [R, B, ...]`. Labels are
        compared with those of this state, and a ValueError tells that they differ.
        """
        place, kept = self._find(index, label)
        right = _check.truths("correct", correct, device=self.device, wait=True)  # as for the labels
        shape = (*self.rho.shape, *kept.shape)
        if right.shape != torch.Size(shape):
            raise ValueError(f"correct must have the shape {list(shape)} to go with label, not {list(right.shape)}.")
        self.parts.observe(place, right[..., kept])

    def advance(self, *, group: _distributed.Group = None, sync: bool = True) -> None:
        """End the epoch: fold what was observed into the ages. Collective under `torch.distributed`."""
        self.parts.advance(group=group, sync=sync)

    def positions(self, index: _check.Integers, label: _check.Integers) -> Tensor:
        """Return the places of the parts of a batch among all parts, `int64 [K]`, in the order of `label`.

        `parts` and a `Recorder` of it know the parts by these. Without `ignore_index`, `label[label != -100]` are their
        labels.

        >>> PartAges([[0, 0, 1], [-100, 1]]).positions([1, 0], [[-100, 1], [0, 0]])
        tensor([3, 0, 1])
        """
        return self._find(index, label)[0]

    def _find(self, index: _check.Integers, label: _check.Integers) -> tuple[Tensor, Tensor]:
        """Return the places of parts, `[K]`, and where in the batch they are, bool `[B, ...]`."""
        rows = _check.integers("index", index, device=self.device)
        given = _check.integers("label", label, device=self.device)
        if rows.dim() != 1 or given.shape[:1] != rows.shape:
            raise ValueError(f"label must be [B, ...] for index [B], not {list(given.shape)} for {list(rows.shape)}.")
        _check.within("index", rows, self.num_samples, "samples of these ages")
        kept = given != self.ignore_index
        flat = kept.flatten(1) if kept.dim() > 1 else kept[:, None]
        begin, end = self._begins()[rows], self._ends[rows]
        many = flat.sum(1) > end - begin
        if bool(many.any()):
            row = int(many.nonzero()[0])
            raise ValueError(
                f"label must have at most the parts of each sample, but sample {int(rows[row])} has "
                f"{int(end[row] - begin[row])} in these ages, and {int(flat[row].sum())} were given."
            )
        place = (flat.cumsum(1) - 1 + begin[:, None])[flat]
        self._compare(place, given[kept])
        return place, kept

    def _compare(self, place: Tensor, label: Tensor) -> None:
        """Raise ValueError where labels differ from those of the parts."""
        own = self.parts._labels[place].to(torch.int64)
        if not torch.equal(own, label):
            wrong = int((own != label).nonzero()[0])
            sample = int(torch.searchsorted(self._ends, place[wrong], right=True))
            part = int(place[wrong] - self._begins()[sample])
            raise ValueError(
                f"label must be the classes of the parts, but part {part} of sample {sample} has class "
                f"{int(own[wrong])} in these ages, and {int(label[wrong])} was given: the data may have another order."
            )

    def _begins(self) -> Tensor:
        return torch.cat((self._ends.new_zeros(1), self._ends[:-1]))

    def _named(self, frame: pd.DataFrame) -> pd.DataFrame:
        import pandas as pd

        place = torch.from_numpy(frame.index.get_level_values("sample").to_numpy(np.int64, copy=True)).to(self.device)
        sample = torch.searchsorted(self._ends, place, right=True)
        rows = {"sample": sample, "part": place - self._begins()[sample]}
        levels = [frame.index.get_level_values("run")] if self.rho.dim() else []
        names = ["run"] * len(levels) + list(rows)
        frame.index = pd.MultiIndex.from_arrays([*levels, *(each.cpu().numpy() for each in rows.values())], names=names)
        return frame

    # State

    def state_dict(self) -> dict[str, object]:
        """Return the complete state, also within an epoch, as copies of tensors and primitives."""
        sizes = _check.fingerprint(self._ends)
        return {"kind": "PartAges", "samples": sizes, "parts": self.parts.state_dict()}

    def load_state_dict(self, state: dict[str, object]) -> None:
        """Load a state; one with other settings, labels or sizes is refused, and nothing changes."""
        _check.same_settings("PartAges", {"kind": "PartAges", "samples": _check.fingerprint(self._ends)}, state)
        self.parts.load_state_dict(_check.state_part("PartAges", state, "parts"))

    def to(self, device: torch.device | str) -> PartAges:
        """Move the state to a device, and return it."""
        self.parts.to(device)
        self._ends = self._ends.to(self.device)
        return self

    def __repr__(self) -> str:
        return f"PartAges(num_samples={self.num_samples}, parts={self.parts!r})"


def _flattened(labels: Rows, ignore_index: int) -> tuple[Tensor, Tensor]:
    """Return the labels of all parts, `int64 [P]`, and the number of parts of each sample, `int64 [N]`.

    >>> _flattened([[3, -100], [], [4, 4]], -100)
    (tensor([3, 4, 4]), tensor([1, 0, 2]))
    """
    if isinstance(labels, Tensor | np.ndarray):
        rows = _check.integers("labels", labels)
        if rows.dim() < 2:
            raise ValueError(f"labels must be [N, ...], one row per sample, not {_check.shown(labels)}.")
        kept = rows != ignore_index
        return rows[kept], kept.flatten(1).sum(1)
    try:
        known = [np.asarray(row) for row in labels]
        some = [row.ravel() for row in known if row.size]  # an empty one is of floats
        flat = _check.integers("labels", np.concatenate([np.empty(0, np.int64), *some]))
    except TypeError as error:
        raise TypeError(f"labels must be N sequences of whole numbers, not {_check.shown(labels)}.") from error
    if any(row.ndim == 0 for row in known):
        raise ValueError(f"labels must be N sequences, one per sample, not {_check.shown(labels)}.")
    sizes = torch.tensor([row.size for row in known], dtype=torch.int64, device="cpu")
    part = flat != ignore_index
    owner = torch.repeat_interleave(sizes)[part]
    return flat[part], torch.bincount(owner, minlength=len(known))
