"""Records of a training loop of one's own: the same record that `aol train` writes, through the library alone."""

from __future__ import annotations

import os
import secrets
import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, Self, TypeAlias

import numpy as np
import torch
from torch import Tensor

from aol import _check, _distributed
from aol._files import locked, remove_partial_files
from aol.ages import SampleAges, class_mean
from aol.metrics import class_metrics
from aol.readings import SUMS, add_readings, means, precision
from aol.records import previews, samples
from aol.records.history import SampleHistory, answer
from aol.records.metrics import RUN_COLUMNS
from aol.records.record import (
    FILE,
    MOST,
    MOST_SETTINGS,
    DamagedRunError,
    Run,
    Value,
    by_class_of,
    impossible,
    read_run,
    versions,
    write_run,
)

Figure: TypeAlias = "float | Tensor | Sequence[float] | np.ndarray[tuple[int, ...], np.dtype[np.generic]] | None"
Array: TypeAlias = "np.ndarray[Any, np.dtype[Any]]"
Columns: TypeAlias = dict[str, Array]
MOST_TESTED = 200  # test samples that are wrong of which a picture or text is kept
_COLUMNS = ("id", "method", "seed", "epoch", "class", "name", "count")  # of the tables of epochs and classes


class Recorder:
    """Records a training loop of your own, epoch by epoch, for `aol show`, `aol report` and `aol.load_runs`.

    Call `observe` beside `ages.observe` with the logits, `advance` once an epoch, right after `ages.advance()`, and
    `close` at the end, or use it in a `with` statement. Files are replaced as a whole at every `advance`: a crash loses
    nothing that was written.

    Args:
        folder: where to write; made if it is not there.
        ages: whose ages to record, of one run.
        classes: names of the classes; by default their numbers.
        name: what the run is called in figures; by default as the folder.
        seed: of the run; runs of one name and several seeds are shown as one with its spread.
        settings: whatever should be remembered of how the run was made, by name.
        epochs: how many there will be, where that is known.
        images, test_images: show samples, and test samples that are wrong: an array `[N, ...]`, or a function from a
            position to an image. `close` keeps thumbnails of the oldest and the most suspicious, at most 500.
        describe, test_describe: the same where a sample is no image: from a position to text, a mapping or a vector.
        names: what the samples are called in reports, such as paths; by default their positions.
        test_size: how many test samples there are, for a record of the last answers to them: give `test` their index.
        command: what to type to repeat the run; by default how this program was started, if that was a file.
        resume: go on with the record in `folder`, if there is one. Epochs after the ages' own are dropped. If the ages
            were saved and `advance` was not reached, that epoch is recorded from the ages alone (with one process).

    Under `torch.distributed` every process makes one and observes its share; `advance` is collective, and the first
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
        ages: SampleAges,
        *,
        classes: Sequence[str] | None = None,
        name: str | None = None,
        seed: int | None = None,
        settings: Mapping[str, Value] | None = None,
        epochs: int | None = None,
        images: Any = None,
        describe: Callable[[int], object] | None = None,
        names: Sequence[str | os.PathLike[str]] | None = None,
        test_size: int | None = None,
        test_images: Any = None,
        test_describe: Callable[[int], object] | None = None,
        command: str | None = None,
        resume: bool = False,
    ) -> None:
        if not isinstance(ages, SampleAges) or ages.rho.dim():
            raise TypeError(f"ages must be SampleAges with a number as rho, not {_check.shown(ages)}.")
        self.folder, self.ages = path_of(folder), ages
        if classes is not None and len(_check.listed("classes", classes)) != ages.num_classes:
            raise ValueError(f"classes must be {ages.num_classes} names, one a class, not {_check.shown(classes)}.")
        if command is None and sys.argv and sys.argv[0].endswith(".py"):
            command = shlex.join([Path(sys.executable).name, *sys.argv])
        self._record = Run(
            id=secrets.token_hex(6),
            method=str(name or self.folder.resolve().name),
            seed=None if seed is None else _check.whole("seed", seed, 0),
            settings=_checked_settings(settings or {}),
            classes=[str(name) for name in (range(ages.num_classes) if classes is None else classes)],
            counts=torch.bincount(ages.labels, minlength=ages.num_classes).tolist(),
            epochs=np.zeros(0, np.int64),
            planned=None if epochs is None else _check.whole("epochs", epochs, 1),
            command=None if command is None else str(command),
        )
        self._history = SampleHistory(1, ages.num_samples, absent=ages.absent, device=ages.device)
        given: Any
        for what, given in (("images", images), ("names", names)):
            if hasattr(given, "__len__") and len(given) != ages.num_samples:
                raise ValueError(f"{what} must be {ages.num_samples}, one a sample, not {len(given)}.")
        paths = None if names is None else [os.fsdecode(name) for name in _check.listed("names", names)]
        if paths is not None:
            samples.encoded_names(paths)  # refused here, they leave no folder behind
        self._image, self._text = _reader("images", images), _reader("describe", describe)
        self._test_image = _reader("test_images", test_images)
        self._test_text = _reader("test_describe", test_describe)
        if self._image is not None:
            previews.thumbnail(self._image(0))  # better now than after an hour
        # Of an epoch: label, answer, the probabilities of both, and 1 if seen.
        self._tested = torch.zeros((_check.whole("test_size", test_size or 0, 0), 5), device=ages.device)
        self.forget()
        self._at = 0  # the ages' epoch when they were last written down here
        self._weights = {ages.epoch: self._class_weight()}  # by the epoch of the ages that they follow from
        self._clock = time.monotonic()
        self._writes, self._closed = _distributed.world()[0] == 0, False
        self._held = ExitStack()
        if self._writes:
            with ExitStack() as held:
                held.enter_context(locked(self.folder, called="folder"))
                self._continue(resume)
                if names is not None or not len(self._record.epochs):  # else they stay as they were
                    samples.write_names(self.folder, paths)
                self._place = self.folder.stat()
                self._catch_up()
                self._held = held.pop_all()

    def _continue(self, resume: bool) -> None:
        """Read the record that is in the folder, or refuse it."""
        remove_partial_files(self.folder)
        if not (self.folder / FILE).exists():
            if (self.folder / samples.FILE).exists():  # of a record that was removed; else the files are the user's own
                for left in (samples.TEST, previews.FILE, previews.TEST):
                    (self.folder / left).unlink(missing_ok=True)
            return
        if not resume:
            raise ValueError(f"{self.folder} already holds a record: give resume=True to go on, or another folder.")
        before, own = read_run(self.folder), self._record
        if before.classes != own.classes:
            raise DamagedRunError(f"{self.folder} has a record of other classes: choose another folder.")
        about = {name: getattr(own, name) for name in ("method", "seed", "settings", "counts", "planned", "command")}
        self._record = replace(before, **about)
        if len(before.epochs):
            samples.restore_history(self._history, self.folder, before.id, self.ages.labels)

    def _catch_up(self) -> None:
        """Record the epoch of ages that were saved before the process was killed; of it, only the ages are known."""
        behind = not self._at and self._record.epochs[-1:].tolist() == [self.ages.epoch - 1]
        if not behind or _distributed.world()[1] > 1:  # `advance` is collective, this is not
            return
        if not self._history.can_precede(self.ages.age[None]):
            raise DamagedRunError(f"{self.folder} has a record of other ages: choose another folder.")
        self.advance()

    def observe(self, index: _check.Integers, logits: Tensor) -> None:
        """Note the `logits [B, C]` of samples in the clean pass."""
        ages = self.ages
        label = ages.label(index)
        answers = self._answers(logits, label)
        self._catch_up()  # the ages may have been loaded after the recorder was made
        if ages.epoch not in self._weights:  # they were loaded since
            self._weights[ages.epoch] = self._class_weight()
        add_readings(self._sums["train"], answers, label[None])
        place = _check.integers("index", index, device=ages.device)
        self._history.observe(place, answer(answers, label[None]))

    def test(self, label: _check.Integers, logits: Tensor, index: _check.Integers | None = None) -> None:
        """Note what the network answered to test samples of these classes, at these positions of the test set."""
        label = _check.integers("label", label)
        _check.within("label", label.cpu(), self.ages.num_classes, "classes of these ages")
        label = label.to(self.ages.device)
        answers = self._answers(logits, label)
        if index is not None:
            place = _check.integers("index", index, device=self.ages.device)
            if place.shape != label.shape:
                raise ValueError(f"index must have the shape {list(label.shape)} of label, not {list(place.shape)}.")
            _check.within("index", place.cpu(), len(self._tested), "test samples of this recorder (test_size)")
        self._catch_up()
        add_readings(self._sums["test"], answers, label[None])
        if index is not None:
            prediction, confidence, top, _ = answer(answers[0], label)
            self._tested[place] = torch.stack((label, prediction, confidence, top, torch.ones_like(top)), 1)

    def forget(self) -> None:
        """Forget what was observed since the last `advance`: a pass that failed begins again."""
        shape, device = (SUMS, 1, self.ages.num_classes), self.ages.device
        self._sums = {split: torch.zeros(shape, dtype=torch.float64, device=device) for split in ("train", "test")}
        self._tested = torch.zeros_like(self._tested)

    def advance(self, **figures: Figure) -> None:
        """Write down the epoch that `ages.advance()` has just ended.

        Figures are whatever else should be seen over time: a number, or C numbers, one a class. None is nothing read.
        Names that reports know: `test_accuracy`, `validation_accuracy`, `train_loss`, `lr`, and by class `offset` (of
        margins), `test_accuracy`, `test_loss`, `test_margin`.
        """
        ages, record = self.ages, self._record
        self._check_place()
        if self._closed:
            raise ValueError("advance() of a recorder that was closed: make another with resume=True to go on.")
        if ages.epoch == self._at:
            raise ValueError("advance() of a recorder comes after ages.advance(), once an epoch: no epoch has passed.")
        kept = record.first(int((record.epochs < ages.epoch).sum()))
        if len(kept.epochs) and kept.epochs[-1] + 1 != ages.epoch:
            gap = f"{self.folder} has a record up to epoch {kept.epochs[-1]}, and the ages are in epoch {ages.epoch}"
            raise ValueError(f"{gap}: call advance() after each ages.advance(), or choose another folder.")
        given = self.checked(figures)
        curves, by_class = (own | more for own, more in zip(self._readings(), given, strict=True))
        self._history.cut(len(kept.epochs))
        self._history.advance(ages.age[None])
        over_curves = _appended(kept.curves, curves, len(kept.epochs))
        over_time = _appended(kept.over_time, by_class, len(kept.epochs))
        self._record = replace(
            record,
            epochs=np.append(kept.epochs, ages.epoch),
            curves=over_curves,
            by_class=by_class_of(over_time) | by_class,
            over_time={name: values.astype(np.float32) for name, values in over_time.items()},
            finished=False,
            seconds=float(np.nansum(over_curves["seconds"])),
            versions=versions(ages.device),
        )
        self._at, self._weights, self._clock = ages.epoch, {ages.epoch: self._class_weight()}, time.monotonic()
        tested = _distributed.total(self._tested)
        self.forget()
        if self._writes:
            columns = {"index": torch.arange(ages.num_samples, device="cpu"), "label": ages.labels, "age": ages.age}
            columns |= {"ema": ages.ema, **self._history.tensors(0)}
            samples.write_samples(self.folder / samples.FILE, columns, run=self._record.id, absent=ages.absent)
            if bool(tested[:, 4].any()):
                answers = torch.where(tested[:, 4:] == 1, tested[:, :4], torch.nan)
                samples.write_tested(self.folder / samples.TEST, answers, run=self._record.id)
            write_run(self.folder, self._record)  # last: whoever reads it finds the rest

    def _in_place(self) -> bool:
        return self.folder.exists() and os.path.samestat(self.folder.stat(), self._place)

    def _check_place(self) -> None:
        if self._writes and not self._in_place():
            raise RuntimeError(f"{self.folder} was moved or deleted: make a recorder of the folder where it is now.")

    def close(self, *, finished: bool = True) -> None:
        """Mark the run as finished (else it can be resumed), keep what is shown of samples, and release the folder."""
        record = self._record
        writes = self._writes and not self._closed and record.epochs[-1:].tolist() == [self.ages.epoch]
        try:
            if writes and (finished or self._in_place()):  # else an error may be on its way, which none must hide
                self._check_place()
                if self._at or not (self.folder / previews.FILE).exists():
                    self._write_previews()
                if finished and not record.finished:
                    write_run(self.folder, replace(record, finished=True))
        finally:
            self._closed = True
            self._held.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(finished=kind is None)

    def _class_weight(self) -> Tensor:
        """Return the weights of the classes, `[C]`; at sample level means over their samples."""
        ages = self.ages
        if ages.level == "class":
            return ages.class_weight
        return class_mean(ages.sample_weight[None], ages.labels, ages.num_classes)[0]

    def _readings(self) -> tuple[Columns, Columns]:
        """Return what this epoch's answers and the ages say: numbers, and readings `[C]`."""
        ages = self.ages
        curves = {"seconds": torch.tensor(time.monotonic() - self._clock, device="cpu")}
        by_class = {"age": ages.mean_age, "smoothed_age": ages.class_age}
        if ages.epoch - 1 in self._weights:
            by_class["weight"] = self._weights[ages.epoch - 1]
        for split, of_process in self._sums.items():
            sums = _distributed.total(of_process)[:, 0]
            if not bool(sums[0].any()):
                continue
            curves[f"{split}_accuracy"] = sums[1].sum() / sums[0].sum()
            by_class |= {"train_count": sums[0]} if split == "train" else {}
            by_class |= {f"{split}_{name}": value for name, value in means(sums).items()}
            if split == "test":
                right, by_class["test_precision"] = by_class["test_accuracy"], precision(sums)
                measures = class_metrics(right, precision=by_class["test_precision"], counts=self._record.counts)
                curves |= {f"test_{name}": value for name, value in measures.items()}
        numbers, columns = ({name: v.cpu().numpy() for name, v in values.items()} for values in (curves, by_class))
        return numbers, columns

    def checked(self, figures: Mapping[str, Figure]) -> tuple[Columns, Columns]:
        """Return figures as `advance` records them: numbers, and readings `[C]`; refuse others."""
        curves: Columns = {}
        by_class: Columns = {}
        for name, figure in figures.items():
            if name in _COLUMNS:
                raise ValueError(f"A figure cannot be called {name!r}: the tables have a column of that name.")
            if figure is None:
                continue
            value = _check.real(name, figure).to("cpu", torch.float64).numpy()
            if why := impossible(name, value):
                raise ValueError(f"{name} {why}, not {value.tolist()}.")
            if value.shape not in ((), (self.ages.num_classes,)):
                shapes = f"one number, or {self.ages.num_classes}, one a class"
                raise ValueError(f"{name} must be {shapes}, not of the shape {list(value.shape)}.")
            (by_class if value.ndim else curves)[name] = value
        return curves, by_class

    def _answers(self, logits: Tensor, label: Tensor) -> Tensor:
        """Return logits as `[1, B, C]`."""
        answers = _check.real("logits", logits).to(self.ages.device)
        shape = (*label.shape, self.ages.num_classes)
        if not answers.is_floating_point() or answers.dim() != 2 or answers.shape != shape:
            raise ValueError(f"logits must be floating point of the shape {list(shape)}, not {_check.shown(answers)}.")
        return answers[None]

    def _write_previews(self) -> None:
        """Keep what is shown of samples, and of test samples that are wrong: the most certain, by turns of classes."""
        ages = self.ages
        if self._image or self._text:
            rows = previews.worth_seeing(ages.labels.cpu(), ages.ema.cpu(), self._history.tensors(0)["mean_margin"])
            previews.save_previews(self.folder, rows, image=self._image, text=self._text)
        answers = samples.read_tested(self.folder / samples.TEST, self._record.id)
        if answers is not None and (self._test_image or self._test_text):
            rows = samples.surest_mistakes(answers)[:MOST_TESTED].tolist()
            previews.save_previews(self.folder, rows, image=self._test_image, text=self._test_text, file=previews.TEST)


