"""Ages of samples that are seen in many epochs: the offline rule, and the rule for sparse arrivals.

Internally every state has a run axis; a single `rho` only hides it.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Self

import torch
from torch import Tensor

from aol import _check, _distributed
from aol._need import need
from aol._seal import check_seal, sealed
from aol._state import HasRuns
from aol.ages import _file, _store
from aol.ages._sums import ClassSums
from aol.ages.rules import mean_one
from aol.ids import IdMap, Ids

if TYPE_CHECKING:
    import pandas as pd

FUSE = ("ema", "mean", "peak")
# Samples processed at once: what fits a core's cache; more on a GPU.
_CHUNK = 1 << 17
# A state that was given more answers than this without advance() was forgotten: N times the first, plus the second.
_MANY_EPOCHS, _FEW = 4, 1000


class SampleAges(HasRuns):
    r"""For how many epochs each sample has been wrong, smoothed, and the resulting weights.

    Call `observe` with the correctness of predictions, any number of times per epoch, then `advance` once at its end.

    .. math::
        \bar a_c = \frac{1}{|I_c|} \sum_{i \in I_c} \bar a_i, \qquad
        w_c = \frac{\bar a_c}{\frac{1}{C} \sum_k \bar a_k}, \qquad
        w_i = \frac{\bar a_i}{\frac{1}{N} \sum_j \bar a_j}

    Args:
        labels: the class of each of the N samples, 0 to C - 1.
        num_classes: C; by default one more than the largest label.
        rho: smoothing rate of ages, in [0, 1]. `rho = 0` means uniform weights. A vector of R numbers gives every state
            and weight a leading run axis, and `observe` then takes `correct [R, B]`.
        level: what `weight` returns: the weight of the sample's "class" or of the "sample".
        fuse: how the ages of a sample over time become one number: "ema", "mean" of all ages so far, or "peak", the
            largest so far, which a right answer does not reset (`rho` then only matters if it is 0).
        absent: "keep" does not change samples that were not observed; "grow" is the rule for sparse arrivals: a sample
            counts from its first observation, and grows older in every epoch without one.
        store: "full" needs 8 bytes per sample and run: int32 ages (up to 2^29) and float32 EMA (with mean fusion, ages
            up to 2^15, and no epoch has a weight below 1 in 2^14 in the mean). "compact" needs 4: ages up to 8191, and
            an EMA in float16 with an error of at most 2^-11 / rho of its largest value so far.
        file: a file that holds the state, for more samples than fit in memory. It is memory-mapped, and twice the size
            of the state. If it exists, the ages continue from its last `advance`; observations after that are dropped.
            One process has it open, until the object is deleted.
        ids: ids of the samples, all text or all integers. `observe` and `weight` then take ids.
        device: device of the state; by default that of `labels`.

    Under `torch.distributed` every process holds the whole state and observes its share. `advance` is then collective;
    the result is that of one process with all observations in the order of ranks.

    >>> ages = SampleAges([0, 0, 1], rho=0.5)
    >>> for _ in range(3):
    ...     ages.observe([0, 1, 2], [True, True, False])
    ...     ages.advance()
    >>> ages.age
    tensor([1, 1, 4], dtype=torch.int32)
    >>> ages.class_age
    tensor([1.0000, 3.2500])
    >>> ages.weight([2, 0])
    tensor([1.5294, 0.4706])
    """

    first = 0  # the number of the first sample held here; `ShardedSampleAges` hold a share

    def __init__(
        self,
        labels: _check.Integers,
        *,
        num_classes: int | None = None,
        rho: _check.Rate = 0.5,
        level: str = "class",
        fuse: str = "ema",
        absent: str = "keep",
        store: str = "full",
        file: str | os.PathLike[str] | None = None,
        ids: Ids | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        rate = _check.rates("rho", rho, 0.0, 1.0)
        self.level = _check.choice("level", level, ("class", "sample"))
        self.fuse = _check.choice("fuse", fuse, FUSE)
        self.absent = _check.choice("absent", absent, ("keep", "grow"))
        self.store = _check.choice("store", store, ("full", "compact"))
        if self.fuse == "mean" and self.store == "compact":
            raise ValueError('fuse="mean" must count epochs and needs store="full", not "compact".')
        found, self.num_classes = _check.label_vector(labels, num_classes)
        home = _check.device(device) or found.device
        self.file = None if file is None else Path(file)
        if self.file is not None and home.type != "cpu":
            raise ValueError(f'file needs device="cpu", not {str(home)!r}.')
        self.num_samples = found.numel()
        self._ids = None if ids is None else IdMap(ids)
        if self._ids is not None and len(self._ids) != self.num_samples:
            raise ValueError(f"ids must name all {self.num_samples} samples, not {len(self._ids)}.")
        self._labels_digest = _check.fingerprint(found)
        self._labels = found.to(home)
        self._single = rate.dim() == 0
        self._rho = rate.reshape(-1).to(torch.float32).to(home)
        self._number()
        self._start()

    def _number(self) -> None:
        """Find the numbers of the samples, before the state is made."""

    def _start(self) -> None:
        runs, device = self._rho.numel(), self._labels.device
        self._layout = _store.COMPACT if self.store == "compact" else _store.FULL
        if self.fuse == "mean":
            self._layout = _store.FULL_MEAN
        self._stray = torch.zeros(2, dtype=torch.bool, device=device)  # whether an index, or `correct`, was refused
        self._given = 0  # answers since the last advance
        self._warned = False
        self.epoch = 0
        small = torch.uint8 if self.num_classes <= 256 else torch.int32
        self._file: _file.AgesFile | None = None
        if self.file is not None:
            self._file = _file.AgesFile(self.file, self._settings(), self._layout, self._labels, small, runs)
        self._labels = self._labels.to(small, copy=True) if self._file is None else self._file.labels
        members = torch.zeros(self.num_classes, dtype=torch.int64, device=device)
        for part in torch.split(self._labels, 32 * _CHUNK):
            members += torch.bincount(part, minlength=self.num_classes)
            self._release()
        self._sums = ClassSums(members, self.num_samples, runs)
        if self._file is not None:
            self._open(self._file)
            return
        # An extra column takes indices outside the set, so that no check has to synchronise.
        held = self._labels.numel()
        self._words = torch.full((runs, held + 1), self._first_age(), dtype=self._layout.word, device=device)
        self._ema = torch.full((runs, held), torch.nan, dtype=self._layout.ema, device=device)

    def _first_age(self) -> int:
        return 0 if self.absent == "grow" else 1

    def _open(self, file: _file.AgesFile) -> None:
        """Take up the state of a file, or write the first one."""
        self._words, self._ema = file.words, file.ema
        if file.epoch is None:

            def fill(_: slice, words: Tensor, ema: Tensor) -> None:
                words.fill_(self._first_age())
                ema.fill_(torch.nan)

            with file.removed_on_error():
                self._rewrite(0, fill)
            self._sums.seen.zero_()
            return
        self.epoch = file.epoch
        file.check()
        self._drop_observed()

    # Reading

    @property
    def labels(self) -> Tensor:
        """The class of each sample, `int64 [N]`."""
        return self._labels.to(torch.int64)

    @property
    def ids(self) -> list[str] | list[int] | None:
        """The ids of the samples, in order, or None."""
        return None if self._ids is None else self._ids.ids()

    @property
    def age(self) -> Tensor:
        """Epochs since the last right prediction, from one, `int32 [N]`; 0 if never seen with absent="grow"."""
        return self._out(self._layout.age(self._words[:, :-1]))

    def _age_at(self, index: Tensor) -> Tensor:
        """Return the ages of samples `index [R, B]`, `int32 [R, B]`."""
        return self._layout.age(self._words.gather(1, index))

    @property
    def ema(self) -> Tensor:
        """The age over time as one number, by `fuse`: the smoothed age, `float32 [N]`; NaN where never seen."""
        return self._out(self._ema.to(torch.float32, copy=True))

    @property
    def mean_age(self) -> Tensor:
        """The mean age of each class's seen samples, not smoothed, `float32 [C]`; NaN for a class without one.

        >>> ages = SampleAges([0, 0, 1], rho=0.5)
        >>> for _ in range(3):
        ...     ages.observe([0, 1], [True, False])
        ...     ages.advance()
        >>> ages.mean_age
        tensor([2.5000,    nan])
        """
        return self._out((self._age_sums().to(torch.float64) / self._sums.seen).to(torch.float32))

    def _age_sums(self) -> Tensor:
        total = torch.zeros_like(self._sums.seen)
        for part in self._parts():
            age = self._layout.age(self._words[:, part]).to(torch.int64)
            label = self._labels[part].to(torch.int64).expand_as(age)
            total.scatter_add_(1, label, age.masked_fill_(self._ema[:, part].isnan(), 0))
        return total

    @property
    def class_age(self) -> Tensor:
        """The mean smoothed age of each class's seen samples, `float32 [C]`; NaN for a class without one."""
        return self._out(self._sums.mean.to(torch.float32))

    @property
    def class_weight(self) -> Tensor:
        """Class ages divided by their mean, `float32 [C]`; one for a class without a seen sample."""
        return self._out(self._class_weight())

    @property
    def sample_weight(self) -> Tensor:
        """Smoothed ages divided by their mean, `float32 [N]`; one for a sample never seen."""
        return self._out(self._relative(self._ema))

    @property
    def weights(self) -> Tensor:
        """The weight of every sample for a loss or a sampler, by `level`, `float32 [N]`."""
        # In parts: an int64 index would need twice as much memory as the result.
        return self.sample_weight if self.level == "sample" else torch.cat(list(self.weight_blocks()), dim=-1)

    def weight_blocks(self, size: int = 1 << 20) -> Iterator[Tensor]:
        """Yield `weights` in order, `size` samples at a time, so that they need not fit in memory.

        >>> ages = SampleAges([0, 0, 1])
        >>> ages.observe([0, 1, 2], [True, True, False])
        >>> ages.advance()
        >>> list(ages.weight_blocks(2))
        [tensor([0.6667, 0.6667]), tensor([1.3333])]
        """
        step, by_class = _check.whole("size", size, 1), self.level == "class"
        weight, held = self._class_weight(), self._labels[None] if by_class else self._ema
        for part in _store.split(slice(0, held.shape[1]), step):
            here = held[:, part] if self._file is None else self._file.read(0 if by_class else 2, part)
            yield self._out(weight.index_select(1, here[0].to(torch.int64)) if by_class else self._relative(here))

    def weight(self, index: _check.Integers | Ids) -> Tensor:
        """Return the weights of these samples for a loss or a sampler, by `level`, `float32 [B]` or `[R, B]`.

        `index` is `[B]`, or `[R, B]` if each run has its own samples. An index outside the set is an IndexError; on a
        CUDA device, which is not synchronised, its weight is NaN.
        """
        where, stray = self._index(index)
        where = where.expand(self._rho.numel(), -1) if where.dim() == 1 else where
        inside = where.clamp(0, self.num_samples - 1)
        if self.level == "class":
            found = self._class_weight().gather(1, self._labels[inside].to(torch.int64))
        else:
            found = self._relative(self._ema.gather(1, inside))
        return self._out(found if stray is None else found.masked_fill(stray, torch.nan))

    def to_frame(self) -> pd.DataFrame:
        """Return the state as a pandas DataFrame, a row per sample: label, age, smoothed age and weight.

        Rows are named by id, or by position; with a run axis, by run and sample. The smoothed age is NaN where a sample
        was never seen.

        >>> ages = SampleAges([0, 0, 1], ids=["a", "b", "c"])
        >>> ages.observe(["a", "c"], [True, False])
        >>> ages.advance()
        >>> print(ages.to_frame())
            label  age  smoothed_age    weight
        id
        a       0    1           1.0  0.666667
        b       0    1           NaN  0.666667
        c       1    2           2.0  1.333333
        """
        return self._frame(torch.arange(self._labels.numel(), device=self.device).expand(self._rho.numel(), -1))

    def oldest(self, k: int) -> pd.DataFrame:
        """Return the k samples that are wrong for longest, oldest first, as rows of `to_frame`; k of each run.

        Ties are broken by the smoothed age, then by position. Samples that were right when last seen are left out:
        there may be fewer than k rows.

        >>> ages = SampleAges([0, 0, 1], rho=0.5)
        >>> for correct in ([False, False, True], [False, True, False]):
        ...     ages.observe([0, 1, 2], correct)
        ...     ages.advance()
        >>> ages.oldest(2)["age"].to_dict()
        {0: 3, 2: 2}
        """
        wanted = _check.whole("k", k, 0)
        age, ema = self._layout.age(self._words[:, :-1]), self._ema.to(torch.float32).nan_to_num(0.0)
        by_ema = ema.argsort(dim=1, descending=True, stable=True)
        order = by_ema.gather(1, age.gather(1, by_ema).argsort(dim=1, descending=True, stable=True))[:, :wanted]
        frame = self._frame(order)
        return frame[frame["age"] > 1]

    def _frame(self, where: Tensor) -> pd.DataFrame:
        """Return rows for the samples `where [R, B]`."""
        need("pandas", package="pandas", extra="cli", why="a DataFrame")
        import pandas as pd

        columns = {
            "label": self.labels[where],
            "age": self._layout.age(self._words.gather(1, where)),
            "smoothed_age": self._ema.gather(1, where).to(torch.float32),
            "weight": self.weights.reshape(len(where), -1).gather(1, where),
        }
        places = (where + self.first).flatten().tolist()
        known, name = self.ids, "sample" if self._ids is None else "id"
        rows = pd.Index(places if known is None else [known[place] for place in places], name=name)
        if not self._single:
            runs = torch.arange(len(where)).repeat_interleave(where.shape[1]).tolist()
            rows = pd.MultiIndex.from_arrays([runs, rows], names=["run", name])
        return pd.DataFrame({key: value.flatten().cpu().numpy() for key, value in columns.items()}, index=rows)

    # Updating

    def observe(
        self, index: _check.Integers | Ids, correct: _check.Truths, label: _check.Integers | None = None
    ) -> None:
        """Record which of these samples were predicted right; for a repeated index the last value counts.

        `index` is `[B]` or `[R, B]`, `correct` is `[B]`, or `[R, B]` with a run axis. Tensors on the state's CUDA
        device are not synchronised: there, an index outside the set, and a call with numbers in `correct` other than 0
        and 1, are ignored and reported by `advance`.

        `label`, of the shape of `index`, is compared with the labels of this state: a ValueError shows that the data
        have another order, or that `index` is something else. The comparison synchronises a CUDA device.

        >>> ages = SampleAges([0, 0, 1])
        >>> ages.observe([2], [True], label=[0])
        Traceback (most recent call last):
        ...
        ValueError: label must be the class of each sample, but differs for 1 of 1: sample 2 has class 1 in these ages,
        and label 0 was given. Are the data in another order, or is index not the number of a sample?
        """
        where, stray = self._index(index)
        if label is not None:
            _check.same_labels(where, self._labels, label, self.first)
        right, neither = self._correct(correct, where.shape[-1], "index")
        for place, refused in enumerate((stray, neither)):
            if refused is not None:
                self._stray[place].logical_or_(refused.any())
                where = where.masked_fill(refused, self.num_samples)
        self._mark(where, right)
        if not torch.compiler.is_compiling():  # a number that changes would be compiled anew
            self._given += where.shape[-1]
            if self._given > _MANY_EPOCHS * self.num_samples + _FEW:
                self._warn_once(
                    f"observe() was given {self._given:,} answers to {self.num_samples:,} samples since the last "
                    "advance(): call advance() at the end of every epoch, or no age changes."
                )

    def _warn_once(self, text: str) -> None:
        if not self._warned:
            self._warned = True
            warnings.warn(text, stacklevel=3)

    def _mark(self, where: Tensor, right: Tensor) -> None:
        """Record answers `right [R, B]` to samples `where [B]` or `[R, B]`; `num_samples` stands for none of them."""
        if self._file is not None:
            self._file.prepare(where)
        _store.write_marks(self._words, where, right, self._layout)

    def advance(self, *, group: _distributed.Group = None, sync: bool = True) -> None:
        """End the epoch: fold what was observed into the ages. Collective under `torch.distributed`.

        With `sync=False` each process keeps to what it observed itself.
        """
        if sync and _distributed.world(group)[1] > 1:
            self._exchange(group)
        else:
            self._report_stray(self._stray)
            if self._forgotten():
                self._warn_once(
                    "advance() was called although observe() was not since the last advance(): no age changes. Call "
                    "observe() with the answers of the epoch first."
                )
        self._rewrite(self.epoch + 1, self._fold_block)
        self._given = 0

    def rewind(self, epoch: int) -> None:
        """Return to the start of an epoch, to repeat it: the current one, or with a file also the one before.

        What was observed since then is dropped. Use it where a checkpoint of the model is older than the file of ages:
        `ages.rewind(epoch)` after loading the model of that epoch.

        >>> ages = SampleAges([0, 0, 1])
        >>> ages.observe([0, 1, 2], [True, False, False])
        >>> ages.rewind(0)
        >>> ages.observe([0], [False])
        >>> ages.advance()
        >>> ages.age
        tensor([2, 1, 1], dtype=torch.int32)
        """
        self._check_rewind(epoch)
        if self._file is not None and epoch != self.epoch:
            self._file.go_back()
            self._words, self._ema, self.epoch = self._file.words, self._file.ema, epoch
        self._drop_observed()

    def _check_rewind(self, epoch: int) -> None:
        """Raise ValueError, and change nothing, if there is no whole state of the start of this epoch."""
        previous = None if self._file is None else self._file.previous
        if epoch not in (self.epoch, previous):
            known = str(self.epoch) if previous is None else f"{previous} or {self.epoch}"
            raise ValueError(f"epoch must be {known}, whose states these ages hold, not {_check.shown(epoch)}.")
        if self._file is not None and epoch != self.epoch:
            self._file.check_previous()

    def _drop_observed(self) -> None:
        """Forget what was observed since the last `advance`, and sum up what is left."""
        self._given = 0
        self._stray.zero_()
        for part in self._parts():
            word = self._words[:, part]
            if bool(self._layout.observed(word).any()):
                word.copy_(self._layout.unmarked(word))
        self._sum_up()
        self._release()

    def _sum_up(self) -> None:
        self._count_anew()
        for part in self._parts():
            self._tally(part, self._ema[:, part])

    def _rewrite(self, epoch: int, fill: _file.Fill) -> None:
        """Replace the words and smoothed ages by those of an epoch; in a file they count when all are written."""
        before, self.epoch = self.epoch, epoch
        self._count_anew()
        if self._file is None:
            fill(slice(0, self._labels.numel()), self._words[:, :-1], self._ema)
            return
        try:
            self._file.rewrite(epoch, fill)
        except BaseException:
            self.epoch = before
            self._sum_up()
            raise
        self._words, self._ema = self._file.words, self._file.ema

    def _release(self) -> None:
        if self._file is not None:
            self._file.release()

    def _forgotten(self) -> bool:
        """Return whether nothing was observed in this epoch, where that is not part of the rule."""
        if self._given or self.absent == "grow" or not self.num_samples:
            return False
        # A CUDA graph observes without calling observe(): only the state tells.
        return not any(bool(self._layout.observed(self._words[:, part]).any()) for part in self._parts())

    def pending(self) -> tuple[Tensor, ...]:
        """Return the tensors that `observe` changes in place, for CUDA graph capture."""
        return self._words, self._stray

    def _fold_block(self, block: slice, words: Tensor, ema: Tensor) -> None:
        """Fold what was observed into the words and smoothed ages of a block, and add up its ages."""
        for part in self._parts(block):
            here = slice(part.start - block.start, part.stop - block.start)
            word, smooth = words[:, here], ema[:, here]
            _store.fold_(word, smooth, self._rho[:, None], self._layout, fuse=self.fuse, grows=self.absent == "grow")
            self._tally(part, smooth)

    def _count_anew(self) -> None:
        self._sums.restart(min(self.epoch + 2, self._layout.largest_age))

    def _tally(self, part: slice, ema: Tensor) -> None:
        self._sums.add(self._labels[part], ema)

    def _class_weight(self) -> Tensor:
        return mean_one(self._sums.mean).masked_fill(self._uniform(), 1.0)

    def _relative(self, ema: Tensor) -> Tensor:
        mean = self._sums.overall.masked_fill(self._uniform(), torch.nan)
        return (ema.to(torch.float32) / mean.to(torch.float32)).nan_to_num_(1.0)

    def _parts(self, block: slice | None = None) -> Iterator[slice]:
        """Yield the samples, or those of a block, in parts of a size that is processed at once."""
        step = max(1, _CHUNK * (1 if self.device.type == "cpu" else 32) // self._rho.numel())
        return _store.split(slice(0, self._labels.numel()) if block is None else block, step)

    def _exchange(self, group: _distributed.Group) -> None:
        """Exchange observations; if two processes saw the same sample, the higher rank counts."""
        _distributed.agree(type(self).__name__, self.epoch, self._settings(), self.device, group)
        words = self._words[:, :-1]
        mine = self._layout.observed(words).flatten().nonzero().squeeze(1)
        right = self._layout.right(words).flatten()[mine].to(torch.uint8)
        mine = mine.to(torch.int32 if words.numel() < 2**31 else torch.int64)
        header = torch.tensor([mine.numel(), *self._stray.tolist()], device=self.device)
        headers = torch.stack(_distributed.gather(header, group)).cpu()
        self._report_stray(headers[:, 1:].any(0))
        for index, bit in _distributed.gather_lists((mine, right), headers[:, 0].tolist(), group):
            row, column = index.to(torch.int64) // words.shape[1], index.to(torch.int64) % words.shape[1]
            words[row, column] = self._layout.mark(words[row, column], bit.to(torch.bool))

    def _report_stray(self, stray: Tensor) -> None:
        """Raise an error if an index, or `correct`, was refused on any process."""
        index, neither = stray.tolist()
        if not (index or neither):
            return
        self._stray.zero_()
        if neither:
            raise _check.neither_true_nor_false()
        raise IndexError(
            f"index must lie in 0 to {self.num_samples - 1}, but observe() was given one outside since the last "
            "advance(). It was ignored. Call advance() again to continue without it."
        )

    def _index(self, index: object) -> tuple[Tensor, Tensor | None]:
        """Return positions on the state's device; if they were there already, also which are outside the set."""
        if self._ids is not None:
            index = self._ids.find("index", index)
        found = self._of_samples("index", index)
        if _check.readable(found):
            _check.within("index", found, self.num_samples, "samples of these ages")
            return _check.moved(found, self.device), None
        found = _check.moved(found, self.device)
        return found, (found < 0) | (found >= self.num_samples)

    # State

    def _settings(self) -> dict[str, object]:
        return {
            "kind": "SampleAges",
            "num_samples": self.num_samples,
            "num_classes": self.num_classes,
            "labels": self._labels_digest,
            "ids": "" if self._ids is None else self._ids.digest(),
            "rho": [round(rate, 7) for rate in self._rho.tolist()],
            "fuse": self.fuse,
            "absent": self.absent,
            "store": self.store,
        }

    def state_dict(self) -> dict[str, object]:
        """Return the complete state, also within an epoch, as copies of tensors and primitives."""
        stray, neither = self._stray.tolist()
        state = {**self._settings(), "epoch": self.epoch, "stray": stray, "neither": neither}
        return sealed({**state, "word": self._words[:, :-1].clone(), "ema": self._ema.clone()})

    def load_state_dict(self, state: dict[str, object]) -> None:
        """Load a state; one with other settings, labels or sizes is refused, and nothing changes."""
        epoch, stray, word, ema = self._checked(state)

        def fill(block: slice, to_words: Tensor, to_ema: Tensor) -> None:
            to_words.copy_(word[:, block])
            to_ema.copy_(ema[:, block])
            for part in self._parts(block):
                self._tally(part, ema[:, part])

        self._rewrite(epoch, fill)
        self._given = 0
        self._stray.copy_(torch.tensor(stray, device="cpu"))

    def _checked(self, state: dict[str, object]) -> tuple[int, list[bool], Tensor, Tensor]:
        """Return epoch, what was refused, words and smoothed ages of a state, or raise ValueError."""
        what, shape = type(self).__name__, self._ema.shape
        _check.same_settings(what, self._settings(), state)
        epoch = _check.state_whole(what, state, "epoch")
        word = _check.state_tensor(what, state, "word", shape, self._layout.word, self.device, copy=False)
        ema = _check.state_tensor(what, state, "ema", shape, self._layout.ema, self.device, copy=False)
        if why := self._refuse(word, ema, epoch):
            raise _check.damaged(what, *why)
        stray: list[bool] = []
        for key in ("stray", "neither"):
            refused = state.get(key, False if key == "neither" else None)  # states of 0.1 do not have it
            if not isinstance(refused, bool):
                raise _check.damaged(what, key, f"must be true or false, not {_check.shown(refused)}")
            stray.append(refused)
        check_seal(what, state)
        return epoch, stray, word, ema

    def _refuse(self, word: Tensor, ema: Tensor, epoch: int) -> tuple[str, str] | None:
        """Return which of `word` and `ema` is no state of this epoch, and why; None if they are."""
        ages = _check.Bounds(self._first_age(), min(epoch + 1, self._layout.largest_age))
        smoothed = _check.Bounds(1, 1.001 * ages.high, nan=True)
        for part in self._parts():
            if why := smoothed.refuse(ema[:, part]):
                return "ema", why
            if why := self._layout.refuse(word[:, part], ages):
                return "word", why
        return None

    def to(self, device: torch.device | str) -> Self:
        """Move the state to a device, and return it."""
        home = _check.device(device)
        if self._file is not None and home is not None and home.type != "cpu":
            raise ValueError(f'Ages in a file need device="cpu", not {str(home)!r}.')
        self._sums.to(device)
        return super().to(device)

    def __getstate__(self) -> dict[str, object]:
        if self._file is not None:
            raise TypeError("Ages in a file cannot be copied or pickled: use state_dict(), or open the file there.")
        return self.__dict__

    def __repr__(self) -> str:
        runs = "" if self._single else f", runs={self._rho.numel()}"
        return (
            f"{type(self).__name__}(num_samples={self.num_samples}, num_classes={self.num_classes}{runs}, "
            f"level={self.level!r}, fuse={self.fuse!r}, absent={self.absent!r}, epoch={self.epoch})"
        )
