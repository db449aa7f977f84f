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
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Protocol, Self, TypeAlias

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
from aol.records.previews import described, save_previews, thumbnail, worth_seeing
from aol.records.record import (
    FILE,
    DamagedRunError,
    Floats,
    Run,
    Value,
    by_class_of,
    impossible,
    read_run,
    versions,
    write_run,
)
from aol.records.store import refuse_old_format

Figure: TypeAlias = "float | Tensor | Sequence[float] | np.ndarray[tuple[int, ...], np.dtype[np.generic]] | None"
Columns: TypeAlias = dict[str, Tensor]
_COLUMNS = ("id", "method", "seed", "epoch", "class", "name", "count")  # of the tables of runs


class Images(Protocol):
    """What hands out an image by the place of a sample: an array `[N, ...]`, a data set of images, a list."""

    def __getitem__(self, index: int, /) -> object:
        """Return the image of a sample."""


class Recorder:
    """Records a training loop of your own, epoch by epoch, for `aol show`, `aol report` and `aol.load_runs`.

    Call `observe` beside `ages.observe` with the logits, and `advance` once an epoch, right after `ages.advance()`.
    Files are replaced as a whole at every `advance`: a crash loses nothing that was written.

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
            image. Thumbnails are kept of the oldest and the most suspicious few only.
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
        images: Images | Callable[[int], object] | None = None,
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
        self.folder, self._ages, self._group = Path(folder), ages, group
        self._runs, single = ages.rho.numel(), ages.rho.dim() == 0
        self._shape = () if single else (self._runs,)
        self._grows = isinstance(ages, ClassAges) and ages.grows
        self._called = classes if self._grows else None
        self._classes = _checked_classes(classes, ages.num_classes, self._grows)
        self._name = self.folder.resolve().name if name is None else _checked_text("name", name)
        self._seed = None if seed is None else _check.whole("seed", seed, 0)
        self._planned = None if epochs is None else _check.whole("epochs", epochs, 1)
        self._settings = _checked_settings(settings or {})
        self._counts = None if counts is None else _checked_counts(counts, ages.num_classes)
        self._command = _checked_command(command)
        self._train, self._test = (ClassReadings(self._runs, ages.num_classes, ages.device) for _ in range(2))
        self._samples: SampleHistory | None = None
        if isinstance(ages, SampleAges):
            self._samples = SampleHistory(self._runs, ages.num_samples, absent=ages.absent, device=ages.device)
        self._at = 0  # the ages' epoch when they were last written down here
        self._weight, self._weight_of = self._class_weight(), ages.epoch
        self._clock = time.monotonic()
        self._folders = [self.folder] if single else [self.folder / f"run-{run}" for run in range(self._runs)]
        self._image, self._text = _checked_previews(images, describe, ages)
        called = _checked_names(names, ages)
        self._names, self._named = None if called is None else samples.as_json(called), False
        self._logs: list[list[EpochReadings]] = [[] for _ in self._folders]
        self._ids = [secrets.token_hex(6) for _ in self._folders]
        self._writes = _distributed.world(group)[0] == 0
        self._held, self._closed = ExitStack(), False
        if self._writes:
            self._claim(resume)

    def _claim(self, resume: bool) -> None:
        """Lock the folder and read what is in it, or refuse."""
        refuse_old_format(self.folder)
        self._held.enter_context(locked(self.folder, called="folder"))
        try:
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
            self._logs, self._ids = [_log_of(run)[:epochs] for run in before], [run.id for run in before]
            if self._samples is not None and isinstance(self._ages, SampleAges) and self._logs[0]:
                named = dict(zip(self._ids, self._folders, strict=True))
                samples.restore_history(self._samples, named, self._ages.labels)
                self._named = self._names is None  # the names stay as they were
        except BaseException:
            self._held.close()
            raise

    def _follow(self) -> None:
        """Make room for classes that the ages have added."""
        more = self._ages.num_classes - len(self._classes)
        if more > 0:
            self._classes = _checked_classes(self._called, self._ages.num_classes, grows=True)
            self._counts = None if self._counts is None else [*self._counts, *[0] * more]
            self._weight = F.pad(self._weight, (0, more), value=1.0)
            for readings in (self._train, self._test):
                readings.grow(more)

    # What happens

    def observe(self, index: _check.Integers, logits: Tensor) -> None:
        """Note what the network answered, `logits [B, C]`, to the samples `index`, which is as `ages.observe` takes it.

        Call it in the clean pass. With `ClassAges`, `index` is the labels; with a run axis, logits are `[R, B, C]`.
        """
        ages = self._ages
        self._follow()
        if isinstance(ages, SampleAges):
            label, place = ages.label(index), _check.integers("index", index, device=ages.device)
        else:
            place = label = self._label("index", index)
        answers, label = self._answers(logits, label)
        if ages.epoch != self._weight_of and self._at in (0, ages.epoch):  # they were loaded since
            self._weight, self._weight_of = self._class_weight(), ages.epoch
        self._train.add(answers, label)
        if self._samples is not None:
            self._samples.observe(place, answer(answers, label))

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
        ages = self._ages
        if self._closed:
            raise ValueError("advance() of a recorder that was closed: make another with resume=True to go on.")
        if ages.epoch == self._at:
            raise ValueError("advance() of a recorder comes after ages.advance(), once an epoch: no epoch has passed.")
        self._follow()
        given_curves, given_by_class = self._figures(figures)
        curves, by_class = self._readings()
        curves, by_class = curves | given_curves, by_class | given_by_class
        begun = bool(self._logs[0])
        last = min(self._logs[0][-1].epoch if begun else 0, ages.epoch - 1)
        self._logs = [[row for row in log if row.epoch <= last] for log in self._logs]
        if self._samples is not None and isinstance(ages, SampleAges):
            self._samples.cut(len(self._logs[0]))
            skipped = ages.epoch - last - 1 if self._writes else 0
            self._samples.advance(ages.age.reshape(self._runs, -1), skipped=skipped, group=self._group)
        for run, log in enumerate(self._logs):
            for epoch in range(last + 1, ages.epoch) if begun else ():
                log.append(EpochReadings(epoch, {}, {}))  # nobody was told of it
            row = {name: float(value[run]) for name, value in curves.items()}
            of_classes = {name: value[run].numpy() for name, value in by_class.items()}
            log.append(EpochReadings(ages.epoch, row, of_classes))
        self._at = self._weight_of = ages.epoch
        self._weight, self._clock = self._class_weight(), time.monotonic()
        if self._writes and self._classes:  # of a stream that has shown none yet, there is nothing to record
            self._write()

    def close(self, *, finished: bool = True) -> None:
        """Mark the run as finished, and release the folder; a run that is not finished can be resumed."""
        if not self._closed:
            self._follow()
        up_to_date = self._at or (self._logs[0] and self._logs[0][-1].epoch == self._ages.epoch)
        if finished and self._writes and self._classes and up_to_date and not self._closed:
            for run, folder in enumerate(self._folders):
                write_run(folder, self._record(run, finished=True))
        if self._writes and not self._closed and self._at:
            self._write_previews()
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
        ages = self._ages
        if not isinstance(ages, SampleAges) or ages.level == "class":
            return ages.class_weight.reshape(self._runs, -1)
        return class_mean(ages.sample_weight.reshape(self._runs, -1), ages.labels, ages.num_classes)

    def _readings(self) -> tuple[Columns, Columns]:
        """Return what this epoch's answers and the ages say: `[R]` each, and `[R, C]` each."""
        ages = self._ages
        curves: Columns = {"seconds": torch.full((self._runs,), time.monotonic() - self._clock, device="cpu")}
        raw, smoothed = (ages.mean_age, ages.class_age) if isinstance(ages, SampleAges) else (ages.age, ages.ema)
        by_class: Columns = {
            "age": raw.reshape(self._runs, -1).cpu(),
            "smoothed_age": smoothed.reshape(self._runs, -1).cpu(),
        }
        if self._weight_of == ages.epoch - 1:
            by_class["weight"] = self._weight.cpu()
        for split, taken in (("train", self._train.take(self._group)), ("test", self._test.take(self._group))):
            if bool(taken[0].any()):
                curves[f"{split}_accuracy"] = (taken[1].sum(1) / taken[0].sum(1)).cpu()
                by_class |= {"train_count": taken[0].cpu()} if split == "train" else {}
                by_class |= {f"{split}_{name}": value.cpu() for name, value in means(taken).items()}
            if split == "test" and bool(taken[0].any()):
                by_class["test_precision"] = precision(taken).cpu()
                measures = class_metrics(
                    by_class["test_accuracy"], precision=by_class["test_precision"], counts=self._training_counts()
                )
                curves |= {f"test_{name}": values for name, values in measures.items()}
        if isinstance(ages, ClassAges):
            curves["threshold"] = ages.threshold.reshape(self._runs).cpu()
            by_class.setdefault("train_accuracy", ages.accuracy.reshape(self._runs, -1).cpu())
        return curves, by_class

    def _training_counts(self) -> list[int] | None:
        """Return the training samples of each class; None for a stream, where they become known as it goes on."""
        if self._counts is None and isinstance(self._ages, SampleAges):
            return torch.bincount(self._ages.labels, minlength=self._ages.num_classes).tolist()
        return self._counts

    def _figures(self, figures: Mapping[str, Figure]) -> tuple[Columns, Columns]:
        """Return what the user gave in the same way."""
        curves: Columns = {}
        by_class: Columns = {}
        classes = (*self._shape, self._ages.num_classes)
        for name, value in figures.items():
            if name in _COLUMNS:
                raise ValueError(f"A figure cannot be called {name!r}: the tables have a column of that name.")
            if value is None:
                continue
            found = _check.real(name, value).to("cpu", torch.float64)
            if why := impossible(name, found.numpy()):
                low, high = found[~found.isnan()].aminmax()
                raise ValueError(f"{name} {why}, not {float(low if low < 0.0 else high):g}.")
            if found.shape == torch.Size(classes):
                by_class[name] = found.reshape(self._runs, -1)
            elif found.shape in (torch.Size(()), torch.Size(self._shape)):
                curves[name] = found.expand(self._runs)
            else:
                shapes = " or ".join(str(list(shape)) for shape in dict.fromkeys(((), self._shape, classes)))
                raise ValueError(f"{name} must be one number or have the shape {shapes}, not {list(found.shape)}.")
        return curves, by_class

    def _label(self, name: str, value: object) -> Tensor:
        found = _check.integers(name, value)
        if found.dim() != 1:
            raise ValueError(f"{name} must be a vector of labels, not {_check.shown(found)}.")
        _check.within(name, found.cpu(), self._ages.num_classes, "classes of these ages")
        return found.to(self._ages.device)

    def _answers(self, logits: Tensor, label: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits as `[R, B, C]` and labels as `[R, B]`."""
        found = _check.real("logits", logits).to(self._ages.device)
        shape = (*self._shape, label.shape[-1], self._ages.num_classes)
        if not found.is_floating_point() or found.shape != torch.Size(shape):
            raise ValueError(f"logits must be floating point of the shape {list(shape)}, not {_check.shown(found)}.")
        return found.reshape(self._runs, *shape[-2:]), label.expand(self._runs, -1)

    # What is written

    def _write(self) -> None:
        for run, folder in enumerate(self._folders):
            self._write_samples(folder, run)
            write_run(folder, self._record(run, finished=False))  # last: whoever reads it finds the rest
        self._names, self._named = None, True  # written once: a million are many, and they stay the same

    def _record(self, run: int, *, finished: bool) -> Run:
        log, counts = self._logs[run], self._training_counts()
        curves, over_time = _curves(log), _over_time(log, len(self._classes))
        if counts is None:
            seen = over_time.get("train_count", np.zeros((0, len(self._classes))))
            counts = np.nansum(seen, axis=0).astype(int).tolist()
        return Run(
            id=self._ids[run],
            method=f"{self._name} ρ={float(self._ages.rho[run]):g}" if self._shape else self._name,
            seed=self._seed,
            settings=self._settings,
            classes=self._classes,
            counts=counts,
            epochs=np.array([row.epoch for row in log], dtype=np.int64),
            curves=curves,
            by_class=by_class_of(over_time),
            over_time={name: values.astype(np.float32) for name, values in over_time.items()},
            planned=self._planned,
            finished=finished,
            seconds=float(np.nansum(curves.get("seconds", np.zeros(1)))),
            versions=versions(self._ages.device),
            command=self._command,
        )

    def _write_samples(self, folder: Path, run: int) -> None:
        ages = self._ages
        if self._samples is None or not isinstance(ages, SampleAges):
            return
        if not self._named:
            samples.write_names(folder, self._names)
        age, ema = (value.reshape(self._runs, -1)[run].cpu() for value in (ages.age, ages.ema))
        index = torch.arange(ages.num_samples, device="cpu")
        kept = self._samples.tensors(run)
        samples.write_samples(
            folder / samples.FILE,
            kept,
            run=self._ids[run],
            index=index,
            label=ages.labels,
            age=age,
            ema=ema,
            absent=ages.absent,
        )

    def _write_previews(self) -> None:
        if (self._image is None and self._text is None) or self._samples is None:
            return
        assert isinstance(self._ages, SampleAges)
        for run, folder in enumerate(self._folders):
            kept = self._samples.tensors(run)
            doubt = kept["mean_other"] - kept["mean_confidence"].sqrt()
            ema = self._ages.ema.reshape(self._runs, -1)[run].cpu()
            rows = worth_seeing(self._ages.labels.cpu(), ema, doubt)
            save_previews(folder, rows, image=self._image, text=self._text)


class EpochReadings(NamedTuple):
    """What was read in an epoch: numbers by name, and C numbers by name. Which ones may change from epoch to epoch."""

    epoch: int
    curves: Mapping[str, float]
    by_class: Mapping[str, Floats]


def _log_of(run: Run) -> list[EpochReadings]:
    """Return what was read in each epoch of a run that was recorded, to continue it."""
    log = []
    for place, epoch in enumerate(run.epochs.tolist()):
        curves = {name: float(values[place]) for name, values in run.curves.items()}
        by_class = {name: values[place].astype(float) for name, values in run.over_time.items()}
        log.append(EpochReadings(epoch, curves, by_class))
    return log


def _curves(log: Sequence[EpochReadings]) -> dict[str, Floats]:
    """Return each reading by epoch, `float64 [E]`, NaN where it was not taken."""
    names = dict.fromkeys(name for row in log for name in row.curves)
    return {name: np.array([row.curves.get(name, np.nan) for row in log]) for name in names}


def _over_time(log: Sequence[EpochReadings], num_classes: int) -> dict[str, Floats]:
    """Return each reading by epoch and class, `float64 [E, C]`, NaN where it was not taken."""
    names = dict.fromkeys(name for row in log for name in row.by_class)
    found = {name: np.full((len(log), num_classes), np.nan) for name in names}
    for place, row in enumerate(log):
        for name, values in row.by_class.items():
            found[name][place, : len(values)] = values  # classes may have been added since
    return found


# What a user gives


def _checked_text(name: str, value: object) -> str:
    """Return some text that is not blank."""
    if not isinstance(value, str) or not value.strip():
        raise TypeError(f"{name} must be some text, not {_check.shown(value)}.")
    return value


def _checked_classes(value: Sequence[str] | None, size: int, grows: bool) -> list[str]:
    """Return the names of the classes; by default, and of classes that were added without a name, their numbers."""
    numbers = [str(place) for place in range(size)]
    if value is None:
        return numbers
    if isinstance(value, str) or (len(value) != size and not grows):
        raise ValueError(f"classes must be {size} names, one a class, not {_check.shown(value)}.")
    return [_checked_text("classes", str(each)) for each in value][:size] + numbers[len(value) :]


def _checked_counts(value: _check.Integers, size: int) -> list[int]:
    """Return a count for each class."""
    found = _check.integers("counts", _check.in_class_order(value))
    if found.shape != torch.Size((size,)) or bool((found < 0).any()):
        raise ValueError(f"counts must be {size} whole numbers of 0 or more, not {_check.shown(value)}.")
    return [int(each) for each in found.tolist()]


def _checked_settings(value: Mapping[str, Value]) -> dict[str, Value]:
    """Return settings that JSON can hold."""
    for name, each in value.items():
        infinite = isinstance(each, float) and not math.isfinite(each)
        if not isinstance(name, str) or not isinstance(each, str | float | int | bool | None) or infinite:
            raise TypeError(f"settings must be text and finite numbers by name, not {_check.shown({name: each})}.")
    return dict(value)


def _num_samples(what: str, ages: SampleAges | ClassAges) -> int:
    if not isinstance(ages, SampleAges):
        raise ValueError(f"{what} of samples, and ClassAges know none.")
    return ages.num_samples


def _checked_previews(
    images: Images | Callable[[int], object] | None,
    describe: Callable[[int], object] | None,
    ages: SampleAges | ClassAges,
) -> tuple[Callable[[int], object] | None, Callable[[int], object] | None]:
    """Return what shows and describes a sample; the first one is tried now: better than after an hour."""
    image = None
    if images is not None:
        samples = _num_samples("images are", ages)
        if not callable(images) and isinstance(images, Sized) and len(images) != samples:
            raise ValueError(f"images must be {samples}, one a sample, not {len(images)}.")
        image = images if callable(images) else images.__getitem__
        thumbnail(image(0))
    if describe is not None:
        _num_samples("describe is", ages)
        if not callable(describe):
            raise TypeError(f"describe must be a function from a sample's position, not {_check.shown(describe)}.")
        described(describe(0))
    return image, describe


def _checked_names(
    value: Sequence[str | os.PathLike[str]] | None, ages: SampleAges | ClassAges
) -> list[str] | list[int] | None:
    """Return what each sample is called; by default its id in the ages, or None."""
    if value is None:
        return None
    samples = _num_samples("names are", ages)
    if isinstance(value, str | bytes) or not isinstance(value, Sized):
        raise TypeError(f"names must be a list of texts, one a sample, not {_check.shown(value)}.")
    if len(value) != samples:
        raise ValueError(f"names must be {samples}, one a sample, not {len(value)}.")
    return [_checked_text("names", os.fspath(each) if isinstance(each, os.PathLike) else each) for each in value]


def _checked_command(value: str | None) -> str | None:
    """Return what the user types to repeat the run, or how this program was started."""
    if value is not None:
        return _checked_text("command", value)
    started = sys.argv[:1]
    return shlex.join([Path(sys.executable).name, *sys.argv]) if started and started[0].endswith(".py") else None
