"""A watch over a training: clean passes between its epochs, ages, and a record, without a change to its batches."""

from __future__ import annotations

import io
import itertools
import os
import random
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from inspect import signature
from pathlib import Path
from typing import Any, Self, TypeAlias

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import DataLoader

from aol import _check, _distributed
from aol._files import FolderInUseError, write_atomically
from aol.ages import SampleAges
from aol.losses import is_correct
from aol.records.datasets import LABELS, ages_of, class_names, first_that_differs, label_of, opened, previews_of
from aol.records.record import FILE, DamagedRunError, read_run
from aol.records.recorder import Figure, Recorder, path_of

AGES = "ages.pt"  # in the folder of the record: where `resume` goes on
Source: TypeAlias = tuple[Any, dict[str, Any]]
Answer: TypeAlias = Callable[[nn.Module, Any], tuple[Tensor, Tensor]]


class Watch:
    """Watches a training: evaluates both sets after an epoch, counts ages, and writes the record of `aol report`.

    Training does not notice: a pass is in evaluation mode without gradients, has loaders of its own, and leaves the
    random generators and the mode of every module as they were. Under `torch.distributed` make it after
    `init_process_group`, on every process: all evaluate their share; `epoch` is collective.

    Args:
        folder: of the record. If it holds one, the record goes to `folder-2`, `folder-3` and so on.
        train_set: the training set *without* augmentation: a map-style data set of (x, y) or of mappings with a label
            (rows of Hugging Face `datasets`), or a `DataLoader` of one, for its collation, workers and batch size.
        test_set: the same of test or validation samples, or None.
        resume: go on with the ages and the record in `folder`, if it has any.
        every: calls of `epoch` per pass. One epoch of the ages is one pass.
        ages: of `train_set`, in its order, for another `rho` or `level`; by default `SampleAges(labels)`.
        device: of the ages; by default the CPU.
        answer: function of the model and a batch that returns logits `[B, C]` and labels `[B]`; see `answer_of`.
        record: all else that `aol.Recorder` takes, such as `classes`, `seed` and `settings`.

    >>> import tempfile
    >>> x, y = torch.tensor([[2.0, 0.0], [0.0, 1.0], [3.0, 0.0]]), torch.tensor([0, 1, 1])
    >>> with Watch(tempfile.mkdtemp(), torch.utils.data.TensorDataset(x, y)) as watch:
    ...     for epoch in range(3):
    ...         watch.epoch(nn.Identity())
    >>> watch.ages.age
    tensor([1, 1, 4], dtype=torch.int32)
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        train_set: Any,
        test_set: Any = None,
        *,
        resume: bool = False,
        every: int = 1,
        ages: SampleAges | None = None,
        device: torch.device | str | None = None,
        answer: Answer | None = None,
        **record: Any,
    ) -> None:
        known = {*signature(Recorder).parameters, *signature(Watch).parameters} - {"record"}
        for name in record.keys() - known:
            raise TypeError(f"Watch has no argument {name!r}.{_check.did_you_mean(name, known)}")
        if answer is not None and not callable(answer):
            raise TypeError(f"answer must be a function of the model and a batch, not {_check.shown(answer)}.")
        self._every, self._calls, self._answer = _check.whole("every", every, 1), 0, answer or answer_of
        place = path_of(folder)
        self._rank, self._world = _distributed.world()
        self._train = data, _ = opened("train_set", train_set)
        self._test = None if test_set is None else opened("test_set", test_set)
        with undisturbed(nn.Module()):
            if (sample := first_that_differs(data)) is not None:
                why = "give Watch the view without augmentation, so that ages are of the same samples in every epoch"
                warnings.warn(f"train_set differs when sample {sample} is read again: {why}.", stacklevel=2)
            names = class_names(data) if record.get("classes") is None else record["classes"]
            ages = ages_of(train_set, names, device) if ages is None else ages
            if not isinstance(ages, SampleAges):
                raise TypeError(f"ages must be SampleAges, not {_check.shown(ages)}.")
            if ages.num_samples != len(data):
                raise ValueError(f"ages must be of the {len(data)} samples of train_set, not of {ages.num_samples}.")
            own: dict[str, Any] = {"classes": names} if names is not None and len(names) == ages.num_classes else {}
            own |= {} if {"images", "describe"} & record.keys() else previews_of(data)
            if self._test is not None and len(tests := self._test[0]):
                own |= {"test_size": len(tests)} | {f"test_{name}": show for name, show in previews_of(tests).items()}
            self.ages = ages
            self.recorder = self._open(place, resume, own | record)
        self.folder = self.recorder.folder

    def _open(self, folder: Path, resume: bool, record: dict[str, Any]) -> Recorder:
        """Return the recorder, in a folder that the first process chooses, with the ages that are there."""
        if resume and self.ages.epoch == 0:
            self._load_ages(folder)
        chosen: list[Any] = [None]
        try:
            if self._rank == 0:
                recorder = Recorder(folder, self.ages, resume=True, **record) if resume else self._new(folder, record)
                chosen = [recorder.folder]
        finally:  # the others must not wait for a process that failed
            if self._world > 1:
                dist.broadcast_object_list(chosen)
        return recorder if self._rank == 0 else Recorder(chosen[0], self.ages, resume=resume, **record)

    def _load_ages(self, folder: Path) -> None:
        """Load the ages of the folder; refuse damaged and missing ones, without which its record would be cut."""
        path = folder / AGES
        if path.exists() and not (folder / FILE).exists():
            raise DamagedRunError(f"{folder} has {AGES} without a record: restore it, or choose another folder.")
        if not path.is_file():
            if (folder / FILE).exists() and len(read_run(folder).epochs) > 1:  # one, where the first pass was cut short
                raise DamagedRunError(f"{folder} has a record without {AGES}: restore it, or choose another folder.")
            return
        try:
            state = torch.load(path, map_location="cpu", weights_only=True)
        except OSError:
            raise
        except Exception as error:  # torch.load raises whatever a damaged file leads it to
            raise DamagedRunError(f"{path}: not a whole file of ages.") from error
        try:
            self.ages.load_state_dict(state)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{path}: {error}") from error

    def _new(self, folder: Path, record: dict[str, Any]) -> Recorder:
        """Return a recorder in the first folder without a record that no other program has begun; say which it is."""
        folder = folder if folder.name else folder.absolute()
        for number in itertools.count(1):
            path = folder if number == 1 else folder.with_name(f"{folder.name}-{number}")
            if not (path / FILE).exists():
                with suppress(FolderInUseError):
                    recorder = Recorder(path, self.ages, **record)
                    break
        if path != folder:
            print(f"aol: {folder} has the record of another run; this one goes to {path}", file=sys.stderr)
        return recorder

    def epoch(self, model: nn.Module, **figures: Figure) -> None:
        """Evaluate both sets, advance the ages, and write the epoch with `Recorder.advance(**figures)`. Collective."""
        if not isinstance(model, nn.Module):
            raise TypeError(f"model must be a torch.nn.Module, not {_check.shown(model)}.")
        if (self._calls + 1) % self._every:
            self._calls += 1
            return
        inner = getattr(model, "_orig_mod", model)  # of torch.compile
        if isinstance(inner, nn.parallel.DistributedDataParallel | nn.DataParallel):
            model = inner.module  # outside of training DDP has nothing to do, and would wait for uneven shares
        self.recorder.checked(figures)  # before the ages advance
        self.recorder.forget()  # of a pass that failed
        lost: int | Tensor = 0
        with undisturbed(model):
            for index, logits, label in self._answers(self._train, model, "training"):
                self.ages.observe(index, is_correct(logits, label), label)
                self.recorder.observe(index, logits)
                lost = lost + (~logits.isfinite()).any(1).sum()
            if self._test is not None:
                for index, logits, label in self._answers(self._test, model, "test"):
                    self.recorder.test(label, logits, index)
        if lost:
            warnings.warn(f"logits of {int(lost)} training samples are not finite: the training diverged", stacklevel=2)
        self.ages.advance()
        self._calls += 1  # now: a pass that failed can be called again
        self.recorder.advance(**figures)
        if self._rank == 0:  # last: a record that is ahead of its ages is cut to them
            content = io.BytesIO()
            torch.save(self.ages.state_dict(), content)
            write_atomically(self.folder / AGES, content.getvalue())

    def _answers(self, source: Source, model: nn.Module, what: str) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Yield indices, logits and labels of this process's share of a set, batch by batch."""
        data, options = source
        order = torch.arange(self._rank, len(data), self._world)
        done, shows = 0, self._rank == 0 and sys.stderr.isatty()
        for batch in DataLoader(data, sampler=order.tolist(), generator=torch.Generator(), **options):
            logits, label = self._answer(model, batch)
            if not isinstance(logits, Tensor):
                raise TypeError(f"The model must answer with logits [B, C], not {_check.shown(logits)}: give answer=.")
            if logits.dim() == 2 and (answered := logits.shape[1]) != (size := self.ages.num_classes):
                way = f": give Watch the names of all {answered}, classes=[...]" if answered > size else ""
                raise ValueError(f"The model answers for {answered} classes, but train_set has {size}{way}.")
            index = order[done : done + len(label)]
            done += len(label)
            yield index, logits.detach().float(), label
            if shows:
                line = f"\raol: epoch {self.ages.epoch + 1}, {done:,} of {len(order):,} {what} samples "
                print(line, end="\n" if done == len(order) else "", file=sys.stderr, flush=True)
        if done != len(order):
            raise ValueError(f"A pass must answer for each of {len(order)} {what} samples, not for {done}.")

    def readings(self) -> dict[str, float]:
        """Return the mean smoothed age of the classes and that of the oldest, for a logger."""
        age = self.ages.class_age
        return {"age_mean": float(age.nanmean()), "age_oldest_class": float(age.nan_to_num(0.0).max())}

    def close(self, *, finished: bool = True) -> None:
        """Mark the record as finished, and release its folder."""
        with undisturbed(nn.Module()):  # previews are read now
            self.recorder.close(finished=finished)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(finished=kind is None)


