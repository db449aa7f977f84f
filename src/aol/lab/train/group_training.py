"""Train one group of runs as one network, with checkpoints, and write their records; nothing else drives a loop."""

from __future__ import annotations

import contextlib
import os
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save

from aol import _distributed
from aol._files import write_atomically
from aol.ages import SampleAges
from aol.lab.data.images import ImageSet
from aol.lab.engine.device import launched, one_thread
from aol.lab.engine.learner import make_network, network_name, step_bytes
from aol.lab.engine.loop import CLASS, EPOCH, Loop
from aol.lab.engine.source import AnyPair, AnySplit, data_of, input_shape, pool
from aol.lab.nets.stacked import obstacle
from aol.lab.settings import MARGINS, WEIGHTINGS, Settings, WrongSettingsError, word
from aol.lab.train.folder import RunGroup, load_checkpoint, save_checkpoint
from aol.lab.train.progress import Progress, Stop
from aol.longtail import long_tail_counts
from aol.records import samples
from aol.records.previews import TEST as TEST_PREVIEWS
from aol.records.previews import save_previews, worth_seeing
from aol.records.record import Run, by_class_of, versions
from aol.records.recorder import MOST_TESTED
from aol.records.store import Store

_SHARE_OF_TIME = 0.05  # that writing checkpoints and records may take
_FEW_PIXELS, _SLOW_PIXELS = 256, 128  # of an image, and of its side
# Steps are captured for a full batch and for the last, smaller one, each with its own memory; evaluation batches have a
# fixed number of images whatever the number of runs.
_CAPTURES = 2.2
_USABLE = 0.9  # of the free memory of a GPU
# Settings whose defaults depend on the data set or the command: always part of the command that repeats a run.
_ALWAYS = ("epochs", "batch_size", "imbalance", "seed")


@dataclass(frozen=True)
class ExecutionOptions:
    """How runs are trained: what makes no difference to the result, except for rounding."""

    device: torch.device
    together: int | None = None  # the most runs in a group; by default what suits the device
    workers: int | None = None  # processes that decode large images; by default one a core where the device is a GPU
    keep_samples: bool = False  # keep the answer to every sample at every epoch, and so its age
    checkpoint_seconds: float = 30.0  # the least time between two checkpoints; 0: one after every epoch
    minutes: float | None = None  # stop after this time; everything done so far is kept
    networks: bool = True  # keep the trained networks
    data_dir: str | None = None  # where the data sets were looked for


def most_together(runs: Sequence[Settings], pair: AnyPair, options: ExecutionOptions) -> tuple[int, str | None]:
    """Return how many of some runs that are alike to train as one network; where they train alone, also why.

    Small images leave a core, or a GPU, idle between short operations.
    """
    run, shape = runs[0], input_shape(runs[0], pair)
    if launched()[1] > 1:
        return 1, "several processes share every batch"
    if not isinstance(pair.train, ImageSet):
        return 1, "large images are trained one run at a time"
    if reason := obstacle(make_network(run, pair.num_classes, shape)):
        return 1, reason
    if options.together:
        return options.together, None
    if options.device.type == "cpu":
        return 1 if shape[1] * shape[2] > _FEW_PIXELS else 8 if run.batch_size <= 64 else 4, None
    # Memory grows at most linearly with the number of runs; the data set is shared by all.
    free = _USABLE * torch.cuda.mem_get_info(options.device)[0]
    fit = int(free / (_CAPTURES * max(1, step_bytes(run, shape, pair.num_classes, options.device))))
    return max(1, min(256 if network_name(run.net, shape) == "cnn" else 64, fit)), None


def check(runs: Sequence[Settings], pairs: Mapping[str, AnyPair], options: ExecutionOptions) -> str | None:
    """Raise what can be known to be wrong before anything is written or trained; return a warning."""
    warning = None
    if options.keep_samples and any(run.scenario == "stream" or run.signal == "none" for run in runs):
        raise WrongSettingsError(
            "--keep-samples keeps the ages of samples: a stream has ages of classes only, and signal='none' has none."
        )
    for run in {run.group_key: run for run in runs}.values():
        pair = pairs[run.data]
        if pair.num_classes < 2:
            raise WrongSettingsError(f"data={run.data!r} has a single class; at least two are needed.")
        shape, seen = input_shape(run, pair), data_of(run, pairs)
        pool(run, seen.train.labels, seen.shortcut)
        try:
            make_network(run, pair.num_classes, shape)
        except ValueError as error:
            name = f"net={network_name(run.net, shape)!r}"
            raise WrongSettingsError(f"{name} does not fit the images of {pair.name}: {error}.") from error
        if options.device.type == "cpu" and shape[1] >= _SLOW_PIXELS:
            text = f"images of {shape[1]} pixels train slowly on a CPU: add --image-size 64, or use a GPU."
            warning = f"Warning: {text}"
    return warning


