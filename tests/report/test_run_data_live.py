"""A folder that is read again and again while it is written: never a mistake, never an epoch less than before."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from aol.report.run_data import load
from aol.runs.store import NoRunsError


def test_stories_of_a_run_under_way_are_whole_at_any_moment(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "aol", "train", "--epochs", "60", "--weighting", "none,aol", "--keep-samples"]
    words += ["--checkpoint-seconds", "0", "--fraction", "0.5", "--out", str(tmp_path / "run"), "--json"]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2] / "src"), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(words, env=environment, stdout=subprocess.DEVNULL)
    looked, lengths = 0, {}
    deadline = time.monotonic() + 120
    try:
        while process.poll() is None and time.monotonic() < deadline:
            try:
                runs = load(tmp_path / "run")
            except NoRunsError:
                assert not lengths  # before anything was asked for
                continue
            for data in runs:
                looked += 1
                assert data.samples is not None
                length = len(data.run.epochs)
                assert data.run.epochs.tolist() == list(range(1, length + 1))
                assert len(data.run.over_time["age"]) == len(data.samples.history([0])) == length
                assert length >= lengths.get(data.name, 0)
                lengths[data.name] = length
                assert data.run.command is not None
                last = data.samples.history(np.arange(len(data.samples)))[-1]
                assert (last == data.samples.age).all()
    finally:
        process.kill()
        process.wait()
    assert looked > 5
    assert {data.name: len(data.run.epochs) for data in load(tmp_path / "run")} == dict.fromkeys(lengths, 60)
    assert all(data.run.finished for data in load(tmp_path / "run"))
