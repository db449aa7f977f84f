"""Records of a training loop of one's own: the same record that `aol train` writes, through the library alone.

Knows ages and files, not how a network is trained.
"""

from __future__ import annotations

import math
import os
import secrets
import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence, Sized
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from aol import _check, _distributed
from aol._files import locked, remove_partial_files
from aol.ages import SampleAges, class_mean
from aol.class_ages import ClassAges
from aol.metrics import class_metrics
from aol.readings import ClassReadings, means, precision
from aol.records import samples
from aol.records.history import SampleHistory, answer
from aol.records.previews import FILE as PREVIEWS
from aol.records.previews import described, save_previews, thumbnail, worth_seeing
from aol.records.record import FILE, DamagedRunError, Run, Value, by_class_of, impossible, read_run, versions, write_run

Figure: TypeAlias = "float | Tensor | Sequence[float] | np.ndarray[tuple[int, ...], np.dtype[np.generic]] | None"
Columns: TypeAlias = dict[str, Tensor]
Array: TypeAlias = "np.ndarray[Any, np.dtype[Any]]"
_COLUMNS = ("id", "method", "seed", "epoch", "class", "name", "count")  # of the tables of runs


class Recorder:
    """Records a training loop of your own, epoch by epoch, for `aol show`, `aol report` and `aol.load_runs`.

    Call `observe` beside `ages.observe` with the logits, `advance` once an epoch, right after `ages.advance()`, and
    `close` at the end, or use it in a `with` statement. Files are replaced as a whole at every `advance`: a crash loses
    nothing that was written.

    Args:
        folder: where to write; made if it is not there. Ages with a run axis get a folder `run-K` a run inside.
        ages: whose ages to record; `SampleAges` also give a record of every sample.
        classes: names of the classes; by default their numbers. For `ClassAges` that add classes: a list that may be
            extended.
        name: what the run is called in figures; by default as the folder.
        seed: of the run; runs of one name and several seeds are shown as one with its spread.
        settings: whatever should be remembered of how the run was made, by name.
        counts: training samples of each class; by default those of the ages, or with `ClassAges` what was observed.
        epochs: how many there will be, where that is known.
        images: shows the samples, for the gallery: an array `[N, ...]`, or a function from a sample's position to an
            image. `close` keeps thumbnails of the oldest and the most suspicious, at most 500.
        describe: tells what a sample is, where it is no image: a function from a sample's position to text, to a
            mapping or to a vector, which reports show as text or as a short table. Kept of the same few.
        names: what the samples are called in reports, one each in their order: paths, say; by default their positions.
        command: what to type to repeat the run; by default how this program was started, if that was a file.
        resume: go on with the records in `folder`, if there are any. Those of epochs after the ages' own are dropped.
        group: the processes that share the run, where not all do.

    Under `torch.distributed` each process makes one and observes its share; `advance` is collective, and the first
    process writes.

    >>> import tempfile
    >>> ages = SampleAges([0, 0, 1])
    >>> recorder = Recorder(tempfile.mkdtemp(), ages, classes=["cat", "dog"])
    >>> logits = torch.tensor([[2.0, 0.0], [0.0, 1.0], [0.0, 3.0]])
    >>> ages.observe([0, 1, 2], logits.argmax(1) == ages.labels)
    >>> recorder.observe([0, 1, 2], logits)
    >>> ages.advance()
    >>> recorder.advance(test_accuracy=0.5)
    >>> from aol import load_runs
    >>> load_runs(recorder.folder).classes()[["name", "count", "age", "train_accuracy", "train_loss"]]
      name  count  age  train_accuracy  train_loss
    0  cat      2  1.5             0.5    0.720095
    1  dog      1  1.0             1.0    0.048587
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        ages: SampleAges | ClassAges,
        *,
        classes: Sequence[str] | None = None,
        name: str | None = None,
        seed: int | None = None,
        settings: Mapping[str, Value] | None = None,
        counts: _check.Integers | None = None,
        epochs: int | None = None,
        images: Any = None,
        describe: Callable[[int], object] | None = None,
        names: Sequence[str | os.PathLike[str]] | None = None,
        command: str | None = None,
        resume: bool = False,
        group: _distributed.Group = None,
    ) -> None:
        if not isinstance(ages, SampleAges | ClassAges):
            raise TypeError(f"ages must be SampleAges or ClassAges, not {_check.shown(ages)}.")
        if not isinstance(folder, str | os.PathLike) or not os.fspath(folder):
            raise TypeError(f"folder must be the path of a folder, not {_check.shown(folder)}.")
        self.folder, self.ages, self._group = Path(folder), ages, group
        self._runs, single = ages.rho.numel(), ages.rho.dim() == 0
        self._shape = () if single else (self._runs,)
        self._folders = [self.folder] if single else [self.folder / f"run-{run}" for run in range(self._runs)]
        self._grows = isinstance(ages, ClassAges) and ages.grows
        self._called, self._classes = classes, _class_names(classes, ages.num_classes, self._grows)
        self._counts = None if counts is None else _class_counts(counts, ages.num_classes)
        if counts is None and isinstance(ages, SampleAges):
            self._counts = torch.bincount(ages.labels, minlength=ages.num_classes).tolist()
        self._about: dict[str, Any] = {
            "seed": None if seed is None else _check.whole("seed", seed, 0),
            "settings": _checked_settings(settings or {}),
            "planned": None if epochs is None else _check.whole("epochs", epochs, 1),
            "command": _started_by() if command is None else _text("command", command),
        }
        self._image, self._describe = _checked_previews(images, describe, ages)
        self._names = None if names is None else samples.as_json(_sample_names(names, ages))
        self._train, self._test = (ClassReadings(self._runs, ages.num_classes, ages.device) for _ in range(2))
        self._history: SampleHistory | None = None
        if isinstance(ages, SampleAges):
            self._history = SampleHistory(self._runs, ages.num_samples, absent=ages.absent, device=ages.device)
        name = self.folder.resolve().name if name is None else _text("name", name)
        methods = [name] if single else [f"{name} ρ={float(rho):g}" for rho in ages.rho]
        none = np.zeros(0, dtype=np.int64)
        self._records = [Run(secrets.token_hex(6), method, None, {}, [], None, none) for method in methods]
        self._at = 0  # the ages' epoch when they were last written down here
        self._weight, self._weight_of = self._class_weight(), ages.epoch
        self._clock = time.monotonic()
        self._writes, self._named, self._closed = _distributed.world(group)[0] == 0, False, False
        self._held = ExitStack()
        if self._writes:
            self._held.enter_context(locked(self.folder, called="folder"))
            try:
                self._continue(resume)
            except BaseException:
                self._held.close()
                raise

    def _continue(self, resume: bool) -> None:
        """Read the records that are in the folder, or refuse them."""
        there = [folder for folder in self._folders if (folder / FILE).exists()]
        if there and not resume:
            raise ValueError(
                f"{self.folder} already holds a record: give resume=True to continue it, or another folder."
            )
        for folder in self._folders:
            remove_partial_files(folder)
        before = [read_run(folder) for folder in there]
        if any(run.classes != self._classes and not self._grows for run in before):
            raise DamagedRunError(f"{self.folder} has records of other classes: choose another folder.")
        if len(before) < self._runs:
            if any(len(run.epochs) > 1 for run in before):
                raise DamagedRunError(f"{self.folder} lacks the records of some runs: choose another folder.")
            return  # none, or the first advance() was interrupted
        epochs = min(len(run.epochs) for run in before)  # runs are written one by one
        methods = [run.method for run in self._records]
        self._records = [replace(run.first(epochs), method=own) for run, own in zip(before, methods, strict=True)]
        if self._history is not None and isinstance(self.ages, SampleAges) and epochs:
            folders = {run.id: folder for run, folder in zip(before, self._folders, strict=True)}
            samples.restore_history(self._history, folders, self.ages.labels)
            self._named = self._names is None  # the names stay as they were

    def _follow(self) -> None:
        """Make room for classes that the ages have added."""
        more = self.ages.num_classes - len(self._classes)
        if more > 0:
            self._classes = _class_names(self._called, self.ages.num_classes, grows=True)
            self._counts = None if self._counts is None else [*self._counts, *[0] * more]
            self._weight = F.pad(self._weight, (0, more), value=1.0)
            for readings in (self._train, self._test):
                readings.grow(more)

    # What happens

    def observe(self, index: _check.Integers, logits: Tensor) -> None:
        """Note what the network answered, `logits [B, C]`, to the samples `index`, which is as `ages.observe` takes it.

        Call it in the clean pass. With `ClassAges`, `index` is the labels; with a run axis, logits are `[R, B, C]`.
        """
        ages = self.ages
        self._follow()
        if isinstance(ages, SampleAges):
            label, place = ages.label(index), _check.integers("index", index, device=ages.device)
        else:
            place = label = self._label("index", index)
        answers, label = self._answers(logits, label)
        if ages.epoch != self._weight_of and self._at in (0, ages.epoch):  # they were loaded since
            self._weight, self._weight_of = self._class_weight(), ages.epoch
        self._train.add(answers, label)
        if self._history is not None:
            self._history.observe(place, answer(answers, label))

    def test(self, label: _check.Integers, logits: Tensor) -> None:
        """Note what the network answered to test samples of these classes.

        The record gets accuracy, precision, loss and margin by class, balanced accuracy, macro-F1, worst class, worst
        tenth, and, for `SampleAges` or with `counts`, head, middle and tail.
        """
        self._follow()
        self._test.add(*self._answers(logits, self._label("label", label)))

    def advance(self, **figures: Figure) -> None:
        """Write down the epoch that `ages.advance()` has just ended.

        Figures are whatever else should be seen over time: a number, or C numbers, one a class (with a run axis also
        `[R]` and `[R, C]`). None is nothing read. Names that reports know: `test_accuracy`, `validation_accuracy`,
        `train_loss`, `lr`, and by class `offset` (of margins), `test_accuracy`, `test_loss`, `test_margin`.
        """
        ages = self.ages
        if self._closed:
            raise ValueError("advance() of a recorder that was closed: make another with resume=True to go on.")
        if ages.epoch == self._at:
            raise ValueError("advance() of a recorder comes after ages.advance(), once an epoch: no epoch has passed.")
        self._follow()
        given_curves, given_by_class = self._figures(figures)
        curves, by_class = self._readings()
        curves, by_class = curves | given_curves, by_class | given_by_class
        done = self._records[0].epochs
        last = min(int(done[-1]) if len(done) else 0, ages.epoch - 1)  # those of later epochs are dropped
        epochs = np.r_[done[done <= last], (last + 1 if len(done) else ages.epoch) : ages.epoch + 1]
        if self._history is not None:
            self._history.cut(int((done <= last).sum()))
            skipped = ages.epoch - last - 1 if self._writes else 0
            self._history.advance(ages.age.reshape(self._runs, -1), skipped=skipped, group=self._group)
        for run, record in enumerate(self._records):
            kept = record.first(int((done <= last).sum()))
            row = {name: value[run].numpy() for name, value in by_class.items()}
            own = _appended(kept.curves, {name: value[run].numpy() for name, value in curves.items()}, len(epochs))
            over_time = _appended(kept.over_time, row, len(epochs), len(self._classes))
            seen = np.nansum(over_time.get("train_count", np.zeros((0, len(self._classes)))), axis=0)
            self._records[run] = replace(
                record,
                **self._about,
                classes=self._classes,
                counts=seen.astype(int).tolist() if self._counts is None else self._counts,
                epochs=epochs,
                curves=own,
                by_class=by_class_of(over_time) | row,
                over_time={name: values.astype(np.float32) for name, values in over_time.items()},
                finished=False,
                seconds=float(np.nansum(own["seconds"])),
                versions=versions(ages.device),
            )
        self._at = self._weight_of = ages.epoch
        self._weight, self._clock = self._class_weight(), time.monotonic()
        if self._writes and self._classes:  # of a stream that has shown none yet, there is nothing to record
            for run, folder in enumerate(self._folders):
                self._write_samples(folder, run)
                write_run(folder, self._records[run])  # last: whoever reads it finds the rest
            self._names, self._named = None, True  # written once: a million are many, and they stay the same

    def close(self, *, finished: bool = True) -> None:
        """Mark the run as finished, and release the folder; a run that is not finished can be resumed.

        Keeps what is shown of the samples. A record to which nothing was added stays as it is.
        """
        done = self._records[0].epochs
        if self._writes and not self._closed and self._records[0].classes and done[-1:].tolist() == [self.ages.epoch]:
            for run, folder in enumerate(self._folders):
                if self._at or not (folder / PREVIEWS).exists():
                    self._write_previews(folder, run)
                if finished and not self._records[run].finished:
                    write_run(folder, replace(self._records[run], finished=True))
        self._closed = True
        self._held.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(finished=kind is None)

    # What is read

    def _class_weight(self) -> Tensor:
        """Return the weight of each class, `[R, C]`; at sample level the mean over its samples."""
        ages = self.ages
        if not isinstance(ages, SampleAges) or ages.level == "class":
            return ages.class_weight.reshape(self._runs, -1)
        return class_mean(ages.sample_weight.reshape(self._runs, -1), ages.labels, ages.num_classes)

    def _readings(self) -> tuple[Columns, Columns]:
        """Return what this epoch's answers and the ages say: `[R]` each, and `[R, C]` each."""
        ages = self.ages
        curves: Columns = {"seconds": torch.full((self._runs,), time.monotonic() - self._clock, device="cpu")}
        raw, smoothed = (ages.mean_age, ages.class_age) if isinstance(ages, SampleAges) else (ages.age, ages.ema)
        by_class: Columns = {
            "age": raw.reshape(self._runs, -1).cpu(),
            "smoothed_age": smoothed.reshape(self._runs, -1).cpu(),
        }
        if self._weight_of == ages.epoch - 1:
            by_class["weight"] = self._weight.cpu()
        for split, sums in (("train", self._train.take(self._group)), ("test", self._test.take(self._group))):
            if not bool(sums[0].any()):
                continue
            curves[f"{split}_accuracy"] = (sums[1].sum(1) / sums[0].sum(1)).cpu()
            by_class |= {"train_count": sums[0].cpu()} if split == "train" else {}
            by_class |= {f"{split}_{name}": value.cpu() for name, value in means(sums).items()}
            if split == "test":
                by_class["test_precision"] = precision(sums).cpu()
                accuracy, counts = by_class["test_accuracy"], self._counts
                measures = class_metrics(accuracy, precision=by_class["test_precision"], counts=counts)
                curves |= {f"test_{name}": values for name, values in measures.items()}
        if isinstance(ages, ClassAges):
            curves["threshold"] = ages.threshold.reshape(self._runs).cpu()
            by_class.setdefault("train_accuracy", ages.accuracy.reshape(self._runs, -1).cpu())
        return curves, by_class

    def _figures(self, figures: Mapping[str, Figure]) -> tuple[Columns, Columns]:
        """Return what the user gave in the same way."""
        curves: Columns = {}
        by_class: Columns = {}
        classes = (*self._shape, self.ages.num_classes)
        for name, figure in figures.items():
            if name in _COLUMNS:
                raise ValueError(f"A figure cannot be called {name!r}: the tables have a column of that name.")
            if figure is None:
                continue
            value = _check.real(name, figure).to("cpu", torch.float64)
            if why := impossible(name, value.numpy()):
                low, high = value[~value.isnan()].aminmax()
                raise ValueError(f"{name} {why}, not {float(low if low < 0.0 else high):g}.")
            if value.shape == torch.Size(classes):
                by_class[name] = value.reshape(self._runs, -1)
            elif value.shape in (torch.Size(()), torch.Size(self._shape)):
                curves[name] = value.expand(self._runs)
            else:
                shapes = " or ".join(str(list(shape)) for shape in dict.fromkeys(((), self._shape, classes)))
                raise ValueError(f"{name} must be one number or have the shape {shapes}, not {list(value.shape)}.")
        return curves, by_class

    def _label(self, name: str, value: object) -> Tensor:
        label = _check.integers(name, value)
        if label.dim() != 1:
            raise ValueError(f"{name} must be a vector of labels, not {_check.shown(label)}.")
        _check.within(name, label.cpu(), self.ages.num_classes, "classes of these ages")
        return label.to(self.ages.device)

    def _answers(self, logits: Tensor, label: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits as `[R, B, C]` and labels as `[R, B]`."""
        answers = _check.real("logits", logits).to(self.ages.device)
        shape = (*self._shape, label.shape[-1], self.ages.num_classes)
        if not answers.is_floating_point() or answers.shape != torch.Size(shape):
            raise ValueError(f"logits must be floating point of the shape {list(shape)}, not {_check.shown(answers)}.")
        return answers.reshape(self._runs, *shape[-2:]), label.expand(self._runs, -1)

    # What is written

    def _write_samples(self, folder: Path, run: int) -> None:
        if self._history is None or not isinstance(self.ages, SampleAges):
            return
        if not self._named:
            samples.write_names(folder, self._names)
        samples.write_samples(
            folder / samples.FILE,
            self._history.tensors(run),
            run=self._records[run].id,
            index=torch.arange(self.ages.num_samples, device="cpu"),
            label=self.ages.labels,
            age=self.ages.age.reshape(self._runs, -1)[run],
            ema=self.ages.ema.reshape(self._runs, -1)[run],
            absent=self.ages.absent,
        )

    def _write_previews(self, folder: Path, run: int) -> None:
        if self._history is None or not isinstance(self.ages, SampleAges) or not (self._image or self._describe):
            return
        answers = self._history.tensors(run)
        suspicion = answers["mean_other"] - answers["mean_confidence"].sqrt()
        rows = worth_seeing(self.ages.labels.cpu(), self.ages.ema.reshape(self._runs, -1)[run].cpu(), suspicion)
        save_previews(folder, rows, image=self._image, text=self._describe)


def _appended(table: Mapping[str, Array], row: Mapping[str, Array], epochs: int, *size: int) -> dict[str, Array]:
    """Return readings by epoch with another last row, `float64 [epochs, *size]`; NaN where nothing was read."""
    readings = {name: np.full((epochs, *size), np.nan) for name in dict.fromkeys((*table, *row))}
    for name, values in table.items():
        readings[name][tuple(map(slice, values.shape))] = values  # classes may have been added since
    for name, value in row.items():
        readings[name][-1] = value
    return readings


# What a user gives


def _text(name: str, value: object) -> str:
    """Return some text that is not blank."""
    if not isinstance(value, str) or not value.strip():
        raise TypeError(f"{name} must be some text, not {_check.shown(value)}.")
    return value


def _class_names(value: Sequence[str] | None, size: int, grows: bool) -> list[str]:
    """Return the names of the classes; by default, and of classes that were added without a name, their numbers."""
    if isinstance(value, str) or (value is not None and len(value) != size and not grows):
        raise ValueError(f"classes must be {size} names, one a class, not {_check.shown(value)}.")
    names = [_text("classes", str(name)) for name in value or ()][:size]
    return names + [str(place) for place in range(len(names), size)]


def _class_counts(value: _check.Integers, size: int) -> list[int]:
    counts = _check.integers("counts", _check.in_class_order(value))
    if counts.shape != torch.Size((size,)) or bool((counts < 0).any()):
        raise ValueError(f"counts must be {size} whole numbers of 0 or more, not {_check.shown(value)}.")
    return [int(count) for count in counts.tolist()]


def _checked_settings(settings: Mapping[str, Value]) -> dict[str, Value]:
    for name, value in settings.items():
        infinite = isinstance(value, float) and not math.isfinite(value)
        if not isinstance(name, str) or not isinstance(value, str | float | int | bool | None) or infinite:
            raise TypeError(f"settings must be text and finite numbers by name, not {_check.shown({name: value})}.")
    return dict(settings)


def _num_samples(what: str, ages: SampleAges | ClassAges) -> int:
    if not isinstance(ages, SampleAges):
        raise ValueError(f"{what} of samples, and ClassAges know none.")
    return ages.num_samples


def _checked_previews(
    images: Any, describe: Callable[[int], object] | None, ages: SampleAges | ClassAges
) -> tuple[Callable[[int], object] | None, Callable[[int], object] | None]:
    """Return what shows and describes a sample; the first one is tried now: better than after an hour."""
    if images is not None:
        size = _num_samples("images are", ages)
        if not callable(images):
            if isinstance(images, Sized) and len(images) != size:
                raise ValueError(f"images must be {size}, one a sample, not {len(images)}.")
            images = images.__getitem__
        thumbnail(images(0))
    if describe is not None:
        _num_samples("describe is", ages)
        if not callable(describe):
            raise TypeError(f"describe must be a function from a sample's position, not {_check.shown(describe)}.")
        described(describe(0))
    return images, describe


def _sample_names(value: Sequence[str | os.PathLike[str]], ages: SampleAges | ClassAges) -> list[str]:
    """Return what each sample is called."""
    size = _num_samples("names are", ages)
    if isinstance(value, str | bytes) or not isinstance(value, Sized):
        raise TypeError(f"names must be a list of texts, one a sample, not {_check.shown(value)}.")
    if len(value) != size:
        raise ValueError(f"names must be {size}, one a sample, not {len(value)}.")
    return [_text("names", os.fspath(name) if isinstance(name, os.PathLike) else name) for name in value]


def _started_by() -> str | None:
    """Return how this program was started, if that was a file."""
    return shlex.join([Path(sys.executable).name, *sys.argv]) if sys.argv and sys.argv[0].endswith(".py") else None