@dataclass
class Context:
    """What groups of runs are trained with.

    `keep` names the readings by class to keep of every epoch (None: all). Results must not be split over two folders:
    `check_place` raises if that of the store was moved or deleted since.
    """

    store: Store
    pairs: Mapping[str, AnyPair]
    options: ExecutionOptions
    progress: Progress
    keep: Sequence[str] | None = None

    def __post_init__(self) -> None:
        self._known = self.store.folder.stat()

    def check_place(self) -> None:
        """Raise if the folder was moved or deleted."""
        with contextlib.suppress(OSError):
            if os.path.samestat(self.store.folder.stat(), self._known):
                return
        raise RuntimeError(
            f"{self.store.folder} was moved or deleted while runs were trained into it: training has stopped. "
            "`aol resume` continues from the last checkpoint in the folder where it is now."
        )


def make_loop(runs: Sequence[Settings], pairs: Mapping[str, AnyPair], options: ExecutionOptions) -> Loop:
    """Return the loop that trains a group, before its first epoch."""
    data = data_of(runs[0], pairs)
    return Loop(runs, data, device=options.device, workers=options.workers, keep_samples=options.keep_samples)


def train_group(group: RunGroup, context: Context, stop: Stop) -> bool:
    """Train runs as one network and write their records; False if it was stopped, with its state in the checkpoint."""
    options, progress, pairs, run = context.options, context.progress, context.pairs, group.runs[0]
    shape, writes = input_shape(run, pairs[run.data]), _distributed.world()[0] == 0
    # Its operations are too short to be shared by threads.
    small = network_name(run.net, shape) == "cnn" and shape[1] * shape[2] <= _FEW_PIXELS
    saved, saving = time.monotonic(), 0.0

    def save(finished: bool) -> None:
        context.check_place()
        if not finished:
            save_checkpoint(group.checkpoint, loop.state_dict())
        write_records(loop, context, finished=finished)

    with one_thread(small and options.device.type == "cpu"), contextlib.closing(_resumed(group, context)) as loop:
        progress.begin(loop.runs, loop.epoch, describe(loop))
        loop.on_batch = progress.within
        while not loop.done:
            start = time.monotonic()
            loop.run_epoch()
            progress.reach(loop.runs, loop.epoch, describe(loop))
            stopping = not loop.done and stop.before(1.25 * (time.monotonic() - start) + saving)
            pause = max(options.checkpoint_seconds, saving / _SHARE_OF_TIME) if options.checkpoint_seconds else 0.0
            if writes and not loop.done and (stopping or time.monotonic() - saved >= pause):
                start = time.monotonic()
                save(False)
                saved = time.monotonic()
                saving = saved - start
            if stopping:
                return False
        if writes:
            save(True)
    return True


