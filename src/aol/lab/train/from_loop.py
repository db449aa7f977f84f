"""From a loop of the engine to the records of its runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from aol._files import write_atomically
from aol._used import remember
from aol.ages import SampleAges
from aol.lab.data.named import NAMES, find
from aol.lab.data.sources import is_source
from aol.lab.engine.command import command
from aol.lab.engine.history import CLASS, EPOCH
from aol.lab.engine.loop import Loop
from aol.records import samples
from aol.records.record import Run, by_class_of, versions
from aol.records.store import Store

OVER_TIME = ("age", "test_accuracy", "train_accuracy")  # readings by class that studies keep of every epoch


def records_of(
    loop: Loop, *, finished: bool, keep: Sequence[str] | None = None, data_dir: str | None = None
) -> list[Run]:
    """Return the record of every run of a loop, in its order; `keep` names what to keep of every epoch (None: all)."""
    found = versions(loop.device)
    state = loop.history.state_dict()
    by_epoch, by_class = (np.asarray(state[name]) for name in ("by_epoch", "by_class"))
    counts = loop.counts.tolist()
    runs = []
    for row, run in enumerate(loop.runs):
        curves = {name: by_epoch[:, place, row].astype(np.float64) for place, name in enumerate(EPOCH)}
        readings = {name: by_class[:, place, row].astype(np.float32) for place, name in enumerate(CLASS)}
        epochs = curves.pop("epoch").astype(np.int64)
        runs.append(
            Run(
                id=run.run_id,
                method=run.method,
                seed=run.seed,
                settings=run.as_dict(),
                classes=list(loop.classes),
                counts=counts,
                epochs=epochs,
                curves=curves,
                by_class=by_class_of(readings),
                over_time={name: values for name, values in readings.items() if keep is None or name in keep},
                planned=run.epochs,
                finished=finished,
                failed_at_epoch=loop.failed[row] or None,
                seconds=float(f"{curves['seconds'].sum() / len(loop.runs):.4g}"),
                trained_together=len(loop.runs),
                stacking=loop.learner.stacking,
                versions=found,
                command=command(run, data_dir=data_dir, keep_samples=loop.keep_samples),
                data=run.data,
                baseline=run.baseline,
            )
        )
    return runs


def _found(data: str, data_dir: str | None) -> str | None:
    """Return the folder in which a built-in set was found, so that reports find it again; else the one given."""
    place = find(data, data_dir=data_dir) if data in NAMES else None
    return data_dir if place is None else str(place)


def _data_folder(data: str, data_dir: str | None) -> str | None:
    """Return the folder of a data set; None where it is in none."""
    if is_source(data):
        return str(Path("/", data))
    return _found(data, data_dir) if data in NAMES else str(Path(data).expanduser().absolute())


class RecordWriter:
    """Writes the records of a loop's runs, and what is known of each sample, into a store."""

    def __init__(
        self, loop: Loop, store: Store, *, keep: Sequence[str] | None, networks: bool, data_dir: str | None
    ) -> None:
        self._loop, self._store, self._keep, self._networks, self._data_dir = loop, store, keep, networks, data_dir
        # Read now: a damaged table of names is better found before the first epoch.
        if loop.samples is not None and (place := _data_folder(loop.settings.data, data_dir)):
            remember(Path(place))  # a report may then show their pictures
        names = [loop.train.names(row) for row in loop.pool] if loop.samples is not None else []
        self._names = [None if each is None else samples.as_json(each) for each in names]

    def write(self, *, finished: bool) -> None:
        """Bring the records of every run up to date; run.json last, so that whoever reads it finds the rest."""
        loop = self._loop
        for row, run in enumerate(loop.runs):
            if loop.samples is not None:
                self._write_samples(row, self._store.path(run.run_id))
            if finished and self._networks:
                self._write_network(row, self._store.path(run.run_id))
        for record in records_of(loop, finished=finished, keep=self._keep, data_dir=self._data_dir):
            self._store.write(record)
        self._names = []

    def _write_samples(self, row: int, folder: Path) -> None:
        loop = self._loop
        assert loop.samples is not None
        assert isinstance(loop.ages, SampleAges)
        if self._names:
            samples.write_names(folder, self._names[row])
        samples.write_samples(
            folder / samples.FILE,
            loop.samples.tensors(row),
            run=loop.runs[row].run_id,
            index=loop.pool[row],
            label=loop.labels,
            age=loop.ages.age[row],
            ema=loop.ages.ema[row],
            absent=loop.ages.absent,
        )

    def _write_network(self, row: int, folder: Path) -> None:
        from safetensors.torch import save

        write_atomically(folder / "network.safetensors", save(self._loop.learner.network(row)))