def answer_of(model: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
    """Return logits and labels of a batch (x, y, ...), or of a mapping with a label, on the device of the model.

    The tensors of a mapping go to the model by name, or as they are if there is only one. The logits are what the model
    returns, or `logits` of that, or its first element.

    >>> answer_of(nn.Identity(), {"x": torch.eye(2), "label": torch.tensor([1, 0])})[1]
    tensor([1, 0])
    """
    device = next((value.device for value in (*model.parameters(), *model.buffers())), None)

    def moved(value: Any) -> Any:
        return value.to(device, non_blocking=True) if isinstance(value, Tensor) else value

    if isinstance(batch, Mapping):
        skip = (*LABELS, "index", "idx")
        named = {name: moved(x) for name, x in batch.items() if name not in skip and isinstance(x, Tensor)}
        output = model(*named.values()) if len(named) == 1 else model(**named)
    else:
        output = model(moved(batch[0]))
    output = output["logits"] if isinstance(output, Mapping) else output
    return output[0] if isinstance(output, tuple | list) else output, moved(label_of(batch))


@contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """Evaluate a model without gradients; restore the modes of modules and all random generators afterwards."""
    modes = [(part, part.training) for part in model.modules()]
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
    with torch.no_grad(), torch.random.fork_rng([torch.cuda.current_device()] if torch.cuda.is_available() else []):
        try:
            model.eval()
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)  # noqa: NPY002
            for part, mode in modes:
                part.training = mode