def _resumed(group: RunGroup, context: Context) -> Loop:
    """Return the loop where its checkpoint left it; from the start where that cannot be used."""
    loop = make_loop(group.runs, context.pairs, context.options)
    if text := imbalance_note(loop):
        context.progress.say_once(text)
    if not group.checkpoint.exists():
        return loop
    try:
        state = load_checkpoint(group.checkpoint)
        if state.get("keep_samples") != loop.keep_samples:
            raise WrongSettingsError("These runs were begun with the other choice of --keep-samples: repeat it.")
        loop.load_state_dict(state)
    except (ValueError, TypeError, KeyError, IndexError, RuntimeError) as error:  # damaged, or of another version
        if isinstance(error, WrongSettingsError) or is_out_of_memory(error):
            raise
        why = str(error).splitlines()[0]
        context.progress.say(f"{len(group.runs)} runs start again from the first epoch: {why}.")
        return make_loop(group.runs, context.pairs, context.options)
    context.progress.say(f"Continuing {len(loop.runs)} runs after epoch {loop.epoch}.")
    return loop


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error means that memory is used up; on a CPU it is a plain RuntimeError that says so."""
    plain = isinstance(error, RuntimeError) and "allocate memory" in str(error)
    return plain or isinstance(error, MemoryError | torch.OutOfMemoryError)


def describe(loop: Loop) -> str:
    """Return what a loop does, in a few words."""
    run = loop.settings
    what = run.data if run.imbalance is None else f"{run.data}, imbalance {run.imbalance:g}"
    many = f"{len(loop.runs)} runs as one network" if len(loop.runs) > 1 else "one run"
    text = f"Training {many} ({what}): epoch {loop.epoch}/{run.epochs}"
    if not len(loop.history):
        return text
    test, speed = (loop.history.epoch(name)[-1] for name in ("test_accuracy", "images_per_second"))
    low, high = (f"{100 * float(value):.1f}" for value in (test.min(), test.max()))
    accuracy = "" if low == "nan" else f", test {low} %" if low == high else f", test {low} to {high} %"
    return f"{text}, {float(speed[0]):,.0f} images/s{accuracy}"


def imbalance_note(loop: Loop) -> str | None:
    """Return a sentence where the smallest class of a long tail should have less than one sample; else None."""
    run, counts = loop.settings, loop.counts.cpu()
    if run.imbalance is None:
        return None
    if run.scenario == "stream" and run.stream == "shifting":
        counts = long_tail_counts(int(counts.min()), loop.num_classes, run.imbalance)
    largest, smallest = int(counts.max()), int(counts.min())
    if largest >= run.imbalance:
        return None
    became = f"it became {largest / smallest:g}, because the largest class has {largest:,} samples"
    return f"Imbalance {run.imbalance:g} is not possible with {run.data}: {became} and the smallest {smallest:,}."


# Records


def write_records(loop: Loop, context: Context, *, finished: bool) -> None:
    """Bring the records of every run up to date; run.json last, so that whoever reads it finds the rest."""
    store, options, keep = context.store, context.options, context.keep
    for row, run in enumerate(loop.runs):
        folder = store.path(run.run_id)
        if loop.samples is not None:
            _write_samples(loop, data_of(run, context.pairs), row, folder, finished=finished)
        if finished and options.networks:
            write_atomically(folder / "network.safetensors", save(loop.learner.network(row)))
    state = loop.history.state_dict()
    by_epoch, by_class = (np.asarray(state[name]) for name in ("by_epoch", "by_class"))
    for row, run in enumerate(loop.runs):
        curves = {name: by_epoch[:, place, row].astype(np.float64) for place, name in enumerate(EPOCH)}
        readings = {name: by_class[:, place, row].astype(np.float32) for place, name in enumerate(CLASS)}
        record = Run(
            id=run.run_id,
            method=run.method,
            seed=run.seed,
            settings=run.as_dict(),
            classes=list(loop.classes),
            counts=loop.counts.tolist(),
            epochs=curves.pop("epoch").astype(np.int64),
            curves=curves,
            by_class=by_class_of(readings),
            over_time={name: values for name, values in readings.items() if keep is None or name in keep},
            planned=run.epochs,
            finished=finished,
            failed_at_epoch=loop.failed[row] or None,
            seconds=float(f"{curves['seconds'].sum() / len(loop.runs):.4g}"),
            trained_together=len(loop.runs),
            stacking=loop.learner.stacking,
            versions=versions(loop.device),
            command=command(run, data_dir=options.data_dir, keep_samples=loop.keep_samples),
            data=run.data,
            baseline=run.baseline,
        )
        store.write(record)


def _write_samples(loop: Loop, pair: AnyPair, row: int, folder: Path, *, finished: bool) -> None:
    assert loop.samples is not None
    assert isinstance(loop.ages, SampleAges)
    kept, index, ema = loop.samples.tensors(row), loop.pool[row], loop.ages.ema[row]
    if finished or not (folder / samples.IDS).exists():  # a million names are many, and they stay the same
        samples.write_names(folder, loop.train.names(index))
    columns = {"index": index, "label": loop.labels, "age": loop.ages.age[row], "ema": ema, **kept}
    samples.write_samples(folder / samples.FILE, columns, run=loop.runs[row].run_id, absent=loop.ages.absent)
    if finished:  # pictures of the oldest and most suspicious samples, for reports
        rows = worth_seeing(loop.labels.cpu(), ema.cpu(), kept["mean_margin"])
        image = _reader(pair.train)
        save_previews(folder, rows, image=lambda place: image(int(index[place])))
    if loop.test_answers is not None:
        prediction, confidence, top, _ = loop.test_answers[:, row].cpu()
        answers = torch.stack((loop.test.labels.cpu().to(top), prediction, confidence, top), 1)
        samples.write_tested(folder / samples.TEST, answers, run=loop.runs[row].run_id)
        if finished:
            mistakes = samples.surest_mistakes(answers.numpy())[:MOST_TESTED].tolist()
            save_previews(folder, mistakes, image=_reader(pair.test), file=TEST_PREVIEWS)


def _reader(images: AnySplit) -> Callable[[int], object]:
    return images.images.__getitem__ if isinstance(images, ImageSet) else images.whole


def command(run: Settings, *, data_dir: str | None = None, keep_samples: bool = False) -> str:
    """Return the command that repeats a run: every setting that differs from its default.

    >>> command(Settings(weighting="aol", rho=0.3))
    'aol train --imbalance 50 --epochs 30 --batch-size 128 --weighting aol --rho 0.3 --seed 0'
    """
    stream = run.scenario == "stream"
    words = ["aol", "stream" if stream else "train"]
    shown = {*_ALWAYS, *MARGINS[run.margin].settings, *({"rho"} & {*WEIGHTINGS[run.weighting].settings})}
    shown |= {"schedule", "warmup"} if stream else set()
    if run.scenario == "arrival" or (stream and run.stream == "access"):
        shown |= {"fraction"}
    usual = replace(run, divide_by="auto", warmup=None)
    defaults = {field.name: field.default for field in fields(Settings)} | {"scenario": run.scenario}
    defaults |= {name: getattr(usual, name) for name in ("divide_by", "warmup")}
    for name, value in run.as_dict().items():
        if name in shown or value != defaults[name]:
            words += ["--steps" if stream and name == "epochs" else f"--{name.replace('_', '-')}", word(value)]
    if data_dir is not None:
        words += ["--data-dir", data_dir]
    return shlex.join([*words, *(["--keep-samples"] if keep_samples else [])])