def path_of(folder: object) -> Path:
    """Return the folder of a record as a path, or raise TypeError."""
    if not isinstance(folder, str | os.PathLike):
        raise TypeError(f"folder must be a path, not {_check.shown(folder)}.")
    return Path(folder)


def _reader(name: str, given: Any) -> Callable[[int], object] | None:
    reader: Callable[[int], object] | None = given if callable(given) else getattr(given, "__getitem__", None)
    if given is not None and reader is None:
        raise TypeError(f"{name} must be a function from a sample's position, or an array, not {_check.shown(given)}.")
    return reader


def _appended(table: Mapping[str, Array], row: Columns, epochs: int) -> dict[str, Array]:
    """Return readings by epoch, `[epochs + 1, ...]`, with another last row; NaN where nothing was read."""
    before = {**table} | {name: np.full((epochs, *row[name].shape), np.nan) for name in row if name not in table}
    nothing = {name: np.full(values.shape[1:], np.nan) for name, values in before.items()}
    return {name: np.append(values, [row.get(name, nothing[name])], axis=0) for name, values in before.items()}


def _checked_settings(settings: Mapping[str, Value]) -> dict[str, Value]:
    """Return settings that a record can hold."""
    if not isinstance(settings, Mapping):
        raise TypeError(f"settings must be text and finite numbers by name, not {_check.shown(settings)}.")
    if len(settings) > MOST_SETTINGS:
        raise ValueError(f"settings must be at most {MOST_SETTINGS}, not {len(settings)}.")
    for name, value in settings.items():
        large = isinstance(value, int | float) and not abs(value) <= MOST[int if isinstance(value, int) else float]
        if not isinstance(name, str) or not isinstance(value, str | float | int | bool | None) or large:
            raise TypeError(f"settings must be text and finite numbers by name, not {_check.shown({name: value})}.")
        if name == "id" or name in RUN_COLUMNS:
            raise ValueError(f"A setting cannot be called {name!r}: the table of runs has a column of that name.")
    return dict(settings)
