"""What is written of a stack of runs with every checkpoint: a folder a run.

Assumes that the caller holds the folders. The tables come last: whoever reads them while runs go on finds the rest.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import torch

from aol.ages import SampleAges
from aol.engine.folder import run_folder
from aol.engine.loop import Loop
from aol.engine.results import versions
from aol.engine.words import command
from aol.records.about import About, as_json
from aol.records.files import write_if_new
from aol.records.samples import FILE, write_names, write_samples


class RunRecords:
    """The records of the runs of a loop, in their folders below `out`; `data_dir` is where data was looked for."""

    def __init__(self, loop: Loop, out: Path, data_dir: str | None) -> None:
        self._loop, self._data_dir = loop, data_dir
        self._folders = [run_folder(out, run) for run in loop.runs]
        # Read now, for a damaged table of names is better found before the first epoch; written once, as they stay.
        named = [loop.train.names(row) for row in loop.pool] if loop.samples is not None else []
        self._names = [None if names is None else as_json(names) for names in named]

    def write(self) -> None:
        """Bring the records of every run up to date."""
        loop = self._loop
        for row, (run, folder) in enumerate(zip(loop.runs, self._folders, strict=True)):
            write_if_new(folder / "settings.json", (json.dumps(run.as_dict(), indent=1) + "\n").encode())
            self._about(row).write(folder)
            if loop.samples is not None:
                self._write_samples(row, folder)
            loop.history.write(folder, row, loop.classes)
        self._names = []

    def _write_samples(self, row: int, folder: Path) -> None:
        loop = self._loop
        assert loop.samples is not None
        assert isinstance(loop.ages, SampleAges)
        if self._names:
            write_names(folder, self._names[row])
        write_samples(
            folder / FILE,
            loop.samples.tensors(row),
            index=loop.pool[row],
            label=loop.labels,
            age=loop.ages.age[row],
            ema=loop.ages.ema[row],
            absent=loop.ages.absent,
        )

    def _about(self, row: int) -> About:
        """Return what a run is, for whoever reads its records."""
        loop, run = self._loop, self._loop.runs[row]
        return About(
            method=run.method,
            seed=run.seed,
            classes=list(loop.classes),
            counts=torch.bincount(loop.labels, minlength=loop.num_classes).tolist(),
            epochs=run.epochs,
            versions=versions(loop.device),
            command=command(run, data_dir=self._data_dir, keep_samples=loop.keep_samples),
            data=run.data,
            data_dir=self._data_dir,
            directory=os.getcwd(),
        )
