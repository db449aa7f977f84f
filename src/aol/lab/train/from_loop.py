"""From a loop of the engine to the records of its runs, and the command that repeats a run."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save

from aol._files import write_atomically
from aol.ages import SampleAges
from aol.lab.data.encoded_images import StoredImages
from aol.lab.data.images import ImageSet
from aol.lab.engine.loop import CLASS, EPOCH, Loop
from aol.lab.engine.source import AnyPair
from aol.lab.settings import MARGINS, WEIGHTINGS, Settings, word
from aol.records import samples
from aol.records.previews import TEST as TEST_PREVIEWS
from aol.records.previews import save_previews, worth_seeing
from aol.records.record import Run, by_class_of, versions
from aol.records.recorder import MOST_TESTED
from aol.records.store import Store

OVER_TIME = ("age", "test_accuracy", "train_accuracy")  # readings by class that studies keep of every epoch


def write_records(
    loop: Loop,
    pair: AnyPair,
    store: Store,
    *,
    finished: bool,
    keep: Sequence[str] | None = None,
    networks: bool = True,
    data_dir: str | None = None,
) -> None:
    """Bring the records of every run up to date; run.json last, so that whoever reads it finds the rest.

    `keep` names the readings by class to keep of every epoch (None: all).
    """
    for row, run in enumerate(loop.runs):
        folder = store.path(run.run_id)
        if loop.samples is not None:
            _write_samples(loop, pair, row, folder, finished=finished)
        if finished and networks:
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
            command=command(run, data_dir=data_dir, keep_samples=loop.keep_samples),
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


def _reader(images: ImageSet | StoredImages) -> Callable[[int], object]:
    return images.images.__getitem__ if isinstance(images, ImageSet) else images.whole


# Settings whose defaults depend on the data set or the command: always part of the command.
_ALWAYS = ("epochs", "batch_size", "imbalance", "seed")


def command(run: Settings, *, data_dir: str | None = None, keep_samples: bool = False) -> str:
    """Return the command that repeats a run: every setting that differs from its default.

    >>> command(Settings(weighting="aol", rho=0.3))
    'aol train --imbalance 50 --epochs 30 --batch-size 128 --weighting aol --rho 0.3 --seed 0'
    """
    stream = run.scenario == "stream"
    words = ["aol", "stream" if stream else "train"]
    shown = {*_ALWAYS, *MARGINS[run.margin].settings}
    if stream:
        shown |= {"schedule", "warmup"}
    if run.scenario == "arrival" or (stream and run.stream == "access"):
        shown |= {"fraction"}
    if "rho" in WEIGHTINGS[run.weighting].settings:
        shown |= {"rho"}
    usual = replace(run, divide_by="auto", warmup=None)
    for field in fields(Settings):
        value = getattr(run, field.name)
        if field.name in {"divide_by", "warmup"} - shown and value == getattr(usual, field.name):
            continue
        if field.name != "scenario" and (field.name in shown or value != field.default):
            flag = "steps" if stream and field.name == "epochs" else field.name.replace("_", "-")
            words += [f"--{flag}", word(value)]
    if data_dir is not None:
        words += ["--data-dir", data_dir]
    return shlex.join([*words, *(["--keep-samples"] if keep_samples else [])])
